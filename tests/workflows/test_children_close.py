"""The end of child threads: who may close what, and what a closed thread does with whatever still reaches it."""

import asyncio
from datetime import timedelta

import pytest
from temporalio.api.enums.v1 import EventType
from temporalio.client import WorkflowExecutionStatus

from perdure.agent import Agent
from perdure.builtins import Threads
from perdure.errors import ThreadClosed
from perdure.inputs import Control, Event, Interrupt, ToolResult, UserMessage
from perdure.messages import EventPart, ToolResultPart
from perdure.testing import Call, Reply
from perdure.thread_calls import ThreadCalls
from perdure.view import EVENT_TOOL
from perdure.watch import answer_text
from tests.chaos.faults import faults
from tests.eventually import eventually
from tests.recorded import chain
from tests.stack import Stack
from tests.workflows.conftest import StackFactory
from tests.workflows.family import ROOT, Family, Line, Me, child_of, closed, closing, spawn, with_work
from tests.workflows.soundness import assert_sound


def root(who: Me) -> Reply | str:
    """Spawn a child on `go`, note everything else."""
    return spawn(who, "one") if who.asked.user_text == "go" and who.answered == 0 else "noted"


async def outcomes(stack: Stack, thread: str) -> list[tuple[str, str]]:
    """Outcome and words of the results in a thread's own messages."""
    messages = [message for message in await stack.client.history(thread) if message.role == "assistant"]
    parts = [part for message in messages if message.thread_id == thread for part in message.parts]
    return [(part.outcome, part.content) for part in parts if isinstance(part, ToolResultPart)]


async def ended(stack: Stack, thread: str) -> None:
    """Return when the thread's workflow has completed."""

    async def has_ended() -> bool:
        return (await stack.handle(thread).describe()).status == WorkflowExecutionStatus.COMPLETED

    await eventually(has_ended)


# -- close_thread ----------------------------------------------------------------------------------------------


async def test_a_thread_closes_itself_only(start_stack: StackFactory, thread: str) -> None:
    """The id of another thread, its parent's too, is an error; with its own the thread ends, asked nothing more."""
    wrong = [thread, "nobody"]
    lines: list[Line] = [*(Reply(Call("close_thread", {"thread_id": other})) for other in wrong), closing("done")]
    model = Family({ROOT: root, "one": lines})
    stack = await start_stack(Agent("a", model=model, toolsets=[Threads()]))
    await stack.client.send(thread, "go", id="m1")
    child = child_of(thread)
    await closed(stack, child)
    told = await outcomes(stack, child)
    assert [outcome for outcome, _ in told] == ["error", "error", "ok"]
    assert all(f"you are in {child}, not '{other}'" in words for other, (_, words) in zip(wrong, told, strict=False))
    assert len(model.requests_of(child)) == 3
    await ended(stack, child)
    assert (await stack.store.get_thread(thread)).closed_at is None
    await assert_sound(stack, child)


async def test_the_root_is_not_closed_by_the_model(start_stack: StackFactory, thread: str) -> None:
    """It is told that only people close it, and goes on."""
    model = Family({ROOT: [closing("bye"), "I see"]})
    stack = await start_stack(Agent("a", model=model, toolsets=[Threads()]))
    assert await stack.client.ask(thread, "go", id="m1") == "I see"
    ((outcome, words),) = await outcomes(stack, thread)
    assert (outcome, "only people close it" in words) == ("error", True)
    assert await stack.client.ask(thread, "still there?", id="m2") == "noted"


async def test_other_calls_of_the_step_end_before_the_thread_does(start_stack: StackFactory, thread: str) -> None:
    """Their results are stored in call order, and no model is asked after them."""
    finish = asyncio.Event()

    def one(who: Me) -> Reply:
        return Reply(Call("work"), Call("close_thread", {"thread_id": who.id}), Call("work"))

    agent = with_work(Agent("a", model=(model := Family({ROOT: root, "one": one})), toolsets=[Threads()]), finish)
    stack = await start_stack(agent)
    await stack.client.ask(thread, "go", id="m1")
    child = child_of(thread)

    async def closing_call_is_settled() -> bool:
        calls = await stack.client.open_calls(child)
        return [call.state for call in calls] == ["running", "settled", "running"]

    await eventually(closing_call_is_settled)
    assert (await stack.store.get_thread(child)).closed_at is None
    finish.set()
    await closed(stack, child)
    assert await outcomes(stack, child) == [("ok", "worked"), ("ok", "The thread is closed."), ("ok", "worked")]
    assert (await stack.client.history(child))[-1].status.state == "complete"
    assert len(model.requests_of(child)) == 1
    assert faults(await stack.client.history(child)) == []


