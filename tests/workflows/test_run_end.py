"""What is under way while a run of a thread's workflow comes to its end: nothing of it is cut off."""

import asyncio
from collections.abc import AsyncGenerator

import pytest
from temporalio.api.enums.v1 import EventType
from temporalio.client import Client

from perdure import ids
from perdure.agent import Agent
from perdure.builtins import Threads
from perdure.connection import connect_temporal
from perdure.dev.temporal_server import TemporalServer
from perdure.limits import Limits
from perdure.testing import Call, Reply, ScriptedModel
from perdure.watch import answer_text
from stores.postgres import PostgresStore
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


async def test_words_that_come_before_the_next_run_has_begun_are_answered(store: PostgresStore, thread: str) -> None:
    """Temporal lets a run wait that follows another too soon: what is posted meanwhile is there when it begins."""
    model = ScriptedModel(lambda asked: f"you said {asked.user_text}")
    async with TemporalServer(dynamic_config=['history.workflowIdReuseMinimalInterval="2s"']) as server:
        temporal = await connect_temporal({"target_host": server.address})
        async with Stack(temporal, store, [Agent("a", model=model, limits=Limits(history_events=5))]) as stack:
            assert await stack.client.ask(thread, "n0") == "you said n0"

            async def run_that_waits() -> int:
                """Its number: all that has happened in it is that it was started."""
                runs = await chained_runs(temporal, thread)
                return len(runs) - 1 if len(runs[-1]) == 1 else 0

            number = await eventually(run_that_waits)
            posted = await stack.client.post(thread, "n1")
            assert answer_text(await stack.client.wait_settled(thread, posted)) == "you said n1"
            # The control: they did come before it began.
            _, second, *_ = (await chained_runs(temporal, thread))[number]
            assert second.event_type == EventType.EVENT_TYPE_WORKFLOW_EXECUTION_SIGNALED
            assert [message.role for message in await stack.client.history(thread)] == ["user", "assistant"] * 2
