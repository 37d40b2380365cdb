"""The tool calls that a thread has dispatched: running activities, and calls whose result comes from outside."""

import asyncio
from collections.abc import Iterable
from datetime import timedelta
from typing import Any

from temporalio import workflow

with workflow.unsafe.imports_passed_through():
    from perdure.codec import clip
    from perdure.contract import DISPATCH, DispatchRequest, DispatchResult
    from perdure.history_state import LiveCall, OpenTurn
    from perdure.policy import DISPATCH as POLICY

MARGIN = timedelta(hours=1)
"""What a tool's activity may take beyond the tool's own time, should the store be away when the result is there."""

Handle = workflow.ActivityHandle[DispatchResult]


def seen(activity: "asyncio.Future[Any]") -> None:
    """Look at the outcome of an activity that nobody may wait for any more: asyncio logs failures left unseen."""
    if not activity.cancelled():
        activity.exception()


class Calls:
    """Calls on their way, by id. A call in here was durable before it came in: `ThreadWorkflow` sees to that."""

    def __init__(self, outside: Iterable[str] = ()) -> None:
        self._running: dict[str, Handle] = {}
        self._outside = set(outside)

    @property
    def running(self) -> bool:
        """Whether any activity runs."""
        return bool(self._running)

    @property
    def outside(self) -> tuple[str, ...]:
        """Calls whose result comes from outside, to carry over continue-as-new."""
        return tuple(sorted(self._outside))

    def is_running(self, call_id: str) -> bool:
        """Whether an activity runs this call."""
        return call_id in self._running

    def start(self, call: LiveCall, thread_id: str, agent: str) -> None:
        """Schedule the activity that runs the call; one for the user's side only waits."""
        if call.outline.kind == "client":
            self._outside.add(call.call_id)
            return
        handle = workflow.start_activity(
            DISPATCH,
            DispatchRequest(thread_id=thread_id, agent=agent, call_id=call.call_id),
            result_type=DispatchResult,
            start_to_close_timeout=timedelta(seconds=call.outline.timeout_s) + MARGIN,
            heartbeat_timeout=POLICY.heartbeat,
            retry_policy=POLICY.retry,
            cancellation_type=workflow.ActivityCancellationType.TRY_CANCEL,
            summary=clip(f"{call.outline.tool}({call.outline.preview})", 200),
        )
        handle.add_done_callback(seen)
        self._running[call.call_id] = handle

    def has_done(self) -> bool:
        """Whether an activity has ended."""
        return any(handle.done() for handle in self._running.values())

    def take_done(self) -> list[tuple[str, Handle]]:
        """Activities that have ended, in the order in which they were dispatched."""
        done = [(call_id, handle) for call_id, handle in self._running.items() if handle.done()]
        for call_id, _ in done:
            del self._running[call_id]
        return done

    def wait_outside(self, call_id: str) -> None:
        """The worker does not run this call: its result comes from outside."""
        self._outside.add(call_id)

    def wait_only_outside(self, turn: OpenTurn) -> bool:
        """Whether all that the turn's step still lacks are results from outside."""
        unsettled = {call.call_id for call in turn.calls if not call.settled}
        return bool(unsettled) and unsettled <= self._outside

    def stop_settled(self, turn: OpenTurn | None) -> None:
        """Cancel the calls that nobody waits for any more: interrupted ones, and ones answered from outside."""
        live = {call.call_id for call in turn.calls if not call.settled} if turn else set[str]()
        for call_id in [call_id for call_id in self._running if call_id not in live]:
            self._running.pop(call_id).cancel()
        self._outside &= live

    def stop_all(self) -> None:
        """Cancel everything."""
        self.stop_settled(None)