async def test_the_parent_hears_of_the_end_with_and_without_a_report(start_stack: StackFactory, thread: str) -> None:
    """It has asked for the child, so it is told that it is gone."""
    model = Family({ROOT: lambda who: spawn(who, "one", "two") if who.answered == 0 else "noted", "two": [closing()]})
    stack = await start_stack(Agent("a", model=model, toolsets=[Threads()]))
    await stack.client.send(thread, "go", id="m1")
    first, second = (child_of(thread, index=index) for index in range(2))
    expected = {
        f"The child thread {first} reports and is closed:\n\nreport of one",
        f"The child thread {second} is closed; it has nothing to report.",
    }

    async def heard() -> bool:
        parts = [part for message in await stack.client.history(thread) for part in message.parts]
        return {part.content for part in parts if isinstance(part, EventPart)} == expected

    await eventually(heard)


# -- a closed thread -------------------------------------------------------------------------------------------


async def gone(stack: Stack, thread: str) -> str:
    """Spawn a child that closes at once; returns its id when its workflow has ended."""
    await stack.client.send(thread, "go", id="m1")
    child = child_of(thread)
    await closed(stack, child)
    await ended(stack, child)
    return child


async def test_a_closed_thread_takes_no_words_and_says_so(start_stack: StackFactory, thread: str) -> None:
    """Sent, asked or posted: the words are turned away with a sentence, or dropped; no model is asked."""
    model = Family({ROOT: root})
    stack = await start_stack(Agent("a", model=model, toolsets=[Threads()]))
    child = await gone(stack, thread)
    history = await stack.client.history(child)
    with pytest.raises(ThreadClosed, match=child):
        await stack.client.ask(child, "are you there?", id="m2")
    with pytest.raises(ThreadClosed, match=child):
        await stack.client.send(child, "are you there?", id="m3")
    await stack.client.post(child, "hello", id="m4")
    await ended(stack, child)
    assert await stack.client.history(child) == history
    assert (await stack.client.status(child)).state == "closed"
    assert len(model.requests_of(child)) == 1


async def test_a_closed_thread_drops_events_results_and_stops(start_stack: StackFactory, thread: str) -> None:
    """Each wakes a workflow that finds the thread closed, changes nothing and ends."""
    model = Family({ROOT: root})
    stack = await start_stack(Agent("a", model=model, toolsets=[Threads()]))
    child = await gone(stack, thread)
    before = await stack.store.get_thread(child)
    calls = ThreadCalls(stack.temporal, stack.settings.task_queue, timedelta(seconds=10))
    for signal, content in (
        ("event", Event(id="e1", call_id="call_1", content="an event", source="parent")),
        ("tool_result", ToolResult(call_id="call_1", content="a result")),
        ("interrupt", Interrupt()),
        ("control", Control(action="close")),
    ):
        await calls.signal_with_start(child, signal, content)
        await ended(stack, child)
    assert await stack.store.get_thread(child) == before
    assert len(model.requests_of(child)) == 1


async def test_words_that_reach_a_thread_while_it_closes_are_turned_away(
    start_stack: StackFactory, thread: str
) -> None:
    """Between the call that closes it and the end of its group nothing new is begun."""
    finish = asyncio.Event()

    def one(who: Me) -> Reply:
        return Reply(Call("close_thread", {"thread_id": who.id}), Call("work"))

    agent = with_work(Agent("a", model=(model := Family({ROOT: root, "one": one})), toolsets=[Threads()]), finish)
    stack = await start_stack(agent)
    await stack.client.ask(thread, "go", id="m1")
    child = child_of(thread)

    async def is_closing() -> bool:
        return any(call.state == "settled" for call in await stack.client.open_calls(child))

    await eventually(is_closing)
    words = UserMessage(id="m2", text="wait!")
    event = Event(id="e1", call_id="call_1", content="news", source="parent")
    await stack.handle(child).signal("user_message", words)
    await stack.handle(child).signal("event", event)
    finish.set()
    await closed(stack, child)
    await ended(stack, child)
    assert await outcomes(stack, child) == [("ok", "The thread is closed."), ("ok", "worked")]
    assert len(model.requests_of(child)) == 1
    assert [message.role for message in await stack.client.history(child)][-2:] == ["event", "assistant"]


async def test_people_close_any_thread(start_stack: StackFactory, thread: str) -> None:
    """The signal `control` closes a root, its turn is settled, and the thread takes nothing more."""
    model = Family({ROOT: lambda who: Reply("let me think", hang=True)})
    stack = await start_stack(Agent("a", model=model, toolsets=[Threads()]))
    await stack.client.send(thread, "go", id="m1")
    await eventually(lambda: len(model.requests) == 1)
    await stack.handle(thread).signal("control", {"action": "close"})
    await closed(stack, thread)
    await ended(stack, thread)
    last = (await stack.client.history(thread))[-1]
    assert (last.status.state, last.status.reason) == ("incomplete", "cancelled")
    with pytest.raises(ThreadClosed, match=thread):
        await stack.client.ask(thread, "hello?", id="m2")


