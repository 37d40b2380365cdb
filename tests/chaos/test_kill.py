"""kill -9 of the worker at every boundary of a turn: a second worker ends it, and nobody can tell from the outcome."""

import asyncio
from pathlib import Path

import pytest
from temporalio.client import Client

from perdure.client import PerdureClient
from perdure.dev.temporal_server import TemporalServer
from perdure.messages import Message, TextPart, ToolResultPart
from perdure.ordering import dispatched_calls, early_dispatches
from stores.postgres import PostgresStore
from tests.chaos.agents import COUNTED, DONE, STREAMED, runs
from tests.chaos.doomed_worker import POINTS, DoomedWorker, Place
from tests.chaos.faults import faults
from tests.recorded import chain

pytestmark = pytest.mark.slow

TOOL_MAY_HAVE_RUN = ("after call has started", "before result is staged")
"""Points after which nobody can know whether the tool took effect, so it must not run a second time."""


class Crash:
    """A turn with two tools whose worker dies at a point, in a thread and on a task queue of its own."""

    def __init__(self, point: str, thread: str, temporal: Client, store: PostgresStore, place: Place) -> None:
        self._point = point
        self._thread = f"{thread}-{point.replace(' ', '-')}"
        self._place = Place(
            place.temporal_address, place.database_url, f"queue-{self._thread}", place.state_dir / self._thread
        )
        self._place.state_dir.mkdir()
        self._temporal = temporal
        self._client = PerdureClient(temporal, store, task_queue=self._place.task_queue)

    async def run(self) -> None:
        """Crash, recover, and check that it left no trace."""
        try:
            answer = await self._crash_and_recover()
            await self._check(answer)
            self._check_tools(answer)
        except BaseException as error:
            error.add_note(f"killed {self._point}")
            raise

    async def _crash_and_recover(self) -> Message:
        message_id = await self._client.post(self._thread, "go", id="m1")
        async with DoomedWorker(self._place, self._point) as doomed:
            assert await doomed.died() == -9
        async with DoomedWorker(self._place):
            # Whoever is not sure that a message arrived sends it again.
            assert await self._client.post(self._thread, "go", id="m1") == message_id
            answer = await self._client.wait_settled(self._thread, message_id)
            assert await self._client.ask(self._thread, "count", id="m2") == COUNTED
        return answer

    async def _check(self, answer: Message) -> None:
        messages = await self._client.history(self._thread)
        assert faults(messages) == []
        assert [message.role for message in messages] == ["user", "assistant"] * 2
        assert [part.text for part in answer.parts if isinstance(part, TextPart)] == [STREAMED, DONE]
        assert answer.status.state == "complete"
        events = await chain(self._temporal, self._thread)
        assert len(dispatched_calls(events)) == 2
        assert early_dispatches(events, self._thread) == []

    def _check_tools(self, answer: Message) -> None:
        booked, looked = (part for part in answer.parts if isinstance(part, ToolResultPart))
        booked_times = runs(self._place.state_dir, "book")
        assert looked.content == "Paris is sunny"
        if self._point in TOOL_MAY_HAVE_RUN:
            assert "outcome is unknown" in booked.content
            assert booked_times <= 1
        else:
            assert (booked.content, booked_times) == ("booked table 7", 1)


async def test_a_worker_killed_at_any_boundary_leaves_no_trace(
    temporal_server: TemporalServer,
    temporal: Client,
    store: PostgresStore,
    database_url: str,
    thread: str,
    tmp_path: Path,
) -> None:
    """Nothing is lost, nothing is stored twice, every call has one result, and no tool runs a second time.

    Several boundaries at once: most of each crash is waiting for a timeout that tells Temporal of it.
    """
    place = Place(temporal_server.address, database_url, "", tmp_path)
    at_once = asyncio.Semaphore(9)

    async def crash(point: str) -> None:
        async with at_once:
            await Crash(point, thread, temporal, store, place).run()

    async with asyncio.TaskGroup() as crashes:
        for point in POINTS:
            crashes.create_task(crash(point))


@pytest.mark.parametrize("point", ["before input sync", "after input sync"])
async def test_words_that_come_while_no_worker_lives_are_not_lost(
    point: str,
    temporal_server: TemporalServer,
    temporal: Client,
    store: PostgresStore,
    database_url: str,
    thread: str,
    tmp_path: Path,
) -> None:
    """The next worker finds more inputs than the one that died: the sync that may have been applied is another one."""
    place = Place(temporal_server.address, database_url, f"queue-{thread}", tmp_path)
    client = PerdureClient(temporal, store, task_queue=place.task_queue)
    await client.post(thread, "count to forty", id="m1")
    async with DoomedWorker(place, point) as doomed:
        assert await doomed.died() == -9
    second = await client.post(thread, "count again", id="m2")
    async with DoomedWorker(place):
        await client.wait_settled(thread, second)
    messages = await client.history(thread)
    assert [message.input_id for message in messages if message.role == "user"] == ["m1", "m2"]
    assert faults(messages) == []
