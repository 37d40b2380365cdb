"""The tool calls that a thread has dispatched: running activities, timers, and calls answered from outside."""

import asyncio
from datetime import timedelta
from typing import Any

from temporalio import workflow
from temporalio.common import RawValue

with workflow.unsafe.imports_passed_through():
    from perdure.codec import clip, loads
    from perdure.contract import DISPATCH, DispatchRequest, DispatchResult
    from perdure.history_state import LiveCall, OpenTurn
    from perdure.policy import DISPATCH as POLICY
    from perdure.policy import REMOTE, REMOTE_ONCE

MARGIN = timedelta(hours=1)
"""What a tool's activity may take beyond the tool's own time, should the store be away when the result is there."""

Handle = asyncio.Future[Any]
"""What runs a call. Cancelling it asks the activity behind it to stop, and waits for nothing."""


def seen(activity: "asyncio.Future[Any]") -> None:
    """Look at the outcome of an activity that nobody may wait for any more: asyncio logs failures left unseen."""
    if not activity.cancelled():
        activity.exception()


class Calls:
    """Calls on their way, by id. A call in here was durable before it came in: `ThreadWorkflow` sees to that."""

    def __init__(self) -> None:
        self._running: dict[str, Handle] = {}
        self._timers: dict[str, asyncio.Task[None]] = {}
        self._outside = set[str]()
        self._asking = set[str]()

    @property
    def running(self) -> bool:
        """Whether anything runs."""
        return bool(self._running)

    @property
    def timed(self) -> bool:
        """Whether a call ends by itself some day: the run must be there then."""
        return bool(self._timers)

    @property
    def running_ids(self) -> tuple[str, ...]:
        """The calls that something runs, in the order in which they were dispatched."""
        return tuple(self._running)

    def is_running(self, call_id: str) -> bool:
        """Whether something runs this call."""
        return call_id in self._running

    def dispatch(self, call: LiveCall, thread_id: str, agent: str) -> None:
        """Schedule the activity that runs the call on a worker of ours."""
        handle = workflow.start_activity(
            DISPATCH,
            DispatchRequest(thread_id=thread_id, agent=agent, call_id=call.call_id),
            result_type=DispatchResult,
            start_to_close_timeout=timedelta(seconds=call.outline.timeout_s) + MARGIN,
            heartbeat_timeout=POLICY.heartbeat,
            retry_policy=POLICY.retry,
            cancellation_type=workflow.ActivityCancellationType.TRY_CANCEL,
            summary=_summary(call),
        )
        self.run(call.call_id, handle)

    def start_remote(self, call: LiveCall) -> None:
        """Schedule the activity that is the tool, on the task queue of whoever serves it.

        Its id is the call's, by which the other side can know a repetition.
        """
        outline = call.outline
        handle = workflow.start_activity(
            outline.operation or outline.tool,
            loads(outline.arguments or "{}"),
            # Read later (`workflows.results`): what does not decode here would fail the workflow's task, for ever.
            result_type=RawValue,
            task_queue=outline.task_queue,
            activity_id=call.call_id,
            start_to_close_timeout=timedelta(seconds=outline.timeout_s),
            retry_policy=REMOTE if outline.retry_safe else REMOTE_ONCE,
            cancellation_type=workflow.ActivityCancellationType.TRY_CANCEL,
            summary=_summary(call),
        )
        self.run(call.call_id, handle)

    def run(self, call_id: str, handle: Handle) -> None:
        """Something runs this call."""
        handle.add_done_callback(seen)
        self._running[call_id] = handle

    def wait_outside(self, call_id: str) -> None:
        """Nothing here runs this call: its result comes from outside."""
        self._outside.add(call_id)

    def wait_for_approval(self, call: LiveCall, due: float | None) -> None:
        """The call may not run before somebody has said so, which has to be before `due` if that is given."""
        self._outside.add(call.call_id)
        self._asking.add(call.call_id)
        if due is not None:
            self.wait_until(call, due)

    def wait_until(self, call: LiveCall, due: float) -> None:
        """The call ends by itself at `due`, in seconds since 1970. One that sleeps has no other end."""
        if known := self._timers.pop(call.call_id, None):
            known.cancel()
        left = max(due - workflow.now().timestamp(), 0.0)
        timer = asyncio.create_task(workflow.sleep(timedelta(seconds=left), summary=_summary(call)))
        self._timers[call.call_id] = timer
        self._outside.add(call.call_id)

    def has_done(self) -> bool:
        """Whether a call has ended."""
        return any(work.done() for work in (*self._running.values(), *self._timers.values()))

    def take_done(self) -> tuple[str, Handle] | None:
        """The first that has ended running, in the order in which they were dispatched; None if none has."""
        call_id = next((call_id for call_id, handle in self._running.items() if handle.done()), None)
        return None if call_id is None else (call_id, self._running.pop(call_id))

    def take_due(self) -> list[str]:
        """Calls whose time has come."""
        due = [call_id for call_id, timer in self._timers.items() if timer.done()]
        for call_id in due:
            del self._timers[call_id]
        return due

    def wait_only_outside(self, turn: OpenTurn) -> bool:
        """Whether all that the turn's step still lacks are results from outside."""
        unsettled = {call.call_id for call in turn.calls if not call.settled}
        return bool(unsettled) and unsettled <= self._outside

    def stop_settled(self, turn: OpenTurn | None) -> None:
        """Cancel the calls that nobody waits for any more: interrupted ones, and ones answered from outside."""
        calls = turn.calls if turn else ()
        live = {call.call_id for call in calls if not call.settled}
        # What was asked has been decided: nobody waits for that any more, and the call may run.
        approved = self._asking - {call.call_id for call in calls if call.awaits_approval}
        for work, over in ((self._running, set[str]()), (self._timers, approved)):
            for call_id in [call_id for call_id in work if call_id not in live or call_id in over]:
                work.pop(call_id).cancel()
        self._outside &= live - approved
        self._asking -= approved

    def is_asking(self, call_id: str) -> bool:
        """Whether the call's approval is waited for."""
        return call_id in self._asking

    def stop_all(self) -> None:
        """Cancel everything."""
        self.stop_settled(None)


def _summary(call: LiveCall) -> str:
    return clip(f"{call.outline.tool}({call.outline.preview})", 200)
