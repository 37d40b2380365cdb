"""The inbox: order, what waits for what, and what people may type."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from perdure.codec import dumps, loads
from perdure.errors import UsageError
from perdure.history_state import Phase
from perdure.inbox import Inbox, InputKind, is_ready, read_input
from perdure.inputs import AnyInput, Control, Event, Interrupt, Mode, ToolResult, UserMessage
from perdure.policy import WAITING_INPUTS
from tests.properties import hostile_text, json_values

PHASES: tuple[Phase, ...] = ("busy", "calling", "sleeping", "boundary", "idle")
MODES: tuple[Mode, ...] = ("interrupt", "queue", "steer", "reject")


def message(number: int, mode: Mode = "interrupt", text: str = "hi") -> UserMessage:
    """The user message m{number}."""
    return UserMessage(id=f"m{number}", text=text, mode=mode)


ANY_INPUT: st.SearchStrategy[AnyInput] = st.one_of(
    st.builds(message, st.integers(0, 5), st.sampled_from(MODES), st.sampled_from(["hi", "ho"])),
    st.builds(Event, id=st.sampled_from(["e1", "e2"]), call_id=st.just("c"), content=st.sampled_from(["x", "y"])),
    st.just(Interrupt()),
    st.builds(Control, action=st.just("cancel_subscription"), call_id=st.sampled_from(["c1", "c2"])),
    st.builds(ToolResult, call_id=st.sampled_from(["c1", "c2"])),
)


# -- phases -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("content", "phases"),
    [
        (message(1, "interrupt"), {"busy", "calling", "sleeping", "boundary", "idle"}),
        (message(1, "reject"), {"busy", "calling", "sleeping", "boundary", "idle"}),
        (message(1, "steer"), {"sleeping", "boundary", "idle"}),
        (message(1, "queue"), {"sleeping", "idle"}),
        (Event(id="e", call_id="c"), {"sleeping", "boundary", "idle"}),
        (Event(id="e", call_id="c", associative=False), {"sleeping", "boundary", "idle"}),
        (Event(id="e", call_id="c", source="child"), {"sleeping", "boundary", "idle"}),
        (Event(id="e", call_id="c", source="parent"), {"sleeping", "boundary", "idle"}),
        (Interrupt(), {"busy", "calling", "sleeping", "boundary", "idle"}),
        (Control(action="close"), {"busy", "calling", "sleeping", "boundary", "idle"}),
        (ToolResult(call_id="c"), {"calling", "sleeping", "boundary", "idle"}),
    ],
)
def test_what_waits_for_what(content: AnyInput, phases: set[Phase]) -> None:
    """Events and steering words join between steps, queued words come after the turn; anything wakes a sleeper."""
    assert {phase for phase in PHASES if is_ready(content, phase)} == phases
    for phase in PHASES:
        inbox = Inbox((content,))
        assert inbox.has_ready(phase) == (phase in phases)
        assert inbox.take(phase) == (content if phase in phases else None)
        assert len(inbox) == (phase not in phases)


@given(st.lists(st.tuples(st.booleans(), ANY_INPUT, st.sampled_from(PHASES)), max_size=30))
def test_an_inbox_is_a_list_from_which_the_first_ready_one_is_taken(
    actions: list[tuple[bool, AnyInput, Phase]],
) -> None:
    """Against a plain list: nothing is lost, doubled or overtaken by what may be handled in the same phase."""
    inbox, waiting = Inbox(), list[AnyInput]()
    for puts, content, phase in actions:
        if puts:
            same = [other for other in waiting if _same_id(other, content)]
            expected = None if not same else "duplicate" if _words(same[0]) == _words(content) else "conflict"
            assert inbox.put(content) == expected
            if expected is None:
                waiting.append(content)
        else:
            ready = [other for other in waiting if is_ready(other, phase)]
            assert inbox.has_ready(phase) == bool(ready)
            assert inbox.take(phase) == (ready[0] if ready else None)
            if ready:
                waiting.remove(ready[0])
        assert inbox.waiting == tuple(waiting)
        assert Inbox(inbox.waiting).waiting == inbox.waiting
        assert all(inbox.has_ready(phase) == Inbox(inbox.waiting).has_ready(phase) for phase in PHASES)


def _same_id(one: AnyInput, other: AnyInput) -> bool:
    named = (UserMessage, Event)
    return isinstance(one, named) and isinstance(other, named) and (one.kind, one.id) == (other.kind, other.id)


def _words(content: AnyInput) -> str:
    return content.text if isinstance(content, UserMessage) else content.content if isinstance(content, Event) else ""


def test_a_message_that_waits_says_how() -> None:
    """The update `send` answers with it."""
    inbox = Inbox((message(1, "queue"), message(2, "steer"), Event(id="e1", call_id="c")))
    assert [inbox.disposition(name) for name in ("m1", "m2", "e1", "m3")] == ["queued", "steered", "deferred", None]


def test_the_same_words_by_blob_are_the_same_message() -> None:
    """A retry that sends its text as a reference is a duplicate; another text under the id is a conflict."""
    inline = UserMessage(id="m1", text="x" * 100)
    by_blob = UserMessage(id="m1", text="x", blob="b", sha256=inline.digest)
    inbox = Inbox((inline,))
    assert inbox.put(by_blob) == "duplicate"
    assert inbox.put(by_blob.with_(sha256="other")) == "conflict"
    assert inbox.put(by_blob.with_(sha256=None)) == "conflict"


def test_a_full_inbox_refuses_words_and_takes_what_helps_it_along() -> None:
    """The sender is told; a stop and a result still come through."""
    inbox = Inbox(tuple(message(number, "queue") for number in range(WAITING_INPUTS)))
    with pytest.raises(UsageError, match=f"{WAITING_INPUTS} inputs wait"):
        inbox.put(message(WAITING_INPUTS))
    assert inbox.put(message(0, "queue")) == "duplicate", "what waits already is not refused for lack of room"
    assert inbox.put(Interrupt()) is None
    assert inbox.put(ToolResult(call_id="c")) is None
    assert inbox.take("busy") == Interrupt()


def test_a_storm_is_taken_quickly() -> None:
    """Thousands of inputs cost no more than a few each, also while none of them may be handled."""
    inbox = Inbox()
    compared = 0

    class Counting(str):
        __slots__ = ()

        def __eq__(self, other: object) -> bool:
            nonlocal compared
            compared += 1
            return str.__eq__(self, other)

        __hash__ = str.__hash__

    for number in range(2_000):
        inbox.put(message(number, "queue").with_(id=Counting(f"m{number}")))
        assert not inbox.has_ready("busy")
    assert compared < 20_000


# -- what people type -------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("kind", "typed", "expected"),
    [
        ("user_message", "hi", UserMessage(id="fallback", text="hi")),
        ("user_message", {"text": "hi"}, UserMessage(id="fallback", text="hi")),
        ("user_message", {"id": "m1", "text": "hi"}, UserMessage(id="m1", text="hi")),
        ("user_message", {"id": "m1", "text": "hi", "mode": "queue"}, message(1, "queue")),
        ("user_message", {"kind": "user_message", "id": "m1", "text": "hi"}, message(1)),
        ("user_message", message(1), message(1)),
        ("user_message", {"text": "a\ud800"}, UserMessage(id="fallback", text="a\ud800")),
        ("interrupt", None, Interrupt()),
        ("interrupt", {}, Interrupt()),
        ("interrupt", {"reason": "enough"}, Interrupt(reason="enough")),
        ("tool_result", {"call_id": "c", "content": "x"}, ToolResult(call_id="c", content="x")),
        ("tool_result", {"call_id": "c", "outcome": "denied"}, ToolResult(call_id="c", outcome="denied")),
        ("event", {"id": "e", "call_id": "c", "content": "x"}, Event(id="e", call_id="c", content="x")),
        ("control", {"action": "close"}, Control(action="close")),
        (
            "control",
            {"action": "resume_subscription", "call_id": "c"},
            Control(action="resume_subscription", call_id="c"),
        ),
    ],
)
def test_what_people_type_is_read(kind: InputKind, typed: object, expected: AnyInput) -> None:
    """Just the text, an object without an id, an object with everything."""
    assert read_input(kind, typed, "fallback") == expected


@pytest.mark.parametrize(
    ("kind", "typed", "reason"),
    [
        ("user_message", {"id": "m1", "txet": "hi"}, "there is no field `txet`"),
        ("user_message", {"id": "m1"}, "its text is empty"),
        ("user_message", "  \n", "its text is empty"),
        ("user_message", {"text": 5}, "`text`: must be text"),
        ("user_message", {"text": "hi", "mode": "now"}, "`mode`: Input should be 'interrupt', 'queue', 'steer'"),
        ("user_message", ["hi"], "it must be an object"),
        ("user_message", None, "it must be an object"),
        ("user_message", 5, "it must be an object"),
        ("user_message", {"id": 7, "text": "hi"}, "`id`: Input should be a valid string"),
        ("user_message", {"id": "", "text": "hi"}, "`id` must be 1 to 200 characters without control characters"),
        ("user_message", {"id": "x" * 201, "text": "hi"}, "`id` must be 1 to 200 characters"),
        ("user_message", {"id": "a\nb", "text": "hi"}, "`id` must be 1 to 200 characters"),
        ("user_message", {"id": "a\n", "text": "hi"}, "`id` must be 1 to 200 characters"),
        ("user_message", {"id": "a\x1fb", "text": "hi"}, "`id` must be 1 to 200 characters"),
        ("user_message", {"id": "\ud800", "text": "hi"}, "`id`: Input should be a valid string"),
        ("user_message", {"kind": "event", "text": "hi"}, "`kind`: Input should be 'user_message'"),
        ("user_message", {"text": "hi", "metadata": {"a": float("nan")}}, "`metadata` holds what JSON cannot"),
        ("interrupt", "now", "it must be an object"),
        ("interrupt", {"why": "x"}, "there is no field `why`"),
        ("tool_result", {"content": "x"}, "`call_id` is missing"),
        ("tool_result", {"call_id": "c", "outcome": "fine"}, "`outcome`: Input should be 'ok'"),
        ("tool_result", {"call_id": "c", "staged": True}, "`staged` is not for callers"),
        ("event", {"call_id": "c"}, "`id` is missing"),
        ("event", None, "it must be an object"),
        ("event", {"id": "e", "call_id": "c", "source": "me"}, "`source`: Input should be 'subscription'"),
        ("event", {"id": "e", "call_id": "c", "at": float("inf")}, "`at`: Input should be a finite number"),
        ("event", {"id": "e", "call_id": "c", "at": float("nan")}, "`at`: Input should be a finite number"),
        ("control", {"action": "open"}, "`action`: Input should be 'close'"),
        ("control", "close", "it must be an object"),
    ],
)
def test_what_cannot_be_read_is_refused_in_one_sentence(kind: InputKind, typed: object, reason: str) -> None:
    """It names the field and what is wrong, says that nothing changed, and fits on one line."""
    with pytest.raises(UsageError) as caught:
        read_input(kind, typed, "fallback")
    assert str(caught.value).startswith(f"The {kind} was refused: {reason}")
    assert str(caught.value).endswith("It changed nothing; send it again corrected.")
    assert "\n" not in str(caught.value)


def test_several_mistakes_are_named_at_once() -> None:
    """Whoever typed it need not try three times."""
    with pytest.raises(UsageError, match="no field `a`; there is no field `b`"):
        read_input("user_message", {"text": "hi", "a": 1, "b": 2}, "fallback")


def test_metadata_that_is_nested_too_deeply_is_refused() -> None:
    """It would pass here and fail later, when it is part of a batch, and take the whole thread with it."""
    metadata: dict[str, Any] = {}
    for _ in range(150):
        metadata = {"a": metadata}
    with pytest.raises(UsageError, match="nested too deeply"):
        read_input("user_message", {"text": "hi", "metadata": metadata}, "fallback")


@given(
    st.sampled_from(["user_message", "interrupt", "tool_result", "event", "control"]),
    st.one_of(
        json_values,
        st.dictionaries(
            st.sampled_from(
                ["id", "text", "mode", "call_id", "content", "metadata", "reason", "outcome", "final", "action", "at"]
            ),
            st.one_of(hostile_text, json_values, st.floats()),
        ),
    ),
)
def test_whatever_comes_is_an_input_or_a_sentence(kind: InputKind, value: object) -> None:
    """Nothing else can leave, since a handler that raised would fail the thread's task. What is read can be written."""
    try:
        content = read_input(kind, value, "fallback")
    except UsageError as error:
        sentence = str(error)
    else:
        sentence = ""
        assert content.kind == kind
        assert type(content).model_validate(loads(dumps(content))) == content
    assert len(sentence.splitlines()) <= 1
    sentence.encode("utf-8")
