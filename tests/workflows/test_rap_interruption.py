"""Interruption (RAP, basic/tool-cancellation): servers are told, nobody waits for them, late results do no harm."""

import asyncio
import time
from datetime import timedelta

import pytest
from temporalio.client import Client

from perdure.agent import Agent
from perdure.inputs import Interrupt, ToolResult
from perdure.rap.toolset import RapToolset
from perdure.testing import Call
from stores.postgres import PostgresStore
from tests.eventually import eventually
from tests.fakes.rap_server import CANCEL, CLOSE, Answer, FakeRapServer, FakeTool, Invocation
from tests.workflows.rap_stack import RapStack

STOP_S = 4.0
"""A stop takes a fraction of this; a server that is waited for would take 5 s."""


async def test_obligation_28_every_server_is_told_at_once(
    temporal: Client, store: PostgresStore, server: FakeRapServer, thread: str
) -> None:
    """One that hangs and one that fails hold up neither the others nor the thread; each is told once."""
    never = asyncio.Event()
    async with (
        FakeRapServer(FakeTool("hang")) as hangs,
        FakeRapServer(FakeTool("fail")) as fails,
        FakeRapServer(FakeTool("unused")) as unused,
        RapStack(temporal, store, hangs, fails, server, unused) as stack,
    ):
        hangs.script(CANCEL, Answer(hold=never))
        fails.script(CANCEL, Answer(status=500))
        call = await stack.called(thread, server, Call("ask"))
        began = time.monotonic()
        await stack.client.send(thread, "never mind", id="m")
        await stack.heard(thread, "never mind")
        servers = (hangs, fails, server, unused)
        await eventually(lambda: all(one.received(CANCEL) for one in servers))
        assert time.monotonic() - began < STOP_S
        for one in servers:
            assert [request.json for request in one.received(CANCEL)] == [
                {"thread_id": thread, "tool_call_id": call.id}
            ]
        assert (await stack.results(thread))[-1].outcome == "interrupted"
        # The thread goes on while the server that hangs is still being told.
        fresh = await stack.called(thread, server, Call("ask"))
        await server.result(fresh, "done")
        await stack.heard(thread, "heard done")
        assert (await stack.status(thread)).problems == ()
        never.set()


async def test_a_server_that_hangs_does_not_slow_a_stop(stack: RapStack, server: FakeRapServer, thread: str) -> None:
    """The answer to `stop` comes as soon as the turn is settled and durable."""
    opens = asyncio.Event()
    server.script(CANCEL, Answer(hold=opens))
    await stack.called(thread, server, Call("ask"))
    began = time.monotonic()
    stopped = await stack.client.stop(thread)
    assert time.monotonic() - began < STOP_S
    assert stopped.turn == 1
    assert (await stack.client.history(thread))[-1].status.reason == "cancelled"
    await eventually(lambda: server.received(CANCEL))
    opens.set()


async def test_a_call_that_is_not_acknowledged_yet_can_be_stopped(
    stack: RapStack, server: FakeRapServer, thread: str
) -> None:
    """The request is given up, the server is told, and its result is ignored when it comes."""
    server.script("/", Answer(hold=asyncio.Event(), taken=True))
    await stack.asked(thread, Call("ask"))
    call = await server.invoked()
    began = time.monotonic()
    await stack.client.stop(thread)
    assert time.monotonic() - began < STOP_S
    await eventually(lambda: server.received(CANCEL))
    assert (await server.result(call, "late")).status == 200
    await stack.client.send(thread, "and now?", id="m")
    await stack.heard(thread, "and now?")
    assert [result.outcome for result in await stack.results(thread)] == ["interrupted"]


async def test_a_call_whose_server_fails_can_be_stopped(stack: RapStack, server: FakeRapServer, thread: str) -> None:
    """While it is tried again and again: the tries end with the turn."""
    server.script("/", *[Answer(status=503)] * 20)
    await stack.asked(thread, Call("ask"))
    await eventually(lambda: len(server.received("/")) == 2)
    began = time.monotonic()
    await stack.client.stop(thread)
    assert time.monotonic() - began < STOP_S
    await eventually(lambda: _has_no_activities(stack, thread))
    tries = len(server.received("/"))
    await stack.client.send(thread, "and now?", id="m")
    await stack.heard(thread, "and now?")
    assert len(server.received("/")) == tries
    assert server.invocations == []


async def test_a_result_ends_the_tries(temporal: Client, store: PostgresStore, thread: str) -> None:
    """A server that fails after it has taken the call, and answers it all the same: what it says counts, once."""

    async def answer(server: FakeRapServer, invocation: Invocation) -> None:
        await server.result(invocation, "done")

    async with FakeRapServer(FakeTool("ask", answer)) as server, RapStack(temporal, store, server) as stack:
        server.script("/", Answer(status=503, taken=True), *[Answer(status=503)] * 20)
        await stack.asked(thread, Call("ask"))
        await stack.heard(thread, "heard done")
        await eventually(lambda: _has_no_activities(stack, thread))
        assert len(server.invocations) == 1
        assert [result.outcome for result in await stack.results(thread)] == ["ok"]


async def test_a_late_result_is_dropped(stack: RapStack, server: FakeRapServer, thread: str) -> None:
    """What a server says of a call after it was told is answered 200, and changes nothing."""
    call = await stack.called(thread, server, Call("ask"))
    await stack.client.stop(thread)
    await eventually(lambda: server.received(CANCEL))
    before = await stack.stored(thread)
    assert (await server.result(call, "late")).status == 200
    assert await stack.stored(thread) == before
    assert (await stack.results(thread))[-1].outcome == "interrupted"


