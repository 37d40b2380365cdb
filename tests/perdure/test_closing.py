"""A thread that closes: when, what it gives up, and that nothing is written in it afterwards."""

import pytest

from perdure.history import HistoryManager
from perdure.history_state import standing
from perdure.inputs import AnyInput, Control, Event, Interrupt, ToolResult, UserMessage
from perdure.messages import ReasoningPart, Status, TextPart, ToolResultPart
from perdure.turn import INTERRUPTED, WOKEN
from perdure.view import view
from tests.perdure.driven import Thread, results, texts
from tests.perdure.view_rules import violations


@pytest.fixture
def thread() -> Thread:
    """A thread between two steps, which is subscribed to `s`."""
    thread = Thread()
    thread.history.track_subscription("s", "watch")
    thread.say("hi")
    return thread


def close(thread: Thread, name: str, *, first: bool = False) -> None:
    """The call `name` returns and closes the thread, as the workflow takes that in."""
    thread.store.stage(ToolResultPart(call_id=name, content="Closed."))
    if first:
        thread.history.close_thread()
    thread.history.handle_content(ToolResult(call_id=name, staged=True))
    if not first:
        thread.history.close_thread()
    thread.sync()


def assert_closed(thread: Thread) -> None:
    """It is closed, here and in the store, and nothing is left open."""
    assert thread.store.closed
    assert thread.history.state.closed
    assert thread.phase() == "idle"
    assert {message.status.state for message in thread.store.messages} <= {"complete", "incomplete"}
    assert thread.history.take_pending("run") is None
    assert violations(view(thread.store.path)) == []


@pytest.mark.parametrize("first", [True, False])
def test_a_call_closes_its_thread(thread: Thread, first: bool) -> None:
    """Its result is the last thing in it, and its turn is complete; no model is asked again."""
    (name,) = thread.act("close")
    close(thread, name, first=first)
    assert_closed(thread)
    assert thread.last.status == Status()
    assert results(thread.last) == [("ok", "Closed.")]


def test_it_closes_in_the_batch_of_the_last_result(thread: Thread) -> None:
    """A crash cannot leave a thread that is closed and goes on, nor one that is done and stays open."""
    (name,) = thread.act("close")
    thread.history.close_thread()
    thread.history.handle_content(ToolResult(call_id=name, content="Closed."))
    (batch,) = thread.sync()
    assert [one.kind for one in batch.operations][-3:] == ["set_status", "remove_subscription", "close_thread"]
    assert "commit_results" in [one.kind for one in batch.operations]


def test_it_waits_for_the_other_calls_of_the_group(thread: Thread) -> None:
    """They were made together, so each gets its result."""
    name, other = thread.act("close", "t")
    close(thread, name)
    assert not thread.store.closed
    assert thread.phase() == "calling"
    thread.take(ToolResult(call_id=other, content="x"))
    assert_closed(thread)
    assert results(thread.last) == [("ok", "Closed."), ("ok", "x")]
    assert thread.last.status == Status()


@pytest.mark.parametrize("first", [True, False])
def test_it_does_not_wait_for_a_sleeper(thread: Thread, first: bool) -> None:
    """What would wake it is turned away already, so it would wait for ever."""
    name, asleep = thread.act("close", "sleep")
    close(thread, name, first=first)
    assert_closed(thread)
    assert results(thread.last) == [("ok", "Closed."), ("interrupted", WOKEN)]
    assert [one.call_id for one in thread.history.take_interrupted_tool_calls()] == [asleep]


def test_a_sleeper_does_not_wait_for_itself(thread: Thread) -> None:
    """When all others of the group are in, it is woken."""
    name, _, other = thread.act("close", "sleep", "t")
    close(thread, name)
    assert not thread.store.closed
    thread.take(ToolResult(call_id=other, content="x"))
    assert_closed(thread)
    assert [outcome for outcome, _ in results(thread.last)] == ["ok", "interrupted", "ok"]


