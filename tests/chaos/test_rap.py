"""Calls of tool servers while everything around them is killed: each is sent once, and each result lands once."""

import asyncio
from collections.abc import AsyncGenerator
from pathlib import Path

import asyncpg
import pytest
from temporalio.api.enums.v1 import EventType
from temporalio.client import Client

from perdure.connection import connect_temporal
from perdure.dev.temporal_server import TemporalServer
from perdure.messages import EventPart, Message, ToolResultPart
from stores.postgres import PostgresStore
from tests.chaos.faults import faults
from tests.chaos.rap_fleet import RapFleet, Wire
from tests.eventually import eventually
from tests.fakes.rap_server import Answer, FakeRapServer, FakeTool, Invocation
from tests.recorded import chain

pytestmark = [pytest.mark.slow, pytest.mark.timeout(180)]


@pytest.fixture
async def server() -> AsyncGenerator[FakeRapServer]:
    """A server whose tools say what the test says; one of them may be called twice."""
    safe = FakeTool("safe", annotations={"idempotent": True})
    async with FakeRapServer(FakeTool("ask"), safe, FakeTool("subscribe")) as server:
        yield server


def parts(messages: list[Message]) -> list[tuple[str, str]]:
    """What came from outside: results with their outcome, and events."""
    return [
        (part.outcome, part.content) if isinstance(part, ToolResultPart) else ("event", part.content)
        for message in messages
        for part in message.parts
        if isinstance(part, ToolResultPart | EventPart)
    ]


async def waits(fleet: RapFleet, thread: str) -> bool:
    """Whether the thread waits for results from outside."""
    return (await fleet.client.status(thread)).state == "waiting"


async def test_a_result_lands_once_after_everything_was_restarted(
    store: PostgresStore, database_url: str, server: FakeRapServer, tmp_path: Path, thread: str
) -> None:
    """The worker, the gateway and the Temporal server with its file are killed and started again between the two.

    A subscription and an event that waits come through it too.
    """
    async with TemporalServer(tmp_path / "temporal.db") as temporal_server:
        address = temporal_server.address
        temporal = await connect_temporal({"target_host": address})
        async with RapFleet(temporal, store, server, temporal_address=address, database_url=database_url) as fleet:
            await fleet.client.send(thread, "call subscribe", id="m1")
            subscription = await server.invoked(1)
            await server.result(subscription, "subscribed", subscription=True)
            await fleet.heard(thread, "subscribed")
            await fleet.client.send(thread, "call ask", id="m2")
            call = await server.invoked(2)
            await eventually(lambda: waits(fleet, thread), timeout=20)
            assert (await server.event(subscription, "rain", associative=True)).status == 200
            await fleet.worker.kill()
            await fleet.gateway.kill()
            await temporal_server.kill()
            # Nothing is there that could take it; the server will send it again.
            assert (await server.result(call, "too early")).status == 0
            await temporal_server.start()
            await fleet.restart_gateway()
            assert (await server.result(call, "done")).status == 200
            await fleet.restart_worker()
            await fleet.heard(thread, "heard rain")
            assert (await server.result(call, "again")).status == 200
            messages = await fleet.client.history(thread)
            # What the model is told at the end of a confirmation is not the server's.
            assert [(what, text.partition("\n")[0]) for what, text in parts(messages)] == [
                ("ok", "subscribed"),
                ("ok", "done"),
                ("event", "rain"),
            ]
            assert faults(messages) == []
            assert len(server.invocations) == 2
            assert await _failed_tasks(temporal, thread) == []


async def test_a_worker_that_dies_between_start_and_request(
    temporal: Client,
    temporal_server: TemporalServer,
    store: PostgresStore,
    database_url: str,
    server: FakeRapServer,
    thread: str,
) -> None:
    """Nobody can know that nothing was sent, so it is not sent: the call is given up after its time, the turn goes on.

    What may be sent twice is sent by the next worker. The worker is held, and killed, where it reads the key of the
    callback's address: after the start was counted, and before there is a request.
    """
    async with RapFleet(
        temporal,
        store,
        server,
        temporal_address=temporal_server.address,
        database_url=database_url,
        expires_s=3,
    ) as fleet:
        await store.get_key("callbacks")
        locked: asyncpg.Connection[asyncpg.Record] = await asyncpg.connect(database_url)
        try:
            async with locked.transaction():
                await locked.execute("lock table perdure.keys in access exclusive mode")
                await fleet.client.send(thread, "call ask safe", id="m1")
                await eventually(lambda: _waiting_locks(locked, 2), timeout=20)
                await fleet.worker.kill()
        finally:
            await locked.close()
        assert server.invocations == []
        await fleet.worker.start()
        safe = await _invoked(server)
        assert safe.operation == "safe"
        await server.result(safe, "safe is done")
        await fleet.heard(thread, "No result came in the time that was given. | safe is done")
        assert [what for what, _ in parts(await fleet.client.history(thread))] == ["expired", "ok"]
        assert len(server.invocations) == 1
        assert await _failed_tasks(temporal, thread) == []


