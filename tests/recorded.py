"""What Temporal has recorded of a thread."""

from temporalio.api.enums.v1 import EventType
from temporalio.api.history.v1 import HistoryEvent
from temporalio.client import Client

from perdure import ids


async def chain(temporal: Client, thread_id: str) -> list[HistoryEvent]:
    """The events of the present run and of those that it continues, the oldest first."""
    return [event for run in await chained_runs(temporal, thread_id) for event in run]


async def chained_runs(temporal: Client, thread_id: str) -> list[list[HistoryEvent]]:
    """The same, run by run: a thread that continued as new has several."""
    workflow_id = ids.workflow_id(thread_id)
    described = await temporal.get_workflow_handle(workflow_id).describe()
    run_id = described.raw_description.workflow_execution_info.first_run_id
    runs: list[list[HistoryEvent]] = []
    while run_id:
        handle = temporal.get_workflow_handle(workflow_id, run_id=run_id)
        events = [event async for event in handle.fetch_history_events()]
        runs.append(events)
        last = events[-1]
        continued = last.event_type == EventType.EVENT_TYPE_WORKFLOW_EXECUTION_CONTINUED_AS_NEW
        run_id = last.workflow_execution_continued_as_new_event_attributes.new_execution_run_id if continued else ""
    return runs
