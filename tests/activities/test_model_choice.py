"""Which models are asked, in which order, with which settings."""

import asyncio
import threading
from collections.abc import AsyncGenerator
from typing import Any, get_args

import pytest
from pydantic_ai.exceptions import ContentFilterError
from pydantic_ai.settings import ThinkingEffort

from activities.model_choice import KEPT_MODELS, ModelChoice
from perdure import models
from perdure.agent import Agent
from perdure.contract import CompleteRequest
from perdure.errors import ConfigurationError, StoreUnavailable
from perdure.messages import Message, TextPart, TurnOptions, Usage
from perdure.policy import ErrorType
from perdure.records import Path, Summary
from perdure.testing import Call, Failure, Reply, ScriptedModel, Think
from perdure.thinking import Effort
from tests.activities.conversation import Conversation, failed
from tests.eventually import eventually

REQUEST = CompleteRequest(thread_id="t", agent="a", turn=2)
HERE = {"base_url": "http://127.0.0.1:9/v1"}


def path(options: TurnOptions | None = None, **fields: Any) -> Path:
    """A conversation of two turns, whose second question wants to be answered like this."""
    messages = (
        Message(id="u1", thread_id="root", role="user", options=TurnOptions(model="openai:old")),
        Message(id="a1", thread_id="root", role="assistant", turn=1),
        Message(id="u2", thread_id="t", role="user", options=options),
        Message(id="a2", thread_id="t", role="assistant", turn=2),
    )
    return Path(messages=messages, **fields)


def names(agent: Agent, path: Path) -> list[str]:
    """The models that are asked, in order."""
    return [candidate.name for candidate in ModelChoice().candidates(agent, path, REQUEST)]


def settings_of(agent: Agent, path: Path) -> list[dict[str, Any]]:
    """Their settings."""
    return [dict(candidate.settings) for candidate in ModelChoice().candidates(agent, path, REQUEST)]


@pytest.fixture
async def choice() -> AsyncGenerator[ModelChoice]:
    """A choice that is closed at the end."""
    made = ModelChoice()
    yield made
    await made.close()


def test_the_words_come_before_the_thread_and_the_thread_before_the_agent() -> None:
    """The newest words of this turn that say so; those of earlier turns count no more. Fallbacks follow."""
    agent = Agent("a", model="openai:agent", fallbacks=["openai:spare", "anthropic:spare"])
    spare = ["openai:spare", "anthropic:spare"]
    assert names(agent, path()) == ["openai:agent", *spare]
    assert names(agent, path(model="openai:thread")) == ["openai:thread", *spare]
    assert names(agent, path(TurnOptions(model="openai:words"), model="openai:thread")) == ["openai:words", *spare]
    assert names(agent, path(TurnOptions(model="anthropic:spare"))) == ["anthropic:spare", "openai:spare"]


def test_the_newest_of_several_words_counts() -> None:
    """A turn that answers two messages takes the options of the later one that has some."""
    first, answer, second, own = path(TurnOptions(model="openai:words")).messages
    later = Message(id="u3", thread_id="t", role="user", options=TurnOptions(model="openai:later"))
    plain = Message(id="u4", thread_id="t", role="user")
    agent = Agent("a", model="openai:agent")
    assert names(agent, Path(messages=(first, answer, second, later, plain, own))) == ["openai:later"]


def test_only_models_that_the_agent_allows_may_be_chosen() -> None:
    """The sentence lists them; the agent's own model and its fallbacks may always be named."""
    agent = Agent("a", model="openai:agent", models=["openai:other"], fallbacks=["openai:spare"])
    assert names(agent, path(TurnOptions(model="openai:other")))[0] == "openai:other"
    assert names(agent, path(TurnOptions(model="openai:spare"))) == ["openai:spare"]
    for wanted in (path(TurnOptions(model="openai:pro")), path(model="openai:pro")):
        with pytest.raises(ConfigurationError) as caught:
            names(agent, wanted)
        assert str(caught.value) == (
            "The model 'openai:pro' may not be chosen with agent 'a'; it allows openai:agent, openai:other."
        )


def test_settings_of_the_words_are_merged_over_those_of_the_agent() -> None:
    """For every model that is asked."""
    agent = Agent("a", model="openai:x", settings={"temperature": 0.5, "thinking": "low"}, fallbacks=["openai:y"])
    merged = settings_of(agent, path(TurnOptions(settings={"thinking": "high"})))
    assert merged == [{"temperature": 0.5, "thinking": "high"}] * 2


@pytest.mark.parametrize("name", ["base_url", "api_key_env", "extra_headers", "extra_body", "tool_choice"])
def test_words_cannot_say_where_requests_go(name: str) -> None:
    """Words come from people who must not have the worker's key sent to a server of theirs."""
    agent = Agent("a", model="openai:x")
    with pytest.raises(ConfigurationError, match=f"cannot set {name}; it can set cache, "):
        settings_of(agent, path(TurnOptions(settings={name: "http://evil.example"})))


