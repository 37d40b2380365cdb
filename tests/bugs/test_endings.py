"""How turns end: once, for good, and with nothing left that waits or works."""

import asyncio
from pathlib import Path

import pytest
from temporalio.client import Client

from perdure.agent import Agent
from perdure.builtins import Threads
from perdure.client import PerdureClient
from perdure.dev.temporal_server import TemporalServer
from perdure.messages import Message, ToolResultPart
from perdure.testing import Call, Reply, ScriptedModel
from stores.postgres import PostgresStore
from tests.chaos.agents import RECITED
from tests.chaos.doomed_worker import DoomedWorker, Place
from tests.chaos.faults import faults
from tests.eventually import eventually
from tests.stack import Stack
from tests.workflows.conftest import StackFactory
from tests.workflows.family import ROOT, Family, child_of, is_idle, made, reports, spawn


async def streams(stack: Stack, thread: str) -> bool:
    """Whether words of a turn have come."""
    live = (await stack.store.snapshot(thread)).live
    return live is not None and bool(live.parts)


@pytest.mark.parametrize("slow", [True, False], ids=["the call streams", "the call runs beside"])
async def test_b21b_nothing_is_asked_for_a_turn_that_was_stopped(
    slow: bool, start_stack: StackFactory, thread: str
) -> None:
    """B21 (b): the model, or a call beside, goes on for a moment; no approval is armed, and no tool runs later."""
    ran: list[str] = []
    held, release = asyncio.Event(), asyncio.Event()
    calls = (Call("pay"),) if slow else (Call("hold"), Call("pay"))
    reply = Reply("one two three", *calls, chunk_chars=4, delay_s=0.05 if slow else 0.0)
    agent = Agent("a", model=ScriptedModel(lambda asked: reply if asked.user_text == "go" else "yes?"))

    @agent.tool(approval="always")
    async def pay() -> str:
        """Pay."""
        ran.append("pay")
        return "paid"

    @agent.tool
    async def hold() -> str:
        """Hold on."""
        held.set()
        await release.wait()
        return "held"

    stack = await start_stack(agent)
    accepted = await stack.client.send(thread, "go")
    await (eventually(lambda: streams(stack, thread)) if slow else held.wait())
    await stack.client.stop(thread)
    release.set()
    turn = await stack.client.wait_settled(thread, accepted.message_id)
    assert (turn.status.state, turn.status.reason) == ("incomplete", "cancelled")
    assert await stack.client.approvals(thread) == ()
    assert await stack.client.open_calls(thread) == ()
    assert await stack.client.ask(thread, "still there?") == "yes?"
    assert ran == []
    assert (await stack.client.history(thread))[1].status == turn.status
    assert faults(await stack.client.history(thread)) == []


@pytest.mark.slow
async def test_b21c_a_turn_whose_worker_is_killed_goes_on(
    temporal: Client,
    temporal_server: TemporalServer,
    database_url: str,
    store: PostgresStore,
    thread: str,
    tmp_path: Path,
) -> None:
    """B21 (c): kill -9 in mid-answer; another worker ends the turn, and no message runs without an owner."""
    place = Place(temporal_server.address, database_url, f"queue-{thread}", tmp_path)
    client = PerdureClient(temporal, store, task_queue=place.task_queue)
    await client.post(thread, "recite", id="m1")
    async with DoomedWorker(place, "in mid stream") as doomed:
        assert await doomed.died() == -9
    assert (await client.history(thread))[-1].status.state == "running"
    async with DoomedWorker(place):
        async with asyncio.timeout(60):
            turn = await client.wait_settled(thread)
        assert turn.status.state == "complete"
        assert RECITED in str(turn.parts)
        assert [message.status.state for message in await client.history(thread)] == ["complete", "complete"]


async def test_b21d_a_child_that_is_stopped_is_cancelled(start_stack: StackFactory, thread: str) -> None:
    """B21 (d): in its own history and for its parent, who is told of no failure and can go on with it."""
    model = Family(
        {
            ROOT: lambda who: spawn(who, "one") if who.answered == 0 else "noted",
            "one": lambda who: Reply("one two", chunk_chars=4, hang=True),
        }
    )
    stack = await start_stack(Agent("a", model=model, toolsets=[Threads()]))
    await stack.client.ask(thread, "go")
    child = child_of(thread)
    await made(stack, child)
    await eventually(lambda: streams(stack, child))
    await stack.client.stop(child)

    async def stopped() -> Message | None:
        last = (await stack.client.history(child))[-1]
        return last if last.status.state == "incomplete" else None

    turn = await eventually(stopped)
    assert turn is not None
    assert turn.status.reason == "cancelled"
    assert (await stack.store.get_thread(child)).closed_at is None
    assert await is_idle(stack, thread)
    assert await reports(stack, thread) == []
    parent = await stack.client.history(thread)
    assert [part.outcome for message in parent for part in message.parts if isinstance(part, ToolResultPart)] == ["ok"]
    assert [message.status.state for message in parent if message.role == "assistant"] == ["complete"]
