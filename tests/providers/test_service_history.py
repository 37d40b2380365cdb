"""Conversations that OpenAI's server keeps: only what is new is sent, from the right answer on."""

import asyncio

import pytest
from temporalio.testing import ActivityEnvironment

from perdure.batch import AppendMessage
from perdure.errors import ConfigurationError
from perdure.messages import Message, Status, TextPart
from perdure.policy import ErrorType
from tests.activities.conversation import failed, until
from tests.fakes.http_wire import Received
from tests.providers.anthropic_wire import Anthropic
from tests.providers.chat_wire import Chat
from tests.providers.conftest import Talk, Talks
from tests.providers.dialect import Call, Dialect, Reply, Thought
from tests.providers.google_wire import Google
from tests.providers.model_server import Answer
from tests.providers.responses_wire import Responses

CALLS = (Call("theirs_1", "weather", '{"city": "Paris"}'), Call("theirs_2", "clock", "{}"))


async def test_only_what_is_new_is_sent(talks: Talks) -> None:
    """Each request goes on from the last answer: the results of its calls, by the server's ids, or the next words."""
    talk = await talks(
        Responses(),
        Reply("Let me see.", thoughts=[Thought("Hm.", "sig")], calls=CALLS, number=1),
        Reply("Sunny, at noon.", number=2),
        Reply("Rain.", number=3),
        history="service",
    )
    await talk.thread.say("Weather and time?")
    await talk.thread.commit(await talk.thread.complete(), "sunny", "noon")
    await talk.thread.commit(await talk.thread.complete())
    await talk.thread.say("And tomorrow?")
    await talk.thread.commit(await talk.thread.complete())
    first, second, third = (request.json for request in talk.server.requests)
    assert "previous_response_id" not in first
    assert second["previous_response_id"] == "resp_1"
    assert [(item["type"], item["call_id"], item["output"]) for item in second["input"]] == [
        ("function_call_output", "theirs_1", "sunny"),
        ("function_call_output", "theirs_2", "noon"),
    ]
    assert third["previous_response_id"] == "resp_2"
    assert _words(talk.server.requests[2]) == ["And tomorrow?"]
    assert len(third["input"]) == 1
    for request in (first, second, third):
        assert request["instructions"] == "Be brief."
        assert [tool["name"] for tool in request["tools"]][:2] == ["weather", "clock"]


async def test_another_branch_goes_on_from_its_own_answer(talks: Talks) -> None:
    """Words beside the second question go on from the first answer, not from the newest."""
    talk = await talks(
        Responses(), Reply("one", number=1), Reply("two", number=2), Reply("other", number=3), history="service"
    )
    await talk.thread.say("first")
    await talk.thread.commit(await talk.thread.complete())
    fork = talk.thread.message_id
    await talk.thread.say("second")
    await talk.thread.commit(await talk.thread.complete())
    await _say_below(talk, fork, "instead")
    await talk.thread.complete()
    last = talk.server.requests[2]
    assert last.json["previous_response_id"] == "resp_1"
    assert _words(last) == ["instead"]


async def test_an_answer_that_was_stopped_goes_along(talks: Talks) -> None:
    """What the server has not finished it does not know: the words that stay are sent with the next ones."""
    half = Responses().answer(Reply("Half an answer " * 20, number=2))
    talk = await talks(
        Responses(),
        Reply("one", number=1),
        Answer(half.events, delay_s=0.05),
        Reply("three", number=3),
        history="service",
    )
    await talk.thread.say("first")
    await talk.thread.commit(await talk.thread.complete())
    await talk.thread.say("second")
    environment = ActivityEnvironment()
    running = asyncio.create_task(talk.thread.complete(environment=environment))
    await until(talk.thread.streamed)
    environment.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running
    await talk.thread.stop()
    await talk.thread.say("third")
    await talk.thread.complete()
    last = talk.server.requests[2]
    assert last.json["previous_response_id"] == "resp_1"
    assert _words(last) == ["second", "third"]
    assert b"Half" in last.body


