"""What a terminal shows of a conversation: everything once, in its order."""

from datetime import UTC, datetime

import pytest

from perdure import ids
from perdure.cli.calls import DISPLAY_LINES
from perdure.codec import dumps
from perdure.errors import ViewOutdated
from perdure.messages import (
    ContextPart,
    EventPart,
    FilePart,
    FileRef,
    IncompleteReason,
    Message,
    ReasoningPart,
    Status,
    TextPart,
    ToolResultPart,
)
from perdure.records import Path, Snapshot, Step, Summary
from perdure.thread_texts import child_report, spawned
from perdure.turn_buffer import Chunk
from tests.perdure.cli.reader import ANSWER, CALL, QUESTION, THREAD, Reader, open_call


def test_words_are_written_as_they_stream_and_only_once() -> None:
    """The commit of what streamed adds nothing; what it has more is added."""
    reader = Reader(QUESTION, ANSWER)
    for word in ("It ", "is ", "sun"):
        reader.stream(word)
    assert reader.paper.text == "It is sun"
    reader.commit(TextPart(text="It is sunny."))
    reader.settle()
    assert reader.paper.text == "It is sunny.\n"


def test_a_turn_reads_from_top_to_bottom() -> None:
    """Question, narration, calls, results as they come in, answer."""
    reader = Reader()
    reader.tell(message=QUESTION)
    reader.tell(message_id="u1", position=0, part=TextPart(text="Weather?"))
    reader.tell(message=ANSWER)
    reader.stream("I look.")
    reader.commit(TextPart(text="I look."), CALL, CALL.with_(call_id="c2", arguments='{"city":"Rome"}'))
    reader.tell(call=open_call("c2", result=ToolResultPart(call_id="c2", content="rain")))
    reader.tell(call=open_call("c1", started=1))
    reader.commit(ToolResultPart(call_id="c1", content="sun"), ToolResultPart(call_id="c2", content="rain"), at=3)
    reader.stream("Sun ", step=1)
    reader.stream("and rain.", step=1)
    reader.commit(TextPart(text="Sun and rain.", step=1), at=5)
    reader.settle()
    assert reader.lines == [
        "› Weather?",
        "I look.",
        '→ get_weather(city="Paris", days=2)',
        '→ get_weather(city="Rome")',
        '← get_weather(city="Rome"): rain',
        '← get_weather(city="Paris", days=2): sun',
        "Sun and rain.",
    ]


def test_words_after_a_call_wait_for_it() -> None:
    """A call is shown when it is durable, and never after words that follow it."""
    reader = Reader(QUESTION, ANSWER)
    reader.stream("before", index=0)
    reader.stream("", index=1, part=CALL)
    reader.stream("after", index=2)
    assert reader.lines == ["before"]
    reader.commit(TextPart(text="before"), CALL, TextPart(text="after"))
    assert [line[:6] for line in reader.lines] == ["before", "→ get_", "after"]


def test_a_new_attempt_is_said() -> None:
    """What streamed in vain stays on the screen, so the reader is told that it does not count."""
    reader = Reader(QUESTION, ANSWER)
    reader.stream("It is rai")
    reader.tell(turn=1, step=0, attempt=2, new_attempt=True)
    reader.stream("It is sunny.", attempt=2)
    assert reader.lines == ["It is rai", "↻ The model call is tried again; the answer starts over.", "It is sunny."]


def test_a_long_summary_is_clipped_as_results_are() -> None:
    """On one line, made safe: who wants all of it finds it in the export. A result of the same words is the measure."""
    text = "So far.\n\x1b" + "and so on " * 500
    reader = Reader(QUESTION.with_(parts=(TextPart(text="Weather?"),)), ANSWER.with_(parts=(CALL,)))
    reader.tell(summary=Summary(id="s", thread_id="t", message_id=QUESTION.id, parts=1, text=text))
    reader.commit(ToolResultPart(call_id="c1", content=text, size_bytes=len(text)), at=1)
    summary, result = reader.lines[-2:]
    assert summary.startswith("≡ Up to “Weather?” the model now reads only this summary: So far. �and so on")
    assert summary.endswith("…")
    assert summary.partition("summary: ")[2] == result.partition(": ")[2].partition(" (5,0")[0]
    assert len(summary) < 400


