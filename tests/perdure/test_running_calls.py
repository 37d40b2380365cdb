"""Tool calls that run without Temporal: what is handed out of them, and what is given up."""

import asyncio

import pytest

from perdure.contract import DispatchRequest, DispatchResult
from perdure.errors import StoreUnavailable
from perdure.records import ThreadRecord
from perdure.running_calls import Outcome, RunningCalls

DONE = DispatchResult(outcome="ok", preview="done")


@pytest.fixture
def calls() -> RunningCalls:
    """No calls yet."""

    async def dispatch(request: DispatchRequest) -> DispatchResult:
        raise AssertionError("these tests give the runs themselves")

    return RunningCalls(ThreadRecord(thread_id="t", agent="a"), dispatch)


async def fine() -> Outcome:
    """A run that works."""
    return DONE


async def away() -> Outcome:
    """A run that raises what is no failure of a call."""
    raise StoreUnavailable("away")


async def test_a_run_that_raises_takes_no_other_with_it(calls: RunningCalls) -> None:
    """Whoever tries again finds the results that stood behind it."""
    for call_id, run in (("a", fine()), ("b", away()), ("c", fine())):
        calls.start(call_id, run)
    await asyncio.wait(calls.tasks)
    taken: list[tuple[str, Outcome]] = []
    with pytest.raises(StoreUnavailable):
        taken.extend(calls.take_done())
    taken.extend(calls.take_done())
    assert taken == [("a", DONE), ("c", DONE)]
    assert not any(call_id in calls for call_id in "abc")


async def test_what_is_given_up_is_cancelled_and_forgotten(calls: RunningCalls) -> None:
    """Those alone that are named, wherever they run."""
    never = asyncio.Event()
    ended: list[str] = []

    async def long(call_id: str) -> Outcome:
        try:
            await never.wait()
        finally:
            ended.append(call_id)
        return DONE

    for call_id in "ab":
        calls.start(call_id, long(call_id))
    calls.wait_outside("c")
    calls.wait_outside("d")
    await asyncio.sleep(0)  # both have begun
    await calls.give_up(["a", "c", "unknown"])
    assert ended == ["a"]
    assert [call_id in calls for call_id in "abcd"] == [False, True, False, True]
    await calls.stop()
    assert ended == ["a", "b"]
    assert [call_id in calls for call_id in "abcd"] == [False, False, False, True]
