"""Calls that end by themselves: the sleep family over everything that can happen to a thread meanwhile."""

import asyncio
import time
from dataclasses import dataclass
from datetime import timedelta

import pytest
from temporalio.api.enums.v1 import EventType
from temporalio.api.history.v1 import HistoryEvent
from temporalio.client import WorkflowExecutionStatus

from perdure.agent import Agent
from perdure.builtins import Threads, Timers
from perdure.limits import Limits
from perdure.messages import EventPart, Message, ToolResultPart
from perdure.testing import Asked, Call, Reply, ScriptedModel
from perdure.watch import answer_text
from tests.chaos.faults import faults
from tests.eventually import eventually
from tests.recorded import chained_runs
from tests.stack import Stack
from tests.workflows.conftest import StackFactory
from tests.workflows.family import Family, child_of, closing, spawning
from tests.workflows.soundness import assert_sound

FOREVER = Reply(Call("sleep", {"seconds": 3600}))

ROUNDING = 0.001
"""A timer is set in whole milliseconds at least, and times are floats."""


async def waiting(stack: Stack, thread: str) -> None:
    """Return when the thread waits for something from outside, or for a time."""

    async def is_waiting() -> bool:
        return (await stack.client.status(thread)).state == "waiting"

    await eventually(is_waiting)


async def asleep(stack: Stack, thread: str, words: str = "sleep") -> str:
    """Send words that send the thread to sleep; returns the id of their message when it sleeps."""
    accepted = await stack.client.send(thread, words, id="m1")
    await waiting(stack, thread)
    return accepted.message_id


def results(message: Message) -> list[ToolResultPart]:
    """The tool results of a message, in order."""
    return [part for part in message.parts if isinstance(part, ToolResultPart)]


async def assert_woken(stack: Stack, thread: str, reason: str) -> None:
    """The sleeper's turn was left for this reason, its call closed once, as interrupted."""
    messages = await stack.client.history(thread)
    sleeper = next(message for message in messages if message.role == "assistant")
    assert (sleeper.status.state, sleeper.status.reason) == ("incomplete", reason)
    assert [part.outcome for part in results(sleeper)] == ["interrupted"]
    assert faults(messages) == []
    await assert_sound(stack, thread)


async def due(stack: Stack, thread: str) -> float:
    """When the open call is to end, as the store has it: seconds since 1970."""

    async def known() -> float | None:
        calls = (await stack.store.load_tail(thread)).calls
        return next((call.due for call in calls if call.due is not None), None)

    moment = await eventually(known)
    assert moment is not None
    return moment


@dataclass(frozen=True)
class Alarm:
    """When a sleep timer was to fire, by the clock that the workflow had when it set it: between these two times.

    That clock stands between the start and the end of the workflow task, however long the machine took for that.
    """

    earliest: float
    latest: float

    def is_for(self, moment: float) -> bool:
        """Whether it was set for this moment."""
        return self.earliest - ROUNDING <= moment <= self.latest + ROUNDING


async def alarms(stack: Stack, thread: str) -> list[Alarm]:
    """When the sleep timers of the thread's run were set to fire, seconds since 1970."""
    (events,) = await chained_runs(stack.temporal, thread)
    found: list[Alarm] = []
    for event in events:
        if event.event_type == EventType.EVENT_TYPE_TIMER_STARTED and b"sleep" in event.user_metadata.summary.data:
            timer = event.timer_started_event_attributes
            completed = events[timer.workflow_task_completed_event_id - 1]
            started = events[completed.workflow_task_completed_event_attributes.started_event_id - 1]
            seconds = timer.start_to_fire_timeout.ToNanoseconds() / 1e9
            found.append(Alarm(_seconds(started) + seconds, _seconds(completed) + seconds))
    return found


def _seconds(event: HistoryEvent) -> float:
    return event.event_time.ToNanoseconds() / 1e9


# -- ends by itself --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("seconds", [0.2, 0, -1])
async def test_a_sleep_wakes_by_itself(seconds: float, start_stack: StackFactory, thread: str) -> None:
    """The call ends after its time, at once if there is none, and the turn goes on."""
    model = ScriptedModel([Reply(Call("sleep", {"seconds": seconds})), "awake"])
    stack = await start_stack(Agent("a", model=model, toolsets=[Timers()]))
    assert await stack.client.ask(thread, "sleep", id="m1") == "awake"
    assert model.requests[1].results == (f"Slept {max(seconds, 0)} seconds.",)
    await assert_sound(stack, thread)


