"""Workers that are killed at one point each, every one in a thread and on a task queue of its own."""

import asyncio
from collections.abc import Awaitable, Callable, Iterable
from dataclasses import dataclass, replace

from temporalio.client import Client

from perdure.client import PerdureClient
from perdure.ports import Store
from tests.chaos.doomed_worker import Place


@dataclass(frozen=True)
class Crash:
    """What a worker that dies at a point works for.

    Attributes:
        point: where it dies.
        thread: the one thread of its task queue.
        place: what the worker is started with, and the next one.
        client: the way to the thread.
    """

    point: str
    thread: str
    place: Place
    client: PerdureClient


class Crashes:
    """Crashes on the servers of the run; `place` names them, and a folder for the notes of all."""

    def __init__(self, temporal: Client, store: Store, place: Place, thread: str) -> None:
        self.temporal = temporal
        self.store = store
        self._place = place
        self._thread = thread

    def at(self, point: str) -> Crash:
        """One that is to come at this point; once for each point."""
        thread = f"{self._thread}-{point.replace(' ', '-')}"
        place = replace(self._place, task_queue=f"queue-{thread}", state_dir=self._place.state_dir / thread)
        place.state_dir.mkdir()
        return Crash(point, thread, place, PerdureClient(self.temporal, self.store, task_queue=place.task_queue))

    async def at_each(self, points: Iterable[str], run: Callable[[Crash], Awaitable[None]], at_once: int = 9) -> None:
        """One at every point, some at once: most of each is waiting for a timeout that tells Temporal of it."""
        room = asyncio.Semaphore(at_once)

        async def crash(point: str) -> None:
            async with room:
                try:
                    await run(self.at(point))
                except BaseException as error:  # raised again; the group's own error does not say which one it was
                    error.add_note(f"killed {point}")
                    raise

        async with asyncio.TaskGroup() as crashes:
            for point in points:
                crashes.create_task(crash(point))
