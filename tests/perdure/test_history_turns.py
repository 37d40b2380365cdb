"""What the history manager tells of turns that are over, of model calls that are made anew, and of words with files."""

import pytest

from perdure.batch import AppendMessage
from perdure.codec import dumps, loads
from perdure.history import HistoryManager
from perdure.history_state import EndedTurn, HistoryState
from perdure.inbox import read_input
from perdure.inputs import Control, Interrupt, UserMessage
from perdure.messages import FilePart, FileRef, TextPart, TurnOptions
from perdure.policy import COMPLETE_ATTEMPTS
from tests.perdure.driven import Thread, call

PICTURE = FileRef(media_type="image/png", blob="a" * 64, size_bytes=9, name="cat.png")


@pytest.fixture
def thread() -> Thread:
    """A thread whose context providers want to know when turns are over."""
    thread = Thread()
    thread.history = HistoryManager.from_tail(thread.store.tail(), hooks=True)
    return thread


def ended(thread: Thread) -> list[int]:
    """Turns that are told to have settled."""
    return [one.turn for one in thread.history.take_ended()]


def test_a_turn_is_told_when_its_end_is_durable(thread: Thread) -> None:
    """Not before the sync, and once."""
    thread.say("hi")
    thread.stream(TextPart(text="hello"))
    thread.history.flush_turn()
    assert ended(thread) == []
    thread.sync()
    told = thread.history.take_ended()
    assert told == (EndedTurn(turn=1, message_id=thread.last.id),)
    assert thread.history.take_ended() == ()


def test_every_way_to_end_is_told(thread: Thread) -> None:
    """An answer, a failure, a stop, words that interrupt: each turn once, in order."""
    thread.say("one", "m1")
    thread.answer(TextPart(text="done"))
    thread.say("two", "m2")
    thread.history.begin_step()
    thread.history.fail_turn("the model is away")
    thread.sync()
    thread.say("three", "m3")
    thread.take(Interrupt())
    thread.say("four", "m4")
    thread.answer(call("t"))
    thread.say("five", "m5")
    assert ended(thread) == [1, 2, 3, 4]


def test_an_end_that_the_store_refuses_is_not_told(thread: Thread) -> None:
    """Words that the store knows already stop nothing, so the turn they would have ended goes on."""
    thread.say("hi", "m1")
    thread.answer(TextPart(text="hello"))
    thread.say("more", "m2")
    thread.history.take_ended()
    # Another run has forgotten which ids were accepted; the store has not.
    thread.reload()
    state = thread.history.state.with_(processed={}, hooks=True)
    thread.history = HistoryManager(state)
    thread.history.handle_content(UserMessage(id="m1", text="hi"))
    thread.sync()
    assert thread.history.open_turn is not None
    assert ended(thread) == []


def test_nobody_is_told_who_did_not_ask(thread: Thread) -> None:
    """Without hooks nothing is kept, so a long run carries nothing along."""
    thread.reload()
    thread.say("hi")
    thread.answer(TextPart(text="hello"))
    assert thread.history.state.ended == ()


def test_what_was_not_handed_out_is_carried_over(thread: Thread) -> None:
    """A run that ends between the sync and the hooks hands them to the next one."""
    thread.say("hi")
    thread.answer(TextPart(text="hello"))
    carried = HistoryState.model_validate(loads(dumps(thread.history.state)))
    assert [one.turn for one in HistoryManager(carried).take_ended()] == [1]


def test_a_model_call_that_is_made_anew_counts_on(thread: Thread) -> None:
    """Its attempts come after all that were made, so that the store refuses what these may still write."""
    thread.say("hi")
    turn, step = thread.history.begin_step()
    thread.history.retry_step()
    assert thread.phase() == "boundary"
    assert thread.history.open_turn is not None
    assert thread.history.open_turn.attempts == COMPLETE_ATTEMPTS
    assert thread.history.begin_step() == (turn, step)


def test_a_request_for_a_compaction_changes_nothing_here(thread: Thread) -> None:
    """Whoever runs the thread has it done; a turn that is under way is not disturbed."""
    thread.say("hi")
    before = thread.history.state
    assert thread.history.handle_content(Control(action="compact")) == "settled"
    assert thread.history.state == before


def test_files_and_options_are_stored_with_the_words(thread: Thread) -> None:
    """Files follow the words; how to answer stands with the message, which a regenerated answer reads too."""
    options = TurnOptions(model="openai:gpt-5", settings={"thinking": "high"})
    thread.take(UserMessage(id="m1", text="look", files=(PICTURE,), options=options))
    message = thread.store.messages[0]
    assert message.options == options
    words, file = message.parts
    assert words == TextPart(text="look")
    assert file == FilePart(media_type="image/png", blob=PICTURE.blob, size_bytes=9, name="cat.png")


def test_files_alone_are_a_message(thread: Thread) -> None:
    """No empty words are stored beside them; nothing at all is still refused."""
    content = read_input("user_message", {"id": "m1", "files": [PICTURE.model_dump()]}, "x")
    thread.history.handle_content(content)
    (operation, *_) = (batch.operations[0] for batch in thread.sync())
    assert isinstance(operation, AppendMessage)
    assert [part.kind for part in operation.message.parts] == ["file"]


def test_other_files_under_the_same_id_are_a_conflict() -> None:
    """The digest names the files too; words without files keep the digest that they always had."""
    plain = UserMessage(id="m1", text="look")
    pictured = plain.with_(files=(PICTURE,))
    assert len({plain.digest, pictured.digest, plain.with_(files=(PICTURE.with_(blob="b" * 64),)).digest}) == 3
    assert pictured.digest == plain.with_(files=(PICTURE.with_(name="dog.png"),)).digest