async def test_a_conversation_that_was_changed_is_sent_anew(talks: Talks, monkeypatch: pytest.MonkeyPatch) -> None:
    """After a deletion the server would remember what is gone, so it is told everything once more."""
    talk = await talks(Responses(), Reply("one", number=1), Reply("two", number=2), history="service")
    await talk.thread.say("first")
    await talk.thread.commit(await talk.thread.complete())
    await talk.thread.say("second")
    loaded = talk.thread.store.load_history_with_ancestors

    async def changed(thread_id: str, known: str | None = None, message_id: str | None = None) -> object:
        return (await loaded(thread_id, None, message_id)).with_(shape=7)

    monkeypatch.setattr(talk.thread.store, "load_history_with_ancestors", changed)
    await talk.thread.complete()
    last = talk.server.requests[1]
    assert "previous_response_id" not in last.json
    assert _words(last) == ["first", "second"]


async def test_what_the_server_has_forgotten_is_told_again(talks: Talks) -> None:
    """Answers are kept for some weeks there and for good here: the whole conversation begins a new chain."""
    error = {
        "message": "Previous response with id 'resp_1' not found.",
        "type": "invalid_request_error",
        "param": "previous_response_id",
        "code": "previous_response_not_found",
    }
    talk = await talks(
        Responses(),
        Reply("one", number=1),
        Answer(status=400, body={"error": error}),
        Reply("two", number=2),
        Reply("three", number=3),
        history="service",
    )
    for words in ("first", "second", "third"):
        await talk.thread.say(words)
        await talk.thread.commit(await talk.thread.complete())
    asked = [(request.json.get("previous_response_id"), _words(request)) for request in talk.server.requests]
    assert asked == [
        (None, ["first"]),
        ("resp_1", ["second"]),
        (None, ["first", "second"]),
        ("resp_2", ["third"]),
    ]


async def test_a_server_that_is_busy_has_forgotten_nothing(talks: Talks) -> None:
    """The control: a rate limit is no reason to send everything."""
    talk = await talks(Responses(), Reply("one", number=1), Responses().failure("rate_limit"), history="service")
    await talk.thread.say("first")
    await talk.thread.commit(await talk.thread.complete())
    await talk.thread.say("second")
    await failed(talk.thread.complete())
    assert len(talk.server.requests) == 2


async def test_without_it_everything_is_sent(talks: Talks) -> None:
    """The control: an agent that keeps its own history names no answer of the server's."""
    talk = await talks(Responses(), Reply("one", number=1), Reply("two", number=2))
    for words in ("first", "second"):
        await talk.thread.say(words)
        await talk.thread.commit(await talk.thread.complete())
    last = talk.server.requests[1]
    assert "previous_response_id" not in last.json
    assert _words(last) == ["first", "second"]


@pytest.mark.parametrize("dialect", [Chat(), Anthropic(), Google()], ids=lambda dialect: dialect.name)
async def test_a_model_that_keeps_nothing_is_refused(talks: Talks, dialect: Dialect) -> None:
    """Nothing is sent, and the sentence says what to do."""
    talk = await talks(dialect, Reply("one"), history="service")
    await talk.thread.say("first")
    failure = await failed(talk.thread.complete())
    assert (failure.type, failure.non_retryable) == (ErrorType.CONFIGURATION, True)
    assert "history='service'" in failure.message
    assert talk.server.requests == []


async def test_output_is_refused_beside_it(talks: Talks) -> None:
    """The server would wait for the result of the call that the answer came as."""
    with pytest.raises(ConfigurationError, match="history='local'"):
        await talks(Responses(), history="service", output={"type": "object"})


def _words(request: Received) -> list[str]:
    return Responses().words(request)


async def _say_below(talk: Talk, parent_id: str, words: str) -> None:
    thread = talk.thread
    thread.turn, thread.step, thread._parts = thread.turn + 1, 0, 0
    user = Message(id="beside", thread_id="t", role="user", parent_id=parent_id, parts=(TextPart(text=words),))
    answer = Message(
        id=thread.message_id, thread_id="t", role="assistant", turn=thread.turn, status=Status(state="running")
    )
    await thread.sync(AppendMessage(message=user), AppendMessage(message=answer))
