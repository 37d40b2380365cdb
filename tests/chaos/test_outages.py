"""A server that is away for 20 s in the middle of turns: they end as if nothing had happened."""

import asyncio
import shutil
import tempfile
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from datetime import timedelta
from pathlib import Path
from typing import Literal

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
SHORT = timedelta(seconds=2)
STORY = " ".join(f"word{number}" for number in range(60))


class Restaurant:
    """An agent with a tool that takes a moment and one that takes longer than the outage, and how often they ran."""

    def __init__(self) -> None:
        self.booked = 0
        self.cooked = 0
        self.opens = asyncio.Event()
        self.agent = Agent("a", model=ScriptedModel(self._script))
        self.agent.tool(self.book)
        self.agent.tool(self.cook)

    async def book(self, table: int) -> str:
        """Book a table."""
        self.booked += 1
        await asyncio.sleep(1)
        return f"booked table {table}"

    async def cook(self) -> str:
        """Cook until the outage is over."""
        self.cooked += 1
        await self.opens.wait()
        return "cooked"

    def _script(self, asked: Asked) -> Reply:
        if asked.user_text == "story":
            return Reply(STORY, chunk_chars=8, delay_s=0.03)
        return Reply("served") if asked.results else Reply(Call("book", {"table": 7}), Call("cook"))


class Visit:
    """Three threads that an outage meets: one streams, one runs its tools, one is idle and gets words meanwhile."""

    def __init__(self, name: str, stack: Stack, restaurant: Restaurant) -> None:
        self.streams, self.serves, self.idles = f"{name}-streams", f"{name}-serves", f"{name}-idles"
        self._stack = stack
        self._restaurant = restaurant

    async def begin(self) -> None:
        """All three are where the outage is to meet them."""
        await self._stack.client.ask(self.idles, "story", id="m0")
        await self._stack.client.send(self.serves, "serve", id="m1")
        await self._stack.client.send(self.streams, "story", id="m1")
        await eventually(lambda: self._restaurant.booked + self._restaurant.cooked == 2)

    async def check(self) -> None:
        """The servers are back: everything ends whole, and nothing is there twice."""
        client = self._stack.client
        for thread in (self.idles, self.streams):
            answer = await client.wait_settled(thread, ids.input_message_id(thread, "m1"))
            assert answer_text(answer) == STORY
        await asyncio.sleep(1)  # the tool that has outlasted the outage goes on for a while after it
        self._restaurant.opens.set()
        answer = await client.wait_settled(self.serves)
        results = [part.content for part in answer.parts if isinstance(part, ToolResultPart)]
        assert results == ["booked table 7", "cooked"]
        assert (self._restaurant.booked, self._restaurant.cooked) == (1, 1)
        for thread, count in ((self.streams, 2), (self.serves, 2), (self.idles, 4)):
            messages = await client.history(thread)
            assert (len(messages), faults(messages)) == (count, [])
            assert (await client.status(thread)).problems == ()


@asynccontextmanager
async def postgres_server() -> AsyncGenerator[EmbeddedPostgres]:
    """A database server that a test may kill."""
    # pytest's own folders are closed to the user that runs PostgreSQL when the tests run as root.
    folder = Path(tempfile.mkdtemp(prefix="perdure-outage-"))
    async with EmbeddedPostgres(folder / "data") as server:
        await migrate(server.url)
        yield server
    shutil.rmtree(folder)


async def postgres_is_away(temporal: Client) -> None:
    """Killed like a machine that loses power, and started again 20 s later."""
    restaurant = Restaurant()
    async with (
        postgres_server() as postgres,
        await PostgresStore.connect(postgres.url) as store,
        Stack(temporal, store, [restaurant.agent], sandbox=False) as stack,
    ):
        visit = Visit("postgres", stack, restaurant)
        await visit.begin()
        await postgres.kill()
        await stack.client.post(visit.idles, "story", id="m1")
        with pytest.raises(StoreUnavailable):
            await stack.client.history(visit.idles)
        reasons = await eventually(lambda: _retried(stack, visit.idles))
        assert all("cannot be reached" in reason for reason in reasons)
        await asyncio.sleep(AWAY_S)
        await postgres.start()
        await visit.check()


async def _retried(stack: Stack, thread: str) -> list[str]:
    """Why activities of the thread are tried again: what the Temporal UI shows of them."""
    described = (await stack.handle(thread).describe()).raw_description
    return [activity.last_failure.message for activity in described.pending_activities if activity.attempt > 1]


async def temporal_is_away(end: Literal["kill", "stop"], store: PostgresStore, folder: Path) -> None:
    """Killed or told to end, and started again on the same port and file 20 s later."""
    restaurant = Restaurant()
    async with TemporalServer(folder / f"{end}.db") as server:
        temporal = await connect_temporal({"target_host": server.address})
        async with Stack(temporal, store, [restaurant.agent], sandbox=False) as stack:
            visit = Visit(end, stack, restaurant)
            await visit.begin()
            await (server.kill() if end == "kill" else server.stop())
            impatient = PerdureClient(temporal, store, task_queue=stack.settings.task_queue, patience=SHORT)
            with pytest.raises(Unreachable, match="sent again"):
                await impatient.post(visit.idles, "story", id="m1")
            assert len(await stack.client.history(visit.idles)) == 2
            sending = asyncio.create_task(stack.client.post(visit.idles, "story", id="m1"))
            await asyncio.sleep(AWAY_S)
            await server.start()
            assert await sending == ids.input_message_id(visit.idles, "m1")
            await visit.check()


async def test_servers_that_are_away_in_mid_turn(temporal: Client, store: PostgresStore, tmp_path: Path) -> None:
    """Turns end, no tool runs twice, nothing is lost or blank, and errors say what is retried. The outages at once."""
    async with asyncio.TaskGroup() as outages:
        outages.create_task(postgres_is_away(temporal))
        outages.create_task(temporal_is_away("kill", store, tmp_path))
        outages.create_task(temporal_is_away("stop", store, tmp_path))