@pytest.mark.parametrize(
    ("parts", "line"),
    [
        (1, "≡ Up to “Weather?” the model now reads only this summary: So far."),
        (0, "≡ Up to the middle of “Weather?” the model now reads only this summary: So far."),
    ],
)
def test_a_summary_that_comes_while_somebody_reads_is_said(parts: int, line: str) -> None:
    """Once, with its point; one on another branch is not. What was said is not written again."""
    reader = Reader(QUESTION.with_(parts=(TextPart(text="Weather?"),)), ANSWER)
    reader.stream("It is")
    summary = Summary(id="s", thread_id="t", message_id=QUESTION.id, parts=parts, text="So far.")
    reader.tell(summary=summary.with_(id="other", message_id="elsewhere"))
    for _ in range(2):
        reader.tell(summary=summary)
    reader.stream(" sunny.")
    assert [shown for shown in reader.lines if "≡" in shown] == [line]
    assert reader.paper.text.count("It is") == 1


def test_a_committed_text_that_differs_is_written_again() -> None:
    """A reader who missed a new attempt sees the committed words whole."""
    reader = Reader(QUESTION, ANSWER)
    reader.stream("It is rai")
    reader.commit(TextPart(text="It is sunny."))
    assert reader.lines == ["It is rai", "↻ The answer was corrected:", "It is sunny."]


def test_thoughts_and_words_are_kept_apart() -> None:
    """Reasoning is a block of its own before the answer."""
    reader = Reader(QUESTION, ANSWER)
    reader.stream("Hmm", part=ReasoningPart())
    reader.stream(".")
    reader.stream("Yes.", index=1)
    reader.commit(ReasoningPart(text="Hmm.", signature="s"), TextPart(text="Yes."))
    assert reader.lines == ["Hmm.", "Yes."]


@pytest.mark.parametrize(
    ("reason", "line"),
    [
        ("cancelled", "■ interrupted: by Ann"),
        ("steered", "■ It made room for what came: by Ann"),
        ("error", "✗ The turn failed: by Ann"),
        ("limit", "■ The turn ended early (limit): by Ann"),
        ("length", "■ The turn ended early (length): by Ann"),
        ("content_filter", "■ The turn ended early (content filter): by Ann"),
    ],
)
def test_the_end_of_a_turn_is_said_unless_it_is_complete(reason: IncompleteReason, line: str) -> None:
    """An early end says why, on a line of its own after what had streamed."""
    reader = Reader(QUESTION, ANSWER)
    reader.stream("It i")
    reader.settle(state="incomplete", reason=reason, detail="by Ann")
    assert reader.lines == ["It i", line]


@pytest.mark.parametrize("outcome", ["error", "interrupted", "denied", "cancelled", "expired"])
def test_a_failed_call_is_told_from_a_good_one(outcome: str) -> None:
    """The mark and the outcome say that the call did not return."""
    reader = Reader(QUESTION, ANSWER)
    reader.commit(CALL)
    result = ToolResultPart.model_validate({"call_id": "c1", "outcome": outcome, "content": "no\nnetwork"})
    reader.commit(result, at=1)
    assert reader.lines[-1] == f'✗ get_weather(city="Paris", days=2) {outcome}: no network'


def test_a_call_that_is_started_again_is_said_once_for_each_start() -> None:
    """After a crash the reader sees why it takes longer. Other changes of a call, of its time limit say, are quiet."""
    again = '↻ get_weather(city="Paris", days=2) is taken up again'
    reader = Reader(QUESTION, ANSWER)
    reader.commit(CALL)
    for started, said in ((1, 0), (2, 1), (2, 1), (3, 2)):
        reader.tell(call=open_call("c1", started=started))
        assert reader.lines.count(again) == said


