"""JSON for everything that crosses a boundary: Temporal payloads, PostgreSQL text columns, files.

One encoder, so that a value means the same everywhere. It is the standard library's, escaping everything that is
not ASCII: that is what lets NUL and lone surrogates, which neither UTF-8 nor PostgreSQL can hold, survive a round
trip, and what keeps integers of any length exact. Faster encoders refuse or round such values.
"""

import hashlib
import json
import math
from functools import cache
from typing import Annotated, Any, Self, cast

from pydantic import BaseModel, ConfigDict, PlainValidator, SerializerFunctionWrapHandler, model_serializer


def _check_text(value: object) -> str:
    if not isinstance(value, str):
        raise ValueError("must be text")
    return value


Text = Annotated[str, PlainValidator(_check_text, json_schema_input_type=str)]
"""Words of people, models and tools. Unlike pydantic's own `str` it admits lone surrogates."""

type_key = "kind"


class Wire(BaseModel):
    """A frozen boundary type. Fields that hold their default are left out when it is encoded.

    Leaving them out keeps Temporal histories small and makes an optional addition invisible to readers that do not
    know it. Unknown fields are kept, so an older worker hands a newer one's value on unchanged.
    """

    model_config = ConfigDict(frozen=True, extra="allow")

    @model_serializer(mode="wrap")
    def _without_defaults(self, handler: SerializerFunctionWrapHandler) -> dict[str, Any]:
        defaults = _defaults(type(self))
        encoded = cast("dict[str, Any]", handler(self))
        return {
            name: value
            for name, value in encoded.items()
            if name == type_key or name not in defaults or getattr(self, name) != defaults[name]
        }

    def with_(self, **changes: Any) -> Self:
        """A copy with some fields changed. The values are trusted, as in a constructor call of typed code."""
        return self.model_copy(update=changes)


@cache
def _defaults(wire: type[Wire]) -> dict[str, Any]:
    return {name: field.get_default(call_default_factory=True) for name, field in wire.model_fields.items()}


def dumps(value: object) -> str:
    """Encode to JSON text of ASCII only; NaN and infinities are refused with ValueError."""
    return json.dumps(value, ensure_ascii=True, allow_nan=False, separators=(",", ":"), default=_encode)


def loads(text: str | bytes) -> Any:
    """Decode JSON text. Integers stay integers whatever their length; key order is kept."""
    return json.loads(text)


def loads_object(text: str) -> dict[str, Any]:
    """Decode a JSON object strictly, as a model's arguments must be.

    Raises:
        ValueError: for any other value, NaN, an infinity (`1e999` too), or nesting that is too deep.
    """
    try:
        value: object = json.loads(text, parse_constant=_refuse_constant, parse_float=_finite)
    except RecursionError as error:
        raise ValueError("nested too deeply") from error
    if not isinstance(value, dict):
        raise ValueError("not an object")
    return cast("dict[str, Any]", value)


def digest(text: str) -> str:
    """The SHA-256 of a text in hex; lone surrogates are hashed as they are."""
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()


def clip(text: str, limit: int) -> str:
    """The beginning of a text on one line, at most `limit` characters, safe to show and to encode as UTF-8."""
    line = " ".join(text[: limit * 4].split()).encode("utf-8", "replace").decode("utf-8").replace("\x00", "�")
    return line if len(line) <= limit else line[: limit - 1] + "…"


def _refuse_constant(name: str) -> float:
    raise ValueError(f"{name} is not JSON")


def _finite(digits: str) -> float:
    value = float(digits)
    if not math.isfinite(value):
        raise ValueError(f"{digits} is too large")
    return value


def _encode(value: object) -> object:
    if isinstance(value, BaseModel):
        return value.model_dump(mode="json")
    raise TypeError(f"bug: {type(value).__name__} does not belong in a boundary type")
