"""Deferral: events, reports and messages wait while a call is open, in order, and durably."""

from collections.abc import AsyncGenerator
from datetime import timedelta

import pytest
from temporalio.client import Client

from perdure import ids
from perdure.builtins import Threads, Timers
from perdure.contract import WORKFLOW_TYPE
from perdure.inputs import ToolResult
from perdure.limits import Limits
from perdure.messages import EventPart, TextPart, ToolResultPart
from perdure.testing import Call
from stores.postgres import PostgresStore
from tests.eventually import eventually
from tests.fakes.rap_server import FakeRapServer, FakeTool, Invocation
from tests.recorded import chained_runs
from tests.workflows.rap_stack import RapStack
from workflows.thread import Carried

RAINS = [f"rain {number}" for number in range(5)]


@pytest.fixture
async def server() -> AsyncGenerator[FakeRapServer]:
    """A server whose tools say what the test says."""
    async with FakeRapServer(FakeTool("ask"), FakeTool("subscribe")) as server:
        yield server


@pytest.fixture
async def stack(temporal: Client, store: PostgresStore, server: FakeRapServer) -> AsyncGenerator[RapStack]:
    """An agent with that server."""
    async with RapStack(temporal, store, server) as stack:
        yield stack


async def send(server: FakeRapServer, subscription: Invocation, *texts: str) -> None:
    """Events of a subscription that join the conversation, one after the other."""
    for text in texts:
        assert (await server.event(subscription, text, associative=True)).status == 200


async def told(stack: RapStack, thread: str) -> list[str]:
    """Results, events and words of the user in their order, clipped to their first line."""
    lines: list[str] = []
    for message in await stack.client.history(thread):
        for part in message.parts:
            if isinstance(part, ToolResultPart | EventPart):
                lines.append(part.content.partition("\n")[0])
            elif isinstance(part, TextPart) and message.role == "user":
                lines.append(part.text)
    return lines


async def test_events_wait_for_the_result_of_an_open_call(stack: RapStack, server: FakeRapServer, thread: str) -> None:
    """They are held in their order, and follow the result."""
    subscription = await stack.subscribed(thread, server)
    call = await stack.called(thread, server, Call("ask"))
    await send(server, subscription, *RAINS)
    await stack.deferred(thread, 5)
    assert await stack.events(thread) == []
    await server.result(call, "done")
    await stack.heard(thread, "rain 4")
    assert (await told(stack, thread))[-6:] == ["done", *RAINS]
    assert (await stack.status(thread)).deferred == 0


async def test_events_wait_for_the_whole_group(stack: RapStack, server: FakeRapServer, thread: str) -> None:
    """While one of two parallel calls is open, the result of the other releases nothing."""
    subscription = await stack.subscribed(thread, server)
    await stack.asked(thread, Call("ask", {"number": 1}), Call("ask", {"number": 2}))
    await server.invoked(3)
    first, second = sorted(server.invocations[1:], key=lambda invocation: str(invocation.arguments))
    await send(server, subscription, "rain")
    await server.result(second, "second")
    await stack.deferred(thread, 1)
    await eventually(lambda: _settled(stack, thread, 1))
    assert await stack.events(thread) == []
    await server.result(first, "first")
    await stack.heard(thread, "heard rain")
    assert (await told(stack, thread))[-3:] == ["first", "second", "rain"]


async def test_user_text_releases_them_after_itself(stack: RapStack, server: FakeRapServer, thread: str) -> None:
    """Words give the call up; they come first, then what was held, in its order."""
    subscription = await stack.subscribed(thread, server)
    await stack.called(thread, server, Call("ask"))
    await send(server, subscription, *RAINS)
    await stack.deferred(thread, 5)
    await stack.client.send(thread, "never mind", id="m")
    await stack.heard(thread, "rain 4")
    assert (await told(stack, thread))[-6:] == ["never mind", *RAINS]
    assert [result.outcome for result in await stack.results(thread)] == ["ok", "interrupted"]


