"""Model calls that brought nothing are paid for all the same: they are counted when they are stopped or fail.

What a worker that is killed had under way is not: nobody is left to count it.
"""

import asyncio
from collections.abc import Coroutine, Sequence
from typing import Any

import structlog

from perdure.contract import CompleteRequest
from perdure.errors import StoreUnavailable
from perdure.messages import Usage
from perdure.ports import Store

RETRY_S = (0.1, 0.5, 2.0, 5.0)
"""Waits between tries while the store is away. A count that is later than that would help nobody."""

CLOSE_S = 5.0
"""How long a worker that ends waits for what is being counted."""


class LostCalls:
    """Counts them beside the work: a stop does not wait for that, and a count that fails is no failure of the call."""

    def __init__(self, store: Store, *, retry_s: Sequence[float] = RETRY_S, close_s: float = CLOSE_S) -> None:
        self._store = store
        self._retry_s = tuple(retry_s)
        self._close_s = close_s
        self._counting: dict[asyncio.Task[None], str] = {}

    def count(self, request: CompleteRequest, attempt: int, usage: Usage) -> None:
        """Begin to add the usage to the thread's. Safe to repeat for one attempt."""
        self._begin(request, self._count(request, attempt, usage))

    def count_if_refused(
        self, storing: "asyncio.Task[None]", request: CompleteRequest, attempt: int, usage: Usage
    ) -> None:
        """Begin to add the usage of an answer if the store will not have it.

        One that it takes counts with its step, also if that is stopped before anybody commits it. So an answer that is
        being stored when its call is stopped is stored or refused to the end: what was cut off could be either.
        """
        self._begin(request, self._count_refused(storing, request, attempt, usage))

    async def counted(self, thread_id: str) -> None:
        """Wait for what is being counted of a thread, so that its next call is judged by all that it has spent."""
        if counting := [task for task, of in self._counting.items() if of == thread_id]:
            await asyncio.wait(counting)

    async def close(self) -> None:
        """Wait for what is being counted, but not for long."""
        if counting := list(self._counting):
            _, late = await asyncio.wait(counting, timeout=self._close_s)
            for task in late:
                task.cancel()
            await asyncio.gather(*late, return_exceptions=True)

    def _begin(self, request: CompleteRequest, work: Coroutine[Any, Any, None]) -> None:
        counting = asyncio.create_task(work)
        self._counting[counting] = request.thread_id
        counting.add_done_callback(self._forget)

    async def _count_refused(
        self, storing: "asyncio.Task[None]", request: CompleteRequest, attempt: int, usage: Usage
    ) -> None:
        try:
            await storing
        except Exception:  # whatever the reason is: the writer tries on while the store is away, so this is its answer
            await self._count(request, attempt, usage)

    async def _count(self, request: CompleteRequest, attempt: int, usage: Usage) -> None:
        place = request.thread_id, request.turn, request.step, attempt
        for wait_s in (*self._retry_s, None):
            try:
                await self._store.add_usage(*place, usage)
                return
            except StoreUnavailable:
                if wait_s is None:
                    raise
            await asyncio.sleep(wait_s)

    def _forget(self, task: asyncio.Task[None]) -> None:
        thread_id = self._counting.pop(task)
        error = None if task.cancelled() else task.exception()
        if task.cancelled() or error is not None:
            reason = str(error) if error else "the worker ended first"
            structlog.get_logger("perdure.usage").warning(
                "a model call is not counted", thread_id=thread_id, reason=reason
            )
