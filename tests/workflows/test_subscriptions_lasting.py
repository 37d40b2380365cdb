"""Subscriptions outlast whatever happens to the run that opened them: they are rows, and the run only holds a copy."""

from datetime import timedelta

from temporalio.client import Client

from perdure.limits import Limits
from stores.postgres import PostgresStore
from tests.eventually import eventually
from tests.fakes.rap_server import CANCEL, FakeRapServer
from tests.workflows.rap_stack import RapStack

SHORT = timedelta(seconds=0.3)


async def test_a_subscription_outlasts_hibernation(
    temporal: Client, store: PostgresStore, server: FakeRapServer, thread: str
) -> None:
    """An event wakes the thread that has opened it, inline and for a child; a final one ends it from there."""
    async with RapStack(temporal, store, server, limits=Limits(idle=SHORT)) as stack:
        invocation = await stack.subscribed(thread, server)
        await stack.asleep(thread)
        assert (await server.event(invocation, "rain", associative=True)).status == 200
        await stack.heard(thread, "heard rain")
        await stack.asleep(thread)
        assert (await server.event(invocation, "snow")).status == 200
        (child,) = await eventually(lambda: store.get_children(thread))
        await stack.heard(child.thread_id, "heard snow")
        await stack.asleep(thread)
        assert [known.received for known in await store.get_active_subscriptions(thread)] == [2]
        assert (await server.event(invocation, "the end", associative=True, final=True)).status == 200
        await stack.heard(thread, "heard the end")
        assert (await server.event(invocation, "late", associative=True)).status == 410
        assert await stack.events(thread) == ["rain", "the end"]


async def test_a_subscription_outlasts_continue_as_new(
    temporal: Client, store: PostgresStore, server: FakeRapServer, thread: str
) -> None:
    """Every few events a new run begins: all are told once, in order, and it can still be cancelled."""
    async with RapStack(temporal, store, server, limits=Limits(history_events=20)) as stack:
        invocation = await stack.subscribed(thread, server)
        for number in range(12):
            assert (await server.event(invocation, f"rain {number}", associative=True)).status == 200
        await stack.heard(thread, "rain 11")
        assert await stack.events(thread) == [f"rain {number}" for number in range(12)]
        assert await stack.runs(thread) >= 3
        (known,) = (await stack.status(thread)).subscriptions
        assert (known.call_id, known.received) == (invocation.id, 12)
        await stack.control(thread, "cancel_subscription", invocation.id)
        await eventually(lambda: invocation.id not in server.subscriptions)
        assert await eventually(lambda: _none(store, thread))


async def test_a_subscription_outlasts_a_restart_of_the_worker(
    temporal: Client, store: PostgresStore, server: FakeRapServer, thread: str
) -> None:
    """What came while no worker was there is told by the next one, in order."""
    async with RapStack(temporal, store, server) as stack:
        invocation = await stack.subscribed(thread, server)
        await stack.stop_worker()
        for number in range(3):
            assert (await server.event(invocation, f"rain {number}", associative=True)).status == 200
        await stack.start_worker()
        await stack.heard(thread, "rain 2")
        assert await stack.events(thread) == ["rain 0", "rain 1", "rain 2"]


async def test_a_subscription_outlasts_a_terminated_workflow(
    temporal: Client, store: PostgresStore, server: FakeRapServer, thread: str
) -> None:
    """An event starts the workflow again, and the thread goes on with what is stored."""
    async with RapStack(temporal, store, server) as stack:
        invocation = await stack.subscribed(thread, server)
        await stack.terminate(thread)
        assert (await server.event(invocation, "rain", associative=True)).status == 200
        await stack.heard(thread, "heard rain")
        (known,) = (await stack.status(thread)).subscriptions
        assert (known.call_id, known.received) == (invocation.id, 1)


async def test_a_subscription_of_a_thread_that_hibernates_is_cancelled(
    temporal: Client, store: PostgresStore, server: FakeRapServer, thread: str
) -> None:
    """What a person decides wakes the thread, which tells the server and sleeps again; another one goes on."""
    async with RapStack(temporal, store, server, limits=Limits(idle=SHORT)) as stack:
        ended, kept = [await stack.subscribed(thread, server) for _ in range(2)]
        await stack.asleep(thread)
        await stack.client.cancel_subscription(thread, ended.id)
        await eventually(lambda: server.received(CANCEL))
        assert [request.json["tool_call_id"] for request in server.received(CANCEL)] == [ended.id]
        await stack.asleep(thread)
        assert (await server.event(ended, "late", associative=True)).status == 410
        assert (await server.event(kept, "rain", associative=True)).status == 200
        await stack.heard(thread, "heard rain")


async def _none(store: PostgresStore, thread: str) -> bool:
    return await store.get_active_subscriptions(thread) == ()
