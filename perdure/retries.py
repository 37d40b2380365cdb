"""Tries of a call that may fail for a while, by the same policies that Temporal has for activities."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import TypeVar

from temporalio.common import RetryPolicy
from temporalio.exceptions import ApplicationError

Result = TypeVar("Result")


async def retried(call: Callable[[], Awaitable[Result]], retry: RetryPolicy) -> Result:
    """Call until it works, fails for good, or has been tried often enough. Raises ApplicationError."""
    failures = 0
    while True:
        try:
            return await call()
        except ApplicationError as error:
            failures += 1
            if error.non_retryable or failures == retry.maximum_attempts:
                raise
            pause = error.next_retry_delay or retry.initial_interval * retry.backoff_coefficient ** (failures - 1)
        await asyncio.sleep(min(pause, retry.maximum_interval or pause).total_seconds())