async def test_a_stale_result_releases_nothing(stack: RapStack, server: FakeRapServer, thread: str) -> None:
    """Results of an earlier call, of none, or of one that is settled leave them waiting; the true one does not."""
    subscription = await stack.subscribed(thread, server)
    stale = await stack.called(thread, server, Call("ask"))
    call = await stack.called(thread, server, Call("ask"))
    await send(server, subscription, "rain")
    await stack.deferred(thread, 1)
    assert (await server.result(stale, "stale")).status == 200
    for number, call_id in enumerate((stale.id, "call_none", subscription.id), start=1):
        await stack.handle(thread).signal("tool_result", ToolResult(call_id=call_id, content="stale"))
        await stack.dropped(thread, number)
    assert (await stack.status(thread)).deferred == 1
    assert await stack.events(thread) == []
    await server.result(call, "done")
    await stack.heard(thread, "heard rain")


async def test_passive_calls_do_not_block(
    temporal: Client, store: PostgresStore, server: FakeRapServer, thread: str
) -> None:
    """An event wakes a sleeper at once, whose call is closed as interrupted; the server is not told of that."""
    async with RapStack(temporal, store, server, toolsets=[Timers()]) as stack:
        subscription = await stack.subscribed(thread, server)
        for sleep in (Call("sleep_until_event_or_input"), Call("sleep", {"seconds": 3600})):
            await stack.asked(thread, sleep)
            await stack.waiting(thread)
            await send(server, subscription, f"rain on {sleep.tool}")
            await stack.heard(thread, f"rain on {sleep.tool}")
            assert (await stack.results(thread))[-1].outcome == "interrupted"
        assert server.received("/cancel_tool_call") == []


async def test_a_passive_call_beside_another_one_blocks(
    temporal: Client, store: PostgresStore, server: FakeRapServer, thread: str
) -> None:
    """A sleeper in one step with a call that works is not woken before that has its result."""
    async with RapStack(temporal, store, server, toolsets=[Timers()]) as stack:
        subscription = await stack.subscribed(thread, server)
        call = await stack.called(thread, server, Call("sleep_until_event_or_input"), Call("ask"))
        await send(server, subscription, "rain")
        await stack.deferred(thread, 1)
        assert await stack.events(thread) == []
        await server.result(call, "done")
        await stack.heard(thread, "heard rain")
        assert [result.outcome for result in await stack.results(thread)] == ["ok", "interrupted", "ok"]


async def test_events_for_children_wait_too(stack: RapStack, server: FakeRapServer, thread: str) -> None:
    """A child that was spawned in the middle of a call would not know what the call has brought."""
    subscription = await stack.subscribed(thread, server)
    call = await stack.called(thread, server, Call("ask"))
    assert (await server.event(subscription, "rain")).status == 200
    await stack.deferred(thread, 1)
    assert await stack.store.get_children(thread) == ()
    await server.result(call, "done")
    (child,) = await eventually(lambda: stack.store.get_children(thread))
    await stack.heard(child.thread_id, "heard rain")
    assert "done" in str(stack.model.requests[-1].messages)


