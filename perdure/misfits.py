"""What pydantic says of values that do not fit, as a model or a person reads it.

By itself, since every tool needs it, and what checks schemas of others takes a while to import.
"""

from typing import Final

from pydantic_core import ErrorDetails, ValidationError

from perdure.codec import clip

_REASON_CHARS: Final = 200
_FIELDS: Final = 10


def misfits(error: ValidationError, whole: str) -> list[str]:
    """What pydantic says of values that do not fit, a line for each field: its place, or `whole`, and what is wrong.

    Neither the values, which whoever gave them knows, nor what means something to those only who know pydantic.
    """
    found = error.errors(include_url=False, include_input=False, include_context=False)
    lines = [_line(item, whole) for item in found[:_FIELDS]]
    return lines if len(found) <= _FIELDS else [*lines, f"and {len(found) - _FIELDS:,} more"]


def _line(item: ErrorDetails, whole: str) -> str:
    place = clip(".".join(map(str, item["loc"])), _REASON_CHARS) or whole
    # What validators of the user's types raise, pydantic puts a word before.
    message = item["msg"].removeprefix("Value error, ").removeprefix("Assertion failed, ")
    return f"{place}: {clip(message, _REASON_CHARS)}"