@pytest.mark.parametrize("mode", ["interrupt", "reject"])
def test_words_in_between_are_turned_away_and_stop_nothing(thread: Thread, mode: str) -> None:
    """The calls that are open get their results. Words that the store knows stop none either: it is not asked."""
    name, other = thread.act("close", "t")
    close(thread, name)
    assert thread.take(UserMessage.model_validate({"id": "m2", "text": "wait", "mode": mode})) == "rejected"
    thread.history = HistoryManager(thread.history.state.with_(processed={}))
    assert thread.say("hi", "m1") == "rejected"
    assert thread.take(ToolResult(call_id=other, content="x")) == "settled"
    assert_closed(thread)
    assert thread.roles() == ["user", "assistant"]


def test_a_person_dismisses_a_thread_that_is_not_closing_by_itself(thread: Thread) -> None:
    """Its call has told the parent, or nobody has: that is how the workflow knows."""
    (name,) = thread.act("close")
    close(thread, name)
    assert not thread.history.state.dismissed
    thread.take(Control(action="close"))
    assert not thread.history.state.dismissed, "it was closed"


def test_a_person_who_is_quicker_than_the_rest_of_the_group_dismisses_nobody(thread: Thread) -> None:
    """The call that closes the thread has its result."""
    name, _ = thread.act("close", "t")
    close(thread, name)
    thread.take(Control(action="close"))
    assert_closed(thread)
    assert not thread.history.state.dismissed


@pytest.mark.parametrize("calls", [(), ("t",), ("close",)])
def test_a_thread_that_a_person_closes_is_dismissed(thread: Thread, calls: tuple[str, ...]) -> None:
    """Also with a call that would have closed it: it has no result, so it may not have told anybody."""
    if calls:
        thread.act(*calls)
    thread.take(Control(action="close"))
    assert_closed(thread)
    assert thread.history.state.dismissed


def test_a_stop_in_between_closes_at_once(thread: Thread) -> None:
    """The calls that are open are interrupted, and the servers told."""
    name, other = thread.act("close", "watch")
    close(thread, name)
    assert thread.take(Interrupt()) == "interrupted"
    assert_closed(thread)
    assert results(thread.last) == [("ok", "Closed."), ("interrupted", INTERRUPTED)]
    assert thread.history.take_cancelled() == (other, "s")


def test_a_failure_in_between_closes_at_once(thread: Thread) -> None:
    """Calls that cannot be run do not keep it from closing."""
    name, _ = thread.act("close", "t")
    close(thread, name)
    thread.history.fail_turn("There is a bug.")
    thread.sync()
    assert_closed(thread)


def test_its_subscriptions_end(thread: Thread) -> None:
    """Their servers are told, once it is durable; also of one that was opened in the last group."""
    name, watch = thread.act("close", "watch")
    close(thread, name)
    thread.take(ToolResult(call_id=watch, content="Watching.", subscription=True))
    assert_closed(thread)
    assert thread.store.subscriptions == []
    assert thread.history.take_cancelled() == ("s", watch)


def test_closing_is_carried_to_the_next_run(thread: Thread) -> None:
    """And the last result closes it there."""
    name, other = thread.act("close", "t")
    close(thread, name)
    thread.history = HistoryManager(type(thread.history.state).model_validate(thread.history.state.model_dump()))
    thread.take(ToolResult(call_id=other, content="x"))
    assert_closed(thread)


