"""What a thread that is driven without Temporal does beside its loop: notices, hooks after turns, compactions.

None of it is waited for by the turn that caused it, and none of it can undo anything. What fails for good, whatever it
raises, is kept as a sentence.
"""

import asyncio
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any, Final, TypeVar

from temporalio.exceptions import ApplicationError

from perdure import policy
from perdure.contract import (
    AfterTurnRequest,
    AfterTurnResult,
    CompactRequest,
    CompactResult,
    NotifyRequest,
)
from perdure.history_state import EndedTurn, SpawnPoint
from perdure.records import ThreadRecord
from perdure.retries import retried

Result = TypeVar("Result")

Notify = Callable[[NotifyRequest], Awaitable[None]]
"""Tells tool servers of calls that were given up, and that the thread is closed: `NotifyActivities.notify`."""

AfterTurn = Callable[[AfterTurnRequest], Awaitable[AfterTurnResult]]
"""Runs the hooks of context providers after a turn: `AfterTurnActivities.execute`."""

Compact = Callable[[CompactRequest], Awaitable[CompactResult]]
"""Makes the conversation shorter for the model: `CompactActivities.execute`."""

PROBLEMS: Final = 10


class Upkeep:
    """The work beside one thread.

    Attributes:
        problems: what failed for good, the last few.
    """

    def __init__(
        self,
        thread: ThreadRecord,
        notify: Notify | None = None,
        after_turn: AfterTurn | None = None,
        compact: Compact | None = None,
    ) -> None:
        self.problems: tuple[str, ...] = ()
        self._thread = thread
        self._notify = notify
        self._after_turn = after_turn
        self._compact = compact
        self._tasks = set[asyncio.Task[Any]]()
        self._hooks: asyncio.Task[None] | None = None
        self._compaction: asyncio.Task[CompactResult] | None = None
        self._compactions = 0

    def tell_servers(self, call_ids: tuple[str, ...], *, closed: bool) -> None:
        """Best effort: the thread does not wait for it."""
        if self._notify is None or not (call_ids or closed):
            return
        thread = self._thread
        request = NotifyRequest(thread_id=thread.thread_id, agent=thread.agent, call_ids=call_ids, closed=closed)
        self._begin(self._told(self._notify, request))

    def turns_ended(self, ended: tuple[EndedTurn, ...]) -> None:
        """Run the hooks of turns whose end is durable, those of one turn after those of the turn before."""
        if self._after_turn is None:
            return
        for one in ended:
            request = AfterTurnRequest(
                thread_id=self._thread.thread_id,
                agent=self._thread.agent,
                turn=one.turn,
                message_id=one.message_id,
            )
            self._hooks = self._begin(self._run_hooks(self._after_turn, request, self._hooks))

    @property
    def hooks(self) -> tuple["asyncio.Task[None]", ...]:
        """The hooks of the last turn, if they are under way."""
        return (self._hooks,) if self._hooks is not None and not self._hooks.done() else ()

    def compaction(self, point: SpawnPoint, *, forced: bool) -> "asyncio.Task[CompactResult] | None":
        """The compaction that is under way, or one that begins now; None if there is nobody who makes one."""
        if self._compaction is not None and not self._compaction.done():
            return self._compaction
        if self._compact is None or point.message_id is None:
            return None
        self._compactions += 1
        request = CompactRequest(
            thread_id=self._thread.thread_id,
            agent=self._thread.agent,
            message_id=point.message_id,
            parts=point.parts,
            number=self._compactions,
            forced=forced,
        )
        self._compaction = self._begin(self._compacted(self._compact, request))
        return self._compaction

    async def over(self) -> None:
        """Wait for all of it."""
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def _begin(self, work: Coroutine[Any, Any, Any]) -> "asyncio.Task[Any]":
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    async def _run_hooks(
        self, after_turn: AfterTurn, request: AfterTurnRequest, before: "asyncio.Task[None] | None"
    ) -> None:
        if before is not None:
            await asyncio.wait({before})
        try:
            result = await _whole(retried(lambda: after_turn(request), policy.AFTER_TURN.retry))
        except _Failed as failed:
            self._problem(f"Hooks after turn {request.turn} were given up: {failed}")
        else:
            for problem in result.problems:
                self._problem(problem)

    async def _compacted(self, compact: Compact, request: CompactRequest) -> CompactResult:
        try:
            result = await _whole(retried(lambda: compact(request), policy.COMPACT.retry))
        except _Failed as failed:
            result = CompactResult(outcome="failed", detail=str(failed))
        if result.outcome in ("failed", "empty"):
            self._problem(f"The conversation was not compacted: {result.detail}")
        return result

    async def _told(self, notify: Notify, request: NotifyRequest) -> None:
        try:
            await _whole(notify(request))
        except _Failed as failed:
            self._problem(f"Tool servers were not told of what was given up: {failed}")

    def _problem(self, sentence: str) -> None:
        self.problems = (*self.problems, sentence)[-PROBLEMS:]


class _Failed(Exception):
    """Some of the work beside a thread has failed for good; the text says why."""


async def _whole(work: Awaitable[Result]) -> Result:
    """What comes of the work. Whatever goes wrong in it is a `_Failed`: it comes from whoever drives the thread.

    What fails for a while says so (`ApplicationError`, of which there were tries enough), so anything else would only
    do the same again. That includes a cancellation of its own: one from outside is passed on.
    """
    try:
        return await work
    except ApplicationError as error:
        raise _Failed(error.message) from error
    except asyncio.CancelledError as error:
        task = asyncio.current_task()
        if task is not None and task.cancelling():
            raise
        raise _Failed("it cancelled itself.") from error
    except Exception as error:  # whatever it raises: see above
        raise _Failed(f"{type(error).__name__}: {error}") from error
