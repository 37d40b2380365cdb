"""The history manager, one behaviour at a time. `test_history_machine` throws everything at it at once.

In the order in which a caller meets them: construction, the two layers, sync and deduplication, the helpers for
compaction and threads, and the bug cases that are decided here.
"""

import pytest

from perdure import ids
from perdure.batch import AppendMessage, AppendParts, Refused, StageResult, SyncBatch, SyncReport
from perdure.codec import dumps, loads
from perdure.contract import CallOutline, CompleteResult
from perdure.draft import DETAIL_CHARS
from perdure.errors import StaleWriter, UnflushedTurn
from perdure.history import HistoryManager
from perdure.history_state import HistoryState, SpawnPoint
from perdure.inputs import AnyInput, Event, Interrupt, Mode, ToolResult, UserMessage
from perdure.messages import (
    EventPart,
    FileRef,
    ReasoningPart,
    Status,
    TextPart,
    ToolCallPart,
    ToolResultPart,
    Usage,
)
from perdure.policy import REMEMBERED_INPUTS
from perdure.records import Summary
from perdure.turn import INTERRUPTED, WOKEN
from perdure.turn_buffer import Chunk
from perdure.view import Response, Result, UserText, view
from tests.perdure.driven import Thread, call, results, texts
from tests.perdure.naive_store import THREAD
from tests.perdure.view_rules import items, violations


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
    assert [one.outline.preview for one in thread.history.state.open.calls] == ['{"q":1}', "{}"]  # type: ignore[union-attr]  # pyright: ignore[reportOptionalMemberAccess]
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


# -- sync ---------------------------------------------------------------------------------------------------------


def test_a_sync_with_an_unflushed_turn_is_refused(thread: Thread) -> None:
    """Its content would be lost. After a flush or a discard it goes through."""
    thread.say("hi")
    thread.stream(TextPart(text="a"))
    with pytest.raises(UnflushedTurn):
        thread.history.take_pending("run")
    thread.history.flush_turn()
    assert len(thread.sync()) == 1


def test_a_sync_with_an_unflushed_outline_is_refused(thread: Thread) -> None:
    """The same for a step whose words are in the store's buffer."""
    thread.say("hi")
    thread.history.begin_step()
    thread.history.handle_step(CompleteResult(parts=1))
    with pytest.raises(UnflushedTurn):
        thread.history.take_pending("run")
    thread.history.discard_turn()
    assert thread.sync() == []


def test_messages_and_their_ids_are_written_together(thread: Thread) -> None:
    """A crash between processing and persistence reprocesses the message, and no words are stored without a turn."""
    thread.history.handle_content(UserMessage(id="m1", text="hi"))
    batch = thread.history.take_pending("run")
    assert batch is not None
    first, second = batch.operations
    assert isinstance(first, AppendMessage)
    assert isinstance(second, AppendMessage)
    assert (first.message.input_id, first.digest) == ("m1", UserMessage(id="m1", text="hi").digest)
    assert second.message.role == "assistant"
    thread.reload()
    assert thread.say("hi") == "started"
    assert thread.roles() == ["user", "assistant"]


def test_a_lost_reply_is_made_good_by_sending_the_same_batch(thread: Thread) -> None:
    """The batch is the same to the byte, and the store applies it once."""
    thread.history.handle_content(UserMessage(id="m1", text="hi"))
    batch = thread.history.take_pending("run")
    assert batch is not None
    thread.store.append_messages(batch)
    again = thread.history.take_pending("run")
    assert again == batch
    assert dumps(again) == dumps(batch)
    thread.sync()
    assert thread.roles() == ["user", "assistant"]
    assert thread.phase() == "boundary"


