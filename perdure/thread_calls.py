"""Signals, updates and queries to the workflows of threads: the Temporal half of the client.

Owns what can go wrong on the way. Whatever is sent carries an id by which the thread knows it again, so a call whose
reply was lost is simply made again: while Temporal is away, while the thread continues as new, and while too many
updates are in flight. What the thread itself refuses is not tried again.
"""

import asyncio
import uuid
from collections.abc import Awaitable, Callable
from datetime import timedelta
from typing import Any, Final, TypeVar

from temporalio.client import (
    Client,
    WithStartWorkflowOperation,
    WorkflowExecutionStatus,
    WorkflowFailureError,
    WorkflowHandle,
    WorkflowQueryFailedError,
    WorkflowQueryRejectedError,
    WorkflowUpdateFailedError,
    WorkflowUpdateRPCTimeoutOrCancelledError,
)
from temporalio.common import QueryRejectCondition, WorkflowIDConflictPolicy
from temporalio.exceptions import ActivityError, ApplicationError
from temporalio.service import RPCError, RPCStatusCode

from perdure.compaction import ENDED
from perdure.contract import COMPACTION_TYPE, WORKFLOW_TYPE, CompactResult, Retry, ThreadStart, ThreadStatus
from perdure.errors import PerdureError, ThreadClosed, Unreachable, UsageError
from perdure.ids import compaction_id, workflow_id
from perdure.pending_activities import retries
from perdure.policy import WORKFLOW_TASK_TIMEOUT, ErrorType

Result = TypeVar("Result")

_PAUSE: Final = timedelta(seconds=0.2)
_GRACE_S: Final = 11.0
"""The SDK itself tries for ten seconds to reach a Temporal that is away, however long it is told to wait."""

_PASSING: Final = frozenset(
    {RPCStatusCode.UNAVAILABLE, RPCStatusCode.RESOURCE_EXHAUSTED, RPCStatusCode.ABORTED, RPCStatusCode.INTERNAL}
)
_TIMED_OUT: Final = frozenset({RPCStatusCode.DEADLINE_EXCEEDED, RPCStatusCode.CANCELLED})
_UPDATE_OF_ENDED_RUN: Final = "AcceptedUpdateCompletedWorkflow"
_NO_POLLER: Final = "no poller seen for task queue"
_UPDATE_OF_FAILED_TASK: Final = "update due to unexpected workflow task failure"
_FAILED_TASK: Final = "Workflow Task in failed state"


class NoRunningWorkflow(PerdureError):
    """The thread has no running workflow: it hibernates, or it was never started."""


