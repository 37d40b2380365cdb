"""Workers that are told to end (SIGTERM) hand over what they run; nobody reads a shutdown as the user's stop (B58)."""

import asyncio
import uuid
from collections.abc import AsyncGenerator
from contextlib import AsyncExitStack
from pathlib import Path

import pytest
from temporalio.client import Client

from perdure.client import PerdureClient
from perdure.dev.temporal_server import TemporalServer
from perdure.dev.worker_process import WorkerProcess
from perdure.messages import ToolResultPart
from perdure.watch import answer_text
from stores.postgres import PostgresStore
from tests.chaos.agents import COUNTED, DONE, runs
from tests.chaos.faults import faults
from tests.eventually import eventually
from tests.recorded import chain

pytestmark = pytest.mark.slow

CONVERSATIONS = 8


class Fleet:
    """Real worker processes (`perdure worker`) on one task queue."""

    def __init__(self, temporal: Client, server: TemporalServer, database_url: str, state_dir: Path) -> None:
        self.task_queue = f"deploy-{uuid.uuid4()}"
        self._temporal = temporal
        self._address = server.address
        self._database_url = database_url
        self._environment = {"CHAOS_DIR": str(state_dir)}
        self._workers = AsyncExitStack()

    async def start(self) -> WorkerProcess:
        """Start one more worker, and wait until it serves."""
        worker = WorkerProcess(
            "tests.chaos.agents:agents",
            database_url=self._database_url,
            temporal_address=self._address,
            task_queue=self.task_queue,
            environment=self._environment,
        )
        await worker.start()
        self._workers.push_async_callback(worker.kill)
        await worker.ready(self._temporal)
        return worker

    async def close(self) -> None:
        """Kill those that are left."""
        await self._workers.aclose()


@pytest.fixture
async def fleet(
    temporal: Client, temporal_server: TemporalServer, database_url: str, tmp_path: Path
) -> AsyncGenerator[Fleet]:
    """Workers of this test."""
    fleet = Fleet(temporal, temporal_server, database_url, tmp_path)
    yield fleet
    await fleet.close()


async def test_b58_worker_shutdown_is_not_the_users_stop(
    fleet: Fleet, temporal: Client, store: PostgresStore, thread: str
) -> None:
    """SIGTERM in the middle of a model call: another worker tells the whole answer, soon, and nothing is cancelled."""
    client = PerdureClient(temporal, store, task_queue=fleet.task_queue)
    first = await fleet.start()
    accepted = await client.send(thread, "count", id="m1")
    await eventually(lambda: _streams(store, thread), timeout=10)
    second = await fleet.start()
    await eventually(lambda: _streams(store, thread), timeout=10)
    await first.stop()
    answer = await client.wait_settled(thread, accepted.message_id)
    messages = await client.history(thread)
    assert (answer.status.state, answer_text(answer)) == ("complete", COUNTED)
    assert (len(messages), faults(messages)) == (2, [])
    names = {event.event_type for event in await chain(temporal, thread)}
    assert not any("CANCEL" in str(name) for name in names)
    await second.stop()


async def _streams(store: PostgresStore, thread: str) -> bool:
    live = (await store.snapshot(thread)).live
    return live is not None and bool(live.parts) and live.state == "open"


async def test_rolling_deploy_under_load(fleet: Fleet, temporal: Client, store: PostgresStore, tmp_path: Path) -> None:
    """Each worker in turn is replaced while conversations go on: every answer is whole, every tool ran once."""
    client = PerdureClient(temporal, store, task_queue=fleet.task_queue)
    old = [await fleet.start(), await fleet.start()]
    deployed = asyncio.Event()
    turns = 0

    async def converse(thread_id: str) -> int:
        nonlocal turns
        asked = 0
        while asked < 2 or not deployed.is_set():
            words, answer = ("count", COUNTED) if asked % 2 else ("go", DONE)
            assert await client.ask(thread_id, words, id=f"m{asked}") == answer
            asked += 1
            turns += 1
        return asked

    conversations = [asyncio.create_task(converse(f"t{number}")) for number in range(CONVERSATIONS)]
    await eventually(lambda: turns > 0, timeout=20)
    for worker in old:
        await fleet.start()
        await worker.stop()
    deployed.set()
    counts = await asyncio.gather(*conversations)

    calls = 0
    for number, asked in enumerate(counts):
        messages = await client.history(f"t{number}")
        assert (len(messages), faults(messages)) == (2 * asked, [])
        results = [part for message in messages for part in message.parts if isinstance(part, ToolResultPart)]
        assert {part.outcome for part in results} == {"ok"}
        calls += len(results) // 2
    assert (runs(tmp_path, "book"), runs(tmp_path, "look")) == (calls, calls)