def test_a_batch_that_has_grown_is_not_taken_for_the_one_that_was_applied(thread: Thread) -> None:
    """The reply was lost, and more came in before the retry. The store has to say no: else the rest would be lost."""
    contents = [UserMessage(id="m1", text="hi"), UserMessage(id="m2", text="more")]
    thread.history.handle_content(contents[0])
    first = thread.history.take_pending("run")
    assert first is not None
    thread.store.append_messages(first)
    thread.history.handle_content(contents[1])
    grown = thread.history.take_pending("run")
    assert grown is not None
    assert grown.number == first.number
    assert grown.sync_id != first.sync_id
    with pytest.raises(StaleWriter):
        thread.store.append_messages(grown)
    thread.reload()
    assert [thread.take(content) for content in contents] == ["duplicate", "interrupted"]
    assert [message.input_id for message in thread.store.messages if message.input_id] == ["m1", "m2"]


def test_what_comes_while_a_batch_is_under_way_is_in_the_next_one(thread: Thread) -> None:
    """The reply to the first says nothing of what was decided after it was sent."""
    thread.history.handle_content(UserMessage(id="m1", text="hi"))
    batch = thread.history.take_pending("run")
    assert batch is not None
    thread.history.handle_content(UserMessage(id="m2", text="more"))
    thread.history.synced(thread.store.append_messages(batch))
    thread.sync()
    assert thread.history.take_dispositions() == {"m1": "started", "m2": "interrupted"}
    assert [message.input_id for message in thread.store.messages if message.input_id] == ["m1", "m2"]


def test_a_state_is_carried_between_syncs_only(thread: Thread) -> None:
    """It crosses as JSON; with unsynced inputs in it a refusal could not be made good, so that is a bug."""
    thread.say("hi")
    thread.answer(call("a"))
    carried = HistoryState.model_validate(loads(dumps(thread.history.state)))
    assert carried == thread.history.state
    thread.history = HistoryManager(carried)
    assert thread.take(ToolResult(call_id=thread.calls[0], content="x")) == "settled"
    thread.history.handle_content(UserMessage(id="m2", text="more"))
    with pytest.raises(AssertionError, match="bug: a state was carried over before its inputs were synced"):
        HistoryManager(thread.history.state)


# -- deduplication ------------------------------------------------------------------------------------------------


def test_the_same_message_again_is_known_at_once_later_and_elsewhere(thread: Thread) -> None:
    """Known here, or found by the store in a new process; it never costs a turn."""
    assert thread.say("hi") == "started"
    assert thread.say("hi") == "duplicate"
    thread.answer(TextPart(text="hello"))
    assert thread.say("hi") == "duplicate"
    thread.history = HistoryManager.from_tail(thread.store.tail(processed=0))
    assert thread.say("hi") == "duplicate"
    assert thread.roles() == ["user", "assistant"]
    assert thread.phase() == "idle"


def test_a_known_message_takes_nothing_else_with_it(thread: Thread) -> None:
    """A batch that the store refuses is decided again without what it knows; the rest is as if that had never come."""
    thread.say("old", "m1")
    thread.answer(TextPart(text="hello"))
    thread.history = HistoryManager.from_tail(thread.store.tail(processed=0))
    for name, text in (("m1", "old"), ("m2", "new"), ("m1b", "other")):
        thread.history.handle_content(UserMessage(id=name, text=text))
    refused, written = thread.sync()
    assert len(refused.operations) == 4
    assert len(written.operations) == 3
    assert thread.history.take_dispositions() == {"m1": "duplicate", "m2": "started", "m1b": "started"}
    assert [message.input_id for message in thread.store.messages] == ["m1", None, "m2", "m1b", None]


def test_a_known_message_does_not_interrupt(thread: Thread) -> None:
    """A turn that it seemed to stop goes on: its calls are live, nobody is told to stop, it still gets its results."""
    thread.say("old", "m0")
    thread.answer(TextPart(text="hello"))
    thread.say("hi", "m1")
    thread.answer(call("a"))
    thread.history = HistoryManager.from_tail(thread.store.tail(processed=1))
    assert thread.history.handle_content(UserMessage(id="m0", text="old")) == "interrupted", "as far as is known here"
    assert thread.history.take_interrupted_tool_calls() == (), "what is not durable stops nobody"
    thread.sync()
    assert thread.history.take_dispositions() == {"m0": "duplicate"}
    assert thread.history.take_interrupted_tool_calls() == ()
    assert thread.take(ToolResult(call_id=thread.calls[0], content="x")) == "settled"


