"""Schemas of tools that others describe: which are valid, and arguments held against them."""

import time
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from perdure.schema import check_arguments, object_schema
from tests.properties import json_values

KEYWORDS = ["$ref", "$schema", "$id", "$defs", "type", "properties", "pattern", "allOf", "items", "enum", "required"]
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=5) | st.sampled_from(["#", "object", "https://x/y"]),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(KEYWORDS), inner, max_size=3),
    max_leaves=8,
)


def nested(levels: int) -> dict[str, Any]:
    """A schema of objects within objects."""
    schema: dict[str, Any] = {}
    for _ in range(levels):
        schema = {"properties": {"a": schema}}
    return schema


@pytest.mark.parametrize(
    "schema",
    [
        {"type": "object", "additionalProperties": False},
        {"type": "object", "properties": {"a": {"$ref": "#/$defs/a"}}, "$defs": {"a": {"type": "integer"}}},
        {"$schema": "http://json-schema.org/draft-07/schema#", "properties": {"a": {"type": "string"}}},
        {"properties": {"filter": {"$ref": "http://json-schema.org/draft-07/schema#"}}},
        {"properties": {"$ref": {"type": "string"}}},
        {"properties": {"a": {"pattern": r"^\p{L}(?=x)"}}},
        {"$schema": "https://example.com/our-own"},
        {"type": ["object", "null"], "x-acme-colour": "red"},
        {},
    ],
)
def test_a_valid_schema_is_kept_and_says_that_it_describes_objects(schema: dict[str, Any]) -> None:
    """References within it, to JSON Schema itself, other drafts and unknown keywords included."""
    assert object_schema(schema) == {**schema, "type": "object"}


@pytest.mark.parametrize(
    ("schema", "reason"),
    [
        (None, "not an object"),
        ([], "not an object"),
        (True, "not an object"),
        ({"type": "string"}, "its type is string"),
        ({"type": "text"}, "type: 'text' is not valid"),
        ({"properties": []}, "properties: "),
        ({"$schema": 7}, "`\\$schema` is not a text"),
        (
            {"properties": {"a": {"$ref": "https://example.com/a"}}},
            "refers to https://example.com/a, which is not with",
        ),
        ({"properties": {"a": {"$ref": "#/$defs/a"}}}, "refers to /\\$defs/a, which is not within it"),
        ({"$ref": "#"}, "refers to itself without end"),
        (nested(60), "nested too deeply"),
    ],
)
def test_a_schema_that_is_not_valid_is_refused_with_the_reason(schema: object, reason: str) -> None:
    """Also one that only a document elsewhere could complete: that is never fetched."""
    with pytest.raises(ValueError, match=reason):
        object_schema(schema)


@given(JSON, st.dictionaries(st.sampled_from(["a", "$ref", "type"]), json_values))
def test_whatever_a_server_calls_a_schema_is_valid_or_refused(schema: object, arguments: dict[str, Any]) -> None:
    """Nothing but ValueError leaves, and any arguments can be held against a schema that was accepted."""
    try:
        accepted = object_schema(schema)
    except ValueError as error:
        str(error).encode()
        return
    try:
        check_arguments(accepted, arguments)
    except ValueError as error:
        str(error).encode()


X_INTEGER = {"patternProperties": {"^x-": {"type": "integer"}}}


@pytest.mark.parametrize(
    ("schema", "fitting", "arguments", "reason"),
    [
        ({"required": ["a"]}, {"a": None}, {}, "'a' is a required property"),
        ({"properties": {"a": {"items": {"type": "integer"}}}}, {"a": [1]}, {"a": [1, "x"]}, "a.1: 'x' is not of type"),
        ({"additionalProperties": False}, {}, {"b": 1}, "'b' was unexpected"),
        ({"properties": {"a": {"pattern": "^x+$"}}}, {"a": "xx"}, {"a": "y"}, "a: 'y' does not match"),
        (X_INTEGER, {"x-a": 1, "y": "z"}, {"x-a": "y"}, "x-a: 'y' is not of type"),
        ({**X_INTEGER, "additionalProperties": False}, {"x-a": 1}, {"x-a": 1, "y": 2}, "'y' was unexpected"),
        ({"$schema": "http://json-schema.org/draft-07/schema#", "required": ["a"]}, {"a": 1}, {}, "'a' is a required"),
    ],
)
def test_arguments_that_do_not_fit_are_explained_to_the_model(
    schema: dict[str, Any], fitting: dict[str, Any], arguments: dict[str, Any], reason: str
) -> None:
    """The sentence names the place and what was expected there; arguments that fit pass."""
    check_arguments(object_schema(schema), fitting)
    with pytest.raises(ValueError, match="The arguments do not fit the tool: ") as refusal:
        check_arguments(object_schema(schema), arguments)
    assert reason in str(refusal.value)


def test_patterns_that_the_engine_cannot_express_are_left_to_the_server() -> None:
    """A lookahead is valid in the language of JSON Schema; refusing the call would make its tool useless."""
    lookahead = object_schema({"properties": {"a": {"pattern": "^(?!x)"}}, "patternProperties": {"^(?!x)": {}}})
    check_arguments(lookahead, {"a": "xyz", "y": 1})
    check_arguments({**lookahead, "additionalProperties": False}, {"z": 1})


def test_no_pattern_of_a_server_can_keep_a_worker_busy() -> None:
    """One on which Python's own engine takes longer than anybody waits."""
    schema = object_schema({"properties": {"a": {"pattern": "^(a+)+$"}}, "patternProperties": {"^(b+)+$": {}}})
    started = time.monotonic()
    with pytest.raises(ValueError, match="does not match"):
        check_arguments(schema, {"a": "a" * 5_000 + "!", "b" * 5_000 + "!": 1})
    assert time.monotonic() - started < 1


def test_any_value_of_a_model_can_be_checked_and_quoted() -> None:
    """Half of a surrogate pair, long integers, and a text that is far longer than a sentence."""
    schema = object_schema({"properties": {"a": {"pattern": "^x$"}, "b": {"type": "integer"}, "c": {"enum": [1]}}})
    check_arguments(schema, {"b": 10**30})
    with pytest.raises(ValueError, match="do not fit") as refusal:
        check_arguments(schema, {"a": "\ud800", "c": "x" * 100_000})
    assert len(str(refusal.value)) < 1_000
    str(refusal.value).encode()
