"""JSON for everything that crosses a boundary: Temporal payloads, PostgreSQL text columns, files.

One encoder, so that a value means the same everywhere. It is the standard library's, escaping everything that is
not ASCII: that is what lets NUL and lone surrogates, which neither UTF-8 nor PostgreSQL can hold, survive a round
trip, and what keeps integers of any length exact. Faster encoders refuse or round such values.
"""

import hashlib
import json
import math
import re
from datetime import datetime
from functools import cache
from typing import Annotated, Any, Literal, Self, cast, get_args, get_origin

from pydantic import BaseModel, ConfigDict, PlainValidator


def _check_text(value: object) -> str:
    if not isinstance(value, str):
        raise ValueError("must be text")
    return value


Text = Annotated[str, PlainValidator(_check_text, json_schema_input_type=str)]
"""Words of people, models and tools. Unlike pydantic's own `str` it admits lone surrogates."""

MAX_LEVELS = 100
"""How deep data from outside may be nested: pydantic encodes 255 levels, and boundary types are around it."""


class Wire(BaseModel):
    """A frozen boundary type. Fields that hold their default are left out when it is encoded, tags of unions are not.

    Leaving them out keeps Temporal histories small and makes an optional addition invisible to readers that do not
    know it. Unknown fields are kept, so an older worker hands a newer one's value on unchanged.
    """

    model_config = ConfigDict(frozen=True, extra="allow")

    def stated(self) -> dict[str, Any]:
        """The fields to encode: those that do not hold their default, tags and unknown fields included."""
        defaults = _defaults(type(self))
        return {
            name: value
            for name, value in {**self.__dict__, **(self.__pydantic_extra__ or {})}.items()
            if name not in defaults or value != defaults[name]
        }

    def with_(self, **changes: Any) -> Self:
        """A copy with some fields changed. The values are trusted, as in a constructor call of typed code."""
        return self.model_copy(update=changes)


@cache
def _defaults(wire: type[Wire]) -> dict[str, Any]:
    fields = {name: field for name, field in wire.model_fields.items() if not _is_tag(field.annotation)}
    return {name: field.get_default(call_default_factory=True) for name, field in fields.items()}


def _is_tag(annotation: object) -> bool:
    return get_origin(annotation) is Literal and len(get_args(annotation)) == 1


def dumps(value: object) -> str:
    """Encode to JSON text of ASCII only; NaN and infinities are refused with ValueError."""
    return _encoder.encode(value)


def loads(text: str | bytes) -> Any:
    """Decode JSON text strictly. Integers stay integers whatever their length; key order is kept.

    Raises:
        ValueError: for what is not JSON, NaN and infinities (`1e999` too), or nesting that is too deep.
    """
    try:
        return _decoder.decode(text if isinstance(text, str) else text.decode("utf-8"))
    except RecursionError as error:
        raise ValueError("nested too deeply") from error


def loads_object(text: str) -> dict[str, Any]:
    """Decode a JSON object, as a model's arguments must be.

    Raises:
        ValueError: for any other value, and as `loads` does.
    """
    value: object = loads(text)
    if not isinstance(value, dict):
        raise ValueError("not an object")
    if not is_json(cast("object", value)):
        raise ValueError("nested too deeply")
    return cast("dict[str, Any]", value)


def is_json(value: object, levels: int = MAX_LEVELS) -> bool:
    """Whether a value of unknown making can be encoded: plain JSON types, finite, at most so many levels deep."""
    match value:
        case None | bool() | int() | str():
            return True
        case float():
            return math.isfinite(value)
        case list():
            return levels > 0 and all(is_json(item, levels - 1) for item in cast("list[object]", value))
        case dict():
            items = cast("dict[object, object]", value).items()
            return levels > 0 and all(isinstance(key, str) and is_json(item, levels - 1) for key, item in items)
        case _:
            return False


def digest(text: str) -> str:
    """The SHA-256 of a text in hex; lone surrogates are hashed as they are."""
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()


def head(encoded: bytes, limit_bytes: int) -> str:
    """The beginning of a text that was encoded as UTF-8 (surrogates passed), cut between two characters."""
    end = min(limit_bytes, len(encoded))
    while end and end < len(encoded) and encoded[end] & 0b1100_0000 == 0b1000_0000:
        end -= 1
    return encoded[:end].decode("utf-8", "surrogatepass")


def clip(text: str, limit: int) -> str:
    """The beginning of a text on one line, at most `limit` characters, safe to show and to encode as UTF-8."""
    looked_at = text[: limit * 4]
    line = _controls.sub("�", " ".join(looked_at.split())).encode("utf-8", "replace").decode("utf-8")
    is_whole = len(line) <= limit and len(looked_at) == len(text)
    return line if is_whole else line[: limit - 1] + "…"


def _refuse_constant(name: str) -> float:
    raise ValueError(f"{name} is not JSON")


def _finite(digits: str) -> float:
    value = float(digits)
    if not math.isfinite(value):
        raise ValueError(f"{digits} is too large")
    return value


_decoder = json.JSONDecoder(parse_constant=_refuse_constant, parse_float=_finite)
_controls = re.compile(r"[\x00-\x1f\x7f-\x9f]")


def _encode(value: object) -> object:
    # Not by pydantic: its mode "json" writes NaN as null and refuses keys with half a surrogate pair, and its way from
    # field to field through Python takes twice as long.
    if isinstance(value, Wire):
        return value.stated()
    if isinstance(value, datetime):
        return value.isoformat()
    raise TypeError(f"bug: {type(value).__name__} does not belong in a boundary type")


_encoder = json.JSONEncoder(ensure_ascii=True, allow_nan=False, separators=(",", ":"), default=_encode)
