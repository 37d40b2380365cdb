"""A call outlasts the run that sent it: whoever takes the thread over waits on, and does not send the call again."""

import asyncio
from datetime import timedelta

import pytest
from temporalio.client import Client

from perdure.builtins import Timers
from perdure.inputs import ToolResult
from perdure.limits import Limits
from perdure.rap.toolset import RapToolset
from perdure.testing import Call
from stores.postgres import PostgresStore
from tests.eventually import eventually
from tests.fakes.rap_server import Answer, FakeRapServer, FakeTool
from tests.workflows.rap_stack import RapStack

SHORT = Limits(idle=timedelta(seconds=0.3))


async def test_a_result_wakes_a_thread_that_hibernates_on_its_call(
    temporal: Client, store: PostgresStore, server: FakeRapServer, thread: str
) -> None:
    """It lands, once; the same result again and another one change nothing."""
    async with RapStack(temporal, store, server, limits=SHORT) as stack:
        await stack.asked(thread, Call("ask"))
        call = await server.invoked()
        await stack.asleep(thread)
        for text in ("done", "done", "another"):
            assert (await server.result(call, text)).status == 200
        await stack.heard(thread, "heard done")
        assert [result.content for result in await stack.results(thread)] == ["done"]
        assert len(server.invocations) == 1


@pytest.mark.parametrize("waker", ["event", "queued words", "stale result"])
async def test_a_call_of_a_revived_thread_is_not_sent_again(
    temporal: Client, store: PostgresStore, server: FakeRapServer, thread: str, waker: str
) -> None:
    """Woken by something else, the thread waits on for the result, for as long as it takes, and it lands."""
    async with RapStack(temporal, store, server, limits=SHORT) as stack:
        subscription = await stack.subscribed(thread, server)
        await stack.asked(thread, Call("ask"))
        call = await server.invoked(2)
        await stack.asleep(thread)
        if waker == "event":
            await server.event(subscription, "rain", associative=True)
            await stack.deferred(thread, 1)
        elif waker == "queued words":
            await stack.client.send(thread, "and then?", id="m", mode="queue")
        else:
            result = ToolResult(call_id=subscription.id, content="stale")
            await stack.client.tool_result(thread, subscription.id, result.content)
            await stack.dropped(thread, 1)
        (open_call,) = (await stack.status(thread)).open_calls
        assert (open_call.call_id, open_call.state, open_call.due) == (call.id, "waiting", None)
        assert (await server.result(call, "done")).status == 200
        await stack.heard(thread, {"event": "rain", "queued words": "and then?"}.get(waker, "heard done"))
        assert [result.content for result in await stack.results(thread)][-1] == "done"
        assert [known.operation for known in server.invocations] == ["subscribe", "ask"]


async def test_a_terminated_thread_does_not_send_its_calls_again(
    temporal: Client, store: PostgresStore, server: FakeRapServer, thread: str
) -> None:
    """The result itself starts the workflow again, from what is stored."""
    async with RapStack(temporal, store, server) as stack:
        call = await stack.called(thread, server, Call("ask"))
        await stack.terminate(thread)
        assert (await server.result(call, "done")).status == 200
        await stack.heard(thread, "heard done")
        assert len(server.invocations) == 1


async def test_the_time_of_a_call_is_the_same_for_every_owner(
    temporal: Client, store: PostgresStore, server: FakeRapServer, thread: str
) -> None:
    """A bound that was set when the call was sent is neither forgotten nor set anew, nor cut short."""
    toolset = RapToolset(server.url, expires=timedelta(hours=1))
    async with RapStack(temporal, store, toolset, limits=SHORT) as stack:
        call = await stack.called(thread, server, Call("ask"))
        (before,) = (await stack.status(thread)).open_calls
        assert before.due is not None
        await stack.terminate(thread)
        await stack.wake(thread)
        await stack.dropped(thread, 1)
        (after,) = (await stack.status(thread)).open_calls
        assert (after.call_id, after.due, after.state) == (before.call_id, before.due, "waiting")
        await server.result(call, "done")
        await stack.heard(thread, "heard done")
        assert len(server.invocations) == 1


async def test_a_call_expires_while_nobody_owns_its_thread(
    temporal: Client, store: PostgresStore, server: FakeRapServer, thread: str
) -> None:
    """Whoever takes the thread over after its time finds it expired, and the turn goes on."""
    toolset = RapToolset(server.url, expires=timedelta(seconds=0.5))
    async with RapStack(temporal, store, toolset) as stack:
        await stack.asked(thread, Call("ask"))
        await server.invoked()
        await eventually(lambda: _has_due(stack, thread))
        await stack.terminate(thread)
        await stack.wake(thread)
        await stack.heard(thread, "No result came")
        assert len(server.invocations) == 1


@pytest.mark.slow  # the worker gives the request its ten seconds of grace
@pytest.mark.usefixtures("short_drain")
async def test_an_unacknowledged_call_is_waited_for_over_a_handover(
    temporal: Client, store: PostgresStore, server: FakeRapServer, thread: str
) -> None:
    """A worker that goes in the middle of the request leaves open whether it arrived: it is not sent twice."""
    async with RapStack(temporal, store, server) as stack:
        server.script("/", Answer(hold=asyncio.Event(), taken=True))
        await stack.asked(thread, Call("ask"))
        call = await server.invoked()
        await stack.stop_worker()
        await stack.start_worker()
        await stack.waiting(thread)
        (open_call,) = (await stack.status(thread)).open_calls
        assert open_call.due is not None
        assert len(server.received("/")) == 1
        assert (await server.result(call, "done")).status == 200
        await stack.heard(thread, "heard done")


@pytest.mark.slow
@pytest.mark.usefixtures("short_drain")
async def test_an_idempotent_call_is_sent_again(temporal: Client, store: PostgresStore, thread: str) -> None:
    """The control: what says that it may be sent twice is, under the same id, and takes one result."""
    async with (
        FakeRapServer(FakeTool("ask", annotations={"idempotent": True})) as server,
        RapStack(temporal, store, server) as stack,
    ):
        server.script("/", Answer(hold=asyncio.Event(), taken=True))
        await stack.asked(thread, Call("ask"))
        await server.invoked()
        await stack.stop_worker()
        await stack.start_worker()
        first, second = server.invocations[0], await server.invoked(2)
        assert first.body == second.body
        for number, call in enumerate((first, second)):
            assert (await server.result(call, f"done {number}")).status == 200
        await stack.heard(thread, "heard done 0")
        assert [result.content for result in await stack.results(thread)] == ["done 0"]


async def test_a_call_over_continue_as_new(
    temporal: Client, store: PostgresStore, server: FakeRapServer, thread: str
) -> None:
    """From run to run the open call waits, beside a sleeper too, and its result lands once."""
    limits = Limits(history_events=10)
    async with RapStack(temporal, store, server, limits=limits, toolsets=[Timers()]) as stack:
        call = await stack.called(thread, server, Call("ask"), Call("sleep", {"seconds": 1}))
        runs = await stack.runs(thread)
        for number in range(5):
            await stack.wake(thread, f"call_{number}")
        await stack.dropped(thread, 5)
        await server.result(call, "done")
        await stack.heard(thread, "heard done | ")
        assert await stack.runs(thread) > runs
        assert len(server.invocations) == 1


async def _has_due(stack: RapStack, thread: str) -> bool:
    calls = (await stack.status(thread)).open_calls
    return bool(calls) and calls[0].due is not None