class ThreadCalls:
    """Calls to thread workflows by thread id.

    Args:
        temporal: a client whose data converter is `perdure.converter.data_converter`.
        task_queue: where workers poll, for workflows that a call starts.
        patience: how long a call goes on trying before it raises `Unreachable`.
    """

    def __init__(self, temporal: Client, task_queue: str, patience: timedelta) -> None:
        self._temporal = temporal
        self._task_queue = task_queue
        self._patience = patience

    async def start(self, thread_id: str, start: ThreadStart) -> None:
        """Start the workflow if none runs. Safe to repeat."""
        await self._try(thread_id, lambda left: self._start(thread_id, start, rpc_timeout=left))

    async def signal_with_start(
        self, thread_id: str, signal: str, content: object, start: ThreadStart | None = None
    ) -> None:
        """Send a signal; a thread that hibernates wakes for it, one that is new begins as `start` says."""
        options = {"start_signal": signal, "start_signal_args": [content]}
        start = start or ThreadStart()
        await self._try(thread_id, lambda left: self._start(thread_id, start, rpc_timeout=left, **options))

    async def signal(self, thread_id: str, signal: str, content: object) -> None:
        """Send a signal to a running workflow. Raises NoRunningWorkflow."""
        await self._try(thread_id, lambda left: self._handle(thread_id).signal(signal, content, rpc_timeout=left))

    async def update_with_start(
        self, thread_id: str, update: str, content: object, answer: type[Result], start: ThreadStart
    ) -> Result:
        """Send an update and wait for its answer; a thread that hibernates wakes for it, one that is new begins."""
        # One id for all tries, so that Temporal itself leaves out repeats within a run; a second call with the same
        # message is another update, which the thread then judges: duplicate or conflict.
        update_id = uuid.uuid4().hex

        async def call(left: timedelta) -> Result:
            operation = WithStartWorkflowOperation[Any, Any](
                WORKFLOW_TYPE,
                start,
                id=workflow_id(thread_id),
                task_queue=self._task_queue,
                id_conflict_policy=WorkflowIDConflictPolicy.USE_EXISTING,
                task_timeout=WORKFLOW_TASK_TIMEOUT,
                memo=_memo(start),
            )
            try:
                result: Result = await self._temporal.execute_update_with_start_workflow(  # pyright: ignore[reportUnknownMemberType]  # the SDK's `args` has no type
                    update,
                    content,
                    start_workflow_operation=operation,
                    id=update_id,
                    result_type=answer,
                    rpc_timeout=left,
                )
            except BaseException:
                # The SDK keeps the failure of the start in a future of its own and complains if nobody looks at it.
                await asyncio.gather(operation.workflow_handle(), return_exceptions=True)
                raise
            return result

        return await self._try(thread_id, call)

    async def update(self, thread_id: str, update: str, answer: type[Result]) -> Result:
        """Send an update without an argument to a running workflow. Raises NoRunningWorkflow."""
        update_id = uuid.uuid4().hex

        async def call(left: timedelta) -> Result:
            result: Result = await self._handle(thread_id).execute_update(  # pyright: ignore[reportUnknownMemberType]  # as above
                update, id=update_id, result_type=answer, rpc_timeout=left
            )
            return result

        return await self._try(thread_id, call)

    async def compacted(self, thread_id: str, run_id: str | None) -> CompactResult:
        """Wait for the outcome of a compaction, of the newest if none is named; Temporal may be away meanwhile."""
        handle = self._temporal.get_workflow_handle(compaction_id(thread_id), run_id=run_id, result_type=CompactResult)
        while True:
            try:
                result: CompactResult = await handle.result()
                return result
            except WorkflowFailureError:
                return CompactResult(outcome="failed", detail=ENDED)
            except RPCError as error:
                if not _is_passing(error):
                    raise self._explained(error) from error
            await asyncio.sleep(_PAUSE.total_seconds())

    async def query(self, thread_id: str, query: str, answer: type[Result]) -> Result:
        """Ask a running workflow. Raises NoRunningWorkflow; a finished one is not replayed for an answer."""

        async def call(left: timedelta) -> Result:
            result: Result = await self._handle(thread_id).query(
                query, result_type=answer, reject_condition=QueryRejectCondition.NOT_OPEN, rpc_timeout=left
            )
            return result

        return await self._try(thread_id, call)

    async def retrying(self, thread_id: str) -> tuple[Retry, ...]:
        """What a running workflow tries again, and a compaction that it has begun. Raises NoRunningWorkflow."""

        async def call(left: timedelta) -> tuple[Retry, ...]:
            described = await self._handle(thread_id).describe(rpc_timeout=left)
            found = await retries(self._temporal, described)
            for child in described.raw_description.pending_children:
                if child.workflow_type_name == COMPACTION_TYPE:
                    handle = self._temporal.get_workflow_handle(child.workflow_id, run_id=child.run_id)
                    found += await retries(self._temporal, await handle.describe(rpc_timeout=left))
            return found

        return await self._try(thread_id, call)

    async def until_loaded(self, thread_id: str) -> None:
        """Wait until a running workflow has loaded its thread, and so has stored one that is new.

        It loads before it answers anything; only while the database is away can it answer earlier, and then it does
        not know its agent yet. Raises NoRunningWorkflow.
        """
        clock = asyncio.get_running_loop().time
        deadline = clock() + self._patience.total_seconds()
        while not (await self.query(thread_id, "status", ThreadStatus)).agent:
            if clock() >= deadline:
                raise Unreachable(
                    f"The thread {thread_id!r} was not stored within {self._patience.total_seconds():g} s: its workers "
                    "wait for the database. It goes on when that is back; what was sent is not lost."
                )
            await asyncio.sleep(_PAUSE.total_seconds())

    def no_worker(self) -> Unreachable:
        """What to tell whoever waited in vain for a worker."""
        return Unreachable(
            f"No worker answered within {self._patience.total_seconds():g} s. Is one running on the task queue "
            f"{self._task_queue!r}? Start it with `perdure worker`; what was sent may be sent again."
        )

    def _handle(self, thread_id: str) -> WorkflowHandle[Any, Any]:
        return self._temporal.get_workflow_handle(workflow_id(thread_id))

    async def _start(self, thread_id: str, start: ThreadStart, **options: Any) -> None:
        await self._temporal.start_workflow(
            WORKFLOW_TYPE,
            start,
            id=workflow_id(thread_id),
            task_queue=self._task_queue,
            id_conflict_policy=WorkflowIDConflictPolicy.USE_EXISTING,
            task_timeout=WORKFLOW_TASK_TIMEOUT,
            memo=_memo(start),
            **options,
        )

    async def _try(self, thread_id: str, call: Callable[[timedelta], Awaitable[Result]]) -> Result:
        """Make a call until it is answered, refused, or patience ends."""
        clock = asyncio.get_running_loop().time
        deadline = clock() + self._patience.total_seconds()
        while True:
            left_s = deadline - clock()
            # The SDK asks Temporal again and again for an update that no worker has taken: its own limit never ends it.
            # Ours is later, since the SDK knows better what is wrong where Temporal itself does not answer.
            limit = asyncio.timeout(max(left_s, 0.1) + _GRACE_S)
            try:
                async with limit:
                    return await call(timedelta(seconds=max(left_s, 0.1)))
            except TimeoutError as error:
                raise self.no_worker() from error
            except (RPCError, WorkflowUpdateFailedError, WorkflowUpdateRPCTimeoutOrCancelledError) as error:
                if limit.expired():
                    raise self.no_worker() from error
                if not _is_passing(error) or clock() + _PAUSE.total_seconds() >= deadline:
                    raise self._explained(error) from error
                if isinstance(error, WorkflowUpdateFailedError):
                    await self._raise_if_failed(thread_id)
            except WorkflowQueryRejectedError as error:
                # A run that has just handed over to the next one: that is there in a moment.
                goes_on = error.status is WorkflowExecutionStatus.CONTINUED_AS_NEW
                if not goes_on or clock() + _PAUSE.total_seconds() >= deadline:
                    await self._raise_if_failed(thread_id)
                    raise NoRunningWorkflow(str(error)) from error
            except WorkflowQueryFailedError as error:
                raise PerdureError(f"The thread could not answer: {error}") from error
            await asyncio.sleep(_PAUSE.total_seconds())

    async def _raise_if_failed(self, thread_id: str) -> None:
        """A run that failed would fail again for the same input: unknown agent, wrong start. Its own words say why."""
        handle = self._handle(thread_id)
        try:
            if (await handle.describe()).status is WorkflowExecutionStatus.FAILED:
                await handle.result()
        except WorkflowFailureError as error:
            raise _refusal(error.__cause__) from error
        except RPCError:
            return  # it could not be asked, so the call is simply tried again

    def _explained(self, error: Exception) -> BaseException:
        cause = error.__cause__
        if isinstance(error, WorkflowUpdateFailedError):
            return _refusal(cause)
        if isinstance(cause, asyncio.CancelledError):
            # The SDK turns the cancellation of our own task into an error; it must reach whoever cancelled.
            return asyncio.CancelledError()
        status = error.status if isinstance(error, RPCError) else RPCStatusCode.DEADLINE_EXCEEDED
        if status in _TIMED_OUT or _NO_POLLER in str(error):
            return self.no_worker()
        if _FAILED_TASK in str(error):
            return Unreachable(
                f"The thread did not answer within {self._patience.total_seconds():g} s: its worker cannot finish its "
                "workflow task, or not in time; the worker's log says why. Nothing that was sent is lost."
            )
        if status is RPCStatusCode.NOT_FOUND:
            return NoRunningWorkflow(str(error))
        if status is RPCStatusCode.INVALID_ARGUMENT:
            return UsageError(f"Temporal refused the request: {error}")
        address = self._temporal.service_client.config.target_host
        return Unreachable(f"Temporal at {address} cannot be used now ({error}). What was sent may be sent again.")