async def test_reports_and_messages_wait_in_one_line_with_events(
    temporal: Client, store: PostgresStore, server: FakeRapServer, thread: str
) -> None:
    """What a child reports keeps its place among the events; what its parent tells a child waits there as well."""
    async with RapStack(temporal, store, server, toolsets=[Threads()]) as stack:
        subscription = await stack.subscribed(thread, server)
        await stack.asked(thread, Call("spawn_thread", {"instructions": "Help.", "child_of": [thread]}))
        await stack.heard(thread, "was started")
        (child,) = await store.get_children(thread)
        await stack.heard(child.thread_id, "Help.")
        call = await stack.called(thread, server, Call("ask"))
        await send(server, subscription, "rain 0")
        await stack.deferred(thread, 1)
        await stack.asked(child.thread_id, Call("report_to_parent", {"report": "I help"}))
        await stack.deferred(thread, 2)
        await send(server, subscription, "rain 1")
        await stack.deferred(thread, 3)
        await server.result(call, "done")
        await stack.heard(thread, "rain 1")
        first, report, last = await stack.events(thread)
        assert (first, last) == ("rain 0", "rain 1")
        assert "I help" in report
        childs = await stack.called(child.thread_id, server, Call("ask"))
        message = Call("send_message_to_child", {"thread_id": child.thread_id, "message": "hurry"})
        await stack.asked(thread, message)
        await stack.deferred(child.thread_id, 1)
        await server.result(childs, "done too")
        await stack.heard(child.thread_id, "hurry")


# -- durably ---------------------------------------------------------------------------------------------------------


async def test_deferral_over_continue_as_new(
    temporal: Client, store: PostgresStore, server: FakeRapServer, thread: str
) -> None:
    """What waits goes from run to run with the open call, and is released in its order."""
    async with RapStack(temporal, store, server, limits=Limits(history_events=15)) as stack:
        subscription = await stack.subscribed(thread, server)
        call = await stack.called(thread, server, Call("ask"))
        runs = await stack.runs(thread)
        texts = [f"rain {number}" for number in range(20)]
        await send(server, subscription, *texts)
        await stack.deferred(thread, 20)

        async def has_gone_on() -> bool:
            return await stack.runs(thread) > runs

        await eventually(has_gone_on)
        assert await stack.events(thread) == []
        await server.result(call, "done")
        await stack.heard(thread, "rain 19")
        assert (await told(stack, thread))[-21:] == ["done", *texts]
        assert len(server.invocations) == 2


async def test_deferral_over_a_restart_of_the_worker(stack: RapStack, server: FakeRapServer, thread: str) -> None:
    """The next worker replays what waits."""
    subscription = await stack.subscribed(thread, server)
    call = await stack.called(thread, server, Call("ask"))
    await send(server, subscription, *RAINS)
    await stack.deferred(thread, 5)
    await stack.restart_worker()
    await stack.deferred(thread, 5)
    await server.result(call, "done")
    await stack.heard(thread, "rain 4")
    assert (await told(stack, thread))[-6:] == ["done", *RAINS]
    assert len(server.invocations) == 2


async def test_deferral_and_hibernation(
    temporal: Client, store: PostgresStore, server: FakeRapServer, thread: str
) -> None:
    """A thread that hibernates on an open call is woken by an event, and sleeps no more while that waits."""
    idle = timedelta(seconds=0.3)
    async with RapStack(temporal, store, server, limits=Limits(idle=idle)) as stack:
        subscription = await stack.subscribed(thread, server)
        await stack.asked(thread, Call("ask"))
        call = await server.invoked(2)
        await stack.asleep(thread)
        await send(server, subscription, *RAINS)
        awake = await stack.handle(thread).describe()
        await stack.deferred(thread, 5)
        # Several times as long as it would take to fall asleep with nothing to hold.
        await eventually(lambda: _fired_timers(stack, thread, 3))
        assert (await stack.handle(thread).describe()).run_id == awake.run_id
        await stack.deferred(thread, 5)
        await server.result(call, "done")
        await stack.heard(thread, "rain 4")
        assert (await told(stack, thread))[-6:] == ["done", *RAINS]
        await stack.asleep(thread)
        assert len(server.invocations) == 2


