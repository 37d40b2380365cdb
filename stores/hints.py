"""Hints that a thread may have changed. They say nothing else, so hints that come together are one."""

import asyncio
from collections import defaultdict
from collections.abc import AsyncGenerator


class Hints:
    """Who waits for a thread in this process."""

    def __init__(self) -> None:
        self._waiting: defaultdict[str, set[asyncio.Event]] = defaultdict(set)

    def wake(self, thread_id: str) -> None:
        """The thread may have changed."""
        for event in self._waiting.get(thread_id, ()):
            event.set()

    def wake_all(self) -> None:
        """Any thread may have changed."""
        for thread_id in self._waiting:
            self.wake(thread_id)

    async def listen(self, thread_id: str) -> AsyncGenerator[None]:
        """Yields at once and then whenever there was a hint since the last time."""
        event = asyncio.Event()
        event.set()
        self._waiting[thread_id].add(event)
        try:
            while True:
                await event.wait()
                event.clear()  # before the yield: a hint while the reader reads is not lost
                yield
        finally:
            self._waiting[thread_id].discard(event)
            if not self._waiting[thread_id]:
                del self._waiting[thread_id]
