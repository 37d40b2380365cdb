"""MCP results as text for the model."""

from typing import Any

import pytest
from mcp_types import CallToolResult, ImageContent, TextContent

import activities.mcp_results
from activities.mcp_results import result_output


def output(*texts: str, structured: Any = None, is_error: bool = False) -> str:
    """The text of a result."""
    content = [TextContent(text=text) for text in texts]
    encoded = result_output(CallToolResult(content=list(content), structured_content=structured, is_error=is_error))
    assert encoded.outcome == ("error" if is_error else "ok")
    return encoded.content


@pytest.mark.parametrize(
    ("texts", "structured"),
    [
        (['{"a": 1}'], {"a": 1}),
        (["5"], {"result": 5}),
        (["five"], {"result": "five"}),
        (["a", "b"], {"result": ["a", "b"]}),
        (['{"x": 1}', '{"x": 2}'], {"result": [{"x": 1}, {"x": 2}]}),
        (["[1, 2]"], [1, 2]),
        (["5"], "5"),
    ],
)
def test_what_the_text_says_already(texts: list[str], structured: Any) -> None:
    """Structured content that the text repeats, as servers are asked to do, is not said twice."""
    assert output(*texts, structured=structured) == "\n".join(texts)


def test_what_only_the_structured_content_says() -> None:
    """Without text, or with another one, the structured content follows as JSON with all digits."""
    assert output(structured={"a": 10**30}) == f'{{"a": {10**30}}}'
    assert output(structured=[]) == "[]"
    assert output("Two.", structured={"n": 2, "result": "Two."}) == 'Two.\n{"n": 2, "result": "Two."}'
    assert output("x", structured={"a": float("nan")}) == 'x\n{"a": "nan"}'


def test_errors() -> None:
    """An error has the text that the tool gave; one without a text has a sentence."""
    assert output("Gone.", is_error=True) == "Gone."
    assert output(is_error=True) == "The tool failed and did not say why."
    assert output(" \n", is_error=True) == "The tool failed and did not say why."


def test_an_empty_result() -> None:
    """A result without anything is an empty text."""
    assert output() == ""


def test_limits(monkeypatch: pytest.MonkeyPatch) -> None:
    """Files and texts above what is kept are an error that says so."""
    monkeypatch.setattr(activities.mcp_results, "RESULT_CHARS", 3)
    large = result_output(CallToolResult(content=[ImageContent(data="AAAAAAAA", mime_type="image/png")]))
    assert (large.outcome, large.files) == ("error", ())
    monkeypatch.setattr("activities.tool_output.RESULT_CHARS", 3)
    assert result_output(CallToolResult(content=[TextContent(text="four")])).outcome == "error"
    deep: Any = []
    for _ in range(100_000):
        deep = [deep]
    assert result_output(CallToolResult(content=[], structured_content=deep)).outcome == "error"
