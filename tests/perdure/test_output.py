"""Structured output, as it is declared and checked."""

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
        return x


@dataclass
class Pair:
    x: int


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


def test_no_tool_of_its_agent_has_the_name() -> None:
    """Neither one that is there when the agent is declared nor a later one; without output anybody may."""
    tool = Tool(name=FINAL_RESULT, description="d", parameters={"type": "object"}, kind="client")
    with pytest.raises(ConfigurationError, match=f"{FINAL_RESULT!r} is reserved"):
        Agent("a", model="openai:x", tools=[tool], output=Point)
    with pytest.raises(ConfigurationError, match=f"{FINAL_RESULT!r} is reserved"):
        Agent("a", model="openai:x", output=Point).add_tool(tool)
    assert FINAL_RESULT in Agent("a", model="openai:x", tools=[tool]).tools
