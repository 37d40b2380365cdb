"""What a tool returned, as text for the model: strings as they are, everything else as strict JSON."""

import base64
import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, is_dataclass
from datetime import date, datetime, time
from typing import Any, Literal, cast

from pydantic import BaseModel
from pydantic_core import to_jsonable_python


@dataclass(frozen=True)
class ToolOutput:
    """The text of a result and whether the call went well."""

    content: str
    outcome: Literal["ok", "error"] = "ok"


def error_output(sentence: str) -> ToolOutput:
    """An error result; the sentence is never empty."""
    return ToolOutput(sentence, "error")


def tool_output(value: object) -> ToolOutput:
    """Encode a returned value.

    Datetimes, sets, decimals, bytes (base64), dataclasses and pydantic models are written as JSON has them; NaN and
    infinities become text, since no strict parser takes them; integers keep all their digits. Keys that are not text
    are written as text; two keys that would become one are an error, as is a value that JSON has no form for.
    """
    if isinstance(value, str):
        return ToolOutput(value)
    try:
        return ToolOutput(json.dumps(_jsonable(value), ensure_ascii=False, allow_nan=False))
    except (TypeError, ValueError, RecursionError) as error:
        return error_output(f"The tool ran, but what it returned cannot be written as JSON: {error}")


def _jsonable(value: object) -> Any:
    match value:
        case None | bool() | int() | str():
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
        case list() | tuple():
            return [_jsonable(item) for item in cast("Sequence[object]", value)]
        case set() | frozenset():
            # Sorted by their text, so that the same set reads the same in every process.
            return sorted((_jsonable(item) for item in cast("set[object]", value)), key=lambda item: json.dumps(item))
        case _ if is_dataclass(value) and not isinstance(value, type):
            return _jsonable(asdict(value))
        case _:
            return to_jsonable_python(value)


def _jsonable_mapping(mapping: Mapping[object, object]) -> dict[str, Any]:
    encoded: dict[str, Any] = {}
    for key, item in mapping.items():
        name = key if isinstance(key, str) else str(_jsonable(key))
        if name in encoded:
            raise ValueError(f"two keys of one object are both written {name!r}")
        encoded[name] = _jsonable(item)
    return encoded
