"""What a tool returned, as text: strict JSON whatever it was, or an error that says what is wrong."""

import json
import math
import uuid
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import UTC, date, datetime, time
from decimal import Decimal
from enum import Enum, IntEnum, StrEnum
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import BaseModel, RootModel

from activities.tool_output import RESULT_CHARS, ToolOutput, error_output, tool_output
from perdure.codec import loads
from tests.properties import hostile_text, json_values


class Colour(Enum):
    """Any enum."""

    RED = "red"


class Level(IntEnum):
    """An enum that is a number."""

    HIGH = 3


class Mood(StrEnum):
    """An enum that is text."""

    GOOD = "good"


class Old(str, Enum):  # noqa: UP042  the older way to write it, which str() shows as a name
    """Another one."""

    A = "a"


class Point(NamedTuple):
    """A named tuple."""

    x: int
    y: int


@dataclass
class Node:
    """A dataclass with what asdict() cannot copy."""

    name: str
    children: "list[Node]" = field(default_factory=list["Node"])
    when: date | None = None


class Report(BaseModel):
    """A pydantic model."""

    title: str
    score: float = math.nan
    at: datetime | None = None


class Names(RootModel[list[str]]):
    """A model that is a list."""


def strict(output: ToolOutput) -> Any:
    """The result as a strict parser reads it."""
    assert output.outcome == "ok", output.content
    return loads(output.content)


def test_b50_what_json_cannot_hold_is_written_as_people_write_it() -> None:
    """Dates, sets, decimals, bytes, NaN and keys that are not text; nothing is lost and any parser reads it."""
    returned: dict[object, object] = {
        "when": datetime(2025, 1, 2, 3, 4, 5, tzinfo=UTC),
        "s": {2, 1},
        "d": Decimal("1.10"),
        "b": b"\xff",
        "n": float("nan"),
        5: "k",
    }
    assert strict(tool_output(returned)) == {
        "when": "2025-01-02T03:04:05+00:00",
        "s": [1, 2],
        "d": "1.10",
        "b": "/w==",
        "n": "nan",
        "5": "k",
    }


VALUES: list[tuple[object, object]] = [
    (None, None),
    (True, True),
    (0, 0),
    (1234567890123456789, 1234567890123456789),
    (10**30, 10**30),
    (1.5, 1.5),
    (-math.inf, "-inf"),
    ([], []),
    ((1, "a"), [1, "a"]),
    (date(2025, 1, 2), "2025-01-02"),
    (time(3, 4), "03:04:00"),
    (Colour.RED, "red"),
    (Level.HIGH, 3),
    ([Mood.GOOD, Old.A], ["good", "a"]),
    (Point(1, 2), [1, 2]),
    (deque([1, 2]), [1, 2]),
    (range(3), [0, 1, 2]),
    ({"a": 1}.keys(), ["a"]),
    (frozenset({"b", "a"}), ["a", "b"]),
    (bytearray(b"a"), "YQ=="),
    (
        Node("a", [Node("b", when=date(2025, 1, 2))]),
        {
            "name": "a",
            "children": [{"name": "b", "children": [], "when": "2025-01-02"}],
            "when": None,
        },
    ),
    (Report(title="t"), {"title": "t", "score": "nan", "at": None}),
    (Names(["a"]), ["a"]),
    (uuid.UUID(int=1), "00000000-0000-0000-0000-000000000001"),
    (Path("/a"), "/a"),
    ({None: 1, True: 2, 1.5: 3, (1, 2): 4}, {"null": 1, "true": 2, "1.5": 3, "[1, 2]": 4}),
    ({"a\x00": "\ud800"}, {"a\x00": "\ud800"}),
]


@pytest.mark.parametrize(("value", "expected"), VALUES)
def test_values_are_written_as_json_has_them(value: object, expected: object) -> None:
    """Containers, enums, numbers of any length, models; and whatever pydantic has a form for."""
    assert strict(tool_output(value)) == expected


@pytest.mark.parametrize("text", ["", "sunny", "\x00\ud83d", '{"a": 1}'])
def test_text_is_the_result_as_it_is(text: str) -> None:
    """Not quoted, not escaped."""
    assert tool_output(text) == ToolOutput(text)


