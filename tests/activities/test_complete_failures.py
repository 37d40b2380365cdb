"""Failures of the model and of the store."""

import asyncio
import itertools
from datetime import timedelta
from typing import Any

import pytest
from temporalio.testing import ActivityEnvironment

from activities.request_builder import RequestBuilder
from perdure.agent import Agent
from perdure.contract import CompleteRequest
from perdure.errors import StoreUnavailable
from perdure.limits import Budget, Limits
from perdure.messages import TextPart
from perdure.policy import ErrorType
from perdure.testing import Failure, Reply, ScriptedModel
from stores.memory import MemoryStore
from tests.activities.conversation import Conversation, FaultyStore, failed, requests_of, scripted, until


@pytest.mark.parametrize(
    ("failure", "retryable", "words"),
    [
        (Failure(429, retry_after_s=7.0), True, "rate limit"),
        (Failure(500), True, "failed"),
        (Failure(503), True, "overloaded or unavailable"),
        (Failure(None), True, "cannot be reached"),
        (Failure(400), False, "refused the request"),
        (Failure(401), False, "key was refused"),
        (Failure(403), False, "key was refused"),
        (Failure(404), False, "no such model"),
    ],
)
async def test_a_providers_error_says_what_happened_and_whether_it_is_tried_again(
    failure: Failure, retryable: bool, words: str
) -> None:
    """Status codes and lost connections become one failure each, with the delay that the provider asked for."""
    thread = await Conversation.start(scripted([Reply("ok", failures=[failure])]))
    await thread.say("hi")
    found = await failed(thread.complete())
    assert found.type == ErrorType.MODEL
    assert found.non_retryable is not retryable
    assert words in found.message
    assert "\n" not in found.message
    expected = timedelta(seconds=7) if failure.retry_after_s else None
    assert found.next_retry_delay == expected


async def test_a_refused_key_is_not_quoted() -> None:
    """What the provider says about a key may hold the key."""
    thread = await Conversation.start(scripted([Reply("ok", failures=[Failure(401, body="bad key sk-secret")])]))
    await thread.say("hi")
    assert "sk-secret" not in (await failed(thread.complete())).message


async def test_a_missing_key_is_a_configuration_error(monkeypatch: pytest.MonkeyPatch) -> None:
    """A model that cannot be set up fails for good, with the line that says what to do."""
    monkeypatch.delenv("OPENAI_API_KEY", raising=False)
    monkeypatch.delenv("OPENAI_BASE_URL", raising=False)
    thread = await Conversation.start(Agent("a", model="openai:gpt-5"))
    await thread.say("hi")
    failure = await failed(thread.complete())
    assert (failure.type, failure.non_retryable) == (ErrorType.CONFIGURATION, True)
    assert "OPENAI_API_KEY" in failure.message


@pytest.mark.parametrize(("owner", "name"), [(MemoryStore, "get_spending"), (RequestBuilder, "build")])
async def test_what_was_asked_in_vain_is_counted_if_the_next_model_is_not_asked(
    owner: type, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The store goes away when the budget is read again, or the next request is made. What has failed is paid for."""
    asked = [ScriptedModel([Reply("no", failures=[Failure(500)])]), ScriptedModel(["yes"])]
    agent = Agent("a", model=asked[0], fallbacks=asked[1:], limits=Limits(turn=Budget(model_calls=9)))
    thread = await Conversation.start(agent)
    await thread.say("hi")
    works, calls = getattr(owner, name), itertools.count(1)

    async def away_at_the_second(*args: Any, **kwargs: Any) -> Any:
        if next(calls) == 2:
            raise StoreUnavailable("The database cannot be reached.")
        return await works(*args, **kwargs)

    monkeypatch.setattr(owner, name, away_at_the_second)
    assert (await failed(thread.complete())).type == ErrorType.STORE
    await thread.activities.close()
    assert [len(model.requests) for model in asked] == [1, 0]
    assert (await thread.store.get_thread("t")).usage.requests == 1


async def test_an_unknown_agent_and_a_bug_fail_for_good() -> None:
    """Neither gets better by trying again."""
    no_replies: dict[str, str] = {}
    thread = await Conversation.start(scripted(lambda asked: no_replies[asked.user_text]))
    await thread.say("hi")
    failure = await failed(thread.complete())
    assert (failure.type, failure.non_retryable) == (ErrorType.BUG, True)
    assert "KeyError" in failure.message
    request = CompleteRequest(thread_id="t", agent="nobody", turn=1)
    failure = await failed(thread.activities.execute(request))
    assert (failure.type, failure.non_retryable) == (ErrorType.USAGE, True)


async def test_b08_a_failed_read_is_an_error_and_not_an_empty_conversation() -> None:
    """B08: while the path cannot be read the model is not asked; afterwards it gets all of it."""
    agent = scripted(["one", "two"])
    thread = await Conversation.start(agent, FaultyStore())
    await thread.say("first")
    await thread.commit(await thread.complete())
    await thread.say("continue")
    assert isinstance(thread.store, FaultyStore)
    thread.store.away["load"] = 1
    failure = await failed(thread.complete())
    assert (failure.type, failure.non_retryable) == (ErrorType.STORE, False)
    assert len(requests_of(agent).requests) == 1
    await thread.complete(2)
    assert len(requests_of(agent).requests[1].messages) == 3


async def test_a_lost_reply_of_the_store_doubles_no_word() -> None:
    """A batch whose reply was lost is followed by whole parts, so that neither readers nor a stop see words twice."""
    reply = Reply("one two three four five six", chunk_chars=2, delay_s=0.03, hang=True)
    thread = await Conversation.start(scripted([reply]), FaultyStore(append=2))
    await thread.say("count")
    environment = ActivityEnvironment()
    running = asyncio.create_task(thread.complete(environment=environment))

    async def all_words() -> bool:
        live = (await thread.store.snapshot("t")).live
        return live is not None and live.parts == (TextPart(text="one two three four five six"),)

    await until(all_words)
    environment.cancel()
    await asyncio.wait({running})
    await thread.stop()
    assert await thread.parts() == (TextPart(text="one two three four five six"),)


async def test_an_answer_waits_for_the_store_and_is_not_asked_for_again() -> None:
    """The store is away when the answer is complete: it is kept and stored later, the model is asked once."""
    agent = scripted(["paid for"])
    thread = await Conversation.start(agent, FaultyStore(finish=2))
    await thread.say("hi")
    await thread.commit(await thread.complete())
    assert await thread.parts() == (TextPart(text="paid for"),)
    assert len(requests_of(agent).requests) == 1
