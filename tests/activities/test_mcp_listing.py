"""Which tools an agent gets from what an MCP server offers."""

from datetime import timedelta
from typing import Any

import pytest

from activities.mcp_listing import listed_tools
from perdure.errors import ToolsetUnavailable
from perdure.mcp import McpOptions, McpToolset
from perdure.tools import ToolsetApproval


def listing(*names: str) -> dict[str, Any]:
    """A listing of tools without arguments."""
    return {"tools": [{"name": name, "inputSchema": {"type": "object"}} for name in names]}


def names(options: McpOptions, *offered: str) -> list[tuple[str, str | None]]:
    """The agent's and the server's names of the tools."""
    tools = listed_tools(McpToolset.stdio("s", "c", **options), listing(*offered))
    return [(tool.name, tool.operation) for tool in tools]


def test_names() -> None:
    """The server's order; a prefix, other names, only some tools, all but some."""
    assert names({}, "b", "a") == [("b", "b"), ("a", "a")]
    assert names({"prefix": "s_"}, "b", "a") == [("s_b", "b"), ("s_a", "a")]
    assert names({"prefix": "s_", "rename": {"a.b": "ab"}}, "a.b", "c") == [("s_ab", "a.b"), ("s_c", "c")]
    assert names({"tools": ["a"]}, "b", "a") == [("a", "a")]
    assert names({"exclude": ["read file"]}, "read file", "a") == [("a", "a")]


@pytest.mark.parametrize(
    ("options", "offered", "sentence"),
    [
        (McpOptions(), ("read file",), "Leave it out with `exclude`"),
        (McpOptions(), ("",), "no model takes a tool named ''"),
        (McpOptions(prefix="p" * 60), ("a" * 5,), "no model takes"),
        (McpOptions(), ("a", "a"), "two tools named 'a'"),
        (McpOptions(rename={"b": "a"}), ("a", "b"), "two tools named 'a'"),
        (McpOptions(tools=["z"]), ("a",), "offers no tool 'z'"),
        (McpOptions(rename={"z": "y"}), ("a",), "offers no tool 'z'"),
        (McpOptions(approval={"z": "always"}), ("a",), "offers no tool 'z'"),
    ],
)
def test_what_cannot_be_offered(options: McpOptions, offered: tuple[str, ...], sentence: str) -> None:
    """Names that no provider takes, that clash, or that the server does not have are reported."""
    with pytest.raises(ToolsetUnavailable, match=sentence):
        names(options, *offered)


@pytest.mark.parametrize("value", [{}, {"tools": None}, {"tools": [1]}, {"tools": [{"name": "a"}]}])
def test_a_listing_that_is_none(value: dict[str, Any]) -> None:
    """What was kept of a listing may be damaged; that is a sentence too."""
    with pytest.raises(ToolsetUnavailable, match="not a valid list of tools"):
        listed_tools(McpToolset.stdio("s", "c"), value)


def test_what_a_tool_keeps() -> None:
    """The schema as it was, the title where there is no description, the hints, and the toolset's timeout."""
    schema = {"type": "object", "properties": {"a": {"type": "integer", "default": None}}, "$defs": {"x": True}}
    offered = [
        {"name": "a", "title": "A", "inputSchema": schema, "annotations": {"readOnlyHint": True}},
        {"name": "b", "description": "B", "inputSchema": schema, "annotations": {"idempotentHint": True}},
        {"name": "c", "inputSchema": schema, "annotations": {"idempotentHint": False, "destructiveHint": False}},
    ]
    toolset = McpToolset.stdio("s", "c", timeout=timedelta(seconds=3))
    a, b, c = listed_tools(toolset, {"tools": offered})
    assert [tool.retry_safe for tool in (a, b, c)] == [True, True, False]
    assert [tool.description for tool in (a, b, c)] == ["A", "B", ""]
    assert {tool.kind for tool in (a, b, c)} == {"mcp"}
    assert a.parameters == schema
    assert (a.toolset, a.timeout) == ("s", timedelta(seconds=3))


def test_a_toolset_says_whether_people_are_asked() -> None:
    """For all of a server's tools, or by the server's names for some; the agent speaks for the others."""

    def approvals(approval: ToolsetApproval | None) -> list[object]:
        toolset = McpToolset.stdio("s", "c", prefix="s_", approval=approval)
        return [tool.approval for tool in listed_tools(toolset, listing("drop", "read"))]

    assert approvals(None) == [None, None]
    assert approvals("always") == ["always", "always"]
    assert approvals({"drop": "always"}) == ["always", None]


@pytest.mark.parametrize(
    ("hints", "asked"),
    [
        (None, True),
        ({}, True),
        ({"destructiveHint": True}, True),
        ({"idempotentHint": True}, True),
        ({"destructiveHint": False}, False),
        ({"readOnlyHint": True}, False),
        ({"readOnlyHint": True, "destructiveHint": True}, False),
    ],
)
def test_people_are_asked_about_what_is_destructive(hints: dict[str, bool] | None, asked: bool) -> None:
    """By the protocol that is every tool of which its server does not say that it reads only or destroys nothing."""
    offered = {"tools": [{"name": "a", "inputSchema": {"type": "object"}, "annotations": hints}]}
    (tool,) = listed_tools(McpToolset.stdio("s", "c", approval="destructive"), offered)
    assert tool.approval == ("always" if asked else None)