@pytest.mark.parametrize("is_at_work", [False, True])
async def test_the_parent_hears_that_a_person_has_closed_its_child(
    is_at_work: bool, start_stack: StackFactory, thread: str
) -> None:
    """It waits for a report that does not come. It is told once, whatever the child was doing, and answers."""
    model = Family({ROOT: root, "one": lambda who: Reply("let me think", hang=is_at_work)})
    stack = await start_stack(Agent("a", model=model, toolsets=[Threads()]))
    await stack.client.ask(thread, "go", id="m1")
    child = child_of(thread)
    await eventually(lambda: model.requests_of(child))
    for _ in range(2):
        await stack.client.close_thread(child)
    told = [f"The child thread {child} was closed by a person. It has ended, and reports nothing more."]
    await eventually(lambda: _heard(stack, thread, told))
    await ended(stack, child)
    assert len(model.requests_of(thread)) == 3
    assert (await stack.client.status(thread)).problems == ()
    await assert_sound(stack, thread, child)


async def test_a_child_that_closes_is_not_closed_by_a_person_too(start_stack: StackFactory, thread: str) -> None:
    """Its report says so. The person only cuts short what the thread would have waited for."""

    def one(who: Me) -> Reply:
        return Reply(Call("close_thread", {"thread_id": who.id, "report_to_parent": "done"}), Call("work"))

    agent = Agent("a", model=(model := Family({ROOT: root, "one": one})), toolsets=[Threads()])
    agent.tool(name="work")(asyncio.Event().wait)
    stack = await start_stack(agent)
    await stack.client.ask(thread, "go", id="m1")
    child = child_of(thread)
    told = [f"The child thread {child} reports and is closed:\n\ndone"]
    await eventually(lambda: _heard(stack, thread, told))
    await stack.client.close_thread(child)
    await ended(stack, child)
    signalled = EventType.EVENT_TYPE_WORKFLOW_EXECUTION_SIGNALED
    assert [event.event_type for event in await chain(stack.temporal, thread)].count(signalled) == 1
    assert len(model.requests_of(thread)) == 3


async def test_closing_a_whole_family_tells_nobody_who_is_closed(start_stack: StackFactory, thread: str) -> None:
    """From the root down: no closed thread is woken by the end of one below it."""
    model = Family({ROOT: root, "one": lambda who: "I am here"})
    stack = await start_stack(Agent("a", model=model, toolsets=[Threads()]))
    await stack.client.ask(thread, "go", id="m1")
    child = child_of(thread)
    await eventually(lambda: model.requests_of(child))
    await stack.client.close_thread(thread)
    await ended(stack, thread)
    run = (await stack.handle(thread).describe()).run_id
    await stack.client.close_thread(child)
    await ended(stack, child)
    assert (await stack.handle(thread).describe()).run_id == run


# -- children of events ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("report", [None, "it matters"])
async def test_a_thread_for_an_event_closes_silently_unless_it_has_something_to_say(
    report: str | None, start_stack: StackFactory, thread: str
) -> None:
    """The parent is asked nothing for an event that does not concern it, and its subscription stays."""

    def play(who: Me) -> Reply | str:
        if who.stack != (thread,):
            return closing(report)(who)
        return Reply(Call("watch_it")) if who.answered == 0 else "noted"

    model = Family({ROOT: play})
    agent = Agent("a", model=model, toolsets=[Threads()])
    agent.tool(kind="client", name="watch_it")(_never)
    stack = await start_stack(agent)
    accepted = await stack.client.send(thread, "watch", id="m1")
    (call,) = await eventually(lambda: stack.client.open_calls(thread))
    confirmed = {"call_id": call.call_id, "content": "watching", "subscription": True}
    await stack.handle(thread).signal("tool_result", confirmed)
    await stack.client.wait_settled(thread, accepted.message_id)
    event = Event(id="e1", call_id=call.call_id, content="it moved", associative=False)
    await stack.handle(thread).signal("event", event)
    (child,) = await eventually(lambda: stack.store.get_children(thread))
    await closed(stack, child.thread_id)
    (asked,) = model.requests_of(child.thread_id)
    assert "it moved" in asked.results[-1]
    assert any(getattr(part, "tool_name", "") == EVENT_TOOL for part in asked.messages[-1].parts)
    heard = f"The thread {child.thread_id}, which handled an event, reports and is closed. The subscription "
    heard += f"{call.call_id} stays active:\n\nit matters"
    told = [heard] if report else []
    await eventually(lambda: _heard(stack, thread, told))
    assert len(model.requests_of(thread)) == 2 + len(told)
    assert len(await stack.store.get_active_subscriptions(thread)) == 1
    await assert_sound(stack, thread, child.thread_id)


async def _never() -> str:
    return ""


async def _heard(stack: Stack, thread: str, expected: list[str]) -> bool:
    messages = await stack.client.history(thread)
    parts = [part for message in messages for part in message.parts]
    is_answered = bool(answer_text(messages[-1]))
    return is_answered and [part.content for part in parts if isinstance(part, EventPart)] == expected
