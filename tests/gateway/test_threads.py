"""Results that come through the gateway to threads that live: with a worker, on PostgreSQL and a real Temporal."""

import asyncio
from collections.abc import AsyncGenerator
from datetime import timedelta
from pathlib import Path

import pytest
from temporalio.client import Client, WorkflowExecutionStatus

from perdure.connection import connect_temporal
from perdure.dev.temporal_server import TemporalServer
from perdure.inputs import INLINE_BYTES
from perdure.messages import ToolResultPart
from stores.postgres import PostgresStore
from tests.eventually import eventually
from tests.gateway.asking import Asking, results
from tests.gateway.served import Served


@pytest.fixture(scope="module")
async def asking(temporal: Client, postgres: PostgresStore) -> AsyncGenerator[Asking]:
    """A stack whose agent asks one question."""
    async with Asking(temporal, postgres) as asking:
        yield asking


async def test_a_result_lets_the_turn_go_on(asking: Asking, thread: str) -> None:
    """A thread that waits takes the result and answers."""
    message_id, (call_id,) = await asking.begin(thread)
    assert await asking.answer(thread, call_id, "sunny") == 200
    settled = await asking.stack.client.wait_settled(thread, message_id)
    assert results(settled) == ["sunny"]
    assert settled.status.state == "complete"


async def test_of_many_results_of_a_call_one_counts(asking: Asking, thread: str) -> None:
    """Twenty different ones at once all get 200; one of them is in the conversation, and it stays after one more."""
    message_id, (call_id,) = await asking.begin(thread)
    codes = await asyncio.gather(*(asking.answer(thread, call_id, f"answer {number}") for number in range(20)))
    assert set(codes) == {200}
    settled = await asking.stack.client.wait_settled(thread, message_id)
    (first,) = results(settled)
    assert first.startswith("answer ")
    assert await asking.answer(thread, call_id, "late") == 200
    history = await asking.stack.client.history(thread)
    assert [results(message) for message in history] == [[], [first]]


async def test_a_large_result_is_whole_in_the_store(asking: Asking, thread: str) -> None:
    """The conversation has what the model reads of it, and a blob with all of it."""
    words = "word " * 30_000
    message_id, (call_id,) = await asking.begin(thread)
    assert await asking.answer(thread, call_id, words) == 200
    settled = await asking.stack.client.wait_settled(thread, message_id)
    (part,) = [part for part in settled.parts if isinstance(part, ToolResultPart)]
    assert part.content == words[:INLINE_BYTES]
    assert part.blob is not None
    assert (await asking.stack.store.get_blob(thread, part.blob)).decode() == words


async def test_an_event_of_a_settled_call_is_refused(asking: Asking, thread: str) -> None:
    """After its turn a plain call has no events: 410, and the conversation stays as it is."""
    message_id, (call_id,) = await asking.begin(thread)
    await asking.answer(thread, call_id, "sunny")
    await asking.stack.client.wait_settled(thread, message_id)
    before = await asking.stack.client.history(thread)
    body = {"type": "subscription_event", "group_id": thread, "tool_call_id": call_id, "text": "rain"}
    assert (await asking.served.post(thread, call_id, body)).status_code == 410
    assert await asking.stack.client.history(thread) == before


async def test_a_result_wakes_a_thread_that_sleeps(temporal: Client, postgres: PostgresStore, thread: str) -> None:
    """A thread that hibernates in the middle of its turn is revived by the result, and ends the turn."""
    async with Asking(temporal, postgres, idle=timedelta(seconds=0.5)) as asking:
        message_id, (call_id,) = await asking.begin(thread)

        async def sleeps() -> bool:
            return (await asking.stack.handle(thread).describe()).status is WorkflowExecutionStatus.COMPLETED

        await eventually(sleeps)
        assert await asking.answer(thread, call_id, "sunny") == 200
        settled = await asking.stack.client.wait_settled(thread, message_id)
        assert results(settled) == ["sunny"]


async def test_results_that_come_while_no_worker_runs_are_kept(
    temporal: Client, postgres: PostgresStore, thread: str
) -> None:
    """They are accepted, in any order; the next worker finds each, once, and puts them in call order."""
    async with Asking(temporal, postgres, calls=3) as asking:
        message_id, calls = await asking.begin(thread)
        await asking.stack.stop_worker()
        for number in (2, 0, 1, 0):
            assert await asking.answer(thread, calls[number], f"answer {number}") == 200
        await asking.stack.start_worker()
        settled = await asking.stack.client.wait_settled(thread, message_id)
        assert results(settled) == ["answer 0", "answer 1", "answer 2"]


@pytest.mark.slow
async def test_everything_restarts_while_a_call_is_out(postgres: PostgresStore, thread: str, tmp_path: Path) -> None:
    """Worker, gateway and Temporal are each restarted while a call waits; its result still lands, once."""
    async with TemporalServer(tmp_path / "temporal.db") as server:
        temporal = await connect_temporal({"target_host": server.address})
        async with Asking(temporal, postgres) as asking:
            message_id, (call_id,) = await asking.begin(thread)
            url = await asking.served.url(thread, call_id)
            await asking.stack.stop_worker()
            await asking.served.stop()
            await server.stop()
            await server.start()
            await asking.stack.start_worker()
            async with Served(temporal, postgres, task_queue=asking.stack.settings.task_queue) as again:
                path = url.removeprefix(asking.served.base)
                body = {"type": "tool_result", "group_id": thread, "id": call_id, "text": "sunny"}
                for _ in range(2):
                    assert (await again.http.post(again.base + path, json=body)).status_code == 200
            settled = await asking.stack.client.wait_settled(thread, message_id)
            assert results(settled) == ["sunny"]
