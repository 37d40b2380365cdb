"""One LISTEN connection for all readers of a store.

Nothing depends on a notification arriving: what changed is read from the rows, and whoever may have missed some while
the connection was down is woken when it is up again.
"""

import asyncio
from collections.abc import AsyncGenerator
from contextlib import aclosing

import asyncpg

from perdure.errors import PerdureError
from stores.address import CONNECT_TIMEOUT_S, Address
from stores.database import SESSION_SETTINGS
from stores.hints import Hints

CHANNEL = "perdure"
FIRST_DELAY_S = 0.1
MAX_DELAY_S = 2.0
PROBE_INTERVAL_S = 30.0
CLOSE_RETRY_S = 0.5


class Listener:
    """Keeps the LISTEN connection while the store is open, from the first reader on."""

    def __init__(self, address: Address) -> None:
        self._address = address
        self._hints = Hints()
        self._task: asyncio.Task[None] | None = None

    async def listen(self, thread_id: str) -> AsyncGenerator[None]:
        """Yields at once, on every hint, and when the connection is up (again)."""
        if self._task is None or self._task.done():
            self._task = asyncio.create_task(self._keep_listening(), name="perdure-listen")
        async with aclosing(self._hints.listen(thread_id)) as hints:
            async for _ in hints:
                yield

    async def close(self) -> None:
        """End the connection."""
        # Again and again: a cancellation that meets the driver while it connects may come out as a failure to connect,
        # and then this one would try once more.
        while self._task and not self._task.done():
            self._task.cancel()
            await asyncio.wait([self._task], timeout=CLOSE_RETRY_S)

    async def _keep_listening(self) -> None:
        delay_s = FIRST_DELAY_S
        while True:
            try:
                with self._address.plain_errors():
                    await self._listen_once()
                delay_s = FIRST_DELAY_S
            except PerdureError:
                # Readers hear of it from their own reads; this connection only has to come back.
                await asyncio.sleep(delay_s)
                delay_s = min(delay_s * 2, MAX_DELAY_S)

    async def _listen_once(self) -> None:
        """Listen until the connection is lost."""
        lost = asyncio.Event()
        connection: asyncpg.Connection[asyncpg.Record] = await asyncpg.connect(
            self._address.url, timeout=CONNECT_TIMEOUT_S, server_settings=SESSION_SETTINGS
        )
        try:
            connection.add_termination_listener(lambda _: lost.set())
            await connection.add_listener(CHANNEL, self._on_notify)
            self._hints.wake_all()
            while not lost.is_set():
                try:
                    async with asyncio.timeout(PROBE_INTERVAL_S):
                        await lost.wait()
                except TimeoutError:
                    # A peer that vanished without a word is noticed only by asking it something.
                    await connection.execute("select 1", timeout=CONNECT_TIMEOUT_S)
        finally:
            connection.terminate()

    def _on_notify(self, connection: object, pid: int, channel: str, thread_id: object) -> None:
        del connection, pid, channel
        self._hints.wake(str(thread_id))
