"""The codec: what crosses a boundary comes back as it was."""

import json
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from perdure import batch, contract, details, history_state, inputs, messages, ports, turn_buffer
from perdure.codec import MAX_LEVELS, Wire, clip, digest, dumps, head, is_json, loads, loads_object
from perdure.messages import Message, Status, TextPart, ToolCallPart, Usage
from tests.perdure.wire_values import values_of
from tests.properties import hostile_text, json_values, settings

BOUNDARY_TYPES = sorted(
    {
        kind
        for module in (batch, contract, details, history_state, inputs, messages, ports, turn_buffer)
        for kind in vars(module).values()
        if isinstance(kind, type) and issubclass(kind, Wire) and kind not in (Wire, inputs.Input)
    },
    key=lambda kind: kind.__name__,
)


def through(value: Wire) -> Wire:
    """The value as the other side of a boundary gets it."""
    return type(value).model_validate(loads(dumps(value)))


# -- JSON -------------------------------------------------------------------------------------------------------


@given(json_values)
@example({"b": 1, "a": [10**30, 1234567890123456789], "\x00": "\ud800", "": "🙂"})
def test_json_comes_back_equal(value: Any) -> None:
    """NUL, lone surrogates, emoji and integers of any length survive, as do 1.0 and 1 as different things."""
    decoded = loads(dumps(value))
    assert decoded == value
    assert repr(decoded) == repr(value)


def test_keys_keep_their_order() -> None:
    """Arguments are read back as the model wrote them: a prompt cache sees the difference (case B32)."""
    text = '{"path":"a","content":"z","b":1}'
    assert dumps(loads(text)) == text


@given(json_values)
def test_encoded_text_is_printable_ascii(value: Any) -> None:
    """PostgreSQL and UTF-8 can hold whatever comes out, NUL and half characters included."""
    text = dumps(value)
    assert text.isascii()
    assert "\x00" not in text


@pytest.mark.parametrize("value", [float("nan"), float("inf"), [1, {"a": float("-inf")}]])
def test_nan_and_infinities_are_refused_when_encoding(value: object) -> None:
    """JSON has no form for them; a reader that is stricter than Python would fail later."""
    with pytest.raises(ValueError, match="not JSON compliant"):
        dumps(value)


def test_nan_in_a_boundary_type_is_refused_and_not_made_null() -> None:
    """Left to itself pydantic would write null, and the value would come back as another one."""
    message = Message(id="m", thread_id="t", role="user", metadata={"score": float("nan")})
    with pytest.raises(ValueError, match="not JSON compliant"):
        dumps(message)


@pytest.mark.parametrize("text", ["NaN", "[Infinity]", '{"a":-Infinity}', "1e999", "[1,]", "", "{} {}", "[" * 100_000])
def test_what_is_not_json_is_refused_when_decoding(text: str) -> None:
    """Constants of Python's own, numbers that overflow, and nesting without end are errors, not values."""
    with pytest.raises(ValueError, match=r".+"):
        loads(text)


@pytest.mark.parametrize("text", ["[]", "1", '"{}"', "null", '{"a":NaN}'])
def test_arguments_are_objects(text: str) -> None:
    """A model's arguments are a strict JSON object or nothing."""
    with pytest.raises(ValueError, match=r".+"):
        loads_object(text)
    assert loads_object('{"a":1}') == {"a": 1}


def test_an_unknown_type_is_our_bug() -> None:
    """What has no place in a boundary type is named, not written as its repr."""
    with pytest.raises(TypeError, match="bug: set"):
        dumps({1, 2})


@given(json_values)
def test_whatever_json_holds_is_json(value: Any) -> None:
    """The check lets through what the codec takes."""
    assert is_json(value)


@pytest.mark.parametrize("value", [float("nan"), {1: "a"}, {"a": {1, 2}}, (1, 2), object()])
def test_other_values_are_not_json(value: object) -> None:
    """The check refuses what the codec would refuse or change."""
    assert not is_json(value)


def test_data_from_outside_may_be_nested_so_far_and_still_be_encoded_anywhere() -> None:
    """At the limit a value can be encoded inside the deepest of our types; one level more is refused."""
    value: Any = 1
    for _ in range(MAX_LEVELS):
        value = {"a": value}
    assert is_json(value)
    assert not is_json([value])
    message = Message(id="m", thread_id="t", role="user", metadata=value)
    append = batch.AppendMessage(message=message)
    state = history_state.HistoryState(thread_id="t", pending=(append,))
    assert loads(dumps({"history": state}))["history"]["pending"][0]["message"]["metadata"] == value


