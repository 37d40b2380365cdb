"""Temporal or PostgreSQL away: 503 and nothing recorded, and the same callback lands once when they are back."""

import asyncio
import shutil
import tempfile
from collections.abc import AsyncGenerator
from datetime import timedelta
from pathlib import Path

import pytest
from temporalio.client import Client

from perdure.connection import connect_temporal
from perdure.dev.temporal_server import TemporalServer
from stores.embedded import EmbeddedPostgres
from stores.memory import MemoryStore
from stores.migrate import migrate
from stores.postgres import PostgresStore
from tests.gateway.served import Served
from tests.gateway.waiting import WaitingThread

pytestmark = [pytest.mark.slow, pytest.mark.timeout(180)]

SHORT = timedelta(seconds=1)


@pytest.fixture
async def own_server(tmp_path: Path) -> AsyncGenerator[TemporalServer]:
    """A Temporal server that may be stopped; it keeps its data."""
    async with TemporalServer(tmp_path / "temporal.db") as server:
        yield server


@pytest.fixture
async def own_postgres() -> AsyncGenerator[EmbeddedPostgres]:
    """A PostgreSQL server that may be stopped."""
    # Not pytest's own folder, which is closed to the user that runs PostgreSQL when the tests run as root.
    folder = Path(tempfile.mkdtemp(prefix="perdure-gateway-"))
    folder.chmod(0o755)
    server = EmbeddedPostgres(folder / "postgres", durable=False)
    await server.start()
    yield server
    await server.stop()
    shutil.rmtree(folder)


def result(waiting: WaitingThread) -> dict[str, str]:
    """A result of the first call."""
    return {"type": "tool_result", "group_id": waiting.thread_id, "id": waiting.calls[0], "text": "sunny"}


def event(waiting: WaitingThread) -> dict[str, str]:
    """An event of the first call."""
    origin = {"group_id": waiting.thread_id, "tool_call_id": waiting.calls[0]}
    return {"type": "subscription_event", **origin, "text": "rain"}


def choice(waiting: WaitingThread) -> dict[str, object]:
    """The first call asks for a choice."""
    question = {"prompt": "Which?", "choices": ["a"], "response_url": "http://127.0.0.1:1/"}
    return {"type": "user_choice", "group_id": waiting.thread_id, "id": waiting.calls[0], **question}


async def test_temporal_away(own_server: TemporalServer, thread: str) -> None:
    """A result and an event get 503 and a time to wait; sent again after the outage each is signalled once.

    A question needs only the store, and is taken meanwhile.
    """
    temporal = await connect_temporal({"target_host": own_server.address})
    store = MemoryStore()
    waiting = await WaitingThread.stored(store, thread)
    async with Served(temporal, store, patience=SHORT) as served:
        await own_server.stop()
        for body in (result(waiting), event(waiting)):
            answer = await served.post(thread, waiting.calls[0], body)
            assert (answer.status_code, answer.headers["retry-after"]) == (503, "5")
            assert answer.json() == {"error": "The callback could not be recorded now; send it again."}
        assert (await served.post(thread, waiting.calls[0], choice(waiting))).status_code == 200
        health = await served.http.get(f"{served.base}/health")
        assert (health.status_code, health.json()["temporal"]) == (503, False)
        await own_server.start()
        assert await served.signals(thread) == []
        for body in (result(waiting), event(waiting)):
            assert (await served.post(thread, waiting.calls[0], body)).status_code == 200
        assert [name for name, _ in await served.signals(thread)] == ["tool_result", "event"]


async def test_a_short_absence_of_temporal_is_not_noticed(own_server: TemporalServer, thread: str) -> None:
    """Within the gateway's patience a callback waits for Temporal, gets its 200, and is signalled once."""
    temporal = await connect_temporal({"target_host": own_server.address})
    store = MemoryStore()
    waiting = await WaitingThread.stored(store, thread)
    async with Served(temporal, store, patience=timedelta(seconds=20)) as served:
        await own_server.stop()
        sent = asyncio.create_task(served.post(thread, waiting.calls[0], event(waiting)))
        await own_server.start()
        assert (await sent).status_code == 200
        assert len({signalled["id"] for _, signalled in await served.signals(thread)}) == 1


@pytest.mark.parametrize("asked_before", [True, False])
async def test_postgres_away(own_postgres: EmbeddedPostgres, temporal: Client, thread: str, asked_before: bool) -> None:
    """Everything gets 503, with the key known to the gateway or not; sent again after the outage it lands once."""
    await migrate(own_postgres.url)
    async with await PostgresStore.connect(own_postgres.url) as store:
        waiting = await WaitingThread.stored(store, thread)
        async with Served(temporal, store) as served:
            url = await served.url(thread, waiting.calls[0])
            if asked_before:
                assert (await served.http.post(url, json=choice(waiting))).status_code == 200
            await own_postgres.stop()
            for body in (result(waiting), event(waiting), choice(waiting)):
                answer = await served.http.post(url, json=body)
                assert (answer.status_code, answer.headers["retry-after"]) == (503, "5")
                assert "PostgreSQL" not in answer.text, "where the database is concerns no tool server"
            assert await served.signals(thread) == []
            await own_postgres.start()
            for body in (result(waiting), event(waiting), choice(waiting)):
                assert (await served.http.post(url, json=body)).status_code == 200
            assert [name for name, _ in await served.signals(thread)] == ["tool_result", "event"]
            assert len(await store.get_choices(thread)) == 1
