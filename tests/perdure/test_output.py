"""Structured output, as it is declared and checked."""

import json
from dataclasses import dataclass
from typing import Any

import pytest
from pydantic import BaseModel, Field, field_validator
from typing_extensions import TypedDict

from perdure.agent import Agent
from perdure.errors import ConfigurationError
from perdure.output import FINAL_RESULT, output_of
from perdure.tools import Tool


class Point(BaseModel):
    """Where something is."""

    x: int
    y: int = Field(default=0, ge=0)
    below: "list[Point]" = []

    @field_validator("x")
    @classmethod
    def _raise(cls, x: int) -> int:
        if x == 13:
            raise RuntimeError("unlucky")
        if x == 14:
            raise ValueError("must be\neven")
        return x


@dataclass
class Pair:
    x: int


class Closed(BaseModel, extra="forbid"):
    """Nothing else fits."""


class Named(TypedDict):
    x: int


@pytest.mark.parametrize("declared", [Point, Pair, Named, {"type": "object", "properties": {"x": {"type": "integer"}}}])
def test_whatever_describes_an_object_will_do(declared: Any) -> None:
    """A pydantic model, a dataclass, a TypedDict, a JSON schema: an object comes out, and what does not fit is said."""
    output = output_of("Agent 'a'", declared)
    assert output.objection('{"x": 1}') is None
    assert "x" in (output.objection('{"x": "one"}') or "")
    assert output.objection("[1]") is not None
    assert output.objection('{"x": 1') is not None


@pytest.mark.parametrize("declared", [int, list[int], {"type": "array"}, {"type": "object", "properties": 3}, object()])
def test_what_is_no_object_is_refused_when_it_is_declared(declared: Any) -> None:
    """Providers take objects only as the arguments of a tool."""
    with pytest.raises(ConfigurationError, match="Agent 'a': its output is no JSON schema of an object"):
        Agent("a", model="openai:x", output=declared)


def test_the_answer_is_read_as_what_was_declared() -> None:
    """Defaults are filled in, nested types too; a validator may raise what it likes."""
    output = output_of("a", Point)
    assert output.value('{"x": 1, "below": [{"x": 2}]}') == Point(x=1, below=[Point(x=2)])
    assert output.objection('{"x": 13}') == "unlucky"
    assert "Where something is." in output.description


def test_what_does_not_fit_is_one_line_for_each_field() -> None:
    """Its place and what is wrong, and nothing of the library that looked: no type, no input, no address."""
    output = output_of("a", Point)
    assert output.objection('{"y": -1, "below": [{"x": "no"}]}') == (
        "x: Field required\n"
        "y: Input should be greater than or equal to 0\n"
        "below.0.x: Input should be a valid integer, unable to parse string as an integer"
    )
    assert output.objection('{"x": 14}') == "x: must be even"
    schema = output_of("a", {"type": "object", "required": ["x"], "properties": {"y": {"type": "integer"}}})
    assert schema.objection('{"y": "z"}') == "'x' is a required property\ny: 'z' is not of type 'integer'"


def test_an_objection_has_an_end() -> None:
    """However much does not fit, and however long its place is: a model chose the names."""
    wrong = {"x": 1, "below": [{"x": "no"}] * 1_000}
    said = output_of("a", Point).objection(json.dumps(wrong)) or ""
    assert said.count("\n") == 10
    assert said.endswith("and 990 more")
    closed = output_of("a", Closed).objection(json.dumps({"k" * 10_000: 1})) or ""
    assert len(closed) < 500


@pytest.mark.parametrize(
    ("declared", "name"),
    [
        (Point, "Point"),
        (Pair, "Pair"),
        (Named, "Named"),
        ({"type": "object", "title": "Receipt"}, "Receipt"),
        ({"type": "object"}, "its schema"),
    ],
)
def test_people_read_the_name_of_what_was_declared(declared: Any, name: str) -> None:
    """A type's own, a schema's title."""
    assert output_of("a", declared).name == name


def test_no_tool_of_its_agent_has_the_name() -> None:
    """Neither one that is there when the agent is declared nor a later one; without output anybody may."""
    tool = Tool(name=FINAL_RESULT, description="d", parameters={"type": "object"}, kind="client")
    with pytest.raises(ConfigurationError, match=f"{FINAL_RESULT!r} is reserved"):
        Agent("a", model="openai:x", tools=[tool], output=Point)
    with pytest.raises(ConfigurationError, match=f"{FINAL_RESULT!r} is reserved"):
        Agent("a", model="openai:x", output=Point).add_tool(tool)
    assert FINAL_RESULT in Agent("a", model="openai:x", tools=[tool]).tools
