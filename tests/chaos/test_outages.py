"""A server that is away for 20 s in the middle of a turn: the turn ends as if nothing had happened."""

import asyncio
from collections.abc import AsyncGenerator
from datetime import timedelta
from pathlib import Path

import pytest
from temporalio.client import Client

from perdure import ids
from perdure.agent import Agent
from perdure.client import PerdureClient
from perdure.connection import connect_temporal
from perdure.dev.temporal_server import TemporalServer
from perdure.errors import StoreUnavailable, Unreachable
from perdure.messages import ToolResultPart
from perdure.testing import Asked, Call, Reply, ScriptedModel
from perdure.watch import answer_text
from stores.embedded import EmbeddedPostgres
from stores.migrate import migrate
from stores.postgres import PostgresStore
from tests.chaos.faults import faults
from tests.eventually import eventually
from tests.stack import Stack

pytestmark = [pytest.mark.slow, pytest.mark.timeout(180)]

AWAY_S = 20
_SHORT = timedelta(seconds=2)
STORY = " ".join(f"word{number}" for number in range(60))


class Restaurant:
    """An agent whose tool takes a moment, and how often that tool ran."""

    def __init__(self) -> None:
        self.booked = 0
        self.booking = asyncio.Event()
        self.agent = Agent("a", model=ScriptedModel(self._script))
        self.agent.tool(self.book)

    async def book(self, table: int) -> str:
        """Book a table."""
        self.booked += 1
        self.booking.set()
        await asyncio.sleep(1)
        return f"booked table {table}"

    def _script(self, asked: Asked) -> Reply:
        if asked.user_text == "story":
            return Reply(STORY, chunk_chars=8, delay_s=0.03)
        return Reply("booked") if asked.results else Reply(Call("book", {"table": 7}))


@pytest.fixture
async def postgres(tmp_path: Path) -> AsyncGenerator[EmbeddedPostgres]:
    """A database server that this test may stop."""
    async with EmbeddedPostgres(tmp_path / "pg") as server:
        await migrate(server.url)
        yield server


@pytest.fixture
async def own_store(postgres: EmbeddedPostgres) -> AsyncGenerator[PostgresStore]:
    """A store over that server."""
    store = await PostgresStore.connect(postgres.url)
    yield store
    await store.close()


async def test_postgres_away_in_mid_turn(
    temporal: Client, own_store: PostgresStore, postgres: EmbeddedPostgres
) -> None:
    """Answers that stream and tools that run outlast the outage, new words wait for its end, nothing is blank."""
    restaurant = Restaurant()
    async with Stack(temporal, own_store, [restaurant.agent]) as stack:
        streaming = await stack.client.send("streams", "story", id="m1")
        tool = await stack.client.send("books", "book", id="m1")
        await stack.client.ask("talks", "story", id="m0")
        await asyncio.wait_for(restaurant.booking.wait(), 10)
        await postgres.kill()
        waiting = await stack.client.post("talks", "story", id="m1")
        with pytest.raises(StoreUnavailable):
            await stack.client.history("talks")
        reasons = await eventually(lambda: _waits(stack, "talks"), timeout=10)
        await asyncio.sleep(AWAY_S)
        await postgres.start()

        assert answer_text(await stack.client.wait_settled("talks", waiting)) == STORY
        assert answer_text(await stack.client.wait_settled("streams", streaming.message_id)) == STORY
        answer = await stack.client.wait_settled("books", tool.message_id)
        assert [part.content for part in answer.parts if isinstance(part, ToolResultPart)] == ["booked table 7"]
        assert restaurant.booked == 1
        assert any("tried again" in reason for reason in reasons)
        for thread_id, count in (("streams", 2), ("books", 2), ("talks", 4)):
            messages = await stack.client.history(thread_id)
            assert (len(messages), faults(messages)) == (count, [])
            assert (await stack.client.status(thread_id)).problems == ()


async def _waits(stack: Stack, thread_id: str) -> list[str]:
    """What the thread's activities that are tried again have failed with: this is what the Temporal UI shows."""
    described = (await stack.handle(thread_id).describe()).raw_description
    return [activity.last_failure.message for activity in described.pending_activities if activity.attempt > 1]


@pytest.mark.parametrize("end", ["kill", "stop"])
async def test_temporal_away_in_mid_turn(end: str, store: PostgresStore, tmp_path: Path) -> None:
    """Killed or stopped: the workers wait for the server, and turns that were under way end as they should."""
    restaurant = Restaurant()
    async with TemporalServer(tmp_path / "temporal.db") as server:
        temporal = await connect_temporal({"target_host": server.address})
        async with Stack(temporal, store, [restaurant.agent]) as stack:
            streaming = await stack.client.send("streams", "story", id="m1")
            tool = await stack.client.send("books", "book", id="m1")
            await stack.client.ask("talks", "story", id="m0")
            await asyncio.wait_for(restaurant.booking.wait(), 10)
            await (server.kill() if end == "kill" else server.stop())
            impatient = PerdureClient(temporal, store, task_queue=stack.settings.task_queue, patience=_SHORT)
            with pytest.raises(Unreachable, match="sent again"):
                await impatient.post("talks", "story", id="m1")
            assert len(await stack.client.history("talks")) == 2
            sending = asyncio.create_task(stack.client.post("talks", "story", id="m1"))
            await asyncio.sleep(AWAY_S)
            await server.start()

            assert await sending == ids.input_message_id("talks", "m1")
            assert answer_text(await stack.client.wait_settled("talks", await sending)) == STORY
            assert answer_text(await stack.client.wait_settled("streams", streaming.message_id)) == STORY
            answer = await stack.client.wait_settled("books", tool.message_id)
            assert [part.content for part in answer.parts if isinstance(part, ToolResultPart)] == ["booked table 7"]
            assert restaurant.booked == 1
            for thread_id, count in (("streams", 2), ("books", 2), ("talks", 4)):
                messages = await stack.client.history(thread_id)
                assert (len(messages), faults(messages)) == (count, [])