def test_large_and_odd_content_stays_on_one_line() -> None:
    """A large result is clipped with its size; arguments that are not an object are shown as they are."""
    reader = Reader(QUESTION, ANSWER)
    reader.commit(CALL.with_(arguments="[1, 2"), CALL.with_(call_id="c2", arguments="[1, 2]"))
    reader.commit(ToolResultPart(call_id="c1", content="x" * 5_000, size_bytes=5_000_000), at=2)
    assert reader.lines[:2] == ["→ get_weather([1, 2)", "→ get_weather([1, 2])"]
    assert reader.lines[2].endswith("… (5,000,000 bytes)")
    assert len(reader.lines[2]) < 400


def test_files_and_events_are_shown() -> None:
    """Parts that are no words have a line of their own."""
    file = FilePart(media_type="image/png", blob="b", size_bytes=1234, name="a\x1b[2J.png")
    event = EventPart(event_id="e", origin_call_id="c", content="price: 5")
    reader = Reader(QUESTION.with_(parts=(file,)), ANSWER.with_(role="event", status=Status(), parts=(event,)))
    assert reader.lines == ["▤ a␛[2J.png (image/png, 1,234 bytes)", "◆ price: 5"]


def test_a_sleeper_says_when_it_wakes_and_another_call_until_when_it_is_waited_for() -> None:
    """Once for each time, whether one was there when it fell asleep or came later; a result needs no time."""
    nine = datetime(2096, 12, 1, 9, tzinfo=UTC).timestamp()
    nap, other = CALL.with_(tool="sleep", arguments='{"seconds": 60}'), CALL.with_(call_id="c2")
    asleep = open_call("c1").with_(tool="sleep", due=nine)
    reader = Reader(QUESTION, ANSWER.with_(parts=(nap, other)), calls=(asleep,))
    reader.tell(call=asleep)
    reader.tell(call=open_call("c2", started=1).with_(due=nine + 60))
    reader.tell(call=asleep.with_(due=nine + 1))
    reader.tell(call=asleep.with_(due=nine + 2, result=ToolResultPart(call_id="c1", content="Slept.")))
    assert [line for line in reader.lines if line.startswith("☾")] == [
        "☾ sleep(seconds=60) sleeps until 2096-12-01 09:00 UTC",
        '☾ get_weather(city="Paris", days=2) waits until 2096-12-01 09:01 UTC',
        "☾ sleep(seconds=60) sleeps until 2096-12-01 09:00:01 UTC",
    ]


def test_a_result_is_shown_as_its_tool_wants_people_to_see_it() -> None:
    """The first segment that a terminal can show, a diff line by line; images are lines that say what they are."""
    patch = "\n".join(["-old\x1b", *(f"+new {n}" for n in range(DISPLAY_LINES))])
    display = dumps(
        [
            {"type": "hologram", "content": 1},
            {"type": "diff", "content": {"path": "a.py", "patch": patch}},
            {"type": "text", "content": "edited"},
        ]
    )
    files = (FileRef(media_type="image/png", blob="b", size_bytes=1_234),)
    result = ToolResultPart(call_id="c1", content="for the model", size_bytes=900, display=display, files=files)
    reader = Reader(QUESTION, ANSWER)
    reader.commit(CALL, result)
    call = 'get_weather(city="Paris", days=2)'
    assert reader.lines[:4] == [f"→ {call}", f"← {call}: a.py", "  -old␛", "  +new 0"]
    assert reader.lines[-2:] == ["  … 2 more lines", "▤ image/png, 1,234 bytes"]
    assert len(reader.lines) == DISPLAY_LINES + 3
    assert "for the model" not in reader.paper.text


def test_child_threads_start_and_report() -> None:
    """A child is named with the command that shows it; what it says later stands where the thread was told."""
    child = ids.child_thread_id("t1", "c1")
    spawn = CALL.with_(tool="spawn_thread", arguments='{"instructions": "count"}')
    report = EventPart(event_id="e", origin_call_id="c1", origin_tool="spawn_thread")
    reader = Reader(QUESTION, ANSWER)
    reader.commit(spawn, ToolResultPart(call_id="c1", content=spawned(child)))
    told = report.with_(content=child_report(child, "42", closed=True))
    reader.tell(message=Message(id="e1", thread_id="t1", role="event", parent_id="a1"))
    reader.tell(message_id="e1", position=0, part=told)
    assert reader.lines == [
        '→ spawn_thread(instructions="count")',
        f'⑂ spawn_thread(instructions="count"): `perdure chat {child}` shows the child thread',
        f"⑂ The child thread {child} reports and is closed: 42",
    ]