def test_a_known_message_does_not_end_a_stream(thread: Thread) -> None:
    """What has streamed through the manager is there again, and the answer streams on to its end."""
    thread.say("old", "m0")
    thread.answer(TextPart(text="hello"))
    thread.say("hi", "m1")
    thread.history = HistoryManager.from_tail(thread.store.tail(processed=1))
    thread.stream(TextPart(text="first "))
    thread.history.handle_content(UserMessage(id="m0", text="old"))
    assert len(thread.sync()) == 1, "the refused batch; the rest waits for the flush"
    thread.history.handle_completion(Chunk(index=0, delta="second"))
    thread.history.flush_turn()
    thread.sync()
    assert texts(thread.last.parts) == ["first second"]
    assert thread.last.status == Status()


def test_what_waits_for_the_end_of_a_turn_waits_for_the_sync_that_ends_it(thread: Thread) -> None:
    """Else a queued message would be taken behind a known one, and interrupt the turn that goes on after all."""
    thread.say("old", "m0")
    thread.answer(TextPart(text="hello"))
    thread.say("hi", "m1")
    thread.history = HistoryManager.from_tail(thread.store.tail(processed=1))
    thread.history.begin_step()
    thread.history.handle_content(UserMessage(id="m0", text="old"))
    assert thread.phase() == "busy", "the store may know m0"
    thread.sync()
    assert thread.phase() == "busy", "it did"
    thread.history.handle_content(UserMessage(id="m2", text="really new"))
    assert thread.phase() == "busy"
    thread.sync()
    assert thread.phase() == "boundary", "of the turn that answers m2"


def test_the_first_of_two_in_one_batch_counts(thread: Thread) -> None:
    """The repetition is told apart from it, and does not hide what became of the first."""
    first = thread.history.handle_content(UserMessage(id="m1", text="hi"))
    second = thread.history.handle_content(UserMessage(id="m1", text="hi"))
    third = thread.history.handle_content(UserMessage(id="m1", text="ho"))
    assert (first, second, third) == ("started", "duplicate", "conflict")
    assert thread.history.disposition("m1") == "started"
    thread.sync()
    assert thread.history.take_dispositions() == {"m1": "started"}
    assert thread.history.take_dispositions() == {}
    assert thread.roles() == ["user", "assistant"]


def test_events_are_known_by_their_id(thread: Thread) -> None:
    """A redelivered event would mint another invocation, so it needs an id as words do."""
    thread.history.track_subscription("c0", "watch")
    event = Event(id="e1", call_id="c0", content="rain")
    assert thread.take(event) == "started"
    thread.answer(TextPart(text="noted"))
    assert thread.take(event) == "duplicate"
    assert thread.take(event.with_(content="sun")) == "conflict"
    told = EventPart(event_id="e1", origin_call_id="c0", content="rain", origin_tool="watch", origin_arguments="{}")
    assert thread.store.messages[0].parts == (told,)
    assert thread.roles() == ["event", "assistant"]


def test_an_event_that_only_the_store_knows_is_left_out(thread: Thread) -> None:
    """Like words: a new owner accepts it at first, and the store's refusal leaves the rest as it was."""
    thread.history.track_subscription("c0", "watch")
    thread.take(Event(id="e1", call_id="c0", content="rain"))
    thread.answer(TextPart(text="noted"))
    thread.history = HistoryManager.from_tail(thread.store.tail(processed=0))
    thread.history.handle_content(Event(id="e1", call_id="c0", content="rain", final=True))
    thread.history.handle_content(Event(id="e2", call_id="c0", content="sun"))
    thread.sync()
    assert thread.history.take_dispositions() == {"e1": "duplicate", "e2": "started"}
    assert [one.call_id for one in thread.store.subscriptions] == ["c0"], "it ended nothing"


