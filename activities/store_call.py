"""Calls of the store from activities: its errors become failures that say whether another try can help."""

from collections.abc import Awaitable
from typing import TypeVar

from temporalio.exceptions import ApplicationError

from perdure.errors import StaleWriter, StoreError, StoreUnavailable, ThreadNotFound
from perdure.policy import ErrorType

Result = TypeVar("Result")


async def store_call(call: Awaitable[Result]) -> Result:
    """Await a call of the store, its errors turned into failures that say whether another try can help."""
    try:
        return await call
    except StoreUnavailable as error:
        # Not a word about another try: this is also the last one's failure, which tells why something was given up.
        raise ApplicationError(str(error), type=ErrorType.STORE) from error
    except StaleWriter as error:
        raise ApplicationError(str(error), type=ErrorType.STALE_WRITER, non_retryable=True) from error
    except ThreadNotFound as error:
        raise ApplicationError(str(error), type=ErrorType.USAGE, non_retryable=True) from error
    except StoreError as error:
        # The store is there and says no: it would say so every time.
        raise ApplicationError(str(error), type=ErrorType.BUG, non_retryable=True) from error
