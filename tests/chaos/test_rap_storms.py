"""Events of tool servers at the worst of moments: while a thread falls asleep, moves to a new run, or changes hands."""

import asyncio
import random
from datetime import timedelta

import pytest
from temporalio.client import Client

from perdure import ids
from perdure.limits import Limits
from perdure.testing import Call
from perdure.watch import answer_text
from stores.postgres import PostgresStore
from tests.chaos.faults import faults
from tests.eventually import eventually
from tests.fakes.rap_server import FakeRapServer, Invocation
from tests.workflows.rap_stack import RapStack

pytestmark = [pytest.mark.slow, pytest.mark.timeout(180)]


async def inline(server: FakeRapServer, subscription: Invocation, *numbers: int) -> None:
    """Events that join the conversation, one after the other."""
    for number in numbers:
        assert (await server.event(subscription, f"rain {number}", associative=True)).status == 200


async def for_children(server: FakeRapServer, subscription: Invocation, count: int) -> None:
    """Events for children, all at once."""
    posted = await asyncio.gather(*(server.event(subscription, f"snow {number}") for number in range(count)))
    assert {answer.status for answer in posted} == {200}


async def all_told(stack: RapStack, thread: str, inline: int, children: int) -> None:
    """Wait until every event was answered; each is there once, inline ones in their order, and the thread goes on."""
    await eventually(lambda: _has_events(stack, thread, inline), timeout=90, interval=0.1)
    await eventually(lambda: _have_answered(stack, thread, children), timeout=90, interval=0.2)
    assert await stack.events(thread) == [f"rain {number}" for number in range(inline)]
    # A child knows what its parent had heard when it was spawned; the last event is its own.
    own = [(await stack.events(child.thread_id))[-1] for child in await stack.store.get_children(thread)]
    assert sorted(own) == sorted(f"snow {number}" for number in range(children))
    (known,) = await stack.store.get_active_subscriptions(thread)
    assert known.received == inline + children
    accepted = await stack.client.send(thread, "still there?", id="last")
    assert "still there?" in answer_text(await stack.client.wait_settled(thread, accepted.message_id))
    messages = await stack.client.history(thread)
    assert faults(messages) == []
    status = await stack.status(thread)
    assert (status.deferred, status.dropped, status.problems) == (0, 0, ())


@pytest.mark.parametrize("limits", [Limits(), Limits(history_events=60)], ids=["one run", "many runs"])
async def test_fifty_events_within_a_second(
    temporal: Client, store: PostgresStore, server: FakeRapServer, thread: str, limits: Limits
) -> None:
    """Half of them join the conversation, half get a child; in one run or over several."""
    async with RapStack(temporal, store, server, limits=limits) as stack:
        subscription = await stack.subscribed(thread, server)
        await asyncio.gather(inline(server, subscription, *range(25)), for_children(server, subscription, 25))
        await all_told(stack, thread, 25, 25)


async def test_fifty_events_while_a_call_is_open(
    temporal: Client, store: PostgresStore, server: FakeRapServer, thread: str
) -> None:
    """They wait over several runs, all of them, and the result lets them go."""
    async with RapStack(temporal, store, server, limits=Limits(history_events=60)) as stack:
        subscription = await stack.subscribed(thread, server)
        call = await stack.called(thread, server, Call("ask"))
        await asyncio.gather(inline(server, subscription, *range(25)), for_children(server, subscription, 25))
        await stack.deferred(thread, 50)
        assert await store.get_children(thread) == ()
        await server.result(call, "done")
        await all_told(stack, thread, 25, 25)


async def test_events_while_the_thread_falls_asleep(
    temporal: Client, store: PostgresStore, server: FakeRapServer, thread: str
) -> None:
    """At intervals around the time after which it hibernates, so that many come while its workflow ends."""
    async with RapStack(temporal, store, server, limits=Limits(idle=timedelta(seconds=0.05))) as stack:
        subscription = await stack.subscribed(thread, server)
        pauses = random.Random(7)
        for number in range(40):
            await inline(server, subscription, number)
            # Not to wait for anything: it is what the storm is made of.
            await asyncio.sleep(pauses.uniform(0.1, 0.4))
        await all_told(stack, thread, 40, 0)
        await eventually(lambda: _has_slept(stack, thread, 5))


async def test_events_while_workers_change(
    temporal: Client, store: PostgresStore, server: FakeRapServer, thread: str
) -> None:
    """Four workers take the thread over in the middle of it, and the workflow is terminated once between events."""
    async with RapStack(temporal, store, server, limits=Limits(history_events=60)) as stack:
        subscription = await stack.subscribed(thread, server)
        for first in (0, 10, 20, 30):
            sending = asyncio.create_task(inline(server, subscription, *range(first, first + 10)))
            await stack.restart_worker()
            await sending
        await eventually(lambda: _has_events(stack, thread, 40), timeout=60, interval=0.1)
        await stack.heard(thread, "rain 39")
        await stack.terminate(thread)
        await inline(server, subscription, *range(40, 45))
        await all_told(stack, thread, 45, 0)


async def test_events_for_children_while_people_speak(
    temporal: Client, store: PostgresStore, server: FakeRapServer, thread: str
) -> None:
    """Updates hold up the end of a run, which takes more in meanwhile: no child that is being made then is lost."""
    async with RapStack(temporal, store, server, limits=Limits(history_events=25)) as stack:
        subscription = await stack.subscribed(thread, server)

        async def speak(who: str) -> None:
            for number in range(12):
                await stack.client.send(thread, f"{who} {number}", id=f"{who}{number}")

        async def happen() -> None:
            for number in range(40):
                assert (await server.event(subscription, f"snow {number}")).status == 200

        await asyncio.gather(speak("ann"), speak("bob"), speak("cem"), happen())
        await all_told(stack, thread, 0, 40)
        assert await stack.runs(thread) > 1


async def _has_slept(stack: RapStack, thread: str, times: int) -> bool:
    query = f"WorkflowId = '{ids.workflow_id(thread)}' AND ExecutionStatus = 'Completed'"
    return (await stack.temporal.count_workflows(query)).count >= times


async def _has_events(stack: RapStack, thread: str, count: int) -> bool:
    return len(await stack.events(thread)) >= count


async def _have_answered(stack: RapStack, thread: str, count: int) -> bool:
    children = await stack.store.get_children(thread)
    settled = [(await stack.client.history(child.thread_id))[-1].status.state == "complete" for child in children]
    return len(children) == count and all(settled)
