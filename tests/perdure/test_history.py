"""The history manager, one behaviour at a time: construction, the two layers, and what its state may weigh.

Beside it: `test_history_sync`, `test_history_calls`, `test_history_interruption`. `test_history_machine` throws
everything at it at once.
"""

import pytest

from perdure import ids
from perdure.batch import SyncReport
from perdure.codec import dumps
from perdure.contract import CallOutline, CompleteResult
from perdure.draft import DETAIL_CHARS
from perdure.history import HistoryManager
from perdure.inputs import Event, ToolResult, UserMessage
from perdure.messages import (
    ReasoningPart,
    Status,
    TextPart,
    ToolCallPart,
    ToolResultPart,
    Usage,
)
from perdure.policy import REMEMBERED_INPUTS
from perdure.turn import INTERRUPTED
from perdure.turn_buffer import Chunk
from tests.perdure.driven import Thread, call, results, texts
from tests.perdure.naive_store import THREAD


@pytest.fixture
def thread() -> Thread:
    """A new thread."""
    return Thread()


# -- construction: everything is restored from the two stores ---------------------------------------------------


def test_a_new_thread_is_idle_and_empty(thread: Thread) -> None:
    """Nothing is stored, nothing is open, nothing is to be written."""
    assert thread.phase() == "idle"
    assert thread.history.open_turn is None
    assert thread.history.take_pending("run") is None


def test_any_process_restores_a_thread_in_mid_turn(thread: Thread) -> None:
    """The open turn, its calls with and without results, the step, the subscriptions, the accepted ids."""
    thread.say("hi")
    thread.answer(TextPart(text="let me see"), call("a"), call("b"))
    thread.store.stage(ToolResultPart(call_id=thread.calls[0], content="one"))
    thread.history.track_subscription("c0", "watch")
    thread.sync()
    before = thread.history.open_turn
    thread.reload()
    assert before is not None
    turn = thread.history.open_turn
    assert turn is not None
    assert (turn.message_id, turn.turn, turn.step, turn.parts) == (before.message_id, 1, 0, 3)
    assert [(one.call_id, one.settled) for one in turn.calls] == [(thread.calls[0], True), (thread.calls[1], False)]
    assert [one.call_id for one in thread.history.state.subscriptions] == ["c0"]
    assert thread.say("hi") == "duplicate"
    thread.take(ToolResult(call_id=thread.calls[1], content="two"))
    assert results(thread.last) == [("ok", "one"), ("ok", "two")]
    assert thread.history.begin_step() == (1, 1)


def test_a_restored_group_that_is_complete_is_committed(thread: Thread) -> None:
    """The owner died between the last result and its sync: the next one writes the group."""
    thread.say("hi")
    thread.answer(call("a"))
    thread.store.stage(ToolResultPart(call_id=thread.calls[0], content="one"))
    thread.reload()
    thread.sync()
    assert results(thread.last) == [("ok", "one")]
    assert thread.phase() == "boundary"


def test_a_turn_that_waits_for_action_is_restored_as_open(thread: Thread) -> None:
    """`requires_action` is not settled either."""
    thread.say("hi")
    tail = thread.store.tail()
    assert tail.message is not None
    waiting = tail.with_(message=tail.message.with_(status=Status(state="requires_action")))
    assert HistoryManager.from_tail(waiting).open_turn is not None


def test_a_child_thread_answers_what_it_was_made_with(thread: Thread) -> None:
    """Its first words are stored before it runs, without a turn."""
    _store_words(thread)
    thread.store.kind = "child"
    thread.reload()
    thread.sync()
    assert thread.roles() == ["user", "assistant"]
    assert thread.phase() == "boundary"


def test_words_at_the_head_are_not_answered_because_a_thread_is_restored(thread: Thread) -> None:
    """All other words come with their turn. Where they have none, nobody asked for an answer, or it was deleted."""
    _store_words(thread)
    thread.reload()
    assert thread.sync() == []
    assert (thread.roles(), thread.phase()) == (["user"], "idle")


def _store_words(thread: Thread) -> None:
    thread.say("hi")
    thread.store.messages = [thread.store.messages[0].with_(turn=0)]


# -- two layers: committed history and the turn buffer ----------------------------------------------------------


def test_accepted_content_is_pending_until_the_sync(thread: Thread) -> None:
    """It is part of the conversation at once, and written by the next sync, with the turn that answers it."""
    thread.history.handle_content(UserMessage(id="m1", text="hi", metadata={"from": "web"}))
    assert thread.store.messages == []
    thread.sync()
    user, assistant = thread.store.messages
    assert (user.id, user.input_id, user.metadata) == (ids.input_message_id(THREAD, "m1"), "m1", {"from": "web"})
    assert texts(user.parts) == ["hi"]
    assert (assistant.id, assistant.turn) == (ids.turn_message_id(THREAD, 1), 1)
    assert assistant.status.state == "running"


