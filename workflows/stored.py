"""Calls of the store from a workflow: local activities, and regular ones when the store does not answer."""

import asyncio
from typing import Any, TypeVar

from temporalio import workflow
from temporalio.exceptions import ActivityError, ApplicationError, FailureError, is_cancelled_exception

with workflow.unsafe.imports_passed_through():
    from perdure.policy import STORED, STORED_LOCALLY

Result = TypeVar("Result")


async def stored(name: str, argument: Any, result_type: type[Result], summary: str) -> Result:
    """Run an idempotent activity of the store, for as long as it takes.

    A local activity costs one event and no round trip through the server. Its retries would keep the workflow task
    open and fill the history, so after a few it becomes a regular activity, which waits for the store in the server.

    Raises:
        FailureError: if the store refused for good.
    """
    try:
        return await _stored(name, argument, result_type, summary)
    except FailureError as error:
        if is_cancelled_exception(error):
            # It is the workflow that was cancelled: the SDK words that as a failure of what it waits for.
            raise asyncio.CancelledError from error
        raise


async def _stored(name: str, argument: Any, result_type: type[Result], summary: str) -> Result:
    try:
        result: Result = await workflow.execute_local_activity(
            name,
            argument,
            result_type=result_type,
            start_to_close_timeout=STORED_LOCALLY.start_to_close,
            retry_policy=STORED_LOCALLY.retry,
            summary=summary,
        )
        return result
    except FailureError as error:
        if is_cancelled_exception(error) or _is_final(error):
            raise
    waited: Result = await workflow.execute_activity(
        name,
        argument,
        result_type=result_type,
        start_to_close_timeout=STORED.start_to_close,
        retry_policy=STORED.retry,
        summary=f"{summary}, waiting for the store",
    )
    return waited


def _is_final(error: FailureError) -> bool:
    # The SDK wraps the failure of an activity, but raises that of a local one as it is.
    cause = error.cause if isinstance(error, ActivityError) else error
    return isinstance(cause, ApplicationError) and cause.non_retryable
