"""Sleepers and children when the Temporal server is killed: what is due comes once, as soon as it is back."""

import asyncio
import time
from collections.abc import AsyncGenerator
from pathlib import Path

import pytest

from perdure.agent import Agent
from perdure.builtins import Threads, Timers
from perdure.connection import connect_temporal
from perdure.dev.temporal_server import TemporalServer
from perdure.messages import Message, ToolResultPart
from perdure.testing import Call, Reply
from perdure.watch import answer_text
from stores.postgres import PostgresStore
from tests.chaos.faults import faults
from tests.eventually import eventually
from tests.stack import Stack
from tests.workflows.family import ROOT, Family, Me, child_of, closed, reports, spawn

pytestmark = pytest.mark.slow

SLEEP_S = 3


@pytest.fixture
async def server(tmp_path: Path) -> AsyncGenerator[TemporalServer]:
    """A server that keeps its data in a file."""
    async with TemporalServer(tmp_path / "temporal.db") as server:
        yield server


async def test_a_sleep_that_ends_while_everything_is_down_wakes_once(
    server: TemporalServer, store: PostgresStore, thread: str
) -> None:
    """Neither the server nor a worker is there when it is due; both are new when it wakes."""
    model = Family({ROOT: [Reply(Call("sleep", {"seconds": SLEEP_S})), "awake"]})
    temporal = await connect_temporal({"target_host": server.address})
    async with Stack(temporal, store, [Agent("a", model=model, toolsets=[Threads(), Timers()])]) as stack:
        accepted = await stack.client.send(thread, "sleep", id="m1")

        async def due() -> float | None:
            calls = (await store.load_tail(thread)).calls
            return calls[0].due if calls else None

        until = await eventually(due)
        assert until is not None
        await stack.stop_worker()
        await server.kill()
        await eventually(lambda: time.time() > until)
        await server.start()
        await stack.start_worker()
        message = await stack.client.wait_settled(thread, accepted.message_id)
        assert [(part.outcome, part.content) for part in results(message)] == [("ok", f"Slept {SLEEP_S} seconds.")]
        assert answer_text(message) == "awake"
        assert len(model.requests) == 2


async def test_a_report_that_is_sent_while_the_server_is_away_arrives_once(
    server: TemporalServer, store: PostgresStore, thread: str
) -> None:
    """The child's work ends while nobody can be told of it; it is told when the server is back."""
    begun, finish, finished = asyncio.Event(), asyncio.Event(), asyncio.Event()

    def child(who: Me) -> Reply:
        close = Call("close_thread", {"thread_id": who.id, "report_to_parent": "done"})
        return Reply(Call("work")) if who.answered == 0 else Reply(close)

    model = Family({ROOT: lambda who: spawn(who, "one") if who.answered == 0 else "noted", "one": child})
    agent = Agent("a", model=model, toolsets=[Threads()])

    @agent.tool
    async def work() -> str:
        begun.set()
        await finish.wait()
        finished.set()
        return "worked"

    temporal = await connect_temporal({"target_host": server.address})
    async with Stack(temporal, store, [agent]) as stack:
        await stack.client.ask(thread, "go", id="m1")
        await eventually(begun.is_set)
        await server.kill()
        finish.set()
        await eventually(finished.is_set)
        await server.start()
        await closed(stack, child_of(thread), timeout=60)
        await eventually(lambda: reports(stack, thread), timeout=30)
        assert await reports(stack, thread) == ["done"]
        messages = await stack.client.history(child_of(thread))
        assert [part.content for part in results(messages[-1])] == ["worked", "The thread is closed."]
        assert faults(messages) == []


def results(message: Message) -> list[ToolResultPart]:
    """The tool results of a message, in order."""
    return [part for part in message.parts if isinstance(part, ToolResultPart)]