def test_what_became_of_inputs_is_kept_until_it_is_taken(thread: Thread) -> None:
    """Over further syncs, and over one that the store refuses."""
    thread.history.handle_content(UserMessage(id="m1", text="hi"))
    thread.sync()
    thread.history = HistoryManager(thread.history.state.with_(processed={}))
    thread.history.handle_content(UserMessage(id="m2", text="more"))
    thread.history.handle_content(UserMessage(id="m1", text="hi"))
    thread.sync()
    assert thread.history.take_dispositions() == {"m1": "duplicate", "m2": "interrupted"}
    thread.history.handle_content(UserMessage(id="m3", text="again"))
    thread.sync()
    thread.history = HistoryManager(thread.history.state.with_(processed={}))
    assert thread.history.handle_content(UserMessage(id="m2", text="more")) == "interrupted"
    thread.sync()
    assert thread.history.take_dispositions() == {"m2": "duplicate", "m3": "interrupted"}


def test_tool_results_are_known_by_the_tail(thread: Thread) -> None:
    """Answered, late, and unknown ones change nothing, without any stored id; a parallel group in any order."""
    thread.say("hi")
    thread.answer(call("a"), call("b"), call("c"))
    a, b, c = thread.calls
    assert thread.take(ToolResult(call_id=c, content="three")) == "settled"
    assert thread.take(ToolResult(call_id=c, content="again")) == "duplicate"
    assert thread.take(ToolResult(call_id="nobody's", content="x")) == "dropped"
    assert thread.take(ToolResult(call_id=a, content="one", outcome="error")) == "settled"
    assert results(thread.last) == [], "a group is committed whole"
    assert thread.take(ToolResult(call_id=b, content="two")) == "settled"
    assert results(thread.last) == [("error", "one"), ("ok", "two"), ("ok", "three")]
    assert thread.take(ToolResult(call_id=b, content="late")) == "dropped"
    assert len(thread.last.parts) == 6


def test_a_staged_result_is_used_as_it_is_stored(thread: Thread) -> None:
    """The worker has stored it already: the thread only hears that it is there, and writes nothing until its group."""
    thread.say("hi")
    thread.answer(call("a"), call("b"))
    a, b = thread.calls
    thread.store.stage(ToolResultPart(call_id=a, content="stored"))
    thread.history.handle_content(ToolResult(call_id=a, staged=True))
    assert thread.sync() == []
    thread.take(ToolResult(call_id=b, content="two"))
    assert results(thread.last) == [("ok", "stored"), ("ok", "two")]


def test_a_result_from_outside_keeps_its_size_and_its_blob(thread: Thread) -> None:
    """What was stored first travels as a reference."""
    thread.say("hi")
    thread.answer(call("a"))
    thread.history.handle_content(ToolResult(call_id=thread.calls[0], content="begin", blob="b", size_bytes=5_000_000))
    batch = thread.history.take_pending("run")
    assert batch is not None
    (staged,) = [one.result for one in batch.operations if isinstance(one, StageResult)]
    assert (staged.content, staged.blob, staged.size_bytes) == ("begin", "b", 5_000_000)


def test_a_result_from_outside_keeps_its_files_and_what_people_are_shown(thread: Thread) -> None:
    """An image goes to the model with it, and the segments to people alone."""
    thread.say("hi")
    thread.answer(call("a"))
    files = (FileRef(media_type="image/png", blob="i", size_bytes=3),)
    shown = '[{"type":"text","content":"a picture"}]'
    thread.take(ToolResult(call_id=thread.calls[0], content="see", files=files, display=shown))
    result = thread.last.parts[-1]
    assert isinstance(result, ToolResultPart)
    assert (result.content, result.files, result.display) == ("see", files, shown)


