"""The compaction workflow: a thread's conversation is made shorter for the model, beside the thread.

It runs one activity and tells the thread how it went. Nothing waits for it, unless a model has refused the thread's
request as too long. What it brings is in the store before the thread hears of it, so a thread that does not run any
more, or a signal that is lost with it, loses nothing.
"""

from temporalio import workflow
from temporalio.exceptions import ActivityError, ApplicationError, FailureError, is_cancelled_exception

with workflow.unsafe.imports_passed_through():
    from perdure import ids
    from perdure.contract import COMPACT, COMPACTED, COMPACTION_TYPE, CompactRequest, CompactResult
    from perdure.policy import COMPACT as POLICY

CANCELLED = "The compaction was cancelled."


@workflow.defn(name=COMPACTION_TYPE)
class CompactionWorkflow:
    """One compaction of one thread; `CompactRequest` says which and up to where."""

    @workflow.run
    async def run(self, request: CompactRequest) -> CompactResult:
        """Make the conversation shorter and tell its thread, also of a failure: it may wait for this."""
        result = await self._compacted(request)
        thread = workflow.get_external_workflow_handle(ids.workflow_id(request.thread_id))
        try:
            await thread.signal(COMPACTED, result)
        except FailureError:
            # It rests or is closed. When it runs again, it finds in the store whatever this has brought.
            pass
        return result

    async def _compacted(self, request: CompactRequest) -> CompactResult:
        try:
            result: CompactResult = await workflow.execute_activity(
                COMPACT,
                request,
                result_type=CompactResult,
                start_to_close_timeout=POLICY.start_to_close,
                heartbeat_timeout=POLICY.heartbeat,
                retry_policy=POLICY.retry,
                summary="make the conversation shorter for the model",
            )
            return result
        except FailureError as error:
            if is_cancelled_exception(error):
                return CompactResult(outcome="failed", detail=CANCELLED)
            return CompactResult(outcome="failed", detail=_sentence(error))


def _sentence(error: FailureError) -> str:
    cause = error.cause if isinstance(error, ActivityError) else error
    return cause.message if isinstance(cause, ApplicationError) else f"The compaction failed: {cause or error}."