@pytest.mark.parametrize(
    ("settings", "named"),
    [({"thinking": "loads"}, "thinking"), ({"max_tokens": "many"}, "max_tokens"), ({"stop_sequences": "x"}, "stop_")],
)
def test_settings_that_cannot_be_are_named(settings: dict[str, Any], named: str) -> None:
    """A person's slip is told as one, and not as a bug of the client that stumbles over it."""
    with pytest.raises(ConfigurationError, match=f"sets {named}.* to what it cannot be: "):
        settings_of(Agent("a", model="openai:x"), path(TurnOptions(settings=settings)))


def test_how_much_a_model_may_think_is_listed() -> None:
    """By the levels that the commands take."""
    with pytest.raises(ConfigurationError) as caught:
        settings_of(Agent("a", model="openai:x"), path(TurnOptions(settings={"thinking": "loads"})))
    assert str(caught.value) == (
        "A message to agent 'a' sets thinking to what it cannot be: 'loads' is none of minimal, low, medium, high, "
        "xhigh, max, True, False."
    )


def test_every_effort_that_models_know_is_one() -> None:
    """As many as the library that asks them takes, of agents and of words."""
    assert get_args(Effort) == get_args(ThinkingEffort)
    for effort in (*get_args(Effort), True, False):
        agent = Agent("a", model="openai:x", settings={"thinking": effort})
        assert settings_of(agent, path(TurnOptions(settings={"thinking": effort}))) == [{"thinking": effort}]


def test_the_agents_server_and_key_go_to_models_of_its_provider_only() -> None:
    """A fallback of another provider is asked where it lives."""
    agent = Agent("a", model="openai:x", settings={**HERE, "top_p": 1}, fallbacks=["llama3:8b", "anthropic:y"])
    assert settings_of(agent, path()) == [{**HERE, "top_p": 1}, {**HERE, "top_p": 1}, {"top_p": 1}]


def test_the_beginning_of_a_conversation_names_it() -> None:
    """A child that inherits its parent's words has their beginning; after a compaction it begins with that."""
    (candidate,) = ModelChoice().candidates(Agent("a", model="openai:x"), path(), REQUEST)
    assert candidate.conversation == "root"
    summary = Summary(id="s", thread_id="t", message_id="a1", parts=1, text="so far")
    (candidate,) = ModelChoice().candidates(Agent("a", model="openai:x"), path(summary=summary), REQUEST)
    assert candidate.conversation == "t"


async def test_a_model_is_made_once(choice: ModelChoice) -> None:
    """The same name at the same server is the same object; another server is another one."""
    agents = [Agent("a", model="openai:x", settings=HERE), Agent("b", model="openai:x", settings=HERE)]
    elsewhere = Agent("c", model="openai:x", settings={"base_url": "http://127.0.0.1:10/v1"})
    opened = [await choice.open(choice.candidates(agent, path(), REQUEST)[0]) for agent in (*agents, elsewhere)]
    assert opened[0].model is opened[1].model
    assert opened[0].model is not opened[2].model


