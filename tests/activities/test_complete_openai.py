"""The real OpenAI client against a local server that speaks its streaming format."""

import asyncio
import json
from collections.abc import AsyncGenerator, Awaitable, Callable
from itertools import pairwise
from typing import Any

import pytest
from temporalio.testing import ActivityEnvironment

from activities.complete import CompleteActivities
from perdure import ids
from perdure.agent import Agent, Agents
from perdure.messages import ReasoningPart, TextPart, ToolCallPart
from perdure.policy import ErrorType
from tests.activities.conversation import Conversation, failed, until
from tests.fakes.openai_server import Completion, FakeOpenAI


class Talk:
    """A conversation with an agent whose model is the server."""

    def __init__(self, server: FakeOpenAI, thread: Conversation) -> None:
        self.server = server
        self.thread = thread

    def sent(self, number: int) -> list[dict[str, Any]]:
        """The messages of a request, counted from 0."""
        messages: list[dict[str, Any]] = self.server.requests[number].json["messages"]
        return messages


Talks = Callable[..., Awaitable[Talk]]


@pytest.fixture
async def talks() -> AsyncGenerator[Talks]:
    """Starts servers and conversations, and closes what they opened."""
    opened: list[tuple[FakeOpenAI, Conversation]] = []

    async def start(*script: Completion, **settings: Any) -> Talk:
        server = await FakeOpenAI(script).__aenter__()
        thread = await Conversation.start(agent_at(server, **settings))
        opened.append((server, thread))
        return Talk(server, thread)

    yield start
    for server, thread in opened:
        await thread.activities.close()
        await server.__aexit__(None, None, None)


def agent_at(server: FakeOpenAI, **settings: Any) -> Agent:
    """An agent with two tools."""
    agent = Agent(
        "a", model="openai:fake-model", instructions="Be brief.", settings={"base_url": server.url, **settings}
    )

    @agent.tool
    async def weather(city: str, days: int = 1) -> str:
        """The weather in a city."""
        return f"{city} {days}"

    @agent.tool
    async def clock() -> str:
        """The time."""
        return ""

    return agent


async def test_words_and_calls_in_fragments_come_out_whole(talks: Talks) -> None:
    """Two tool calls in fragments, their results, and the words that follow, as they look on the wire."""
    talk = await talks(
        Completion("Let me see.", calls=[("p1", "weather", '{"city": "Paris", "days": 2}'), ("p2", "clock", "{}")]),
        Completion("Sunny, at noon."),
    )
    thread, server = talk.thread, talk.server
    await thread.say("Weather and time?")
    outlined = await thread.complete()
    assert [(call.tool, call.preview, call.error) for call in outlined.calls] == [
        ("weather", 'city="Paris", days=2', None),
        ("clock", "", None),
    ]
    assert (outlined.usage.input_tokens, outlined.usage.output_tokens) == (11, 7)
    assert outlined.model == "fake-model"
    await thread.commit(outlined, "sunny", "noon")
    assert (await thread.complete()).preview == "Sunny, at noon."

    first, _ = server.requests
    assert first.headers["authorization"] == "Bearer none"
    assert first.json["stream"] is True
    assert [tool["function"]["name"] for tool in first.json["tools"]] == ["weather", "clock", "read_result"]
    assert talk.sent(0) == [
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": "Weather and time?"},
    ]
    call_ids = [ids.call_id("t", 1, 0, index) for index in range(2)]
    _, _, called, *results = talk.sent(1)
    assert (called["role"], called["content"]) == ("assistant", "Let me see.")
    assert [call["id"] for call in called["tool_calls"]] == call_ids
    assert results == [
        {"role": "tool", "tool_call_id": call_ids[0], "content": "sunny"},
        {"role": "tool", "tool_call_id": call_ids[1], "content": "noon"},
    ]


async def test_words_stream_while_the_server_still_sends(talks: Talks) -> None:
    """A reader sees the first words before the answer is complete."""
    talk = await talks(Completion("word " * 20, delay_s=0.02))
    await talk.thread.say("go")
    running = asyncio.create_task(talk.thread.complete())
    await until(talk.thread.streamed)
    assert not running.done()
    assert (await running).preview.startswith("word word")


@pytest.mark.parametrize("given", [("", ""), ("dup", "dup"), (None, None)])
async def test_b10_odd_call_ids_on_the_wire(talks: Talks, given: tuple[str | None, ...]) -> None:
    """B10: blank, repeated and missing ids of the server: two calls, our ids, results in order."""
    calls = [(call_id, "weather", f'{{"city":"{city}"}}') for call_id, city in zip(given, "xy", strict=True)]
    talk = await talks(Completion(calls=calls), Completion("ok"))
    await talk.thread.say("go")
    outlined = await talk.thread.complete()
    assert [call.preview for call in outlined.calls] == ['city="x"', 'city="y"']
    await talk.thread.commit(outlined, "x", "y")
    await talk.thread.complete()
    sent = talk.sent(1)
    assert [(m["tool_call_id"], m["content"]) for m in sent if m["role"] == "tool"] == [
        (ids.call_id("t", 1, 0, 0), "x"),
        (ids.call_id("t", 1, 0, 1), "y"),
    ]


async def test_b20_reasoning_of_a_compatible_server_goes_back_in_its_field(talks: Talks) -> None:
    """A thought without a signature, in a field of its own, is stored and sent back there and nowhere else."""
    talk = await talks(Completion(reasoning="It may rain.", calls=[("c", "clock", "{}")]), Completion("ok"))
    await talk.thread.say("go")
    await talk.thread.commit(await talk.thread.complete(), "noon")
    stored = await talk.thread.parts()
    assert isinstance(stored[0], ReasoningPart)
    assert stored[0].text == "It may rain."
    await talk.thread.complete()
    answer = next(m for m in talk.sent(1) if m["role"] == "assistant")
    assert answer["reasoning_content"] == "It may rain."
    assert answer["content"] is None