@pytest.mark.parametrize("phase", ["idle", "boundary", "busy", "calling", "sleeping"])
def test_a_person_closes_it_whatever_it_does(thread: Thread, phase: str) -> None:
    """What streamed stays, open calls are interrupted, the turn is cancelled and says why."""
    if phase == "idle":
        thread.answer(TextPart(text="hello"))
    elif phase == "busy":
        thread.stream(TextPart(text="half an ans"), ReasoningPart(text="hm"))
    elif phase != "boundary":
        thread.act("watch" if phase == "calling" else "sleep")
    assert thread.phase() == phase
    calls = thread.calls
    assert thread.take(Control(action="close")) == "settled"
    assert_closed(thread)
    assert [one.call_id for one in thread.history.take_interrupted_tool_calls()] == calls
    assert thread.history.take_cancelled() == (*(calls if phase == "calling" else ()), "s")
    expected = Status(state="incomplete", reason="cancelled", detail="The thread was closed.")
    assert thread.last.status == (Status() if phase == "idle" else expected)
    assert texts(thread.last.parts) == {"idle": ["hello"], "busy": ["half an ans"]}.get(phase, [])


def test_words_in_the_moment_of_closing_are_there_and_answered_by_nobody(thread: Thread) -> None:
    """They were accepted before, so their turn is there, and says that it was cancelled."""
    thread.answer(TextPart(text="hello"))
    thread.history.handle_content(UserMessage(id="m2", text="one more thing"))
    thread.history.handle_content(Control(action="close"))
    assert thread.history.handle_content(UserMessage(id="m3", text="and another")) == "rejected"
    thread.sync()
    assert thread.history.take_dispositions() == {"m2": "started", "m3": "rejected"}
    assert thread.roles() == ["user", "assistant", "user", "assistant"]
    assert thread.last.status.reason == "cancelled"
    assert_closed(thread)


@pytest.mark.parametrize("running", [True, False])
def test_whoever_closes_it_by_hand_leaves_no_turn_open(thread: Thread, running: bool) -> None:
    """Between two steps the turn is complete; a step that runs is broken off."""
    if running:
        thread.stream(TextPart(text="half"))
    thread.history.close_thread()
    thread.history.close_thread()
    thread.sync()
    assert_closed(thread)
    assert thread.last.status.reason == ("cancelled" if running else None)


@pytest.mark.parametrize(
    ("content", "expected"),
    [
        (UserMessage(id="m2", text="hello?"), "rejected"),
        (UserMessage(id="m2", text="hello?", mode="queue"), "rejected"),
        (UserMessage(id="m1", text="hi"), "duplicate"),
        (UserMessage(id="m1", text="ho"), "conflict"),
        (Event(id="e1", call_id="s", content="rain"), "dropped"),
        (Event(id="e1", call_id="s", content="rain", associative=False), "dropped"),
        (Event(id="e1", call_id="s", content="rain", final=True), "dropped"),
        (Event(id="e1", call_id="c", content="done", source="child"), "dropped"),
        (Event(id="e1", call_id="c", content="do this", source="parent"), "dropped"),
        (ToolResult(call_id="c", content="late"), "dropped"),
        (Interrupt(), "dropped"),
        (Control(action="close"), "dropped"),
        (Control(action="resume_subscription", call_id="s"), "dropped"),
    ],
)
@pytest.mark.parametrize("changes_hands", [False, True])
def test_a_closed_thread_takes_nothing(thread: Thread, content: AnyInput, expected: str, changes_hands: bool) -> None:
    """And says so, whoever owns it; what it has accepted before, its owner still knows. The store refuses any write."""
    thread.take(Control(action="close"))
    if changes_hands:
        thread.reload()
    before = vars(thread.store).copy()
    assert thread.take(content) == expected
    counts = isinstance(content, Event | ToolResult)
    assert thread.history.state.dropped == counts
    assert thread.history.take_spawns() == ()
    assert vars(thread.store) == before
    assert_closed(thread)


def test_below_a_closed_thread_nothing_waits(thread: Thread) -> None:
    """Whatever it ended with: what comes is turned away at once, and not kept until somebody has decided."""
    paused = thread.history.state.with_(open=None, paused_head=True)
    assert standing(paused) == "resting"
    assert standing(paused.with_(closed=True)) == "idle"
