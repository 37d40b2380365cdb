"""What is counted of a turn whose worker is killed."""

import asyncio
from pathlib import Path

import pytest
from temporalio.client import Client

from perdure.client import PerdureClient
from perdure.dev.temporal_server import TemporalServer
from perdure.messages import Usage
from stores.postgres import PostgresStore
from tests.chaos.agents import COUNTED
from tests.chaos.doomed_worker import DoomedWorker, Place

pytestmark = pytest.mark.slow

POINTS = ("in mid stream", "after end of stream", "before step sync", "after step sync", "after results sync")


async def test_a_killed_worker_makes_nothing_count_twice(
    temporal_server: TemporalServer,
    temporal: Client,
    store: PostgresStore,
    database_url: str,
    thread: str,
    tmp_path: Path,
) -> None:
    """The turn's two model calls count once each, wherever its worker dies, and so does the one after it.

    What the killed worker was told in mid stream is the one thing that nobody counts, as the documentation says.
    """

    async def crash(point: str) -> None:
        name = f"{thread}-{point.replace(' ', '-')}"
        place = Place(temporal_server.address, database_url, f"queue-{name}", tmp_path / name)
        place.state_dir.mkdir()
        client = PerdureClient(temporal, store, task_queue=place.task_queue)
        message_id = await client.post(name, "go", id="m1")
        async with DoomedWorker(place, point) as doomed:
            assert await doomed.died() == -9
        async with DoomedWorker(place):
            await client.wait_settled(name, message_id)
            assert await client.ask(name, "count", id="m2") == COUNTED
        turns = [message.usage or Usage() for message in await client.history(name) if message.role == "assistant"]
        assert [turn.requests for turn in turns] == [2, 1], point
        assert (await client.usage(name)).thread.usage == sum(turns, Usage()), point

    async with asyncio.TaskGroup() as crashes:
        for point in POINTS:
            crashes.create_task(crash(point))
