"""No tool call is dispatched before its turn is durable: read from what Temporal has recorded."""

import pytest

from perdure import ids
from perdure.agent import Agent
from perdure.ordering import dispatched_calls, early_dispatches
from perdure.testing import Call, Reply, ScriptedModel
from tests.histories.replay import FILES, load
from tests.recorded import chain
from tests.workflows.conftest import StackFactory
from tests.workflows.early_dispatch import EarlyDispatch


def weather() -> Agent:
    """An agent that makes two calls and then answers."""
    agent = Agent("a", model=ScriptedModel([Reply(Call("look", {}), Call("look", {})), "done"]))

    @agent.tool(retry_safe=True)
    async def look() -> str:
        return "sunny"

    return agent


@pytest.mark.parametrize("path", sorted({file.stem.rpartition("-")[0] for file in FILES}))
def test_no_recorded_dispatch_is_early(path: str) -> None:
    """In every recorded path each dispatch is scheduled after the completed sync of its step."""
    runs = [load(file) for file in FILES if file.stem.rpartition("-")[0] == path]
    events = [event for run in runs for event in run.events]
    assert early_dispatches(events, path) == []


def test_recorded_paths_dispatch_something() -> None:
    """The control of the above: an empty history would be in order as well."""
    counts = {file.stem: len(dispatched_calls(load(file).events)) for file in FILES}
    assert {name for name, count in counts.items() if count} >= {
        "tools-1",
        "interrupt_mid_tool-1",
        "limit-1",
        "continue_as_new-1",
        "taken_over-2",
        "children-1",
        "closed-1",
    }


async def test_dispatch_before_sync_is_found(
    start_stack: StackFactory, thread: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A workflow that swaps the two is caught for every call, by its own history."""
    monkeypatch.setattr("worker.ThreadWorkflow", EarlyDispatch)
    stack = await start_stack(weather())
    accepted = await stack.client.send(thread, "go")
    await stack.client.wait_settled(thread, accepted.message_id)
    events = await chain(stack.temporal, thread)
    calls = [ids.call_id(thread, 1, 0, index) for index in range(2)]
    assert dispatched_calls(events) == calls
    early = early_dispatches(events, thread)
    assert [call_id in sentence for call_id, sentence in zip(calls, early, strict=True)] == [True, True]


async def test_dispatch_after_sync_is_in_order(start_stack: StackFactory, thread: str) -> None:
    """The same conversation with the workflow as it is."""
    stack = await start_stack(weather())
    assert await stack.client.ask(thread, "go") == "done"
    events = await chain(stack.temporal, thread)
    assert len(dispatched_calls(events)) == 2
    assert early_dispatches(events, thread) == []
