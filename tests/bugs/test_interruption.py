"""Users who speak in the middle of things."""

import pytest

from perdure.agent import Agent
from perdure.contract import CallStatus
from perdure.messages import ToolResultPart
from perdure.testing import Asked, Call, Reply, ScriptedModel
from tests.chaos.faults import faults
from tests.eventually import eventually
from tests.stack import Stack
from tests.workflows.conftest import StackFactory


def script(asked: Asked) -> Reply:
    """Three calls, and an answer to whatever comes then."""
    if asked.user_text == "go":
        return Reply(Call("a", {}), Call("b", {}), Call("c", {}))
    return Reply(f"you said {asked.user_text}")


@pytest.mark.slow
async def test_b06_the_user_speaks_while_some_of_the_parallel_results_are_in(
    start_stack: StackFactory, thread: str
) -> None:
    """B06: the two calls without a result are closed as interrupted, in call order, and one model call follows."""
    model = ScriptedModel(script)
    agent = Agent("agent", model=model)
    for name in ("a", "b", "c"):
        agent.tool(name=name, kind="client")(wait_for_the_user)
    stack = await start_stack(agent)
    await stack.client.send(thread, "go", id="m1")
    calls = await eventually(lambda: _open(stack, thread))
    await stack.client.tool_result(thread, calls[1].call_id, "two")
    await eventually(lambda: _is_in(stack, thread))
    assert await stack.client.ask(thread, "stop, do X", id="m2") == "you said stop, do X"

    messages = await stack.client.history(thread)
    results = [part for part in messages[1].parts if isinstance(part, ToolResultPart)]
    assert [part.outcome for part in results] == ["interrupted", "ok", "interrupted"]
    assert [part.call_id for part in results] == [call.call_id for call in calls]
    assert results[1].content == "two"
    assert all(part.content.strip() for part in results)
    assert faults(messages) == []
    assert len(model.requests) == 2


async def wait_for_the_user() -> str:
    """The result comes from the user's side."""
    return ""


async def _open(stack: Stack, thread: str) -> tuple[CallStatus, ...]:
    calls = await stack.client.open_calls(thread)
    return calls if len(calls) == 3 else ()


async def _is_in(stack: Stack, thread: str) -> bool:
    return any(call.state == "settled" for call in await stack.client.open_calls(thread))