async def test_a_time_that_is_past_is_said_at_once(start_stack: StackFactory, thread: str) -> None:
    """`sleep_until` a time in the past sets no timer."""
    past = {"date": "2001-02-03", "time": "04:05", "timezone": "Europe/Paris"}
    model = ScriptedModel([Reply(Call("sleep_until", past)), "awake"])
    stack = await start_stack(Agent("a", model=model, toolsets=[Timers()]))
    assert await stack.client.ask(thread, "sleep", id="m1") == "awake"
    assert "was in the past already" in model.requests[1].results[0]
    assert await alarms(stack, thread) == []


@pytest.mark.parametrize(
    ("tool", "arguments"),
    [
        ("sleep", {"seconds": 4e8}),
        ("sleep_until", {"date": "2030-02-30", "time": "10:00"}),
        ("sleep_until", {"date": "2030-02-03", "time": "10:00", "timezone": "Mars/Olympus"}),
    ],
)
async def test_a_sleep_that_cannot_be_is_an_error_result(
    tool: str, arguments: dict[str, object], start_stack: StackFactory, thread: str
) -> None:
    """The model is told what is wrong and goes on."""
    model = ScriptedModel([Reply(Call(tool, arguments)), "I see"])
    stack = await start_stack(Agent("a", model=model, toolsets=[Timers()]))
    assert await stack.client.ask(thread, "sleep", id="m1") == "I see"
    assert [part.outcome for part in results((await stack.client.history(thread))[1])] == ["error"]


async def test_b37_f_a_sleep_goes_on_over_continue_as_new_and_a_restart_and_wakes_once(
    start_stack: StackFactory, thread: str
) -> None:
    """B37 (f): the run before set the timer, another one wakes, at the time that was meant from the start."""
    model = ScriptedModel([Reply(Call("sleep", {"seconds": 2})), "awake"])
    limits = Limits(history_events=10)
    stack = await start_stack(Agent("a", model=model, toolsets=[Timers()], limits=limits))
    message_id = await asleep(stack, thread)
    until = await due(stack, thread)
    await stack.restart_worker()
    message = await stack.client.wait_settled(thread, message_id)
    assert time.time() == pytest.approx(until, abs=1)
    assert answer_text(message) == "awake"
    assert [part.content for part in results(message)] == ["Slept 2 seconds."]
    assert len(model.requests) == 2
    assert len(await chained_runs(stack.temporal, thread)) > 1
    await assert_sound(stack, thread)


async def test_a_thread_with_a_timer_does_not_hibernate(start_stack: StackFactory, thread: str) -> None:
    """Nobody would be there to wake it: the run that set the timer is the one that wakes."""
    model = ScriptedModel([Reply(Call("sleep", {"seconds": 1.5})), "awake"])
    limits = Limits(idle=timedelta(seconds=0.2))
    stack = await start_stack(Agent("a", model=model, toolsets=[Timers()], limits=limits))
    message_id = await asleep(stack, thread)
    run_id = (await stack.handle(thread).describe()).run_id
    message = await stack.client.wait_settled(thread, message_id)
    assert answer_text(message) == "awake"
    await ended(stack, thread, WorkflowExecutionStatus.COMPLETED)
    assert (await stack.handle(thread).describe()).run_id == run_id


async def test_a_thread_that_waits_for_anything_hibernates(start_stack: StackFactory, thread: str) -> None:
    """The control, and the cost of waiting: no timer, so the workflow ends, and words wake the thread."""
    model = ScriptedModel([Reply(Call("sleep_until_event_or_input")), "yes?"])
    limits = Limits(idle=timedelta(seconds=0.2))
    stack = await start_stack(Agent("a", model=model, toolsets=[Timers()], limits=limits))
    await stack.client.send(thread, "wait", id="m1")
    await ended(stack, thread, WorkflowExecutionStatus.COMPLETED)
    assert (await stack.client.status(thread)).state == "waiting"
    assert await stack.client.ask(thread, "hello", id="m2") == "yes?"
    await assert_woken(stack, thread, "steered")


async def ended(stack: Stack, thread: str, status: WorkflowExecutionStatus) -> None:
    """Return when the newest run has this status."""

    async def has_status() -> bool:
        return (await stack.handle(thread).describe()).status == status

    await eventually(has_status)


