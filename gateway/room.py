"""Memory for the bodies of requests."""

import asyncio


class Room:
    """So many bytes, shared by all requests in turn: a large one is not overtaken for ever by small ones."""

    def __init__(self, size_bytes: int) -> None:
        self._size_bytes = size_bytes
        self._free_bytes = size_bytes
        self._queue = asyncio.Lock()
        self._freed = asyncio.Event()

    async def take(self, wanted_bytes: int) -> int:
        """Wait for this much; more than all there is counts as all. Give back what it returns.

        Whoever is cancelled while it waits has taken nothing.
        """
        taken = min(wanted_bytes, self._size_bytes)
        async with self._queue:
            while self._free_bytes < taken:
                self._freed.clear()
                await self._freed.wait()
            self._free_bytes -= taken
        return taken

    def give_back(self, taken: int) -> None:
        """Let others have it."""
        self._free_bytes += taken
        self._freed.set()