def new_id() -> str:
    """An id for what somebody asks without naming it: another one each time."""
    return uuid.uuid4().hex


def _memo(start: ThreadStart) -> dict[str, Any] | None:
    """The title of a run in Temporal's list: it is written once, into the run's first event."""
    return {"title": start.title} if start.title else None


def _is_passing(error: Exception) -> bool:
    if isinstance(error, RPCError):
        # A signal that comes while a run ends fails the last task of the run, and the updates that came with it.
        # And a query is refused at once where no worker has asked for work lately: one may just be busy, or starting.
        # So it is where a task of the workflow took too long three times, which a worker with much to do gets over.
        passing = (_UPDATE_OF_FAILED_TASK, _NO_POLLER, _FAILED_TASK)
        return error.status in _PASSING or any(text in str(error) for text in passing)
    # The run is about to continue as new, or it has ended between taking the update and answering it.
    return isinstance(error.__cause__, ApplicationError) and error.__cause__.type in (
        ErrorType.BUSY,
        _UPDATE_OF_ENDED_RUN,
    )


def _refusal(cause: BaseException | None) -> PerdureError:
    if isinstance(cause, ActivityError):
        # What an update had to do failed: the activity says why.
        cause = cause.cause
    if not isinstance(cause, ApplicationError):
        return PerdureError(f"The thread failed: {cause}")
    refusals = {ErrorType.USAGE: UsageError, ErrorType.CLOSED: ThreadClosed}
    return refusals.get(cause.type or "", PerdureError)(cause.message)
