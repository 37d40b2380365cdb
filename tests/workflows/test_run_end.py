"""What is under way while a run of a thread's workflow comes to its end: nothing of it is cut off."""

import asyncio
from collections.abc import AsyncGenerator

import pytest
from temporalio.client import Client

from perdure import ids
from perdure.agent import Agent
from perdure.builtins import Threads
from perdure.limits import Limits
from perdure.testing import Call, Reply
from tests.eventually import eventually
from tests.recorded import chained_runs
from tests.stack import Stack
from tests.workflows.family import ROOT, Family
from tests.workflows.gated_store import GatedStore


@pytest.fixture
async def gated(database_url: str) -> AsyncGenerator[GatedStore]:
    """A store over a database of its own."""
    store = await GatedStore.connect(database_url)
    yield store
    await store.close()


async def test_an_event_taken_between_two_runs_gets_its_thread(
    temporal: Client, gated: GatedStore, thread: str
) -> None:
    """The run is full, and ends when it has taken what its senders wait for. The child is started nevertheless."""
    model = Family(
        {ROOT: lambda who: "noted" if who.heard or who.asked.user_text != "go" else Reply(Call("watch", {}))}
    )
    # Runs are full after every input, so they end whenever nothing runs.
    agent = Agent("a", model=model, toolsets=[Threads()], limits=Limits(history_events=1))
    agent.client_tool("watch", description="Watch something.", parameters={"type": "object"})
    call_id, child = ids.call_id(thread, 1, 0, 0), ids.child_thread_id(thread, "event:e1")
    async with Stack(temporal, gated, [agent]) as stack:
        await stack.client.send(thread, "go", id="m1")

        async def waits() -> bool:
            return (await stack.client.status(thread)).state == "waiting"

        await eventually(waits)
        await stack.client.tool_result(thread, call_id, "watching", subscription=True)
        await stack.client.wait_settled(thread)
        gated.hold = "before"
        await stack.stop_worker()
        await stack.client.event(thread, call_id, "k2", id="e1", associative=False)
        sent = asyncio.create_task(stack.client.send(thread, "hi", id="m2"))
        await stack.start_worker()
        assert (await sent).disposition == "started"
        await eventually(gated.reached.is_set)
        # Whatever the run does meanwhile, it does now.
        await stack.client.wait_settled(thread, ids.input_message_id(thread, "m2"))
        gated.gate.set()
        await eventually(lambda: model.requests_of(child))
        assert len(await chained_runs(temporal, thread)) > 2
