"""What a terminal shows of a conversation: everything once, in its order."""

import pytest

from perdure.cli.conversation import Conversation
from perdure.errors import ViewOutdated
from perdure.messages import (
    EventPart,
    FilePart,
    IncompleteReason,
    Message,
    Part,
    ReasoningPart,
    Status,
    TextPart,
    ToolCallPart,
    ToolResultPart,
)
from perdure.ports import Change, OpenCall, Path, Snapshot, Step, ThreadRecord
from perdure.turn_buffer import Chunk

THREAD = ThreadRecord(thread_id="t1", agent="demo")
QUESTION = Message(id="u1", thread_id="t1", role="user")
ANSWER = Message(id="a1", thread_id="t1", role="assistant", parent_id="u1", turn=1, status=Status(state="running"))
CALL = ToolCallPart(call_id="c1", tool="get_weather", arguments='{"city": "Paris", "days": 2}')


class Paper:
    """An output that keeps what is written."""

    def __init__(self) -> None:
        self.text = ""

    def write(self, text: str, style: str = "") -> None:
        """Keep it."""
        self.text += text

    def fresh(self) -> None:
        """Start a line."""
        if self.text and not self.text.endswith("\n"):
            self.text += "\n"

    def line(self, text: str, style: str = "") -> None:
        """Keep a line."""
        self.fresh()
        self.text += text + "\n"


class Reader:
    """A conversation with an output, and changes numbered as they come."""

    def __init__(self, *messages: Message, **snapshot: object) -> None:
        self.paper = Paper()
        self.conversation = Conversation(self.paper)
        self.seq = 1
        self.conversation.show(
            Snapshot.model_validate({"thread": THREAD, "path": Path(messages=messages), "seq": 1} | snapshot)
        )

    def tell(self, **change: object) -> None:
        """The next change."""
        self.seq += 1
        self.conversation.show(Change.model_validate({"seq": self.seq} | change))

    def stream(self, text: str, *, index: int = 0, attempt: int = 1, step: int = 0, part: Part | None = None) -> None:
        """The model says something more."""
        self.tell(turn=1, step=step, attempt=attempt, chunk=Chunk(index=index, delta=text, part=part))

    def commit(self, *parts: Part, at: int = 0) -> None:
        """Parts of the answer are committed."""
        for position, part in enumerate(parts, at):
            self.tell(message_id="a1", position=position, part=part)

    def settle(self, **status: object) -> None:
        """The turn ends."""
        self.tell(message=ANSWER.with_(status=Status.model_validate(status)))

    @property
    def lines(self) -> list[str]:
        """What was written, without blank lines."""
        return [line for line in self.paper.text.split("\n") if line]


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
    reader.tell(call=_open("c2", result=ToolResultPart(call_id="c2", content="rain")))
    reader.tell(call=_open("c1", started=1))
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
        ("steered", "■ steered: by Ann"),
        ("error", "✗ The turn failed: by Ann"),
        ("limit", "■ The turn ended early (limit): by Ann"),
        ("length", "■ The turn ended early (length): by Ann"),
        ("content_filter", "■ The turn ended early (content_filter): by Ann"),
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
        reader.tell(call=_open("c1", started=started))
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
    reader = Reader(QUESTION, ANSWER.with_(parts=(CALL,)), calls=(_open("c1", started=1, result=result),))
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
    reader.tell(call=_open("c9", started=2, call_id_shown=evil))
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


def _open(
    call_id: str, started: int = 0, result: ToolResultPart | None = None, call_id_shown: str | None = None
) -> OpenCall:
    return OpenCall(
        call_id=call_id_shown or call_id,
        message_id="a1",
        turn=1,
        step=0,
        index=0,
        tool="get_weather",
        started=started,
        result=result,
    )