def test_text_that_is_an_enum_is_plain_text() -> None:
    """What is stored is a string of Python's own, whatever class it came in."""
    output = tool_output(Old.A)
    assert output == ToolOutput("a")
    assert type(output.content) is str


def test_a_set_reads_the_same_in_every_process() -> None:
    """Its order would change with the process, and with it the prompt."""
    assert tool_output({"b", "a", "c"}).content == '["a", "b", "c"]'
    assert tool_output({1, "a", None}).content == '["a", 1, null]'


class Hostile:
    """Breaks whatever looks at it."""

    @property
    def __dict__(self) -> dict[str, object]:  # type: ignore[override]  # pyright: ignore  # hostile on purpose
        raise RuntimeError("no look")

    def __repr__(self) -> str:
        raise RuntimeError("no repr")


class Broken(BaseModel):
    """A model whose property fails when it is written."""

    def model_dump(self, **_: Any) -> dict[str, Any]:  # pyright: ignore[reportIncompatibleMethodOverride]  # what it takes does not matter
        """Fail."""
        raise KeyError("gone")


def _itself() -> list[object]:
    loop: list[object] = []
    loop.append(loop)
    return loop


def _deep() -> list[object]:
    value: list[object] = []
    for _ in range(100_000):
        value = [value]
    return value


@pytest.mark.parametrize(
    ("make", "why"),
    [
        (object, "object"),
        (lambda: {5: "a", "5": "b"}, "two keys of one object are both written '5'"),
        (lambda: {None: 1, "null": 2}, "two keys of one object are both written 'null'"),
        (lambda: (number for number in range(3)), "a generator is read only once; return a list"),
        (lambda: iter([1]), "a list_iterator is read only once"),
        (lambda: [map(str, [1])], "a map is read only once"),
        (_itself, "contains itself"),
        (_deep, "nested too deeply"),
        (lambda: 10**5000, "Exceeds the limit"),
        (lambda: {"a": [object()]}, "object"),
        (lambda: print, "builtin_function_or_method"),
        (Hostile, ""),
        (Broken, "gone"),
    ],
)
def test_what_has_no_form_is_an_error_of_this_call(make: Callable[[], object], why: str) -> None:
    """The tool has run, and the model is told so: it must not think that nothing happened."""
    output = tool_output(make())
    assert output.outcome == "error"
    assert output.content.startswith("The tool ran, but what it returned")
    assert why in output.content


def test_what_is_too_large_to_be_kept_is_an_error_with_its_size() -> None:
    """The limit is far above what any model reads, and below what a worker can hold."""
    assert tool_output("x" * RESULT_CHARS).outcome == "ok"
    output = tool_output("x" * (RESULT_CHARS + 1))
    assert output.outcome == "error"
    assert f"{RESULT_CHARS + 1:,} characters" in output.content


def test_an_error_has_its_sentence() -> None:
    """The control: error results are marked."""
    assert error_output("no") == ToolOutput("no", "error")


@given(json_values)
def test_json_is_written_as_it_is(value: Any) -> None:
    """What is JSON already comes back equal, half characters and long integers included."""
    output = tool_output(value)
    assert output.outcome == "ok"
    assert (output.content if isinstance(value, str) else json.loads(output.content)) == value


ANYTHING: st.SearchStrategy[Any] = st.recursive(
    st.one_of(
        hostile_text,
        st.floats(),
        st.integers(),
        st.binary(max_size=5),
        st.dates(),
        st.decimals(),
        st.builds(object),
        st.just(Colour.RED),
    ),
    lambda inner: st.one_of(
        st.lists(inner, max_size=3),
        st.tuples(inner),
        st.dictionaries(st.one_of(hostile_text, st.integers(), st.booleans(), st.none()), inner, max_size=3),
        st.builds(Node, name=hostile_text),
    ),
    max_leaves=6,
)


@given(ANYTHING)
def test_whatever_is_returned_becomes_strict_json_or_a_sentence(value: Any) -> None:
    """Nothing else leaves, since the tool has run and its call needs one result."""
    output = tool_output(value)
    if output.outcome == "ok" and not isinstance(value, str):
        loads(output.content)
    assert output.outcome == "ok" or output.content.startswith("The tool ran")
