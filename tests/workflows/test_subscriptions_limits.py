"""Bounds of subscriptions: one that sends too much is paused and says so, instead of burning money."""

import time

from temporalio.client import Client

from perdure.limits import Limits
from perdure.messages import TextPart
from perdure.testing import Call
from stores.postgres import PostgresStore
from tests.eventually import eventually
from tests.fakes.rap_server import CANCEL, FakeRapServer, Invocation
from tests.workflows.rap_stack import RapStack


async def paused(stack: RapStack, thread: str) -> str:
    """Wait until the subscription is paused, and return why."""

    async def why() -> str | None:
        (known,) = (await stack.status(thread)).subscriptions
        return known.paused

    return str(await eventually(why))


async def told(stack: RapStack, thread: str, invocation: Invocation, text: str, *, associative: bool = True) -> None:
    """An event as the thread itself gets it: the gateway stops those of a subscription that it knows to be paused."""
    await stack.client.event(thread, invocation.id, text, id=text, associative=associative)


async def resumed(stack: RapStack, thread: str, invocation: Invocation) -> None:
    """Have a person resume the subscription, and wait until the gateway can know."""
    await stack.control(thread, "resume_subscription", invocation.id)

    async def is_resumed() -> bool:
        (known,) = await stack.store.get_active_subscriptions(thread)
        return known.paused is None

    await eventually(is_resumed)


async def test_too_many_events_in_a_minute_pause(
    temporal: Client, store: PostgresStore, server: FakeRapServer, thread: str
) -> None:
    """The event that reaches the rate is still told, with the reason; more of them cost no round and are counted."""
    async with RapStack(temporal, store, server, limits=Limits(events_per_minute=3)) as stack:
        invocation = await stack.subscribed(thread, server)
        await _skip_to_a_fresh_minute()
        for number in range(6):
            await told(stack, thread, invocation, f"rain {number}")
        assert await paused(stack, thread) == "3 events came within a minute"
        await stack.dropped(thread, 3)
        await stack.heard(thread, "is paused")
        assert await stack.events(thread) == ["rain 0", "rain 1", "rain 2"]
        notes = [
            part.text for part in await stack.parts(thread) if isinstance(part, TextPart) and "paused" in part.text
        ]
        assert invocation.id in notes[0]
        rounds = len(stack.model.requests)
        await told(stack, thread, invocation, "rain 6")
        await stack.dropped(thread, 4)
        assert (await server.event(invocation, "rain 7", associative=True)).status == 410
        assert len(stack.model.requests) == rounds
        # Nobody was told, since a person may resume it.
        assert server.received(CANCEL) == []


async def test_a_budget_of_events_pauses_and_a_person_resumes(
    temporal: Client, store: PostgresStore, server: FakeRapServer, thread: str
) -> None:
    """After so many events in all; `control` starts the count anew, and what came meanwhile is not told later."""
    async with RapStack(temporal, store, server, limits=Limits(events_per_subscription=2)) as stack:
        invocation = await stack.subscribed(thread, server)
        for number in range(3):
            await told(stack, thread, invocation, f"rain {number}")
        assert await paused(stack, thread) == "it has sent 2 events, as many as one subscription may"
        await stack.dropped(thread, 1)
        await resumed(stack, thread, invocation)
        await server.event(invocation, "sun", associative=True)
        await stack.heard(thread, "heard sun")
        assert await stack.events(thread) == ["rain 0", "rain 1", "sun"]


async def test_a_pause_lasts_over_restarts_and_hibernation(
    temporal: Client, store: PostgresStore, server: FakeRapServer, thread: str
) -> None:
    """Whoever takes the thread over knows that it is paused, why, and what it has sent."""
    async with RapStack(temporal, store, server, limits=Limits(events_per_subscription=1)) as stack:
        invocation = await stack.subscribed(thread, server)
        await server.event(invocation, "rain", associative=True)
        why = await paused(stack, thread)
        await stack.heard(thread, "is paused")
        await stack.terminate(thread)
        assert (await stack.status(thread)).subscriptions[0].paused == why
        assert (await server.event(invocation, "hail", associative=True)).status == 410
        await told(stack, thread, invocation, "snow")
        await stack.dropped(thread, 1)
        assert await paused(stack, thread) == why
        assert await stack.events(thread) == ["rain"]
        await resumed(stack, thread, invocation)
        await server.event(invocation, "sun", associative=True)
        await stack.heard(thread, "heard sun")


async def test_events_in_child_threads_are_bounded_too(
    temporal: Client, store: PostgresStore, server: FakeRapServer, thread: str
) -> None:
    """Each child is a conversation of its own, so the bound counts them; the last child reads that it is the last."""
    async with RapStack(temporal, store, server, limits=Limits(events_per_subscription=2)) as stack:
        invocation = await stack.subscribed(thread, server)
        for number in range(4):
            await told(stack, thread, invocation, f"rain {number}", associative=False)
        await stack.dropped(thread, 2)
        await eventually(lambda: _has_two_children(store, thread))
        _, last = await store.get_children(thread)
        await stack.heard(last.thread_id, "is paused")


async def test_a_final_event_ends_a_paused_subscription(
    temporal: Client, store: PostgresStore, server: FakeRapServer, thread: str
) -> None:
    """It is not told, and nothing is left that a person could resume."""
    async with RapStack(temporal, store, server, limits=Limits(events_per_subscription=1)) as stack:
        invocation = await stack.subscribed(thread, server)
        await server.event(invocation, "rain", associative=True)
        await paused(stack, thread)
        await server.event(invocation, "the end", associative=True, final=True)
        await stack.dropped(thread, 1)
        assert (await stack.status(thread)).subscriptions == ()
        assert await store.get_active_subscriptions(thread) == ()
        assert await stack.events(thread) == ["rain"]


async def test_obligation_27_active_subscriptions_are_capped(
    temporal: Client, store: PostgresStore, server: FakeRapServer, thread: str
) -> None:
    """One more than the cap is an error for the model, and its server is told to stop; a cancel makes room.

    A parallel call of the same step counts too.
    """
    async with RapStack(temporal, store, server, limits=Limits(subscriptions=2)) as stack:
        first = await stack.subscribed(thread, server)
        await stack.asked(thread, Call("subscribe"), Call("subscribe"))
        await server.invoked(3)
        for invocation in server.invocations[1:]:
            await server.result(invocation, "subscribed", subscription=True)
        second, refused = server.invocations[1:]
        await stack.heard(thread, "This thread has 2 active subscriptions")
        assert {known.call_id for known in await store.get_active_subscriptions(thread)} == {first.id, second.id}
        await eventually(lambda: server.received(CANCEL))
        assert [request.json["tool_call_id"] for request in server.received(CANCEL)] == [refused.id]
        assert (await server.event(refused, "rain", associative=True)).status == 410
        await stack.asked(thread, Call("cancel_subscription", {"tool_call_id": first.id}))
        await stack.heard(thread, "is cancelled")
        third = await stack.subscribed(thread, server)
        assert third.id in {known.call_id for known in await store.get_active_subscriptions(thread)}


async def _has_two_children(store: PostgresStore, thread: str) -> bool:
    return len(await store.get_children(thread)) == 2


async def _skip_to_a_fresh_minute() -> None:
    """Events of one burst are to fall into one minute of the clock."""
    await eventually(lambda: time.time() % 60 < 50, timeout=15)
