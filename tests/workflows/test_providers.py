"""A whole turn with each provider's real client: worker, store and server are real, the provider is a local one."""

from collections.abc import AsyncGenerator

import pytest
from pydantic import BaseModel

from perdure.agent import Agent
from perdure.errors import TurnFailed
from perdure.messages import ReasoningPart, ToolResultPart
from perdure.output import FINAL_RESULT
from tests.providers.conftest import DIALECTS, KEY_VARIABLE, agent_at
from tests.providers.dialect import KEY, Call, Dialect, Reply, Thought
from tests.providers.model_server import ModelServer
from tests.workflows.conftest import StackFactory

CALLS = (Call("given_1", "weather", '{"city": "Paris", "days": 2}'), Call("given_2", "clock", "{}"))


class Forecast(BaseModel):
    """A forecast."""

    city: str
    degrees: float


@pytest.fixture(params=DIALECTS, ids=[dialect.name for dialect in DIALECTS])
def dialect(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Dialect:
    """Each provider's protocol."""
    monkeypatch.setenv(KEY_VARIABLE, KEY)
    found: Dialect = request.param
    return found


@pytest.fixture
async def server() -> AsyncGenerator[ModelServer]:
    """The provider."""
    async with ModelServer([]) as running:
        yield running


async def test_a_turn_with_tools(start_stack: StackFactory, thread: str, dialect: Dialect, server: ModelServer) -> None:
    """The provider is overloaded first; then it thinks, calls two tools, and answers with their results."""
    thought = Thought("Paris it is.", "c2lnbmF0dXJl" if dialect.thinks else "")
    server.then(
        dialect.failure("overloaded"),
        dialect.answer(Reply("Let me see.", thoughts=[thought], calls=CALLS, usage=(100, 20, 0), number=1)),
        dialect.answer(Reply("Sunny, at noon.", usage=(150, 5, 96), number=2)),
    )
    stack = await start_stack(agent_at(server, dialect, settings={"thinking": "high"}))
    assert await stack.client.ask(thread, "Weather and time?") == "Sunny, at noon."
    assert len(server.requests) == 3
    last = server.requests[2]
    assert dialect.calls(last) == [("weather", {"city": "Paris", "days": 2}), ("clock", {})]
    assert dialect.results(last) == ["Paris: sunny for 2", "noon"]
    assert [sent.signature for sent in dialect.thoughts(last)] == [thought.signature]
    answer = (await stack.client.history(thread))[1]
    assert [part.text for part in answer.parts if isinstance(part, ReasoningPart)] == [thought.text]
    assert [part.content for part in answer.parts if isinstance(part, ToolResultPart)] == ["Paris: sunny for 2", "noon"]
    assert answer.usage is not None
    assert (answer.usage.input_tokens, answer.usage.output_tokens, answer.usage.cached_tokens) == (250, 25, 96)


async def test_a_refused_key_ends_the_turn_at_once_in_one_line(
    start_stack: StackFactory, thread: str, dialect: Dialect, server: ModelServer
) -> None:
    """No other request is made; the thread goes on, and the key is nowhere in its history."""
    server.then(dialect.failure("bad_key"), dialect.answer(Reply("Here I am.")))
    stack = await start_stack(agent_at(server, dialect))
    with pytest.raises(TurnFailed, match="the key was refused") as failed:
        await stack.client.ask(thread, "Hello?")
    assert "\n" not in str(failed.value)
    assert len(server.requests) == 1
    events = [event async for event in stack.handle(thread).fetch_history_events()]
    assert not any(KEY.encode() in event.SerializeToString() for event in events)
    assert await stack.client.ask(thread, "And now?") == "Here I am."


async def test_a_filtered_answer_ends_its_turn_as_such(
    start_stack: StackFactory, thread: str, dialect: Dialect, server: ModelServer
) -> None:
    """The turn is incomplete with that reason, and nothing is tried again."""
    server.then(dialect.answer(Reply("I should", finish="content_filter")))
    stack = await start_stack(agent_at(server, dialect))
    with pytest.raises(TurnFailed) as failed:
        await stack.client.ask(thread, "Hello?")
    assert failed.value.status.reason == "content_filter"
    assert len(server.requests) == 1


async def test_a_turn_ends_with_the_output(
    start_stack: StackFactory, thread: str, dialect: Dialect, server: ModelServer
) -> None:
    """A tool runs, what does not fit is refused, and the answer is an object of the declared type."""
    server.then(
        dialect.answer(Reply(calls=CALLS[:1], number=1)),
        dialect.answer(Reply(calls=[Call("f", FINAL_RESULT, '{"city": "Paris"}')], number=2)),
        dialect.answer(Reply("Now:", calls=[Call("g", FINAL_RESULT, '{"city": "Paris", "degrees": 21}')], number=3)),
    )
    stack = await start_stack(agent_at(server, dialect, output=Forecast))
    found = await stack.client.ask(thread, "Weather?", output=Forecast)
    assert found == Forecast(city="Paris", degrees=21)
    (answer,) = [message for message in await stack.client.history(thread) if message.role == "assistant"]
    assert answer.status.state == "complete"


async def test_words_choose_a_model_and_how_it_thinks(
    start_stack: StackFactory, thread: str, server: ModelServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """For their turn only; what the agent does not allow fails that turn with a sentence, and the thread goes on."""
    monkeypatch.setenv(KEY_VARIABLE, KEY)
    chat = DIALECTS[0]
    server.then(*(chat.answer(Reply(f"Answer {number}.", number=number)) for number in range(2)))
    agent = Agent(
        "a",
        model="openai-chat:gpt-4o",
        models=["openai-chat:gpt-5"],
        settings={"base_url": chat.base_url(server.url), "api_key_env": KEY_VARIABLE},
    )
    stack = await start_stack(agent)
    await stack.client.ask(thread, "Think!", model="openai-chat:gpt-5", settings={"thinking": "high"})
    with pytest.raises(TurnFailed, match="may not be chosen with agent 'a'; it allows openai-chat:gpt-4o, "):
        await stack.client.ask(thread, "And now?", model="openai-chat:gpt-99")
    await stack.client.ask(thread, "Well?")
    asked = [(request.json["model"], chat.effort(request)) for request in server.requests]
    assert asked == [("gpt-5", "high"), ("gpt-4o", None)]