def test_large_words_travel_as_a_reference(thread: Thread) -> None:
    """The part holds the blob alone: its beginning would look like the whole."""
    thread.take(UserMessage(id="m1", text="begin", blob="b", sha256="s"))
    assert thread.store.messages[0].parts == (TextPart(blob="b"),)
    assert thread.take(UserMessage(id="m1", text="begin", blob="b", sha256="s")) == "duplicate"
    assert thread.take(UserMessage(id="m1", text="begin", blob="c", sha256="other")) == "conflict"


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
    assert [one.settled for one in thread.history.open_turn.calls] == [True, False]  # type: ignore[union-attr]  # pyright: ignore[reportOptionalMemberAccess]
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


# -- interruption -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("content", "reason"), [(UserMessage(id="m2", text="stop"), "cancelled"), (Interrupt(reason="enough"), "cancelled")]
)
def test_a_stop_in_mid_stream_keeps_what_was_said(thread: Thread, content: AnyInput, reason: str) -> None:
    """Text stays, a thought that was cut off and calls that nobody has run do not."""
    thread.say("hi")
    thread.stream(TextPart(text="half an ans"), call("a"), ReasoningPart(text="hm"))
    assert thread.take(content) == "interrupted"
    assert texts(thread.store.messages[1].parts) == ["half an ans"]
    assert len(thread.store.messages[1].parts) == 1
    assert thread.store.messages[1].status.reason == reason


def test_a_stop_before_the_first_step_settles_the_turn(thread: Thread) -> None:
    """Also in one batch with the words: whoever sends and stops at once gets no answer."""
    thread.history.handle_content(UserMessage(id="m1", text="hi"))
    assert thread.history.handle_content(Interrupt(reason="never mind")) == "interrupted"
    thread.sync()
    assert thread.roles() == ["user", "assistant"]
    assert (thread.last.status.reason, thread.last.status.detail) == ("cancelled", "never mind")
    assert thread.phase() == "idle"
    assert thread.take(Interrupt()) == "dropped"


def test_what_an_owner_before_left_streaming_is_sealed_by_a_stop(thread: Thread) -> None:
    """Its words stay and its late writes are refused, though no step was begun here."""
    thread.say("hi")
    thread.store.streaming[1, 0] = [Chunk(index=0, delta="half an ans")]
    thread.reload()
    thread.say("stop", "m2")
    assert texts(thread.store.messages[1].parts) == ["half an ans"]
    assert thread.store.streaming == {}


def test_modes(thread: Thread) -> None:
    """`reject` gives up while a turn is under way; `steer` joins between steps and cancels nothing."""
    thread.say("hi")
    assert thread.say("no", "m2", "reject") == "rejected"
    assert thread.say("by the way", "m3", "steer") == "steered"
    assert thread.store.messages[1].status.reason == "steered"
    assert [message.role for message in thread.store.messages] == ["user", "assistant", "user", "assistant"]
    thread.answer(TextPart(text="hello"))
    assert thread.say("yes", "m2", "reject") == "started", "it was never accepted"
    thread.answer(TextPart(text="hello"))
    assert thread.say("queued", "m4", "queue") == "started"


@pytest.mark.parametrize("mode", ["interrupt", "queue", "steer", "reject"])
def test_any_words_wake_a_sleeper(thread: Thread, mode: Mode) -> None:
    """Its call is closed as interrupted and the turn as steered; nobody waits for a thread that only waits."""
    thread.say("hi")
    (sleep,) = thread.act("sleep")
    assert thread.phase() == "sleeping"
    assert thread.say("wake up", "m2", mode) == "steered"
    assert results(thread.store.messages[1]) == [("interrupted", WOKEN)]
    assert thread.store.messages[1].status.reason == "steered"
    assert [one.call_id for one in thread.history.take_interrupted_tool_calls()] == [sleep]
    assert thread.roles() == ["user", "assistant", "user", "assistant"]
    assert thread.take(ToolResult(call_id=sleep, content="woke by itself")) == "dropped"