def test_streamed_chunks_are_joined_and_not_history(thread: Thread) -> None:
    """Consecutive text becomes one part; before the flush nothing of it is pending."""
    thread.say("hi")
    thread.history.begin_step()
    for piece in ("Hel", "lo ", "you"):
        thread.history.handle_completion(Chunk(index=0, delta=piece))
    assert thread.history.state.pending == ()
    thread.history.flush_turn()
    thread.sync()
    assert texts(thread.last.parts) == ["Hello you"]
    assert thread.last.status == Status()
    assert thread.phase() == "idle"


def test_a_flush_with_calls_leaves_the_turn_open_for_their_results(thread: Thread) -> None:
    """The ids are ours; the calls can be run as soon as the step is synced, and the next step comes after them."""
    thread.say("hi")
    thread.answer(TextPart(text="let me see"), call("a", q=1), call("b"))
    assert thread.calls == [ids.call_id(THREAD, 1, 0, 0), ids.call_id(THREAD, 1, 0, 1)]
    assert [part.call_id for part in thread.last.parts if isinstance(part, ToolCallPart)] == thread.calls
    assert thread.phase() == "calling"
    assert thread.history.open_turn is not None
    assert [one.outline.preview for one in thread.history.open_turn.calls] == ['{"q":1}', "{}"]
    for name in thread.calls:
        thread.take(ToolResult(call_id=name, content="x"))
    assert thread.phase() == "boundary"
    assert thread.history.begin_step() == (1, 1)
    thread.history.handle_completion(Chunk(index=0, delta="done"))
    thread.history.flush_turn()
    thread.sync()
    assert [part.step for part in thread.last.parts] == [0, 0, 0, 0, 0, 1]


def test_a_flush_may_trim_trailing_reasoning(thread: Thread) -> None:
    """A committed step does not end on a thought; the thought before a text stays."""
    thought = ReasoningPart(text="hm", signature="s")
    thread.say("hi")
    thread.stream(thought, TextPart(text="a"), thought)
    thread.history.flush_turn_trimming_reasoning()
    thread.sync()
    assert thread.last.parts == (thought, TextPart(text="a"))


def test_a_flush_commits_what_the_store_holds(thread: Thread) -> None:
    """Callers that keep words out of their state give the outline only; trailing reasoning is trimmed there."""
    thought = ReasoningPart(text="hm", signature="s")
    name = ids.call_id(THREAD, 1, 0, 0)
    thread.say("hi")
    thread.history.begin_step()
    thread.store.finished[1, 0] = (TextPart(text="a"), ToolCallPart(call_id=name, tool="t"), thought)
    usage = Usage(requests=1, input_tokens=10)
    calls = (CallOutline(index=0, tool="t"),)
    thread.history.handle_step(CompleteResult(parts=3, first_call=1, trailing_reasoning=1, calls=calls, usage=usage))
    thread.history.flush_turn_trimming_reasoning()
    thread.sync()
    assert [part.kind for part in thread.last.parts] == ["text", "tool_call"]
    assert thread.calls == [name]
    assert thread.history.state.usage == usage
    thread.take(ToolResult(call_id=name, content="x"))
    assert results(thread.last) == [("ok", "x")]


def test_a_discarded_step_leaves_nothing_and_is_tried_again(thread: Thread) -> None:
    """The retry is the same step, from clean committed history."""
    thread.say("hi")
    thread.stream(TextPart(text="half an ans"))
    thread.history.discard_turn()
    assert thread.sync() == []
    assert thread.history.begin_step() == (1, 0)
    thread.history.handle_completion(Chunk(index=0, delta="whole"))
    thread.history.flush_turn()
    thread.sync()
    assert texts(thread.last.parts) == ["whole"]


def test_a_failed_turn_settles_with_its_error_and_the_thread_goes_on(thread: Thread) -> None:
    """What streamed is dropped, the reason is kept as one short sentence, new words are answered."""
    thread.say("hi")
    thread.stream(TextPart(text="half"))
    thread.history.fail_turn("The key is wrong.\n" + "x" * 1000)
    thread.sync()
    assert thread.last.parts == ()
    status = thread.last.status
    assert (status.state, status.reason) == ("incomplete", "error")
    assert status.detail is not None
    assert status.detail.startswith("The key is wrong. xxx")
    assert len(status.detail) == DETAIL_CHARS
    assert thread.say("again", "m2") == "started"


def test_a_turn_may_fail_while_calls_are_open(thread: Thread) -> None:
    """Each call still gets its one result."""
    thread.say("hi")
    thread.answer(call("a"))
    thread.history.fail_turn("The thread went back to what is stored.")
    thread.sync()
    assert results(thread.last) == [("interrupted", INTERRUPTED)]
    assert thread.last.status.reason == "error"


