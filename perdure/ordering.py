"""The guarantee read back from a thread's own Temporal history: no tool call before its turn was durable.

Tests, the demo and anyone who doubts it can check a finished thread. A dispatch must be scheduled after the result of
the sync that made its step durable was recorded, as a local activity's marker or as a completed regular activity.
"""

from collections.abc import Iterable, Iterator

from temporalio.api.enums.v1 import EventType
from temporalio.api.history.v1 import HistoryEvent

from perdure import ids
from perdure.agent import Limits
from perdure.batch import SyncReport
from perdure.codec import loads
from perdure.contract import DISPATCH, SYNC, DispatchRequest

_LOCAL_ACTIVITY = "core_local_activity"


def early_dispatches(events: Iterable[HistoryEvent], thread_id: str) -> list[str]:
    """One sentence for each dispatch that was scheduled too early; give the events of all runs, in order."""
    durable: set[str] = set()
    syncs: dict[int, str] = {}
    early: list[str] = []
    for event in events:
        if event.event_type == EventType.EVENT_TYPE_ACTIVITY_TASK_SCHEDULED:
            scheduled = event.activity_task_scheduled_event_attributes
            syncs[event.event_id] = scheduled.activity_type.name
            if scheduled.activity_type.name == DISPATCH:
                request = DispatchRequest.model_validate(loads(scheduled.input.payloads[0].data))
                if request.call_id not in durable:
                    early.append(f"event {event.event_id} dispatches {request.call_id} before its step was synced")
        for report in _reports(event, syncs):
            for turn, step in report.steps:
                durable.update(ids.call_id(thread_id, turn, step, index) for index in range(Limits().parallel_calls))
    return early


def dispatched_calls(events: Iterable[HistoryEvent]) -> list[str]:
    """The call ids that were dispatched, in order; so that a check can tell that it had something to check."""
    return [
        DispatchRequest.model_validate(
            loads(event.activity_task_scheduled_event_attributes.input.payloads[0].data)
        ).call_id
        for event in events
        if event.event_type == EventType.EVENT_TYPE_ACTIVITY_TASK_SCHEDULED
        and event.activity_task_scheduled_event_attributes.activity_type.name == DISPATCH
    ]


def _reports(event: HistoryEvent, scheduled: dict[int, str]) -> Iterator[SyncReport]:
    if event.event_type == EventType.EVENT_TYPE_MARKER_RECORDED:
        marker = event.marker_recorded_event_attributes
        if marker.marker_name == _LOCAL_ACTIVITY and marker.details["data"].payloads:
            data = loads(marker.details["data"].payloads[0].data)
            if data.get("activity_type") == SYNC and "result" in marker.details:
                yield SyncReport.model_validate(loads(marker.details["result"].payloads[0].data))
    elif event.event_type == EventType.EVENT_TYPE_ACTIVITY_TASK_COMPLETED:
        completed = event.activity_task_completed_event_attributes
        if scheduled.get(completed.scheduled_event_id) == SYNC:
            yield SyncReport.model_validate(loads(completed.result.payloads[0].data))
