"""The guarantee read back from a thread's own Temporal history: no tool call before its turn was durable.

Tests, the demo and anyone who doubts it can check a finished thread. A dispatch must be scheduled after the result of
the sync that made its step durable was recorded, as a local activity's marker or as a completed regular activity.
"""

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

from temporalio.api.common.v1 import Payloads
from temporalio.api.enums.v1 import EventType
from temporalio.api.history.v1 import HistoryEvent

from perdure import ids
from perdure.batch import SyncReport
from perdure.codec import loads
from perdure.contract import (
    COMPLETE,
    DISPATCH,
    LOAD,
    SPAWN,
    SYNC,
    CompleteRequest,
    CompleteResult,
    DispatchRequest,
    LoadResult,
    SpawnRequest,
)

_LOCAL_ACTIVITY = "core_local_activity"


def early_dispatches(events: Iterable[HistoryEvent], thread_id: str) -> list[str]:
    """One sentence for each dispatch that was scheduled too early; give the events of all runs, in order."""
    seen = _Seen(thread_id)
    early: list[str] = []
    for event in events:
        call_id = _dispatched(event)
        if call_id is not None and call_id not in seen.durable:
            early.append(f"event {event.event_id} dispatches {call_id} before its step was synced")
        seen.take(event)
    return early


def dispatched_calls(events: Iterable[HistoryEvent]) -> list[str]:
    """The call ids that were dispatched, in order; so that a check can tell that it had something to check."""
    return [call_id for event in events if (call_id := _dispatched(event)) is not None]


@dataclass
class _Seen:
    """What a history has shown so far: the calls that each model call made, and those of them that are durable.

    A run that takes over an open turn finds its calls in the store, so what was loaded is durable as well.
    """

    thread_id: str
    durable: set[str] = field(default_factory=set[str])
    made: dict[tuple[int, int], set[str]] = field(default_factory=dict[tuple[int, int], set[str]])
    scheduled: dict[int, HistoryEvent] = field(default_factory=dict[int, HistoryEvent])

    def take(self, event: HistoryEvent) -> None:
        """Go on by one event."""
        if event.event_type == EventType.EVENT_TYPE_ACTIVITY_TASK_SCHEDULED:
            # A new run counts its events from 1 again, but schedules whatever completes in it.
            self.scheduled[event.event_id] = event
            return
        activity, request, result = self._returned(event)
        if activity == COMPLETE:
            model_call = CompleteRequest.model_validate(request)
            self.made[model_call.turn, model_call.step] = {
                ids.call_id(self.thread_id, model_call.turn, model_call.step, call.index)
                for call in CompleteResult.model_validate(result).calls
            }
        elif activity == SYNC:
            for step in SyncReport.model_validate(result).steps:
                self.durable |= self.made.get(step, set())
        elif activity == LOAD:
            self.durable |= {call.call_id for call in LoadResult.model_validate(result).tail.calls}

    def _returned(self, event: HistoryEvent) -> tuple[str | None, Any, Any]:
        """The activity whose result the event records, its input unless it was a local one, and the result."""
        if event.event_type == EventType.EVENT_TYPE_MARKER_RECORDED:
            marker = event.marker_recorded_event_attributes
            if marker.marker_name == _LOCAL_ACTIVITY and marker.details["data"].payloads and "result" in marker.details:
                data = loads(marker.details["data"].payloads[0].data)
                return data.get("activity_type"), None, loads(marker.details["result"].payloads[0].data)
        elif event.event_type == EventType.EVENT_TYPE_ACTIVITY_TASK_COMPLETED:
            completed = event.activity_task_completed_event_attributes
            scheduled = self.scheduled[completed.scheduled_event_id].activity_task_scheduled_event_attributes
            activity = scheduled.activity_type.name
            # The others show nothing of calls, and some of them return nothing.
            if activity in (COMPLETE, SYNC, LOAD):
                return activity, _first(scheduled.input), _first(completed.result)
        return None, None, None


def _dispatched(event: HistoryEvent) -> str | None:
    """The call that the event schedules the dispatch of."""
    if event.event_type != EventType.EVENT_TYPE_ACTIVITY_TASK_SCHEDULED:
        return None
    scheduled = event.activity_task_scheduled_event_attributes
    match scheduled.activity_type.name:
        case name if name == DISPATCH:
            return DispatchRequest.model_validate(_first(scheduled.input)).call_id
        case name if name == SPAWN:
            spawn = SpawnRequest.model_validate(_first(scheduled.input))
            return None if spawn.event else spawn.call_id
        case _:
            # An activity on another task queue is the tool itself, and has the id of its call.
            return scheduled.activity_id if scheduled.activity_id.startswith(ids.CALL_PREFIX) else None


def _first(payloads: Payloads) -> Any:
    return loads(payloads.payloads[0].data)
