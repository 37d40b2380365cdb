"""What a tool returned, as text for the model: strings as they are, everything else as strict JSON."""

import base64
import json
import math
from collections.abc import Iterator, Mapping, Sequence, Set
from dataclasses import dataclass, field, fields, is_dataclass
from datetime import date, datetime, time
from enum import Enum
from typing import Any, Final, Literal, cast

from pydantic import BaseModel
from pydantic_core import to_jsonable_python

RESULT_CHARS: Final = 64 * 1024 * 1024
"""The largest result that is kept. It is held in memory several times on its way into the store."""


@dataclass(frozen=True)
class ToolFile:
    """An image or another file in a result."""

    media_type: str
    data: bytes = field(repr=False)


@dataclass(frozen=True)
class ToolOutput:
    """The text of a result, the files that follow it, and whether the call went well."""

    content: str
    outcome: Literal["ok", "error"] = "ok"
    files: tuple[ToolFile, ...] = ()


@dataclass(frozen=True)
class Pending:
    """A call whose result comes from outside; it is given up after `expires_s` seconds, if that is set."""

    expires_s: float | None = None


def error_output(sentence: str) -> ToolOutput:
    """An error result; the sentence is never empty."""
    return ToolOutput(sentence, "error")


def tool_output(value: object) -> ToolOutput:
    """Encode a returned value.

    Datetimes, sets, decimals, enums, bytes (base64), dataclasses and pydantic models are written as JSON has them; NaN
    and infinities become text, since no strict parser takes them; integers keep all their digits. Keys that are not
    text are written as their JSON; two keys that would become one are an error, as is a value that JSON has no form
    for, an iterator, and a text above `RESULT_CHARS`.
    """
    try:
        text = value if isinstance(value, str) else json.dumps(_jsonable(value), ensure_ascii=False, allow_nan=False)
    except RecursionError:
        return error_output("The tool ran, but what it returned is nested too deeply, or contains itself.")
    except Exception as error:  # properties and serializers of the returned object are code of the tool's author
        return error_output(f"The tool ran, but what it returned cannot be written as JSON: {error}")
    if len(text) > RESULT_CHARS:
        return error_output(
            f"The tool ran, but what it returned has {len(text):,} characters, more than the {RESULT_CHARS:,} that are "
            "kept. Ask for less of it."
        )
    # A subclass of str (an enum, for one) is stored as the plain text that it holds.
    return ToolOutput(str.__str__(text))


def _jsonable(value: object) -> Any:
    match value:
        case None | bool():
            return value
        case Enum():
            return _jsonable(value.value)
        case int() | str():
            return value
        case float():
            return value if math.isfinite(value) else str(value)
        case datetime() | date() | time():
            return value.isoformat()
        case bytes() | bytearray():
            return base64.b64encode(bytes(value)).decode("ascii")
        case BaseModel():
            return _jsonable(value.model_dump())
        case Mapping():
            return _jsonable_mapping(cast("Mapping[object, object]", value))
        case Sequence():
            return [_jsonable(item) for item in cast("Sequence[object]", value)]
        case Set():
            # Sorted by their text, so that the same set reads the same in every process.
            return sorted((_jsonable(item) for item in cast("Set[object]", value)), key=json.dumps)
        case Iterator():
            raise TypeError(f"a {type(cast('object', value)).__name__} is read only once; return a list")
        case _ if is_dataclass(value) and not isinstance(value, type):
            return {own.name: _jsonable(getattr(value, own.name)) for own in fields(value)}
        case _:
            return to_jsonable_python(value)


def _jsonable_mapping(mapping: Mapping[object, object]) -> dict[str, Any]:
    encoded: dict[str, Any] = {}
    for key, item in mapping.items():
        plain = _jsonable(key)
        name = plain if isinstance(plain, str) else json.dumps(plain)
        if name in encoded:
            raise ValueError(f"two keys of one object are both written {name!r}")
        encoded[name] = _jsonable(item)
    return encoded