# -- woken -----------------------------------------------------------------------------------------------------


async def test_words_wake_a_sleeper(start_stack: StackFactory, thread: str) -> None:
    """Whatever the mode: a thread that sleeps is not busy."""
    model = ScriptedModel([FOREVER, "yes?"])
    stack = await start_stack(Agent("a", model=model, toolsets=[Timers()]))
    await asleep(stack, thread)
    assert await stack.client.ask(thread, "hello", id="m2", mode="queue") == "yes?"
    await assert_woken(stack, thread, "steered")


async def test_a_stop_ends_a_sleep(start_stack: StackFactory, thread: str) -> None:
    """The turn is over, no model is asked, and the timer does not fire later."""
    model = ScriptedModel([FOREVER])
    stack = await start_stack(Agent("a", model=model, toolsets=[Timers()]))
    await asleep(stack, thread)
    assert (await stack.client.stop(thread)).turn == 1
    await assert_woken(stack, thread, "cancelled")
    assert len(model.requests) == 1
    (events,) = await chained_runs(stack.temporal, thread)
    assert [event for event in events if event.event_type == EventType.EVENT_TYPE_TIMER_CANCELED]


async def test_an_event_of_a_subscription_wakes_a_sleeper(start_stack: StackFactory, thread: str) -> None:
    """It is told with the sleeper's call closed; the next event finds no sleeper and starts a turn of its own."""
    model = ScriptedModel([Reply(Call("watch_it")), FOREVER, "first", "second"])
    agent = Agent("a", model=model, toolsets=[Timers()])
    agent.tool(kind="client", name="watch_it")(_never)
    stack = await start_stack(agent)
    await stack.client.send(thread, "watch", id="m1")
    await waiting(stack, thread)
    (call,) = await stack.client.open_calls(thread)
    confirmed = {"call_id": call.call_id, "content": "watching", "subscription": True}
    await stack.handle(thread).signal("tool_result", confirmed)
    await due(stack, thread)
    await stack.client.event(thread, call.call_id, "it moved", id="e1")
    await stack.client.event(thread, call.call_id, "it moved", id="e1")
    await eventually(lambda: _last(stack, thread, "first"))
    await stack.client.event(thread, call.call_id, "it stopped", id="e2")
    await eventually(lambda: _last(stack, thread, "second"))
    messages = await stack.client.history(thread)
    assert _events(messages) == ["it moved", "it stopped"]
    assert [part.outcome for part in results(messages[1])] == ["ok", "interrupted"]
    assert faults(messages) == []
    await assert_sound(stack, thread)


async def _never() -> str:
    return ""


async def test_a_report_of_a_child_wakes_its_parent(start_stack: StackFactory, thread: str) -> None:
    """The parent sleeps until something happens, and that is what happens."""
    wait = Reply(Call("sleep_until_event_or_input"))
    model = Family({"": [spawning("look"), wait, "thanks"], "look": [closing("seen")]})
    stack = await start_stack(Agent("a", model=model, toolsets=[Threads(), Timers()]))
    await stack.client.send(thread, "go", id="m1")
    await eventually(lambda: _last(stack, thread, "thanks"))
    messages = await stack.client.history(thread)
    assert [part.outcome for part in results(messages[1])] == ["ok", "interrupted"]
    assert faults(messages) == []
    await assert_sound(stack, thread)


async def test_a_message_of_the_parent_wakes_a_child(start_stack: StackFactory, thread: str) -> None:
    """The child sleeps for hours; what its parent says is heard at once."""
    tell = Call("send_message_to_child", {"thread_id": child_of(thread), "message": "hurry up"})
    model = Family({"": [spawning("doze"), "it sleeps", Reply(tell), "told"], "doze": [FOREVER, closing("awake")]})
    stack = await start_stack(Agent("a", model=model, toolsets=[Threads(), Timers()]))
    await stack.client.ask(thread, "go", id="m1")
    child = child_of(thread)
    await due(stack, child)
    assert await stack.client.ask(thread, "wake it", id="m2") in ("told", "noted")
    await eventually(lambda: _has_event(stack, thread, "awake"))
    messages = await stack.client.history(child)
    assert [part.outcome for part in results(messages[-3])] == ["interrupted"]
    await assert_sound(stack, thread, child)


async def _has_event(stack: Stack, thread: str, words: str) -> bool:
    return any(words in event for event in _events(await stack.client.history(thread)))