def test_a_thread_sleeps_when_only_sleepers_are_left(thread: Thread) -> None:
    """While another call of the group is open it does not, so words of mode `reject` are turned away."""
    thread.say("hi")
    sleep, other = thread.act("sleep", "t")
    assert thread.phase() == "calling"
    assert thread.say("no", "m2", "reject") == "rejected"
    thread.take(ToolResult(call_id=other, content="x"))
    assert thread.phase() == "sleeping"
    thread.reload()
    assert thread.phase() == "sleeping", "the tools say so, whoever owns the thread"
    thread.take(ToolResult(call_id=sleep, content="Slept 5 seconds."))
    assert results(thread.last) == [("ok", "Slept 5 seconds."), ("ok", "x")]
    assert thread.phase() == "boundary"


def test_a_stop_wakes_a_sleeper(thread: Thread) -> None:
    """For good: the turn is cancelled."""
    thread.say("hi")
    thread.act("sleep")
    assert thread.take(Interrupt()) == "interrupted"
    assert thread.last.status.reason == "cancelled"
    assert thread.phase() == "idle"


def test_known_words_do_not_wake_a_sleeper(thread: Thread) -> None:
    """Nobody is told to stop before the store has said that they are new; if it knows them, the sleeper sleeps on."""
    thread.say("old", "m0")
    thread.answer(TextPart(text="hello"))
    thread.say("hi", "m1")
    (sleep,) = thread.act("sleep")
    thread.history = HistoryManager.from_tail(thread.store.tail(processed=1))
    thread.history.handle_content(UserMessage(id="m0", text="old"))
    assert thread.phase() == "sleeping"
    thread.sync()
    assert thread.history.take_interrupted_tool_calls() == ()
    assert thread.take(ToolResult(call_id=sleep, content="slept")) == "settled"


def test_several_words_in_one_batch_are_answered_together(thread: Thread) -> None:
    """One turn for all of them, in their order."""
    for number in range(3):
        thread.history.handle_content(UserMessage(id=f"m{number}", text=f"n{number}"))
    thread.sync()
    assert thread.roles() == ["user", "user", "user", "assistant"]


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


# -- bug cases ----------------------------------------------------------------------------------------------------


def test_b06_the_user_speaks_while_some_of_the_parallel_results_are_in(thread: Thread) -> None:
    """Every call is closed, in call order and before the words; those without a result are told to stop."""
    thread.say("go")
    thread.answer(call("a"), call("b"), call("c"))
    a, b, c = thread.calls
    thread.take(ToolResult(call_id=b, content="two"))
    thread.say("stop, do X", "m2")
    assert [one.call_id for one in thread.history.take_interrupted_tool_calls()] == [a, c]
    assert results(thread.store.messages[1]) == [
        ("interrupted", INTERRUPTED),
        ("ok", "two"),
        ("interrupted", INTERRUPTED),
    ]
    seen = view(thread.store.path)
    assert violations(seen) == []
    tail = items(seen[-2:])
    assert isinstance(seen[-2], Response)
    assert [one.text for one in tail if isinstance(one, Result)] == [INTERRUPTED, "two", INTERRUPTED]
    assert tail[-1] == UserText("stop, do X")
    assert thread.phase() == "boundary", "one model call follows"
    assert thread.take(ToolResult(call_id=a, content="late")) == "dropped"


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


def test_b12a_a_message_is_answered_once_however_often_it_comes(thread: Thread) -> None:
    """While its turn runs, after it, after a restart, after the state was carried: one message, one turn."""
    thread.say("hi", "m1")
    thread.history.begin_step()
    assert thread.say("hi", "m1") == "duplicate"
    assert thread.history.open_turn is not None, "its own turn is not interrupted by it"
    thread.history.handle_completion(Chunk(index=0, delta="hello"))
    thread.history.flush_turn()
    thread.sync()
    assert thread.say("hi", "m1") == "duplicate"
    thread.history = HistoryManager.from_tail(thread.store.tail(processed=0))
    assert thread.say("hi", "m1") == "duplicate"
    thread.history = HistoryManager(thread.history.state)
    assert thread.say("hi", "m1") == "duplicate"
    assert thread.roles() == ["user", "assistant"]


