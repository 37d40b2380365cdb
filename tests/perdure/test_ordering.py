"""The order of syncs and dispatches, read from real histories, and from the same ones told in a wrong order."""

import asyncio

from temporalio.api.enums.v1 import EventType
from temporalio.api.history.v1 import HistoryEvent
from temporalio.client import WorkflowHandle

from perdure.agent import Agent
from perdure.limits import Limits
from perdure.ordering import dispatched_calls, early_dispatches
from perdure.testing import Call, Reply, ScriptedModel
from tests.eventually import eventually
from tests.stack import Stack
from tests.workflows.conftest import StackFactory

MANY = 70
HANG = -1


def agent(limits: Limits, *items: Call) -> Agent:
    """An agent that makes these calls once."""
    made = Agent("a", model=ScriptedModel([Reply(*items), "done"]), limits=limits)

    @made.tool
    async def note(n: int = 0) -> str:
        """Take a note, or hang."""
        if n == HANG:
            await asyncio.Event().wait()
        return str(n)

    return made


async def history_of(stack: Stack, thread_id: str) -> list[HistoryEvent]:
    """The events of a thread's present run."""
    handle: WorkflowHandle[object, object] = stack.handle(thread_id)
    return [event async for event in handle.fetch_history_events()]


def swapped(events: list[HistoryEvent]) -> list[HistoryEvent]:
    """The history with its first dispatch told before the model call that made it had returned."""
    first = next(at for at, event in enumerate(events) if dispatched_calls([event]))
    return [*events[:1], events[first], *events[1:first], *events[first + 1 :]]


async def test_more_calls_than_the_default_limit_are_not_accused(start_stack: StackFactory, thread: str) -> None:
    """An agent may allow any number of parallel calls; each is found by the step that made it."""
    calls = [Call("note", {"n": n}) for n in range(MANY)]
    stack = await start_stack(agent(Limits(parallel_calls=MANY), *calls))
    assert await stack.client.ask(thread, "go") == "done"
    events = await history_of(stack, thread)
    assert len(dispatched_calls(events)) == MANY
    assert early_dispatches(events, thread) == []


async def test_a_dispatch_before_its_sync_is_found(start_stack: StackFactory, thread: str) -> None:
    """The control: the same history in a wrong order, or without the sync, is a fault that names the call."""
    stack = await start_stack(agent(Limits(), Call("note"), Call("note")))
    assert await stack.client.ask(thread, "go") == "done"
    events = await history_of(stack, thread)
    assert early_dispatches(events, thread) == []
    first, second = dispatched_calls(events)
    assert [first in sentence for sentence in early_dispatches(swapped(events), thread)] == [True]
    unsynced = [event for event in events if event.event_type != EventType.EVENT_TYPE_MARKER_RECORDED]
    assert [call in said for call, said in zip((first, second), early_dispatches(unsynced, thread), strict=True)] == [
        True,
        True,
    ]


async def test_a_call_of_an_earlier_run_is_known_from_the_load(start_stack: StackFactory, thread: str) -> None:
    """A run that takes over an open call dispatches it again: the store had it, so its own history is in order."""
    stack = await start_stack(agent(Limits(), Call("note", {"n": HANG})))
    await stack.client.send(thread, "go")

    async def is_dispatched() -> bool:
        return bool(dispatched_calls(await history_of(stack, thread)))

    await eventually(is_dispatched)
    await stack.handle(thread).terminate()
    await stack.client.post(thread, "and then", mode="queue")
    await eventually(is_dispatched)
    events = await history_of(stack, thread)
    assert early_dispatches(events, thread) == []
    unloaded = [event for event in events if event.event_type != EventType.EVENT_TYPE_MARKER_RECORDED]
    assert early_dispatches(unloaded, thread), "the control: without the load nothing says that the call is durable"
