"""Values from outside, checked as they are read: what is wrong with one, where it stands, and what was left out."""

import re
from collections.abc import Callable, Iterable
from typing import Any, Final, TypeVar, cast

from perdure.codec import MAX_LEVELS, clip

Json = dict[str, Any]
Read = TypeVar("Read")

NAME_CHARS: Final = 200
_NAMED: Final = 20
_CONTAINERS: Final = frozenset({dict, list})
_clean = re.compile(rf"[^\x00-\x1f\x7f\ud800-\udfff]{{1,{NAME_CHARS}}}")


class Fault(Exception):
    """Something cannot be read. Whoever knows where it stands puts that in front of `place`, from the inside out."""

    def __init__(self, reason: str, place: str = "") -> None:
        super().__init__(reason)
        self.reason = reason
        self.place = place

    def under(self, place: str) -> "Fault":
        """The same fault, seen from further outside."""
        self.place = place + self.place
        return self


class LeftOut:
    """What is not taken over, told in one sentence for each reason, however often it happens."""

    def __init__(self) -> None:
        self._names: dict[str, dict[str, None]] = {}

    def add(self, reason: str, name: str) -> None:
        """Note one. The reason is a clause that the names follow."""
        self._names.setdefault(reason, {})[name] = None

    @property
    def sentences(self) -> tuple[str, ...]:
        """A sentence for each reason, in the order in which they first came up."""
        return tuple(f"{reason}: {names(list(found))}." for reason, found in self._names.items())


def names(found: list[str]) -> str:
    """A list of names for people; of very many only the first."""
    more = f" and {len(found) - _NAMED:,} more" if len(found) > _NAMED else ""
    return ", ".join(clip(name, NAME_CHARS) for name in found[:_NAMED]) + more


def mapping(value: object, place: str = "") -> Json:
    """An object. Raises Fault."""
    if not isinstance(value, dict):
        raise Fault("must be an object", place)
    return cast("Json", value)


def text(fields: Json, key: str, default: str | None = None) -> str:
    """A text; the default if there is none. Raises Fault."""
    value = fields.get(key, default)
    if isinstance(value, str):
        return value
    if value is None and default is not None:
        return default
    raise Fault("must be text", f".{key}")


def flag(fields: Json, key: str) -> bool:
    """Whether something is said to be so. Raises Fault."""
    value = fields.get(key)
    if value is None or isinstance(value, bool):
        return bool(value)
    raise Fault("must be true or false", f".{key}")


def name(fields: Json, key: str) -> str:
    """An id: what columns and keys of a database can hold. Raises Fault."""
    value = fields.get(key)
    if isinstance(value, str) and is_name(value):
        return value
    raise Fault(f"must be 1 to {NAME_CHARS} characters without control characters", f".{key}")


def is_name(value: str) -> bool:
    """Whether a text is of the characters and the length that ids have."""
    return _clean.fullmatch(value) is not None


def each(fields: Json, key: str, read: Callable[[Json], Read], limit: int) -> list[Read]:
    """The objects of a list, read one by one; none if there is no list. Raises Fault."""
    values = fields.get(key)
    if values is None:
        return []
    if not isinstance(values, list):
        raise Fault("must be a list", f".{key}")
    if len(items := cast("list[object]", values)) > limit:
        raise Fault(f"has {len(items):,} entries, and at most {limit:,} are taken", f".{key}")
    found: list[Read] = []
    try:
        for item in items:
            found.append(read(cast("Json", item) if isinstance(item, dict) else mapping(item)))
    except Fault as fault:
        raise fault.under(f".{key}[{len(found)}]") from None
    return found


def optional(fields: Json, key: str) -> Json | None:
    """An object of any content, if there is one; not nested so deeply that it could not be stored. Raises Fault."""
    value = fields.get(key)
    if value is None:
        return None
    try:
        return cast("Json", plain(mapping(value)))
    except Fault as fault:
        raise fault.under(f".{key}") from None


def plain(value: Any) -> Any:
    """The value itself, which will be encoded again; it was decoded, so only its depth is in question. Raises Fault."""
    layer: list[Any] = [value] if type(value) in _CONTAINERS else []
    for _ in range(MAX_LEVELS + 1):
        if not layer:
            return value
        layer = [inner for outer in layer for inner in _inside(outer) if type(inner) in _CONTAINERS]
    raise Fault("is nested too deeply")


def _inside(value: Any) -> Iterable[Any]:
    return cast("Json", value).values() if isinstance(value, dict) else value