async def test_a_thread_that_holds_something_goes_from_run_to_run(
    temporal: Client, store: PostgresStore, server: FakeRapServer, thread: str
) -> None:
    """It looks every now and then whether it may sleep; after years of that its run can still take a result."""
    limits = Limits(idle=timedelta(seconds=0.1), history_events=20)
    async with RapStack(temporal, store, server, limits=limits) as stack:
        subscription = await stack.subscribed(thread, server)
        await stack.asked(thread, Call("ask"))
        call = await server.invoked(2)
        await send(server, subscription, "rain")
        await stack.deferred(thread, 1)
        runs = await stack.runs(thread)
        await eventually(lambda: _has_runs(stack, thread, runs + 1), timeout=60)
        await server.result(call, "done")
        await stack.heard(thread, "heard rain")
        assert (await told(stack, thread))[-2:] == ["done", "rain"]


async def test_what_waits_is_bounded(
    temporal: Client, store: PostgresStore, server: FakeRapServer, thread: str
) -> None:
    """More than a run can hand on is refused with a reason, so that the result that ends the wait is always taken.

    The control is that all before the bound are told, in their order.
    """
    async with RapStack(temporal, store, server, limits=Limits(history_events=50)) as stack:
        subscription = await stack.subscribed(thread, server)
        call = await stack.called(thread, server, Call("ask"))
        texts = [f"rain {number} {'x' * 30_000}" for number in range(25)]
        await send(server, subscription, *texts)
        # The bound is passed by the first event above half a megabyte, wherever a run has ended meanwhile.
        await stack.deferred(thread, 17)
        await eventually(lambda: _has_lost(stack, thread, 8), timeout=20)
        assert await stack.runs(thread) > 1
        await server.result(call, "done")
        await stack.heard(thread, "rain 16")
        assert await stack.events(thread) == texts[:17]
        await send(server, subscription, "sun")
        await stack.heard(thread, "heard sun")


async def test_what_comes_before_a_run_has_begun_is_bounded_with_what_it_was_handed(
    temporal: Client, store: PostgresStore, server: FakeRapServer, thread: str
) -> None:
    """A worker that is slow to begin a run finds events there. They are refused all the same once too much waits.

    The control are the first of them, which there is room for; they follow what was handed on.
    """
    async with RapStack(temporal, store, server, limits=Limits(history_events=50)) as stack:
        subscription = await stack.subscribed(thread, server)
        call = await stack.called(thread, server, Call("ask"))
        texts = [f"rain {number} {'x' * 30_000}" for number in range(25)]
        for number, text in enumerate(texts[:16], start=1):
            await send(server, subscription, text)
            await stack.deferred(thread, number)
        begun = (await chained_runs(temporal, thread))[-1][0].workflow_execution_started_event_attributes
        nothing, carried = await temporal.data_converter.decode(begun.input.payloads, [object, Carried])
        assert 0 < len(carried.waiting) <= 16
        await stack.stop_worker()
        await stack.terminate(thread)
        await temporal.start_workflow(
            WORKFLOW_TYPE,
            args=[nothing, carried],
            id=ids.workflow_id(thread),
            task_queue=stack.settings.task_queue,
        )
        await send(server, subscription, *texts[len(carried.waiting) :])
        await stack.start_worker()
        await stack.deferred(thread, 17)
        await eventually(lambda: _has_lost(stack, thread, 8), timeout=20)
        await server.result(call, "done")
        await stack.heard(thread, "rain 16")
        assert await stack.events(thread) == texts[:17]


async def _has_runs(stack: RapStack, thread: str, count: int) -> bool:
    return await stack.runs(thread) >= count


async def _has_lost(stack: RapStack, thread: str, count: int) -> bool:
    told = (await stack.status(thread)).problems
    return any("events wait in this thread" in one and one.endswith(f"({count} like this so far.)") for one in told)


async def _fired_timers(stack: RapStack, thread: str, count: int) -> bool:
    history = await stack.handle(thread).fetch_history()
    return sum(event.HasField("timer_fired_event_attributes") for event in history.events) >= count


async def _settled(stack: RapStack, thread: str, count: int) -> bool:
    return sum(call.state == "settled" for call in (await stack.status(thread)).open_calls) == count
