"""Whether the workflows of a test did their work without a failed task, read from what Temporal has recorded."""

from temporalio.api.enums.v1 import EventType, WorkflowTaskFailedCause
from temporalio.api.history.v1 import HistoryEvent

from tests.recorded import chain
from tests.stack import Stack

HARMLESS = (
    # Temporal refuses the end of a run for which a signal has just come in; the task is then run again.
    WorkflowTaskFailedCause.WORKFLOW_TASK_FAILED_CAUSE_UNHANDLED_COMMAND,
    # A run was terminated while one of its tasks was under way.
    WorkflowTaskFailedCause.WORKFLOW_TASK_FAILED_CAUSE_FORCE_CLOSE_COMMAND,
)
"""Failures that Temporal records of a task that itself has done nothing wrong."""


def failed_tasks(events: list[HistoryEvent]) -> list[str]:
    """One sentence for each task that failed. One that fails once fails again and again: the thread hangs."""
    failures = [
        event.workflow_task_failed_event_attributes
        for event in events
        if event.event_type == EventType.EVENT_TYPE_WORKFLOW_TASK_FAILED
    ]
    return [
        f"{WorkflowTaskFailedCause.Name(failure.cause)}: {failure.failure.message}"
        for failure in failures
        if failure.cause not in HARMLESS
    ]


async def assert_sound(stack: Stack, *thread_ids: str) -> None:
    """No task of these threads has failed, and none of them has anything to complain of."""
    for thread_id in thread_ids:
        failed = failed_tasks(await chain(stack.temporal, thread_id))
        assert not failed, failed
        assert (await stack.client.status(thread_id)).problems == ()