def test_the_view_of_the_current_turn_is_committed_then_pending_then_buffer(thread: Thread) -> None:
    """A client that attaches in mid-stream sees the partial answer, at each moment of a turn."""
    thread.say("hi")
    thread.stream(TextPart(text="par"), TextPart(text="tial"))
    committed = tuple(thread.store.messages)
    seen = thread.history.current_turn_view(committed)
    assert [message.role for message in seen] == ["user", "assistant"]
    assert texts(seen[1].parts) == ["par", "tial"]
    assert committed == tuple(thread.store.messages), "the committed messages are left as they are"
    thread.history.flush_turn()
    flushed = thread.history.current_turn_view(committed)
    assert texts(flushed[1].parts) == ["par", "tial"]
    assert flushed[1].status == Status()
    thread.sync()
    assert thread.history.current_turn_view(tuple(thread.store.messages)) == tuple(thread.store.messages) == flushed


def test_the_view_of_the_current_turn_shows_pending_inputs_and_results(thread: Thread) -> None:
    """Words that interrupt are there before they are stored, behind the results that they cause."""
    thread.say("hi")
    thread.answer(call("a"))
    committed = tuple(thread.store.messages)
    thread.history.handle_content(UserMessage(id="m2", text="stop"))
    seen = thread.history.current_turn_view(committed)
    assert [message.role for message in seen] == ["user", "assistant", "user"]
    assert results(seen[1]) == [("interrupted", INTERRUPTED)]
    assert seen[1].status.reason == "cancelled"


@pytest.mark.parametrize("misuse", ["flush_turn", "flush_turn_trimming_reasoning"])
def test_what_makes_no_sense_is_a_bug_and_changes_nothing(thread: Thread, misuse: str) -> None:
    """A flush without a step would settle a turn that nobody answered; a chunk without one would never be written."""
    thread.say("hi")
    before = thread.history.state
    with pytest.raises(AssertionError, match="bug: no step is running"):
        getattr(thread.history, misuse)()
    with pytest.raises(AssertionError, match="bug: no step is running"):
        thread.history.handle_completion(Chunk(index=0, delta="late"))
    with pytest.raises(AssertionError, match="bug: no step is running"):
        thread.history.handle_step(CompleteResult())
    thread.history.begin_step()
    with pytest.raises(AssertionError, match="bug: a step begins while the thread is busy"):
        thread.history.begin_step()
    thread.history.discard_turn()
    assert thread.history.state == before
    thread.answer(TextPart(text="a"))
    with pytest.raises(AssertionError, match="bug: a step begins while the thread is idle"):
        thread.history.begin_step()


def test_what_has_to_wait_is_not_handled(thread: Thread) -> None:
    """An event in the middle of a step would stand between its calls and their results; after them it may come."""
    thread.say("hi")
    thread.answer(call("a"))
    with pytest.raises(AssertionError, match="bug: event was taken while the thread is calling"):
        thread.history.handle_content(Event(id="e1", call_id="c0"))
    thread.take(ToolResult(call_id=thread.calls[0], content="x"))
    assert thread.take(Event(id="e1", call_id="c0", source="child")) == "steered"


# -- bounded ------------------------------------------------------------------------------------------------------


def test_the_state_does_not_grow_with_the_conversation(thread: Thread) -> None:
    """After many hundreds of turns it is as large as after some."""
    sizes: list[int] = []
    manager, version = thread.history, 0
    for turn in range(1, 4 * REMEMBERED_INPUTS + 1):
        manager.handle_content(UserMessage(id=f"m{turn:05}", text="hi" * 100))
        version = _synced(manager, version)
        manager.begin_step()
        manager.handle_completion(Chunk(index=0, part=call("t", q="x" * 1000)))
        manager.flush_turn()
        version = _synced(manager, version)
        assert manager.open_turn is not None
        manager.handle_content(ToolResult(call_id=manager.open_turn.calls[0].call_id, content="y" * 1000))
        version = _synced(manager, version)
        manager.begin_step()
        manager.handle_completion(Chunk(index=0, delta="done"))
        manager.flush_turn()
        version = _synced(manager, version)
        manager.take_dispositions()
        if turn % REMEMBERED_INPUTS == 0:
            sizes.append(len(dumps(manager.state)))
    assert len(manager.state.processed) == REMEMBERED_INPUTS
    assert max(sizes) - min(sizes) < 20
    assert max(sizes) < 25_000


def _synced(manager: HistoryManager, version: int) -> int:
    batch = manager.take_pending("run")
    assert batch is not None
    assert batch.number == version + 1
    manager.synced(SyncReport(number=batch.number))
    return batch.number
