"""Every error of ours. The text says what happened and what to do.

PerdureError
├── UsageError             somebody asked for something that cannot be: bad input, wrong option
│   ├── UnknownAgent       no agent of this name is served here
│   ├── UnknownMessage     no message of this id is in the thread
│   ├── InvalidContext     a context provider returned what is no context; it would do so again
│   ├── ThreadClosed       the thread takes nothing more
│   └── NotTaken           the thread did not take a message; what became of it is told
├── ConfigurationError     a setting is missing or wrong; the process cannot start
├── StoreError
│   ├── StoreUnavailable   the database cannot be reached now; retrying helps
│   ├── ThreadNotFound
│   ├── BlobNotFound
│   ├── CallNotOpen
│   ├── ContentConflict    the same id with other content
│   ├── TooManyViews       the thread shows as many views as it may
│   ├── StaleWriter        somebody else has written this thread since it was loaded
│   └── StepSealed         the step was stopped or committed; this writer is late and must stop
├── Unreachable            Temporal, or a worker behind it, does not answer
├── TurnFailed             the answer that was waited for ended incomplete; `status` says why
│   └── OutputMissing      the turn is complete, and its answer is not the object that was asked for
├── ViewOutdated           the conversation was changed before what a reader holds
├── ModelError             the model call failed; `retryable` and `retry_after_s` say how to go on
├── ToolError              a tool failed; becomes an error result, never a dead thread
└── UnflushedTurn          bug: sync was called with a turn in the buffer
"""

from typing import TYPE_CHECKING, Final, Self

if TYPE_CHECKING:
    # Messages hold what people decide, and deciding raises these errors.
    from perdure.messages import Status


class PerdureError(Exception):
    """The root of all errors of Perdure."""


class UsageError(PerdureError):
    """The request cannot be carried out as it was made."""


class ToolsetUnavailable(PerdureError):
    """A toolset's server does not answer, or what it offers is not valid. The agent goes on without its tools."""


class UnknownAgent(UsageError, KeyError):
    """There is no agent of this name. A KeyError too, as a mapping's `in` and `get` need it."""

    __str__ = Exception.__str__


class UnknownMessage(UsageError):
    """There is no message of this id in the thread."""


class InvalidContext(UsageError):
    """A context provider returned what is no context. It is a mistake of its program, which no retry puts right."""


class ThreadClosed(UsageError):
    """The thread is closed and takes nothing more."""

    @classmethod
    def of(cls, thread_id: str) -> Self:
        """The error for this thread."""
        return cls(f"The thread {thread_id!r} is closed and takes nothing more; start another one.")


_NOT_TAKEN: Final = {
    "rejected": "the thread is answering already, and in the mode `reject` words give way to that; send it later",
    "conflict": "its id was used before with other words; take another id",
    "dropped": "the thread could not store it; send it again",
}


class NotTaken(UsageError):
    """The thread did not take a message. Nothing was changed by it."""

    def __init__(self, disposition: str, detail: str | None = None) -> None:
        super().__init__(detail or f"The message was not taken ({disposition}): {_NOT_TAKEN[disposition]}.")
        self.disposition = disposition

    @classmethod
    def of(cls, disposition: str, detail: str | None = None) -> Self | None:
        """The error for a message of which this became; None if it was taken."""
        return cls(disposition, detail) if disposition in _NOT_TAKEN else None


class ConfigurationError(PerdureError):
    """A setting is missing or wrong."""


class StoreError(PerdureError):
    """The store refused or failed."""


class StoreUnavailable(StoreError):
    """The database cannot be reached now; the operation may be tried again."""


class ThreadNotFound(StoreError):
    """There is no such thread."""

    def __init__(self, thread_id: str) -> None:
        super().__init__(f"There is no thread {thread_id!r}; `perdure start` and `client.start` begin one.")
        self.thread_id = thread_id


class SpawnPointNotFound(StoreError):
    """The message that a new thread is to inherit up to is not stored: it may just have been deleted."""

    def __init__(self, message_id: str) -> None:
        super().__init__(f"The message {message_id!r}, up to which a thread is to inherit, is not stored.")


class BlobNotFound(StoreError):
    """There is no such blob in the thread or its ancestors."""

    def __init__(self, thread_id: str, blob: str) -> None:
        super().__init__(f"There is no blob {blob!r} in thread {thread_id!r} or above it.")


class CallNotOpen(StoreError):
    """There is no such call, or it is settled and nobody waits for it."""

    def __init__(self, call_id: str) -> None:
        super().__init__(f"The call {call_id!r} is not open: it is settled, or there never was one.")


class ContentConflict(StoreError):
    """An id was used again with other content; the first content stays."""


class TooManyViews(StoreError):
    """The thread shows as many views as it may; those it shows can be replaced and cleared."""

    def __init__(self, most: int) -> None:
        super().__init__(f"The thread shows {most} views, as many as it may; clear one to show one of another type.")


class StaleWriter(StoreError):
    """Another writer has changed this thread since it was loaded; load it again."""


class StepSealed(StoreError):
    """The step was stopped, committed or taken over by a later attempt; its late writes are refused."""


class Unreachable(PerdureError):
    """Temporal, or a worker behind it, does not answer. What was sent may be sent again under the same id."""


class TurnFailed(PerdureError):
    """The answer that was waited for ended incomplete."""

    def __init__(self, message: str, status: "Status") -> None:
        super().__init__(message)
        self.status = status


class OutputMissing(TurnFailed):
    """The turn is complete, and its answer is not the object that was asked for."""


class ViewOutdated(PerdureError):
    """The conversation was changed before the part that this reader holds; take a new snapshot."""

    def __init__(self) -> None:
        super().__init__(" ".join((type(self).__doc__ or "").split()))


class ModelError(PerdureError):
    """A model call failed."""

    def __init__(self, message: str, *, retryable: bool, retry_after_s: float | None = None) -> None:
        super().__init__(message)
        self.retryable = retryable
        self.retry_after_s = retry_after_s


class ToolError(PerdureError):
    """Raise it in a tool to give the model an error result with just this text."""


class UnflushedTurn(PerdureError):
    """bug: sync was called while the turn buffer holds content, which would have been lost."""
