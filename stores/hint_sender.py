"""Hints that a thread may have changed, sent after the fact.

A transaction that notifies holds a lock of the whole cluster until it is on the disk, so writers of all threads would
wait for each other, one flush at a time. The frequent write, a few streamed chunks, therefore says nothing itself. Its
hint follows in a transaction that has nothing to flush, and one of them serves all threads that have changed meanwhile.
A hint that is lost with its process only delays words that stream: every other write, the end of their step among
them, notifies in its own transaction, so that no reader waits for what has happened already.
"""

import asyncio

from perdure.errors import PerdureError
from stores.database import CLOSE_TIMEOUT_S, Database


class HintSender:
    """Sends hints for the threads of a store, one statement at a time."""

    def __init__(self, database: Database) -> None:
        self._database = database
        self._threads: dict[str, None] = {}
        self._task: asyncio.Task[None] | None = None

    def send(self, thread_id: str) -> None:
        """Tell readers soon. The thread's change is committed."""
        self._threads[thread_id] = None
        if self._task is None or self._task.done():
            self._task = asyncio.create_task(self._send_all(), name="perdure-hints")

    async def close(self) -> None:
        """Send what is left, unless the database is lost."""
        if self._task:
            await asyncio.wait([self._task], timeout=CLOSE_TIMEOUT_S)
            self._task.cancel()

    async def _send_all(self) -> None:
        while self._threads:
            threads, self._threads = list(self._threads), {}
            try:
                await self._database.rows("notify", threads)
            except PerdureError:
                # The database is away. Readers look when their own connection is back, and at the next write.
                return