@pytest.mark.parametrize("first", ["result", "stop"])
async def test_result_and_stop_cross(stack: RapStack, server: FakeRapServer, thread: str, first: str) -> None:
    """Both reach the thread in one batch: the one that was first counts, and the other one does no harm."""
    call = await stack.called(thread, server, Call("ask"))
    await stack.stop_worker()
    result, stop = ToolResult(call_id=call.id, content="done"), Interrupt()
    for content in (result, stop) if first == "result" else (stop, result):
        await stack.handle(thread).signal(content.kind, content)
    await stack.start_worker()

    async def is_settled() -> bool:
        return (await stack.client.history(thread))[-1].status.state == "incomplete"

    await eventually(is_settled, timeout=20)
    (kept,) = await stack.results(thread)
    assert (kept.outcome, kept.content == "done") == (("ok", True) if first == "result" else ("interrupted", False))
    await stack.client.send(thread, "go on", id="m")
    await stack.heard(thread, "go on")
    assert len(server.received(CANCEL)) == (0 if first == "result" else 1)
    assert (await stack.status(thread)).dropped == (0 if first == "result" else 1)


async def test_servers_are_told_of_open_calls_only(stack: RapStack, server: FakeRapServer, thread: str) -> None:
    """A call of the step that has its result keeps it, and its server is not told that nobody wanted it."""
    await stack.asked(thread, Call("ask", {"number": 1}), Call("ask", {"number": 2}))
    await server.invoked(2)
    done, open_ = server.invocations
    await server.result(done, "done")
    await eventually(lambda: _settled(stack, thread))
    await stack.client.stop(thread)
    await eventually(lambda: server.received(CANCEL))
    assert [request.json["tool_call_id"] for request in server.received(CANCEL)] == [open_.id]
    outcomes = {result.call_id: result.outcome for result in await stack.results(thread)}
    assert outcomes == {done.id: "ok", open_.id: "interrupted"}


async def test_obligation_29_every_server_is_told_of_a_closed_thread(
    temporal: Client, store: PostgresStore, server: FakeRapServer, thread: str
) -> None:
    """Used or not, whatever one of them answers; of the open call and the subscription too, which end with it."""
    async with (
        FakeRapServer(FakeTool("fail")) as fails,
        FakeRapServer(FakeTool("unused")) as unused,
        RapStack(temporal, store, fails, server, unused) as stack,
    ):
        fails.script(CLOSE, Answer(status=500))
        subscription = await stack.subscribed(thread, server)
        call = await stack.called(thread, server, Call("ask"))
        await stack.control(thread, "close")
        await stack.asleep(thread)
        for one in (fails, server, unused):
            assert [request.json for request in one.received(CLOSE)] == [{"thread_id": thread}]
            told = {request.json["tool_call_id"] for request in one.received(CANCEL)}
            assert told == {call.id, subscription.id}


async def test_a_call_that_has_expired_is_told_too(
    temporal: Client, store: PostgresStore, server: FakeRapServer, thread: str
) -> None:
    """A bound of our own ends a call with an error for the model; nobody waits for its server then."""
    toolset = RapToolset(server.url, expires=timedelta(seconds=0.5))
    async with RapStack(temporal, store, toolset) as stack:
        await stack.asked(thread, Call("ask"))
        call = await server.invoked()
        await stack.heard(thread, "No result came in the time that was given")
        assert (await stack.results(thread))[-1].outcome == "expired"
        await eventually(lambda: server.received(CANCEL))
        assert [request.json["tool_call_id"] for request in server.received(CANCEL)] == [call.id]
        assert (await server.result(call, "late")).status == 200
        assert [result.outcome for result in await stack.results(thread)] == ["expired"]


async def test_the_end_of_a_subscription_waits_for_no_slow_tool(
    temporal: Client, store: PostgresStore, server: FakeRapServer, thread: str
) -> None:
    """A subscription that is cancelled beside a call that takes long is over at once: its server is told meanwhile."""
    slow, opens = Agent("x", model="test"), asyncio.Event()

    @slow.tool
    async def cook() -> str:
        """Take long."""
        await opens.wait()
        return "cooked"

    async with RapStack(temporal, store, server, tools=slow.tools.values()) as stack:
        subscription = await stack.subscribed(thread, server)
        await stack.asked(thread, Call("cook"), Call("cancel_subscription", {"tool_call_id": subscription.id}))
        await eventually(lambda: server.received(CANCEL))
        assert (await server.event(subscription, "late", associative=True)).status == 410
        opens.set()
        await stack.heard(thread, "heard cooked | ")


async def test_an_event_of_a_subscription_that_never_was(stack: RapStack, server: FakeRapServer, thread: str) -> None:
    """It came before the confirmation, and the call was given up instead: it is dropped and counted."""
    call = await stack.called(thread, server, Call("subscribe"))
    assert (await server.event(call, "rain", associative=True)).status == 200
    await stack.deferred(thread, 1)
    await stack.client.send(thread, "never mind", id="m")
    await stack.heard(thread, "never mind")
    await stack.dropped(thread, 1)
    assert await stack.events(thread) == []
    assert (await server.result(call, "subscribed", subscription=True)).status == 200
    assert (await server.event(call, "more", associative=True)).status == 410


async def _has_no_activities(stack: RapStack, thread: str) -> bool:
    return not (await stack.handle(thread).describe()).raw_description.pending_activities


async def _settled(stack: RapStack, thread: str) -> bool:
    return any(call.state == "settled" for call in (await stack.status(thread)).open_calls)