async def test_b31_a_call_cut_off_on_the_wire_is_refused(talks: Talks) -> None:
    """B31: finish reason `length` in the middle of the arguments."""
    talk = await talks(
        Completion(calls=[("1", "clock", "{}"), ("2", "weather", '{"city": "Par')], finish="length"), Completion("ok")
    )
    await talk.thread.say("go")
    outlined = await talk.thread.complete()
    assert [call.error is None for call in outlined.calls] == [True, False]
    await talk.thread.commit(outlined, "noon")
    await talk.thread.complete()
    sent = talk.sent(1)
    assert [json.loads(call["function"]["arguments"]) for call in sent[2]["tool_calls"]] == [{}, {}]
    assert "cut off" in sent[4]["content"]


async def test_b32_b69_arguments_are_the_same_bytes_after_a_reload(talks: Talks) -> None:
    """B32, B69: another process that has only the store sends the same request; all digits are there."""
    written = '{"days": 2512292042121000001, "city": "x", "b": 1e2}'
    talk = await talks(Completion(calls=[("1", "weather", written)]), Completion(status=500), Completion("ok"))
    await talk.thread.say("go")
    await talk.thread.commit(await talk.thread.complete(), "x")
    await failed(talk.thread.complete(1))
    first, talk.thread.activities = (
        talk.thread.activities,
        CompleteActivities(talk.thread.store, Agents([talk.thread.agent])),
    )
    await talk.thread.complete(2)
    await first.close()
    _, before, after = talk.server.requests
    assert before.body == after.body
    assert "2512292042121000001" in talk.sent(1)[2]["tool_calls"][0]["function"]["arguments"]
    stored = (await talk.thread.parts())[0]
    assert isinstance(stored, ToolCallPart)
    assert stored.arguments == written


async def test_b39_every_request_begins_with_the_bytes_of_the_one_before(talks: Talks) -> None:
    """B39: five turns with calls and 20 KB results: system text, tools and messages never change behind."""
    script = [Completion(calls=[(str(n), "clock", "{}")]) if n % 2 == 0 else Completion(f"done {n}") for n in range(10)]
    talk = await talks(*script)
    for turn in range(5):
        await talk.thread.say(f"question {turn}")
        await talk.thread.commit(await talk.thread.complete(), "r" * 20_000)
        await talk.thread.commit(await talk.thread.complete())
    sent = [request.json for request in talk.server.requests]
    assert len(sent) == 10
    for earlier, later in pairwise(sent):
        assert json.dumps(earlier["tools"]) == json.dumps(later["tools"])
        before, after = json.dumps(earlier["messages"]), json.dumps(later["messages"])
        assert after.startswith(before.removesuffix("]"))


async def test_hostile_words_reach_the_server_as_valid_text(talks: Talks) -> None:
    """NUL, emoji, halves of surrogate pairs: the request is UTF-8 and the thread goes on."""
    talk = await talks(Completion("fine"), Completion("still fine"))
    await talk.thread.say("a\x00b 😀 \ud83d\ude00 \ud800")
    await talk.thread.commit(await talk.thread.complete())
    await talk.thread.say("and now?")
    await talk.thread.complete()
    talk.server.requests[1].body.decode("utf-8")
    assert talk.sent(1)[1]["content"] == "a\x00b 😀 😀 \ufffd"


@pytest.mark.parametrize(
    ("answer", "retryable", "delay_s"),
    [
        (Completion(status=429, headers={"retry-after": "3"}), True, 3.0),
        (Completion(status=500), True, None),
        (Completion(status=401), False, None),
        (Completion(status=404), False, None),
        (Completion("some words that break off", drop_after=3), True, None),
    ],
    ids=["rate limit", "server error", "key refused", "no such model", "connection lost"],
)
async def test_failures_of_the_server_are_one_request_each(
    talks: Talks, answer: Completion, retryable: bool, delay_s: float | None
) -> None:
    """The client does not retry by itself; the failure says whether Temporal should, and the next attempt is clean."""
    talk = await talks(answer, Completion("fine"))
    await talk.thread.say("go")
    failure = await failed(talk.thread.complete(1))
    assert failure.type == ErrorType.MODEL
    assert failure.non_retryable is not retryable
    assert (failure.next_retry_delay.total_seconds() if failure.next_retry_delay else None) == delay_s
    assert len(talk.server.requests) == 1
    await talk.thread.commit(await talk.thread.complete(2))
    assert await talk.thread.parts() == (TextPart(text="fine"),)


async def test_a_server_that_is_not_there_is_tried_again() -> None:
    """Nothing listens at the address."""
    async with FakeOpenAI([]) as server:
        agent = agent_at(server)
    thread = await Conversation.start(agent)
    await thread.say("go")
    failure = await failed(thread.complete())
    assert (failure.type, failure.non_retryable) == (ErrorType.MODEL, False)
    await thread.activities.close()


async def test_a_stop_closes_the_connection_at_once(talks: Talks) -> None:
    """A slow answer is stopped within half a second, and the server hears of it."""
    talk = await talks(Completion("word " * 200, delay_s=0.05))
    await talk.thread.say("go")
    environment = ActivityEnvironment()
    running = asyncio.create_task(talk.thread.complete(environment=environment))
    await until(talk.thread.streamed)
    began = asyncio.get_running_loop().time()
    environment.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running
    assert asyncio.get_running_loop().time() - began < 0.5
    await until(lambda: talk.server.broken_off == 1)
