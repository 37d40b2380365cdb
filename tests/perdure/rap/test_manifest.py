"""Manifests of RAP servers: what is offered, and what is refused as a whole."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from perdure.errors import ToolsetUnavailable
from perdure.rap.manifest import MAX_TOOLS, essence, read_manifest
from tests.properties import json_values

TOOL: dict[str, Any] = {"name": "get_time", "description": "Get the time.", "inputSchema": {"type": "object"}}
MANIFEST: dict[str, Any] = {"name": "get-time", "endpoint": "http://127.0.0.1:18901", "tools": [TOOL]}

OBSERVED: dict[str, Any] = {
    "name": "get-time",
    "description": "Utility tools for getting the current time",
    "endpoint": "http://127.0.0.1:18901",
    "tools": [
        {
            "name": "get_time",
            "description": "Get the current time in a specified timezone or UTC.",
            "inputSchema": {
                "type": "object",
                "properties": {"timezone": {"type": "string", "description": "IANA timezone name."}},
                "required": [],
            },
        }
    ],
}


def with_tool(**fields: Any) -> dict[str, Any]:
    """A manifest whose only tool has these fields; one of `...` is left out."""
    return {**MANIFEST, "tools": [{name: value for name, value in {**TOOL, **fields}.items() if value is not ...}]}


def test_an_observed_manifest_becomes_tools() -> None:
    """The operation is the tool's name, the parameters are its schema, and calls go to the endpoint."""
    manifest = read_manifest(OBSERVED, "time")
    assert manifest.name == "get-time"
    (tool,) = manifest.tools
    assert (tool.name, tool.operation, tool.kind, tool.toolset) == ("get_time", "get_time", "rap", "time")
    assert tool.description == "Get the current time in a specified timezone or UTC."
    assert tool.parameters == OBSERVED["tools"][0]["inputSchema"]
    assert tool.endpoint == "http://127.0.0.1:18901"
    assert tool.endpoint not in repr(tool)
    assert not tool.retry_safe


@pytest.mark.parametrize(
    ("annotations", "safe"),
    [
        ({"idempotent": True}, True),
        ({"idempotent": False}, False),
        ({"idempotent": "true"}, False),
        ({"readOnly": True}, False),
        ({"x-acme-idempotent": True}, False),
        (None, False),
        ("idempotent", False),
    ],
)
def test_only_idempotent_tools_are_sent_again(annotations: object, safe: bool) -> None:
    """It is advice, so whatever else is said there neither counts nor matters."""
    assert read_manifest(with_tool(annotations=annotations), "t").tools[0].retry_safe is safe


def test_what_is_not_known_is_ignored_and_not_kept() -> None:
    """Fields of later versions, scripts for the display of calls, and what only moving a server needs."""
    listing = {**with_tool(displayScript="args.x", icon="clock"), "needsMigration": True, "extra": [1]}
    assert read_manifest(listing, "t") == read_manifest(MANIFEST, "t")
    assert essence(listing) == MANIFEST
    assert read_manifest(essence(listing), "t") == read_manifest(MANIFEST, "t")


def test_tools_keep_the_order_of_the_server() -> None:
    """Models see them in it, always the same."""
    listing = {**MANIFEST, "tools": [{**TOOL, "name": name} for name in ("b", "a", "c")]}
    assert [tool.name for tool in read_manifest(listing, "t").tools] == ["b", "a", "c"]


def test_a_name_that_providers_do_not_take_is_shortened_for_the_model_alone() -> None:
    """The protocol allows twice as many characters; names that begin alike stay apart."""
    names = ["n" * 64, "n" * 65, "n" * 128, "n" * 127 + "x"]
    tools = read_manifest({**MANIFEST, "tools": [{**TOOL, "name": name} for name in names]}, "t").tools
    assert [tool.operation for tool in tools] == names
    assert tools[0].name == names[0]
    assert len({tool.name for tool in tools}) == 4
    assert all(len(tool.name) == 64 for tool in tools)


@pytest.mark.parametrize(
    ("listing", "reason"),
    [
        ({}, "its `name` must be a text of 1 to 128 characters"),
        ({**MANIFEST, "name": ""}, "its `name`"),
        ({**MANIFEST, "name": "n" * 129}, "its `name`"),
        ({**MANIFEST, "name": 7}, "its `name`"),
        ({**MANIFEST, "endpoint": None}, "its `endpoint` must be an absolute http or https URL"),
        ({**MANIFEST, "endpoint": "/invoke"}, "its `endpoint`"),
        ({**MANIFEST, "endpoint": "ftp://h/"}, "its `endpoint`"),
        ({**MANIFEST, "endpoint": "http://user:password@h/"}, "its `endpoint`"),
        ({**MANIFEST, "tools": []}, "at least one tool"),
        ({**MANIFEST, "tools": {"get_time": TOOL}}, "at least one tool"),
        ({**MANIFEST, "tools": [TOOL] * (MAX_TOOLS + 1)}, "it has 1,001 tools"),
        ({**MANIFEST, "tools": [TOOL, TOOL]}, "it has two tools named 'get_time'"),
        ({**MANIFEST, "tools": [TOOL, "x"]}, "its tool 2 must be an object"),
        (with_tool(name=...), "the name of its tool 1 must be 1 to 128 letters, digits, `_` or `-` (it is 'none')"),
        (with_tool(name=""), "the name of its tool 1"),
        (with_tool(name="get time"), "(it is 'get time')"),
        (with_tool(name="get_time\n"), "the name of its tool 1"),
        (with_tool(name="zeit_für"), "the name of its tool 1"),
        (with_tool(name="n" * 129), "the name of its tool 1"),
        (with_tool(name="receive_event__injected"), "is reserved"),
        (with_tool(description=...), "the tool 'get_time' needs a `description`"),
        (with_tool(description="  "), "needs a `description`"),
        (with_tool(inputSchema=...), "the `inputSchema` of the tool 'get_time' is not valid: it is not an object"),
        (with_tool(inputSchema={"type": "array"}), "is not valid: its type is array, not object"),
        (with_tool(inputSchema={"type": "object", "required": "x"}), "is not valid: required: 'x' is not of type"),
        (with_tool(inputSchema={"$ref": "http://h/s.json"}), "refers to http://h/s.json, which is not within it"),
    ],
)
def test_one_fault_refuses_all_of_it_and_is_named(listing: dict[str, Any], reason: str) -> None:
    """The sentence names the toolset, the tool and the rule."""
    with pytest.raises(ToolsetUnavailable) as refusal:
        read_manifest(listing, "time")
    sentence = str(refusal.value)
    assert sentence.startswith("None of the tools of time are offered, since its manifest is not valid: ")
    assert reason in sentence
    assert "password" not in sentence


@given(st.dictionaries(st.sampled_from([*MANIFEST, *TOOL]), json_values), json_values)
def test_whatever_a_server_offers_is_read_or_refused(fields: dict[str, Any], tool: object) -> None:
    """Nothing but ToolsetUnavailable leaves."""
    for listing in ({**MANIFEST, **fields}, {**MANIFEST, "tools": [tool]}, {**MANIFEST, "tools": [{**TOOL, **fields}]}):
        try:
            tools = read_manifest(listing, "t").tools
        except ToolsetUnavailable:
            continue
        assert tools
