"""The history manager and calls: none runs before its turn is synced; what children inherit; subscriptions."""

import pytest

from perdure.batch import AppendParts, Refused, SyncBatch, SyncReport
from perdure.errors import StaleWriter
from perdure.history import HistoryManager
from perdure.history_state import SpawnPoint
from perdure.inputs import Event, ToolResult, UserMessage
from perdure.messages import (
    TextPart,
    ToolCallPart,
)
from perdure.records import Summary
from tests.perdure.driven import Thread, call, results
from tests.perdure.naive_store import THREAD


@pytest.fixture
def thread() -> Thread:
    """A new thread."""
    return Thread()


# -- order: a call is run only after its turn is synced -----------------------------------------------------------


def test_calls_appear_with_the_flush_and_are_pending_until_the_sync(thread: Thread) -> None:
    """Whoever dispatches when nothing is pending cannot be too early."""
    thread.say("hi")
    thread.stream(call("a"))
    assert thread.calls == []
    thread.history.flush_turn()
    assert len(thread.calls) == 1
    assert any(isinstance(one, AppendParts) for one in thread.history.state.pending)
    assert thread.store.open_calls == []
    thread.sync()
    assert thread.history.state.pending == ()
    assert [one.call_id for one in thread.store.open_calls] == thread.calls


def test_when_a_call_ends_by_itself_is_written_once(thread: Thread) -> None:
    """A timer survives its owner: the next one knows the same moment, and writes it no second time."""
    thread.say("hi")
    (sleep,) = thread.act("sleep")
    thread.history.mark_dispatched(sleep, 5.0)
    assert [one.due for one in thread.store.open_calls] == [None], "not before the sync"
    thread.sync()
    assert [one.due for one in thread.store.open_calls] == [5.0]
    for _ in range(2):
        thread.history.mark_dispatched(sleep, 5.0)
        thread.history.mark_dispatched(sleep)
        assert thread.sync() == []
        assert thread.history.open_turn is not None
        assert [one.due for one in thread.history.open_turn.calls] == [5.0]
        thread.reload()
    thread.history.mark_dispatched(sleep, 6.0)
    thread.sync()
    assert [one.due for one in thread.store.open_calls] == [6.0]


def test_a_timer_that_is_set_again_by_a_later_clock_is_the_same_batch(thread: Thread) -> None:
    """A workflow task that was lost runs again and reads another time. Another call is the control."""
    thread.say("hi")
    first, second = thread.act("sleep", "sleep")
    state = thread.history.state

    def batch(call_id: str, due: float) -> SyncBatch:
        history = HistoryManager(state)
        history.mark_dispatched(call_id, due)
        made = history.take_pending("run")
        assert made is not None
        return made

    thread.store.append_messages(batch(first, 5.0))
    assert thread.store.append_messages(batch(first, 7.0)).number == batch(first, 7.0).number
    assert [one.due for one in thread.store.open_calls] == [5.0, None]
    with pytest.raises(StaleWriter):
        thread.store.append_messages(batch(second, 5.0))


def test_a_dispatched_call_is_remembered(thread: Thread) -> None:
    """Over continue-as-new as well; a new owner, who cannot know, dispatches it again under the same id."""
    thread.say("hi")
    thread.answer(call("a"))
    thread.history.mark_dispatched(thread.calls[0])
    thread.history.mark_dispatched("nobody's")
    turn = HistoryManager(thread.history.state).open_turn
    assert turn is not None
    assert [one.dispatched for one in turn.calls] == [True]
    thread.reload()
    assert thread.history.open_turn is not None
    assert [one.dispatched for one in thread.history.open_turn.calls] == [False]


def test_a_call_that_must_not_run_is_answered_at_once(thread: Thread) -> None:
    """The reason is its result; the others run, and results stand in call order."""
    thread.say("hi")
    thread.answer(call("a", error="There is no tool a."), call("b"))
    assert thread.history.open_turn is not None
    assert [one.settled for one in thread.history.open_turn.calls] == [True, False]
    thread.reload()
    thread.take(ToolResult(call_id=thread.calls[1], content="two"))
    assert results(thread.last) == [("error", "There is no tool a."), ("ok", "two")]


def test_a_step_of_refused_calls_goes_straight_on(thread: Thread) -> None:
    """One more model round, with every call answered."""
    thread.say("hi")
    thread.answer(call("a", error="no"), call("b", error="no"))
    assert results(thread.last) == [("error", "no"), ("error", "no")]
    assert thread.history.begin_step() == (1, 1)


# -- compaction, threads, subscriptions ---------------------------------------------------------------------------