# -- boundary types ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", BOUNDARY_TYPES, ids=lambda kind: kind.__name__)
def test_every_boundary_type_comes_back_equal(kind: type[Wire]) -> None:
    """decode(encode(x)) == x for values of the type's own fields, hostile text included."""

    @settings(max_examples=settings().max_examples // 4)
    @given(values_of(kind))
    def check(value: Wire) -> None:
        assert through(value) == value

    check()


@pytest.mark.parametrize("text", ["\x00", "\ud83d", "🙂", "a\udc00b"])
def test_words_keep_what_utf8_cannot_hold(text: str) -> None:
    """Words of people, models and tools are kept to the last half of a character."""
    part = TextPart(text=text)
    assert through(part) == part
    call = ToolCallPart(call_id="c", tool=text, arguments=text, error=text)
    assert through(call) == call


def test_halves_that_meet_become_their_character() -> None:
    """A provider may cut a stream between the halves of an emoji; JSON has one form for both spellings."""
    assert through(TextPart(text="\ud83d" + "\ude42")) == TextPart(text="🙂")


def test_defaults_are_left_out_and_the_kind_is_kept() -> None:
    """Payloads stay small, and a union still knows what it holds."""
    assert dumps(TextPart(text="hi")) == '{"kind":"text","text":"hi"}'
    assert dumps(TextPart()) == '{"kind":"text"}'
    assert dumps(Status()) == "{}"
    assert dumps(Message(id="m", thread_id="t", role="user", parts=(TextPart(text="hi"),))) == (
        '{"id":"m","thread_id":"t","role":"user","parts":[{"kind":"text","text":"hi"}]}'
    )


def test_a_value_equal_to_its_default_is_left_out_however_it_was_set() -> None:
    """What counts is the value, not that somebody wrote it down."""
    assert dumps(Message(id="m", thread_id="t", role="user", status=Status(state="complete"))) == dumps(
        Message(id="m", thread_id="t", role="user")
    )


def test_unknown_fields_are_handed_on() -> None:
    """An older worker passes on what a newer one added, also inside of other values."""
    newer = {"id": "m", "thread_id": "t", "role": "user", "mood": "good", "status": {"since": 5}}
    assert loads(dumps(Message.model_validate(newer))) == newer


def test_a_copy_changes_some_fields() -> None:
    """`with_` leaves the original alone."""
    usage = Usage(requests=1)
    assert usage.with_(requests=2) == Usage(requests=2)
    assert usage.requests == 1


def test_text_is_text() -> None:
    """Numbers and bytes are no words."""
    with pytest.raises(ValueError, match="must be text"):
        TextPart.model_validate({"text": 5})


# -- digests and beginnings -------------------------------------------------------------------------------------


@given(hostile_text, hostile_text)
def test_a_digest_tells_texts_apart(one: str, other: str) -> None:
    """Equal texts have equal digests; different ones, lone surrogates included, do not."""
    assert (digest(one) == digest(other)) == (one == other)


@given(hostile_text, st.integers(min_value=1, max_value=40))
@example("a" + " " * 100 + "b", 10)
def test_a_preview_is_one_short_line_that_anything_can_show(text: str, limit: int) -> None:
    """At most `limit` characters, no line break or control character, valid UTF-8, and a mark if it was cut."""
    line = clip(text, limit)
    assert len(line) <= limit
    line.encode("utf-8")
    assert line.isprintable() or not any(ord(character) < 32 or 127 <= ord(character) < 160 for character in line)
    assert line.splitlines() in ([line], [])
    if len(" ".join(text.split())) > limit:
        assert line.endswith("…")


def test_a_short_text_is_its_own_preview() -> None:
    """Only white space is changed."""
    assert clip("hello\n  world", 20) == "hello world"
    assert clip("hello world", 5) == "hell…"


@given(hostile_text, st.integers(min_value=0, max_value=40))
def test_the_head_of_a_text_ends_between_characters(text: str, limit: int) -> None:
    """It is a beginning of the text, within the limit, and as long as whole characters allow."""
    encoded = text.encode("utf-8", "surrogatepass")
    beginning = head(encoded, limit)
    assert text.startswith(beginning)
    size = len(beginning.encode("utf-8", "surrogatepass"))
    assert size <= limit
    assert size > limit - 4 or beginning == text


def test_the_codec_is_plain_json() -> None:
    """What we write, any JSON reader reads."""
    assert json.loads(dumps({"text": "\ud83d\x00", "n": 10**30})) == {"text": "\ud83d\x00", "n": 10**30}