async def test_a_model_that_is_made_keeps_no_other_one_waiting(
    choice: ModelChoice, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Those at hand are at hand while another's client is imported, which may take seconds; each is made once."""
    agent = Agent("a", model="openai:x", settings=HERE)

    def named(name: str) -> Any:
        return choice.candidates(agent, path(TurnOptions(model=name)), REQUEST)[0]

    known = await choice.open(named("openai:known"))
    released, made, resolve = threading.Event(), list[str](), models.resolve

    def slowly(name: str, settings: Any) -> Any:
        made.append(name)
        released.wait(10)
        return resolve(name, settings)

    monkeypatch.setattr(models, "resolve", slowly)
    new = [asyncio.create_task(choice.open(named("openai:new"))) for _ in range(2)]
    await eventually(lambda: bool(made))
    assert (await choice.open(named("openai:known"))).model is known.model
    assert not any(task.done() for task in new)
    released.set()
    first, second = await asyncio.gather(*new)
    assert first.model is second.model
    assert made == ["openai:new"]


async def test_models_by_name_are_bounded(choice: ModelChoice) -> None:
    """However many names come, only so many stay; one that is in use is not closed."""
    agent = Agent("a", model="openai:x", settings=HERE)

    async def ask(name: str) -> Any:
        return await choice.open(choice.candidates(agent, path(TurnOptions(model=name)), REQUEST)[0])

    first = await ask("openai:first")
    idle = (await ask("openai:idle")).model
    for number in range(KEPT_MODELS + 5):
        await ask(f"openai:m{number}")
    assert len(choice._kept) <= KEPT_MODELS
    assert (await ask("openai:first")).model is first.model
    assert (await ask("openai:idle")).model is not idle


async def test_a_message_fails_its_turn_only() -> None:
    """What words ask for and may not have is a failure that no other try helps with, of their turn."""
    thread = await Conversation.start(Agent("a", model=ScriptedModel(["fine"]), models=[]))
    await thread.say("go", options=TurnOptions(model="openai:pro"))
    failure = await failed(thread.complete())
    assert (failure.type, failure.non_retryable) == (ErrorType.CONFIGURATION, True)
    assert "may not be chosen" in failure.message
    await thread.stop()
    await thread.say("go on")
    assert (await thread.complete()).preview == "fine"


async def test_a_limit_of_the_message_is_the_one_that_cut_it_off() -> None:
    """B31, the variant that says `tool_calls`: the count of tokens is compared with the limit that was sent."""
    reply = Reply(Call("look", '{"a": 1}'), usage=Usage(input_tokens=1, output_tokens=5))
    agent = Agent("a", model=ScriptedModel([reply]))

    @agent.tool
    async def look(a: int) -> str:
        return str(a)

    thread = await Conversation.start(agent)
    await thread.say("go", options=TurnOptions(settings={"max_tokens": 5}))
    (call,) = (await thread.complete()).calls
    assert call.error is not None
    assert "cut off" in call.error


async def test_a_fallback_without_a_key_is_not_in_the_way(monkeypatch: pytest.MonkeyPatch) -> None:
    """It is not even made while the first one answers."""
    monkeypatch.delenv("ANTHROPIC_API_KEY", raising=False)
    thread = await conversation(ScriptedModel(["fine"]), "anthropic:claude-opus-4-8", "openia:typo")
    assert (await thread.complete()).preview == "fine"


async def conversation(first: Any, *fallbacks: Any) -> Conversation:
    """A thread in which something was said, with these models."""
    thread = await Conversation.start(Agent("a", model=first, fallbacks=fallbacks))
    await thread.say("go")
    return thread


@pytest.mark.parametrize("status", [401, 402, 404, 429, 500, 503, 529, None])
async def test_the_next_model_is_asked_when_the_first_cannot_answer(status: int | None) -> None:
    """Limits, keys, names, servers: the outcome names who answered, and counts both."""
    first = ScriptedModel([Reply("no", failures=[Failure(status)])], name="first")
    thread = await conversation(first, ScriptedModel(["yes"], name="second"))
    outcome = await thread.complete()
    assert (outcome.preview, outcome.model, outcome.usage.requests) == ("yes", "second", 2)
    await thread.commit(outcome)
    assert await thread.parts() == (TextPart(text="yes"),)


async def test_a_first_model_that_cannot_be_used_falls_back() -> None:
    """A missing key of the first is a reason to ask the second."""
    thread = await conversation("deepseek:chat", ScriptedModel(["yes"], name="second"))
    assert (await thread.complete()).model == "second"


async def test_what_has_streamed_is_not_given_up_for_another_model() -> None:
    """Readers have seen words of the first; Temporal tries again, and begins with the first."""
    reply = Reply("word " * 20, chunk_chars=5, delay_s=0.05, failures=[Failure(None, after_chunks=15)])
    second = ScriptedModel(["yes"], name="second")
    thread = await conversation(ScriptedModel([reply], name="first"), second)
    failure = await failed(thread.complete(1))
    assert (failure.type, failure.non_retryable) == (ErrorType.MODEL, False)
    assert second.requests == []
    assert (await thread.complete(2)).model == "first"


class Refusing(ScriptedModel):
    """A model that raises whatever it is told."""

    def __init__(self, error: Exception) -> None:
        super().__init__([], name="refusing")
        self._error = error

    def request_stream(self, *_: Any, **__: Any) -> Any:
        """Raise it."""
        raise self._error


@pytest.mark.parametrize("error", [ContentFilterError("no"), TypeError("bug"), StoreUnavailable("away")])
async def test_a_filter_a_bug_and_the_store_are_not_another_models_business(error: Exception) -> None:
    """The second is not asked."""
    second = ScriptedModel(["yes"], name="second")
    thread = await conversation(Refusing(error), second)
    await failed(thread.complete())
    assert second.requests == []


async def test_the_failure_that_helps_is_reported() -> None:
    """The first was busy, the fallback has no key: the turn waits for the first instead of ending."""
    first = ScriptedModel([Reply("yes", failures=[Failure(429, retry_after_s=2.0)])], name="first")
    thread = await conversation(first, ScriptedModel([Reply("", failures=[Failure(401)] * 2)], name="second"))
    failure = await failed(thread.complete(1))
    assert not failure.non_retryable
    assert failure.message.startswith("first: ")
    assert failure.next_retry_delay is not None
    assert (await thread.complete(2)).preview == "yes"


async def test_thoughts_of_the_first_do_not_go_to_the_second() -> None:
    """B20: a thought is signed for its provider; the other one reads calls, results and words."""

    class Other(ScriptedModel):
        @property
        def system(self) -> str:
            return "other"

    first = ScriptedModel(
        [Reply(Think("hm", "sig"), Call("look")), Reply("", failures=[Failure(503)] * 2)], name="first"
    )
    second = Other(lambda _: "seen", name="second")
    agent = Agent("a", model=first, fallbacks=[second])

    @agent.tool
    async def look() -> str:
        return "found"

    thread = await Conversation.start(agent)
    await thread.say("go")
    await thread.commit(await thread.complete(), "found")
    assert (await thread.complete()).model == "second"
    kinds = [part.part_kind for message in second.requests[0].messages for part in message.parts]
    assert kinds == ["user-prompt", "tool-call", "tool-return"]