async def test_a_worker_that_dies_after_the_request(
    temporal: Client,
    temporal_server: TemporalServer,
    store: PostgresStore,
    database_url: str,
    server: FakeRapServer,
    thread: str,
) -> None:
    """Before its acknowledgement was recorded: the next worker does not send it again, and the result lands."""
    async with RapFleet(
        temporal, store, server, temporal_address=temporal_server.address, database_url=database_url
    ) as fleet:
        server.script("/", Answer(hold=asyncio.Event(), taken=True))
        await fleet.client.send(thread, "call ask", id="m1")
        call = await server.invoked()
        await fleet.restart_worker()
        await eventually(lambda: waits(fleet, thread), timeout=30)
        assert len(server.received("/")) == 1
        assert (await server.result(call, "done")).status == 200
        await fleet.heard(thread, "heard done")
        assert parts(await fleet.client.history(thread)) == [("ok", "done")]
        assert await _failed_tasks(temporal, thread) == []


async def test_a_gateway_that_dies_before_its_answer(
    temporal: Client,
    temporal_server: TemporalServer,
    store: PostgresStore,
    database_url: str,
    server: FakeRapServer,
    thread: str,
) -> None:
    """Temporal has the signal, and its sender does not know: an event that is named and sent again lands once.

    So does a result, which needs no name. An event without one is told twice, since it may have happened twice.
    """
    async with (
        Wire(temporal_server.address) as wire,
        RapFleet(
            temporal,
            store,
            server,
            temporal_address=temporal_server.address,
            database_url=database_url,
            gateway_temporal_address=wire.address,
        ) as fleet,
    ):
        await fleet.client.send(thread, "call subscribe", id="m1")
        subscription = await server.invoked()
        await server.result(subscription, "subscribed", subscription=True)
        await fleet.heard(thread, "subscribed")
        await _posted_twice(fleet, wire, server, temporal, subscription, "rain", {"Idempotency-Key": "7"})
        await fleet.heard(thread, "heard rain")
        await _posted_twice(fleet, wire, server, temporal, subscription, "sun", {})
        await eventually(lambda: _has_parts(fleet, thread, 4), timeout=20)
        await fleet.heard(thread, "heard sun")
        await fleet.client.send(thread, "call ask", id="m2")
        call = await server.invoked(2)
        await eventually(lambda: waits(fleet, thread), timeout=20)
        await _posted_twice(fleet, wire, server, temporal, call, None, {})
        await fleet.heard(thread, "heard done")
        told = parts(await fleet.client.history(thread))
        assert [(what, text.partition("\n")[0]) for what, text in told] == [
            ("ok", "subscribed"),
            ("event", "rain"),
            ("event", "sun"),
            ("event", "sun"),
            ("ok", "done"),
        ]
        assert await _failed_tasks(temporal, thread) == []


async def _posted_twice(
    fleet: RapFleet,
    wire: Wire,
    server: FakeRapServer,
    temporal: Client,
    call: Invocation,
    event: str | None,
    headers: dict[str, str],
) -> None:
    """A callback whose gateway is killed when Temporal has it, and the same one to the next gateway."""
    origin = {"group_id": call.group_id}
    body = (
        {"type": "tool_result", **origin, "id": call.id, "text": "done"}
        if event is None
        else {"type": "subscription_event", **origin, "tool_call_id": call.id, "text": event, "associative": True}
    )
    before = await _signals(temporal, call.group_id)
    wire.is_silent = True
    posting = asyncio.create_task(server.post(call, body, headers=headers))
    await eventually(lambda: _has_signals(temporal, call.group_id, before + 1), timeout=20)
    assert not posting.done()
    await fleet.gateway.kill()
    assert (await posting).status == 0
    wire.is_silent = False
    await fleet.restart_gateway()
    assert (await server.post(call, body, headers=headers)).status == 200


async def _has_parts(fleet: RapFleet, thread: str, count: int) -> bool:
    return len(parts(await fleet.client.history(thread))) == count


async def _invoked(server: FakeRapServer) -> Invocation:
    await eventually(lambda: server.invocations, timeout=40)
    return server.invocations[0]


async def _waiting_locks(connection: "asyncpg.Connection[asyncpg.Record]", count: int) -> bool:
    return bool(await connection.fetchval("select count(*) >= $1 from pg_locks where not granted", count))


async def _signals(temporal: Client, thread: str) -> int:
    return sum(
        event.event_type == EventType.EVENT_TYPE_WORKFLOW_EXECUTION_SIGNALED for event in await chain(temporal, thread)
    )


async def _has_signals(temporal: Client, thread: str, count: int) -> bool:
    return await _signals(temporal, thread) >= count


async def _failed_tasks(temporal: Client, thread: str) -> list[str]:
    return [
        event.workflow_task_failed_event_attributes.failure.message
        for event in await chain(temporal, thread)
        if event.event_type == EventType.EVENT_TYPE_WORKFLOW_TASK_FAILED
        and event.workflow_task_failed_event_attributes.failure.message
    ]
