"""The history manager and its batches: what a sync writes, what is known again, what a refusal takes back."""

import pytest

from perdure.batch import AppendMessage, StageResult
from perdure.codec import dumps, loads
from perdure.contract import CompleteResult
from perdure.errors import StaleWriter, UnflushedTurn
from perdure.history import HistoryManager
from perdure.history_state import HistoryState
from perdure.inputs import Event, ToolResult, UserMessage
from perdure.messages import (
    EventPart,
    FileRef,
    Status,
    TextPart,
    ToolResultPart,
)
from perdure.turn_buffer import Chunk
from tests.perdure.driven import Thread, call, results, texts


@pytest.fixture
def thread() -> Thread:
    """A new thread."""
    return Thread()


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


# -- bug cases ----------------------------------------------------------------------------------------------------


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
