"""Tools that fail or return what is hard to keep, and turns without an end."""

import asyncio
import json
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from decimal import Decimal

import pytest

from perdure.agent import Agent
from perdure.limits import Limits
from perdure.messages import Message, ToolCallPart, ToolResultPart
from perdure.testing import Asked, Call, Reply, ScriptedModel
from perdure.watch import answer_text
from tests.chaos.faults import faults
from tests.workflows.conftest import StackFactory


def results(message: Message) -> list[ToolResultPart]:
    """The tool results of a message, in order."""
    return [part for part in message.parts if isinstance(part, ToolResultPart)]


async def nameless() -> str:
    """Fail without a word."""
    raise Exception()


async def late() -> str:
    """Never return."""
    await asyncio.Event().wait()
    return ""


async def cancelled() -> str:
    """Take itself for cancelled."""
    raise asyncio.CancelledError()


@pytest.mark.parametrize(
    ("boom", "said"),
    [(nameless, "Exception"), (late, "boom did not return within 0.2 s"), (cancelled, "CancelledError")],
    ids=["nameless", "late", "cancelled"],
)
async def test_b49_one_of_several_parallel_tools_fails(
    boom: Callable[[], object], said: str, start_stack: StackFactory, thread: str
) -> None:
    """B49: the others keep their results, in call order; the model reads what failed and is asked once more."""
    model = ScriptedModel([Reply(Call("ok", {}), Call("boom", {}), Call("ok", {})), "I see."])
    agent = Agent("a", model=model)
    runs = 0

    @agent.tool
    async def ok() -> str:
        nonlocal runs
        runs += 1
        return "ok"

    agent.tool(name="boom", timeout=timedelta(seconds=0.2))(boom)
    stack = await start_stack(agent)
    assert await stack.client.ask(thread, "go") == "I see."
    messages = await stack.client.history(thread)
    first, second, third = results(messages[-1])
    assert [(part.outcome, part.content) for part in (first, third)] == [("ok", "ok"), ("ok", "ok")]
    assert second.outcome == "error"
    assert said in second.content
    assert (runs, len(model.requests)) == (2, 2)
    assert model.requests[-1].results == (first.content, second.content, third.content)
    assert faults(messages) == []


async def test_b50_a_tool_returns_what_json_cannot_hold(start_stack: StackFactory, thread: str) -> None:
    """B50: what has a form in JSON takes it; what has none is an error of its own call, and the turn goes on."""
    agent = Agent("a", model=ScriptedModel([Reply(Call("odd", {}), Call("clash", {}), Call("never", {})), "done"]))

    @agent.tool
    async def odd() -> object:
        when = datetime(2025, 1, 2, 3, 4, 5, tzinfo=UTC)
        return {"when": when, "s": {1, 2}, "d": Decimal("1.10"), "b": b"\xff", "n": float("nan"), 5: "k"}

    @agent.tool
    async def clash() -> object:
        return {5: "number", "5": "text"}

    @agent.tool
    async def never() -> object:
        return object()

    def refused(token: str) -> float:
        raise AssertionError(f"{token} is not JSON")

    stack = await start_stack(agent)
    assert await stack.client.ask(thread, "go") == "done"
    kept, *failed = results((await stack.client.history(thread))[-1])
    assert kept.outcome == "ok"
    assert json.loads(kept.content, parse_constant=refused) == {
        "when": "2025-01-02T03:04:05+00:00",
        "s": [1, 2],
        "d": "1.10",
        "b": "/w==",
        "n": "nan",
        "5": "k",
    }
    assert [part.outcome for part in failed] == ["error", "error"]
    assert all(part.content for part in failed)


async def test_b62_the_step_limit_ends_a_turn_and_not_the_thread(start_stack: StackFactory, thread: str) -> None:
    """B62: three model calls, each result stored, the turn incomplete for the limit; the next words are answered."""

    def script(asked: Asked) -> Reply:
        return Reply("Going on.") if asked.user_text == "continue" else Reply(Call("note", {}))

    model = ScriptedModel(script)
    agent = Agent("a", model=model, limits=Limits(steps=3))

    @agent.tool
    async def note() -> str:
        return "noted"

    stack = await start_stack(agent)
    accepted = await stack.client.send(thread, "go")
    answer = await stack.client.wait_settled(thread, accepted.message_id)
    assert (answer.status.state, answer.status.reason) == ("incomplete", "limit")
    assert "limit of 3" in str(answer.status.detail)
    assert len(model.requests) == 3
    assert [part.content for part in results(answer)] == ["noted"] * 3
    assert await stack.client.ask(thread, "continue") == "Going on."
    messages = await stack.client.history(thread)
    assert faults(messages) == []
    assert answer_text(messages[-1]) == "Going on."
    assert sum(isinstance(part, ToolCallPart) for part in messages[1].parts) == 3