def test_the_pause_of_a_subscription_is_said_with_the_event_that_caused_it() -> None:
    """It is a line of its own: a long event does not hide it."""
    told = EventPart(event_id="e", origin_call_id="c", origin_tool="prices", content="x" * 1_000)
    event = Message(id="e1", thread_id="t1", role="event", parts=(told, TextPart(text="(It is paused: too many.)")))
    reader = Reader(event)
    assert reader.lines[0].startswith("◆ prices: xxx")
    assert reader.lines[1] == "‖ (It is paused: too many.)"


def test_calls_that_nothing_has_started_are_told_from_others() -> None:
    """They may wait for the person: not the ones that run, have their result, or must not be executed."""
    calls = [CALL.with_(call_id=f"c{n}") for n in range(4)]
    reader = Reader(QUESTION, ANSWER)
    assert reader.conversation.unstarted == []
    reader.commit(*calls, CALL.with_(call_id="c4", error="no such tool"))
    assert reader.conversation.unstarted == ["c0", "c1", "c2", "c3"]
    reader.tell(call=open_call("c1", started=1))
    reader.tell(call=open_call("c2", result=ToolResultPart(call_id="c2")))
    assert reader.conversation.unstarted == ["c0", "c3"]
    reader.commit(ToolResultPart(call_id="c0"), at=5)
    assert reader.conversation.unstarted == ["c3"]


def test_a_closed_thread_says_so() -> None:
    """Whoever opens it knows before the first words are refused; the control is a thread that is not."""
    closed = "■ The thread is closed: it takes nothing more."
    assert Reader(QUESTION, thread=THREAD.with_(closed_at=datetime(2026, 12, 1, tzinfo=UTC))).lines == [closed]
    assert closed not in Reader(QUESTION).lines


def test_joining_in_mid_stream_shows_what_there_is_and_goes_on() -> None:
    """The committed path, the calls that have returned, then the words so far; nothing twice."""
    results = (ToolResultPart(call_id="c1", content="sun"),)
    first = (TextPart(text="I look."), CALL, *results)
    reader = Reader(
        QUESTION.with_(parts=(TextPart(text="Weather?"),)),
        ANSWER.with_(parts=first),
        live=Step(turn=1, step=1, attempt=1),
        chunks=(Chunk(index=0, delta="Sun"),),
    )
    reader.stream("ny.", step=1)
    reader.commit(TextPart(text="Sunny.", step=1), at=3)
    reader.settle()
    call = 'get_weather(city="Paris", days=2)'
    assert reader.lines == ["› Weather?", "I look.", f"→ {call}", f"← {call}: sun", "Sunny."]


def test_joining_while_calls_run_shows_their_results_once() -> None:
    """A staged result is shown from the snapshot and not again when it is committed."""
    result = ToolResultPart(call_id="c1", content="sun")
    reader = Reader(QUESTION, ANSWER.with_(parts=(CALL,)), calls=(open_call("c1", started=1, result=result),))
    reader.commit(result, at=1)
    assert len([line for line in reader.lines if "sun" in line]) == 1


def test_of_a_long_conversation_the_newest_messages_are_shown() -> None:
    """The rest is counted, with the command that shows it."""
    messages = [Message(id=str(n), thread_id="t1", role="user", parts=(TextPart(text=f"m{n}"),)) for n in range(100)]
    lines = Reader(*messages).lines
    assert lines[0] == "… 60 earlier messages: `perdure history t1`"
    assert lines[1:] == [f"› m{n}" for n in range(60, 100)]


def test_what_others_wrote_is_not_obeyed_by_the_terminal() -> None:
    """Every place that shows words of a person, a model or a tool makes them safe."""
    evil = "\x1b]52;c;eA==\x07\x1b[2J\u202e"
    call = CALL.with_(tool=evil, arguments=f'{{"{evil}": "{evil}"}}')
    reader = Reader(QUESTION.with_(parts=(TextPart(text=evil),)), ANSWER)
    reader.stream(evil, part=ReasoningPart())
    reader.stream(evil, index=1)
    reader.commit(ReasoningPart(text=evil), TextPart(text=evil), call)
    reader.commit(ToolResultPart(call_id="c1", content=evil), at=3)
    reader.tell(call=open_call("c9", started=2, call_id_shown=evil))
    reader.settle(state="incomplete", reason="error", detail=evil)
    assert reader.paper.text.count("2J") >= 8, "the control: it is all shown"
    assert not set(reader.paper.text) & set("\x1b\x07\u202e")


