"""How a compaction went, for whoever has asked for it and waits."""

import asyncio
from datetime import timedelta

import pytest
from temporalio.client import WorkflowExecutionStatus

from perdure import ids
from perdure.compaction import Compaction
from perdure.contract import CompactResult
from perdure.errors import ThreadClosed, ThreadNotFound
from perdure.limits import Limits
from perdure.testing import Reply
from perdure.thread_calls import ThreadCalls
from tests.compaction.driven import Held
from tests.eventually import eventually
from tests.stack import Stack
from tests.workflows.conftest import StackFactory
from tests.workflows.test_compactions import WINDOW, Talker, summed_up


async def test_it_is_there_when_the_call_returns(start_stack: StackFactory, thread: str) -> None:
    """With how many messages it covers; the next one finds nothing to leave out, until something is said."""
    stack = await start_stack(Talker().agent)
    await stack.client.ask(thread, "one")
    done = await stack.client.compact(thread, wait=True)
    assert (done.outcome, done.covered) == ("done", 2)
    assert await summed_up(stack, thread)
    assert (await stack.client.compact(thread, wait=True)).outcome == "nothing"
    await stack.client.ask(thread, "two")
    assert (await stack.client.compact(thread, wait=True)).outcome == "done"


async def test_of_an_empty_thread_there_is_nothing_to_leave_out(start_stack: StackFactory, thread: str) -> None:
    """No workflow is begun for it. A thread that is not there, or closed, is an error."""
    stack = await start_stack(Talker().agent)
    with pytest.raises(ThreadNotFound):
        await stack.client.compact(thread, wait=True)
    await stack.client.start(thread)
    assert await stack.client.compact(thread, wait=True) == CompactResult(outcome="nothing")
    await stack.client.close_thread(thread)
    with pytest.raises(ThreadClosed):
        await stack.client.compact(thread, wait=True)


async def test_a_failure_is_told_with_its_reason(start_stack: StackFactory, thread: str) -> None:
    """As the outcome and not as an error: the conversation is as it was."""
    stack = await start_stack(Talker(summary=" ").agent)
    await stack.client.ask(thread, "one")
    failed = await stack.client.compact(thread, wait=True)
    assert failed.outcome == "empty"
    assert "said nothing" in (failed.detail or "")


@pytest.mark.parametrize("events", [1, 1_000])
async def test_one_that_is_under_way_is_the_one_that_is_waited_for(
    start_stack: StackFactory, thread: str, events: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also if an earlier run of the thread has begun it: one summary is made, and all get its outcome."""
    attached: list[str | None] = []
    compacted = ThreadCalls.compacted

    async def counted(calls: ThreadCalls, thread_id: str, run_id: str | None) -> CompactResult:
        attached.append(run_id)
        return await compacted(calls, thread_id, run_id)

    monkeypatch.setattr(ThreadCalls, "compacted", counted)
    held = Held()
    talker = Talker(compaction=Compaction(context_window=WINDOW, keep=0.0, model=held.model))
    talker.agent.limits = Limits(history_events=events)
    stack = await start_stack(talker.agent)
    await stack.client.ask(thread, "one")
    await stack.client.compact(thread)
    await held.reached.wait()
    waiting = [asyncio.create_task(stack.client.compact(thread, wait=True)) for _ in range(3)]
    await eventually(lambda: len(attached) == 3, timeout=30)
    held.release.set()
    assert [(await one).outcome for one in waiting] == ["done"] * 3
    assert len(held.model.requests) == 1


async def test_one_that_is_ended_from_outside_is_a_failure(start_stack: StackFactory, thread: str) -> None:
    """Whoever waits is told so, and does not wait on. The thread goes on meanwhile."""
    talker = Talker(summary=Reply("well", hang=True))
    stack = await start_stack(talker.agent)
    await stack.client.ask(thread, "one")
    waiting = asyncio.create_task(stack.client.compact(thread, wait=True))
    await eventually(lambda: talker.summariser.requests)
    assert await stack.client.ask(thread, "two") == "you said two"
    assert not waiting.done()
    await stack.temporal.get_workflow_handle(ids.compaction_id(thread)).terminate()
    ended = await waiting
    assert (ended.outcome, "ended from outside" in (ended.detail or "")) == ("failed", True)


async def test_a_thread_that_hibernates_wakes_for_it(start_stack: StackFactory, thread: str) -> None:
    """As for all that is said to it."""
    talker = Talker()
    talker.agent.limits = Limits(idle=timedelta(seconds=0.2))
    stack = await start_stack(talker.agent)
    await stack.client.ask(thread, "one")
    await eventually(lambda: _sleeps(stack, thread))
    assert (await stack.client.compact(thread, wait=True)).outcome == "done"


async def _sleeps(stack: Stack, thread: str) -> bool:
    return (await stack.handle(thread).describe()).status == WorkflowExecutionStatus.COMPLETED