async def _last(stack: Stack, thread: str, words: str) -> bool:
    return answer_text((await stack.client.history(thread))[-1]) == words


def _events(messages: list[Message]) -> list[str]:
    return [part.content for message in messages for part in message.parts if isinstance(part, EventPart)]


# -- beside other calls ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("seconds", [3600, 0.1])
async def test_events_wait_for_real_work_beside_a_sleep(seconds: float, start_stack: StackFactory, thread: str) -> None:
    """A sleep in parallel with a real call does not make the thread one that only sleeps: what comes is deferred.

    As soon as the real call has its result, a sleeper that is left is woken; one that has slept already is not.
    """
    finish = asyncio.Event()

    def script(asked: Asked) -> Reply:
        return Reply(Call("sleep", {"seconds": seconds}), Call("work")) if asked.answered == 0 else Reply("heard")

    agent = Agent("a", model=ScriptedModel(script), toolsets=[Timers()])

    @agent.tool
    async def work() -> str:
        await finish.wait()
        return "worked"

    stack = await start_stack(agent)
    accepted = await stack.client.send(thread, "go", id="m1")
    await due(stack, thread)
    if seconds < 1:
        await eventually(lambda: _is_settled(stack, thread, "sleep"))
    event = {"id": "e1", "call_id": "call_1", "content": "a report", "source": "child"}
    await stack.handle(thread).signal("event", event)
    await eventually(lambda: _deferred(stack, thread))
    assert len(await stack.client.history(thread)) == 2
    finish.set()
    await eventually(lambda: _has_event(stack, thread, "a report"))
    turn = await stack.client.wait_settled(thread, accepted.message_id)
    outcomes = ["interrupted", "ok"] if seconds > 1 else ["ok", "ok"]
    assert [part.outcome for part in results(turn)] == outcomes
    await eventually(lambda: _last(stack, thread, "heard"))
    assert faults(await stack.client.history(thread)) == []
    await assert_sound(stack, thread)


async def _deferred(stack: Stack, thread: str) -> bool:
    return (await stack.client.status(thread)).deferred == 1


async def _is_settled(stack: Stack, thread: str, tool: str) -> bool:
    return any(call.tool == tool and call.state == "settled" for call in await stack.client.open_calls(thread))


# -- another owner ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("beside", [(), (Call("work"),)], ids=["alone", "beside real work"])
async def test_a_sleeper_whose_run_was_terminated_keeps_its_time(
    beside: tuple[Call, ...], start_stack: StackFactory, thread: str
) -> None:
    """Whoever takes the thread over sleeps until the time that was meant, not for the whole time again."""
    agent = Agent("a", model=ScriptedModel([Reply(Call("sleep", {"seconds": 3600}), *beside)]), toolsets=[Timers()])

    @agent.tool(retry_safe=True)
    async def work() -> str:
        await asyncio.Event().wait()
        return "never"

    stack = await start_stack(agent)
    await stack.client.send(thread, "go", id="m1")
    until = await due(stack, thread)
    (alarm,) = await eventually(lambda: alarms(stack, thread))
    assert alarm.is_for(until)
    await stack.handle(thread).terminate()
    await stack.restart_worker()
    await stack.wake(thread)
    (again,) = await eventually(lambda: alarms(stack, thread))
    assert again.is_for(until)
    (events,) = await chained_runs(stack.temporal, thread)
    whole_again = _seconds(events[0]) + 3600
    assert not Alarm(whole_again, whole_again).is_for(until), "the control: sleeping for the whole time would show"
    assert (await stack.store.load_tail(thread)).calls[0].due == until
    await stack.client.stop(thread)


async def test_a_sleeper_that_nobody_had_wakes_as_soon_as_it_is_taken_over(
    start_stack: StackFactory, thread: str
) -> None:
    """Its time came while no run was there: it has slept, and is not told that the time was past from the start."""
    model = ScriptedModel([Reply(Call("sleep", {"seconds": 1})), "awake"])
    stack = await start_stack(Agent("a", model=model, toolsets=[Timers()]))
    message_id = await asleep(stack, thread)
    until = await due(stack, thread)
    await stack.handle(thread).terminate()
    await eventually(lambda: time.time() > until)
    await stack.wake(thread)
    message = await stack.client.wait_settled(thread, message_id)
    assert [(part.outcome, part.content) for part in results(message)] == [("ok", "Slept 1 second.")]
    assert answer_text(message) == "awake"