def test_a_view_that_is_outdated_can_start_again() -> None:
    """After a change further up a new snapshot shows the path as it is now."""
    reader = Reader(QUESTION)
    with pytest.raises(ViewOutdated):
        reader.tell(message=ANSWER.with_(parent_id="elsewhere"))
    reader.conversation.show(
        Snapshot(thread=THREAD, path=Path(messages=(QUESTION.with_(parts=(TextPart(text="now"),)),)), seq=9)
    )
    assert reader.lines == ["› now"]


def test_one_of_a_thing_is_not_told_as_several() -> None:
    """One earlier message, one byte, one more line."""
    messages = [Message(id=f"m{n}", thread_id="t1", role="user", parts=(TextPart(text=f"m{n}"),)) for n in range(41)]
    assert Reader(*messages).lines[0] == "… 1 earlier message: `perdure history t1`"
    file = FilePart(media_type="text/plain", blob="b", size_bytes=1, name="a.txt")
    assert Reader(QUESTION.with_(parts=(file,))).lines == ["▤ a.txt (text/plain, 1 byte)"]


def another(reader: Reader, *messages: Message, **snapshot: object) -> list[str]:
    """What a later snapshot adds to the screen."""
    reader.paper.text, reader.seq = "", reader.seq + 1
    path = {"thread": THREAD, "path": Path(messages=messages), "seq": reader.seq}
    reader.conversation.show(Snapshot.model_validate(path | snapshot))
    return reader.lines


def words(id: str, role: str, text: str) -> Message:
    """A message of words."""
    return Message.model_validate({"id": id, "thread_id": "t1", "role": role, "parts": (TextPart(text=text),)})


def test_another_branch_is_written_from_where_it_leaves_the_one_before() -> None:
    """With what stays above it, and where it stands among others; a message is found again by its id."""
    reader = Reader(words("u1", "user", "Weather?"), words("a1", "assistant", "Sun."), words("u2", "user", "Thanks"))
    reader.conversation.places = {"a2": "2/2"}
    assert another(reader, words("u1", "user", "Weather?"), words("a2", "assistant", "Rain.")) == [
        "⑃ The conversation was changed. After “Weather?” it now reads:",
        "‹2/2›",
        "Rain.",
    ]
    assert another(reader) == ["⑃ The conversation was changed. It is empty now."]
    assert another(reader, words("u9", "user", "Anew")) == ["› Anew"]


def test_a_branch_that_goes_on_is_not_announced() -> None:
    """Of the same path only what is new is written, a status among it; the control is a part that is another one."""
    answer = ANSWER.with_(parts=(TextPart(text="Su"), CALL))
    reader = Reader(QUESTION, answer)
    more = answer.with_(parts=(*answer.parts, ToolResultPart(call_id="c1", content="sun")))
    cut = more.with_(status=Status(state="incomplete", reason="cancelled"))
    assert another(reader, QUESTION, more) == ['← get_weather(city="Paris", days=2): sun']
    assert another(reader, QUESTION, cut, words("u2", "user", "So?")) == ["■ interrupted", "› So?"]
    late = cut.with_(parts=(*answer.parts, ToolResultPart(call_id="c1", content="rain")))
    lines = another(reader, QUESTION, late, words("u2", "user", "So?"))
    assert lines[0].startswith("⑃ The conversation was changed.")
    assert [line for line in lines if "rain" in line or line in ("■ interrupted", "› So?")] == [
        '← get_weather(city="Paris", days=2): rain',
        "■ interrupted",
        "› So?",
    ]


