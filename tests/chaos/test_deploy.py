"""Workers that are told to end (SIGTERM) hand over what they run; nobody reads a shutdown as the user's stop (B58)."""

import asyncio
import uuid
from collections.abc import AsyncGenerator
from contextlib import AsyncExitStack
from pathlib import Path

import pytest
from temporalio.api.enums.v1 import EventType
from temporalio.api.history.v1 import HistoryEvent
from temporalio.client import Client

from perdure import ids
from perdure.client import PerdureClient
from perdure.dev.temporal_server import TemporalServer
from perdure.dev.worker_process import WorkerProcess
from perdure.messages import ToolResultPart
from perdure.watch import answer_text
from stores.postgres import PostgresStore
from tests.chaos.agents import COUNTED, DONE, RECITED, runs
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
    """SIGTERM in the middle of a model call: another worker tells the whole answer, and nothing is cancelled."""
    client = PerdureClient(temporal, store, task_queue=fleet.task_queue)
    workers = [await fleet.start(), await fleet.start()]
    accepted = await client.send(thread, "recite", id="m1")
    await eventually(lambda: _streams(store, thread))
    (asking,) = [worker for worker in workers if await _runs_on(temporal, thread, worker)]
    await asking.stop()
    answer = await client.wait_settled(thread, accepted.message_id)
    messages = await client.history(thread)
    assert (answer.status.state, answer_text(answer)) == ("complete", RECITED)
    assert (len(messages), faults(messages)) == (2, [])
    events = await chain(temporal, thread)
    assert [event.activity_task_started_event_attributes.attempt for event in events if _has_started(event)] == [2]
    assert [event.event_id for event in events if "CANCEL" in EventType.Name(event.event_type)] == []


async def _streams(store: PostgresStore, thread: str) -> bool:
    live = (await store.snapshot(thread)).live
    return live is not None and bool(live.parts)


def _has_started(event: HistoryEvent) -> bool:
    return event.event_type == EventType.EVENT_TYPE_ACTIVITY_TASK_STARTED


async def _runs_on(temporal: Client, thread: str, worker: WorkerProcess) -> bool:
    """Whether this worker runs the thread's model call."""
    described = (await temporal.get_workflow_handle(ids.workflow_id(thread)).describe()).raw_description
    return any(call.last_worker_identity.startswith(f"{worker.pid}@") for call in described.pending_activities)


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
