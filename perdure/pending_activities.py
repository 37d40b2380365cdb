"""What a workflow has under way that has failed already: Temporal tries it again, and alone knows why and when.

A description tells that without the summaries by which people know activities; those are in the history, which is read
for them only if anything has failed. The newest events come first, since what is pending was scheduled lately.
"""

from typing import Final

from temporalio.api.common.v1 import WorkflowExecution
from temporalio.api.enums.v1 import PendingActivityState
from temporalio.api.workflow.v1 import PendingActivityInfo
from temporalio.api.workflowservice.v1 import GetWorkflowExecutionHistoryReverseRequest
from temporalio.client import Client, WorkflowExecutionDescription
from temporalio.exceptions import ApplicationError, TimeoutError, TimeoutType

from perdure.codec import clip
from perdure.contract import Retry

WHY_CHARS: Final = 500
_PAGE_EVENTS: Final = 200


async def retries(temporal: Client, described: WorkflowExecutionDescription) -> tuple[Retry, ...]:
    """The activities of a workflow that are tried again, the oldest first. Raises RPCError."""
    pending = [one for one in described.raw_description.pending_activities if one.attempt > 1]
    if not pending:
        return ()
    summaries = await _summaries(temporal, described, {one.activity_id for one in pending})
    return tuple([await _retry(temporal, one, summaries.get(one.activity_id)) for one in pending])


async def _retry(temporal: Client, one: PendingActivityInfo, summary: str | None) -> Retry:
    why = ""
    if one.HasField("last_failure"):
        why = _why(await temporal.data_converter.decode_failure(one.last_failure))
    waits = one.state == PendingActivityState.PENDING_ACTIVITY_STATE_SCHEDULED
    next_try = one.next_attempt_schedule_time if waits and one.HasField("next_attempt_schedule_time") else None
    return Retry(
        what=summary or one.activity_type.name,
        attempt=one.attempt,
        why=clip(why, WHY_CHARS),
        next_try=next_try and next_try.ToMicroseconds() / 1_000_000,
    )


def _why(failure: BaseException) -> str:
    match failure:
        case ApplicationError():
            return failure.message
        case TimeoutError(type=TimeoutType.HEARTBEAT):
            return "Its worker was not heard of any more."
        case TimeoutError():
            return "It was not over in time."
        case _:
            return str(failure)


async def _summaries(temporal: Client, described: WorkflowExecutionDescription, ids: set[str]) -> dict[str, str]:
    """What the activities of these ids are called in the history."""
    found: dict[str, str] = {}
    missing, page = set(ids), b""
    while missing:
        answer = await temporal.workflow_service.get_workflow_execution_history_reverse(
            GetWorkflowExecutionHistoryReverseRequest(
                namespace=temporal.namespace,
                execution=WorkflowExecution(workflow_id=described.id, run_id=described.run_id),
                maximum_page_size=_PAGE_EVENTS,
                next_page_token=page,
            ),
            retry=True,
        )
        for event in answer.history.events:
            scheduled = event.activity_task_scheduled_event_attributes
            if scheduled.activity_id not in missing:
                continue
            missing.remove(scheduled.activity_id)
            if event.user_metadata.HasField("summary"):
                (summary,) = await temporal.data_converter.decode([event.user_metadata.summary], [str])
                found[scheduled.activity_id] = summary
        page = answer.next_page_token
        if not page:
            break
    return found