def test_an_answer_that_streams_goes_on_over_a_snapshot_of_the_same_path() -> None:
    """What was written of it is not written again; on a branch that is shown again it is."""
    reader = Reader(QUESTION, ANSWER)
    reader.stream("It is ")
    live = {"live": Step(turn=1, step=0, attempt=1), "chunks": (Chunk(index=0, delta="It is sunny"),)}
    assert another(reader, QUESTION, ANSWER, **live) == ["sunny"]
    another(reader, QUESTION)
    assert another(reader, QUESTION, ANSWER, **live) == ["It is sunny"]


def test_a_message_that_is_told_again_does_not_end_again() -> None:
    """Feedback changes its metadata and nothing that is shown."""
    reader = Reader(QUESTION, ANSWER)
    reader.settle(state="incomplete", reason="cancelled")
    ended = ANSWER.with_(status=Status(state="incomplete", reason="cancelled"), metadata={"feedback": {"value": 1}})
    reader.tell(message=ended)
    assert reader.lines == ["■ interrupted"]


def test_a_preliminary_result_is_shown_until_the_next_one() -> None:
    """Each once, and then the result."""
    reader = Reader(QUESTION, ANSWER.with_(parts=(CALL,)))
    for content in ("a", "a", "b"):
        reader.tell(call=open_call("c1").with_(interim=ToolResultPart(call_id="c1", content=content)))
    reader.tell(call=open_call("c1", result=ToolResultPart(call_id="c1", content="c")))
    call = 'get_weather(city="Paris", days=2)'
    assert reader.lines[1:] == [f"⋯ {call}: a", f"⋯ {call}: b", f"← {call}: c"]


def summed_up(kind: str = "summary", parts: int = 1, text: str = "So\x1b far.") -> Path:
    """A path u1 a1, up to a part of which the model reads something else."""
    summary = Summary.model_validate(
        {"id": f"s{kind}{parts}", "thread_id": "t1", "message_id": "a1", "parts": parts, "text": text, "kind": kind}
    )
    answer = ANSWER.with_(parts=(TextPart(text="one"), CALL, ToolResultPart(call_id="c1", content="sunny")))
    return Path(messages=(QUESTION.with_(parts=(TextPart(text="hi"),)), answer), summary=summary)


@pytest.mark.parametrize(
    ("kind", "line"),
    [
        ("summary", "≡ Of what is above the model reads only this summary: So� far."),
        ("trace", "≡ Of what is above the model reads the words, and one line of each tool call"),
        ("window", "≡ Of what is above the model reads nothing any more"),
    ],
)
def test_what_a_summary_stands_for_is_said_in_its_place(kind: str, line: str) -> None:
    """What was said is shown all the same, in the middle of a turn too; it is said once, and again for another one."""
    reader = Reader()
    reader.tell_all(path=summed_up(kind))
    assert reader.lines[:4] == ["› hi", "one", line, '→ get_weather(city="Paris", days=2)']
    written = len(reader.lines)
    reader.tell_all(path=summed_up(kind))
    assert len(reader.lines) == written
    reader.tell_all(path=summed_up("summary", 3, "All of it."))
    assert reader.lines[written:] == ["≡ Of what is above the model reads only this summary: All of it."]


def test_what_is_summed_up_far_above_is_said_at_the_beginning() -> None:
    """Of a long conversation only the newest messages are shown, and the rest may be what is summed up."""
    messages = tuple(
        Message(id=f"m{n}", thread_id="t1", role="user", parts=(TextPart(text=str(n)),)) for n in range(50)
    )
    summary = Summary(id="s", thread_id="t1", message_id="m3", parts=1, text="So far.")
    reader = Reader()
    reader.tell_all(path=Path(messages=messages, summary=summary))
    assert reader.lines[:3] == [
        "… 10 earlier messages: `perdure history t1`",
        "≡ Of what is above the model reads only this summary: So far.",
        "› 10",
    ]


def test_what_the_model_was_told_besides_is_not_shown() -> None:
    """It is no word of the conversation, committed or told as it comes. The control: the answer is."""
    told = ContextPart(source="memory", text="likes tea")
    reader = Reader(QUESTION, ANSWER.with_(parts=(told,)))
    reader.commit(told.with_(step=1), TextPart(text="Tea?", step=1), at=1)
    assert reader.lines == ["Tea?"]