def test_b12b_two_messages_at_the_same_moment_are_both_answered(thread: Thread) -> None:
    """In one batch by one turn; one after the other by a turn each, never two at a time."""
    thread.history.handle_content(UserMessage(id="m1", text="one"))
    thread.history.handle_content(UserMessage(id="m2", text="two"))
    thread.sync()
    assert thread.roles() == ["user", "user", "assistant"]
    thread.say("three", "m3")
    assert [message.status.state for message in thread.store.messages if message.role == "assistant"] == [
        "incomplete",
        "running",
    ]


@pytest.mark.parametrize("processed", [0, 10])
def test_b12c_other_words_under_a_known_id_are_a_conflict(thread: Thread, processed: int) -> None:
    """Whether the id is known here or only to the store: nothing is changed, no turn is stopped or begun."""
    thread.say("hi", "m1")
    thread.answer(call("a"))
    before = list(thread.store.messages)
    thread.history = HistoryManager.from_tail(thread.store.tail(processed=processed))
    assert thread.say("other words", "m1") == "conflict"
    assert thread.store.messages == before
    assert thread.phase() == "calling"


@pytest.mark.parametrize("cancelled_first", [True, False])
def test_b21a_cancel_and_finish_in_the_same_moment(thread: Thread, cancelled_first: bool) -> None:
    """The first one to be taken decides; the other one changes nothing, and there is one final status."""
    thread.say("hi")
    thread.stream(TextPart(text="hello"))
    if cancelled_first:
        assert thread.take(Interrupt()) == "interrupted"
        with pytest.raises(AssertionError, match="bug"):
            thread.history.flush_turn()
    else:
        thread.history.flush_turn()
        assert thread.history.handle_content(Interrupt()) == "dropped"
        thread.sync()
    assert thread.last.status.state == ("incomplete" if cancelled_first else "complete")
    assert texts(thread.last.parts) == ["hello"]
    assert thread.store.settled == [thread.last.id]


def test_b21e_a_second_cancel_is_a_no_op(thread: Thread) -> None:
    """In the same batch and later."""
    thread.say("hi")
    assert thread.history.handle_content(Interrupt()) == "interrupted"
    assert thread.history.handle_content(Interrupt()) == "dropped"
    thread.sync()
    assert thread.take(Interrupt()) == "dropped"
    assert thread.store.settled == [thread.last.id]


def test_b62_a_limit_settles_the_turn_and_the_thread_stays_usable(thread: Thread) -> None:
    """Results that were obtained stay, the reason is stored, and the next words are answered with all of it."""
    thread.say("go")
    for step in range(3):
        thread.answer(call("t", step=step))
        thread.take(ToolResult(call_id=thread.calls[0], content=f"result {step}"))
    assert thread.history.begin_step() == (1, 3)
    detail = "The turn reached its limit of 3 model calls."
    thread.history.handle_step(CompleteResult(finish="limit", detail=detail))
    thread.history.flush_turn_trimming_reasoning()
    thread.sync()
    assert thread.last.status == Status(state="incomplete", reason="limit", detail=detail)
    assert results(thread.last) == [("ok", f"result {step}") for step in range(3)]
    assert thread.say("continue", "m2") == "started"
    seen = view(thread.store.path)
    assert violations(seen) == []
    assert [one.text for one in items(seen) if isinstance(one, Result)] == ["result 0", "result 1", "result 2"]
    assert items(seen)[-1] == UserText("continue")
    assert thread.history.begin_step() == (2, 0)
