"""What a thread tells its parent by itself; all else its model tells it, by a call."""

from temporalio import workflow

with workflow.unsafe.imports_passed_through():
    from perdure.contract import TELL_PARENT, TellParentRequest
    from perdure.policy import SPAWN as POLICY
    from perdure.records import ThreadRecord
    from workflows.background import Background


def tell_parent(thread: ThreadRecord, background: Background) -> None:
    """A person has closed the thread: its parent waits for a report that does not come any more.

    The parent of a thread for an event waits for none.
    """
    if thread.kind != "child":
        return
    work = workflow.execute_activity(
        TELL_PARENT,
        TellParentRequest(thread_id=thread.thread_id),
        start_to_close_timeout=POLICY.start_to_close,
        retry_policy=POLICY.retry,
        summary="tell the parent: closed",
    )
    background.start(work, "The parent thread was not told")
