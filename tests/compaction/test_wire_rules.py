"""The check of requests itself: each rule has a request that breaks it."""

import pytest
from pydantic_ai.messages import (
    ModelMessage,
    ModelRequest,
    ModelResponse,
    TextPart,
    ThinkingPart,
    ToolCallPart,
    ToolReturnPart,
    UserPromptPart,
)

from tests.compaction.wire_rules import wire_violations


def call(name: str, arguments: str = "{}") -> ToolCallPart:
    """A call."""
    return ToolCallPart("t", arguments, name)


def answered(name: str, content: str = "r") -> ToolReturnPart:
    """Its result."""
    return ToolReturnPart("t", content, name)


ASKED: list[ModelMessage] = [ModelRequest([UserPromptPart("hi")]), ModelResponse([call("a"), call("b")])]


@pytest.mark.parametrize(
    ("rule", "messages"),
    [
        ("V1", ASKED),
        ("V1", [*ASKED, ModelRequest([answered("b"), answered("a")])]),
        ("V2", [ModelRequest([answered("a")])]),
        ("V3", [ModelResponse([call("a"), call("a")])]),
        ("V3", [*ASKED, ModelRequest([answered("a"), answered("b")]), ModelResponse([call("a")])]),
        ("V4", [ModelRequest([UserPromptPart(" ")])]),
        ("V5", [ModelResponse([call("a", "[]")]), ModelRequest([answered("a")])]),
        ("V6", [ModelResponse([call("a")]), ModelRequest([UserPromptPart("x"), answered("a")])]),
        ("V7", [ModelResponse([TextPart("x"), ThinkingPart("hm")])]),
        ("V8", [ModelRequest([UserPromptPart("\ud800")])]),
    ],
)
def test_the_check_finds_every_violation(rule: str, messages: list[ModelMessage]) -> None:
    """Without this the long conversations would prove nothing."""
    assert any(found.startswith(rule) for found in wire_violations(messages))


def test_the_check_accepts_a_valid_request() -> None:
    """One that keeps all rules is not reported."""
    last = ModelRequest([answered("a"), answered("b"), UserPromptPart("and?")])
    assert wire_violations([*ASKED, last, ModelResponse([TextPart("so")])]) == []
