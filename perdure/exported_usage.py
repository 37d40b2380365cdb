"""What a turn has cost and how it was to be answered, there and back. Clients know the tokens of steps alone."""

from collections.abc import Mapping
from typing import Any, Final, cast

from pydantic import ValidationError

from perdure.import_fields import Fault, Json, optional
from perdure.messages import TurnOptions, Usage

MAX_COUNT: Final = 2**53
"""Larger numbers than this no client in JavaScript tells exactly."""

_INPUT: Final = "inputTokens"
_OUTPUT: Final = "outputTokens"


def shown_steps(usage: Usage | None) -> list[Json]:
    """The `steps` of a message's metadata: one, with the tokens of all its model calls, since only sums are kept."""
    if usage is None:
        return []
    return [{"usage": {_INPUT: usage.input_tokens, _OUTPUT: usage.output_tokens}}]


def read_usage(metadata: Json, own: Json) -> Usage | None:
    """What a turn has cost: as an export of ours tells it, if the tokens of its steps are those; else these alone.

    Raises Fault.
    """
    steps = metadata.get("steps")
    listed = cast("list[object]", steps) if isinstance(steps, list) else []
    found = [tokens for tokens in map(_tokens, listed) if tokens is not None]
    sums = sum(taken for taken, _ in found), sum(given for _, given in found)
    exact = _exact(own)
    if exact is not None and (exact.input_tokens, exact.output_tokens) == sums:
        return exact
    return Usage(requests=len(found), input_tokens=sums[0], output_tokens=sums[1]) if found else None


def read_options(own: Json) -> TurnOptions | None:
    """How words were to be answered. Raises Fault."""
    options = optional(own, "options")
    try:
        return None if options is None else TurnOptions.model_validate(options)
    except ValidationError:
        raise Fault("must be options of ours", ".options") from None


def _exact(own: Json) -> Usage | None:
    usage = optional(own, "usage")
    if usage is None:
        return None
    known: Mapping[str, Any] = {key: value for key, value in usage.items() if key in Usage.model_fields}
    if not all(map(_is_count, known.values())):
        raise Fault("must be whole numbers", ".usage")
    return Usage(**known)


def _tokens(step: object) -> tuple[int, int] | None:
    """The tokens in and out of a client's step, if it tells them; what it knows else of it is left aside."""
    usage = cast("Json", step).get("usage") if isinstance(step, dict) else None
    if not isinstance(usage, dict):
        return None
    told = cast("Json", usage)
    counts = told.get(_INPUT), told.get(_OUTPUT)
    return cast("tuple[int, int]", counts) if all(map(_is_count, counts)) else None


def _is_count(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value <= MAX_COUNT