def test_a_summary_moves_nothing_that_is_held_here(thread: Thread) -> None:
    """Nothing is counted from the start, so a second summary on top of the first needs no offset."""
    thread.say("hi")
    thread.answer(TextPart(text="hello"))
    before = thread.history.state
    for message in thread.store.messages:
        summary = Summary(id=f"s-{message.id}", thread_id=THREAD, message_id=message.id, parts=1, text="so far")
        thread.history.apply_compaction(summary)
        assert thread.history.state.summary == SpawnPoint(message_id=message.id, parts=1)
    assert thread.history.state.with_(summary=None) == before
    assert thread.sync() == []
    thread.say("more", "m2")
    assert thread.history.state.summary is not None


def test_a_child_of_an_idle_thread_inherits_everything(thread: Thread) -> None:
    """Up to the head; nothing of an empty thread."""
    assert thread.history.safe_spawn_point() == SpawnPoint(message_id=None)
    thread.say("hi")
    thread.answer(TextPart(text="hello"))
    assert thread.history.safe_spawn_point() == SpawnPoint(message_id=thread.last.id)


def test_a_child_inherits_no_trailing_call_without_a_result(thread: Thread) -> None:
    """The whole group stays out while one of it is open, in this process and in the next one."""
    thread.say("hi")
    thread.answer(TextPart(text="let me see"), call("a"), TextPart(text="and"), call("b"))
    point = SpawnPoint(message_id=thread.last.id, parts=1)
    assert thread.history.safe_spawn_point() == point
    thread.take(ToolResult(call_id=thread.calls[0], content="one"))
    assert thread.history.safe_spawn_point() == point
    thread.reload()
    assert thread.history.safe_spawn_point() == point
    thread.take(ToolResult(call_id=thread.calls[1], content="two"))
    assert thread.history.safe_spawn_point() == point.with_(parts=6)
    thread.stream(TextPart(text="still stre"))
    assert thread.history.safe_spawn_point() == point.with_(parts=6)


def test_interrupted_calls_are_handed_out_once(thread: Thread) -> None:
    """When their interruption is durable, and never again, not even if the store refuses a later batch."""
    thread.say("old", "m0")
    thread.answer(TextPart(text="hello"))
    thread.say("hi", "m1")
    thread.answer(call("a"), call("b"))
    a, b = thread.calls
    thread.take(ToolResult(call_id=a, content="one"))
    thread.history.handle_content(UserMessage(id="m2", text="stop"))
    assert thread.history.take_interrupted_tool_calls() == ()
    thread.sync()
    assert [one.call_id for one in thread.history.take_interrupted_tool_calls()] == [b]
    assert thread.history.take_interrupted_tool_calls() == ()
    thread.history = HistoryManager(thread.history.state.with_(processed={}))
    assert thread.say("old", "m0") == "duplicate"
    assert thread.history.take_interrupted_tool_calls() == ()


def test_a_refusal_after_the_hand_out_brings_nothing_back(thread: Thread) -> None:
    """The state to go back to knows that the calls were handed out, and the dispositions."""
    thread.say("hi", "m1")
    thread.answer(call("a"))
    thread.say("stop", "m2")
    assert len(thread.history.take_interrupted_tool_calls()) == 1
    thread.history.handle_content(UserMessage(id="m3", text="more"))
    batch = thread.history.take_pending("run")
    assert batch is not None
    thread.history.synced(SyncReport(number=batch.number - 1, refused=(Refused(input_id="m3"),)))
    assert thread.history.take_interrupted_tool_calls() == ()
    assert thread.history.take_dispositions() == {"m3": "duplicate"}


def test_subscriptions_are_kept_and_followed(thread: Thread) -> None:
    """Tracked once, removed once, in the store too; events of others are dropped, a final one ends its own."""
    thread.history.track_subscription("c0", "watch")
    thread.history.track_subscription("c0", "watch")
    thread.sync()
    thread.history.track_subscription("c0", "watch")
    assert thread.sync() == []
    assert [one.call_id for one in thread.store.subscriptions] == ["c0"]
    assert thread.take(Event(id="e0", call_id="unknown")) == "dropped"
    assert thread.take(Event(id="e1", call_id="c0", content="last", final=True)) == "started"
    assert thread.store.subscriptions == []
    thread.answer(TextPart(text="noted"))
    assert thread.take(Event(id="e2", call_id="c0", content="late")) == "dropped"
    thread.history.remove_subscription("c0")
    assert thread.sync() == []


# -- bug cases ----------------------------------------------------------------------------------------------------


def test_b10_blank_and_repeated_call_ids_are_replaced(thread: Thread) -> None:
    """Stored ids are ours: distinct, non-empty, the same after a reload; each call gets its own result."""
    thread.say("go")
    thread.answer(
        *(ToolCallPart(call_id=name, tool="search", arguments=f'{{"q":"{name}"}}') for name in ("a", "a", ""))
    )
    assert len(set(thread.calls)) == 3
    assert all(thread.calls)
    before = thread.calls
    thread.reload()
    assert thread.calls == before
    for number, name in enumerate(thread.calls):
        thread.take(ToolResult(call_id=name, content=str(number)))
    assert results(thread.last) == [("ok", "0"), ("ok", "1"), ("ok", "2")]
