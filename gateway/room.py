"""Memory for the bodies of requests."""

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Final

SLOW_S: Final = 2.0
"""How long a body may take to arrive if others wait for room."""


@dataclass(eq=False)
class _Place:
    """The room that one body has."""

    size_bytes: int
    slow_at: float
    limit: asyncio.Timeout


class Room:
    """So many bytes, shared by all bodies in turn: a large one is not overtaken for ever by small ones.

    A body gets all its room before it arrives; given piece by piece, bodies that are half there could wait for each
    other. So one that comes slowly holds what it does not use. It may do so while nobody waits. Then the one that has
    been arriving longest has to go, if it is slow: however many come slowly, nobody waits for them beyond `SLOW_S`.

    Args:
        size_bytes: all there is.
        patience_s: how long a body waits for its room.
    """

    def __init__(self, size_bytes: int, patience_s: float) -> None:
        self._size_bytes = size_bytes
        self._free_bytes = size_bytes
        self._patience_s = patience_s
        self._queue = asyncio.Lock()
        self._freed = asyncio.Event()
        self._arriving: list[_Place] = []

    @asynccontextmanager
    async def receive(self, read: Callable[[], Awaitable[bytes]], size_bytes: int) -> AsyncGenerator[bytes]:
        """The body that is read, with room for so many bytes until the end of the block, or with all there is.

        Raises:
            TimeoutError: if there was no room in time, or the body came slowly and others needed its room.
        """
        place = await self._take(min(size_bytes, self._size_bytes))
        try:
            yield await self._arrived(place, read)
        finally:
            self._give_back(place)

    async def _take(self, size_bytes: int) -> _Place:
        async with asyncio.timeout(self._patience_s), self._queue:
            while self._free_bytes < size_bytes:
                await self._wait()
            # Nothing is awaited from here on, so whoever is cancelled while it waits has taken nothing.
            self._free_bytes -= size_bytes
        return _Place(size_bytes, asyncio.get_running_loop().time() + SLOW_S, asyncio.timeout(None))

    async def _wait(self) -> None:
        """Wait until some room is free, or make the oldest arrival go once it is slow."""
        oldest = self._arriving[0] if self._arriving else None
        self._freed.clear()
        try:
            async with asyncio.timeout_at(oldest.slow_at if oldest else None):
                await self._freed.wait()
        except TimeoutError:
            if oldest in self._arriving:
                self._arriving.remove(oldest)
                oldest.limit.reschedule(asyncio.get_running_loop().time())
                # At once, so that one waits for the room of one: nothing of that body is kept (`_arrived`).
                self._give_back(oldest)

    def _give_back(self, place: _Place) -> None:
        self._free_bytes += place.size_bytes
        place.size_bytes = 0
        self._freed.set()

    async def _arrived(self, place: _Place, read: Callable[[], Awaitable[bytes]]) -> bytes:
        self._arriving.append(place)
        try:
            async with place.limit:
                body = await read()
            if place not in self._arriving:
                raise TimeoutError  # it was to go when its last bytes came
            return body
        finally:
            if place in self._arriving:
                self._arriving.remove(place)
