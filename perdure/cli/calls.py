"""Calls of tools, their results and what was decided about them, as words of a line."""

import json
from typing import Any, Final, cast

from perdure.approval import Decision
from perdure.cli.printable import one_line
from perdure.codec import clip, loads
from perdure.messages import ToolCallPart, ToolResultPart
from perdure.quantity import quantity
from perdure.rap.display import shown

CALL_CHARS: Final = 160
RESULT_CHARS: Final = 300
DISPLAY_LINES: Final = 20
"""Of what a tool shows in place of its result, a diff for one."""

_TOOL_CHARS: Final = 64


def call_words(part: ToolCallPart) -> str:
    """A call as one would write it, clipped: `get_weather(city="Paris")`."""
    return one_line(f"{clip(part.tool, _TOOL_CHARS)}({clip(arguments_words(part.arguments), CALL_CHARS)})")


def arguments_words(text: str) -> str:
    """The arguments of a call as one would write them."""
    try:
        values: Any = loads(text)
    except ValueError:  # a model wrote something else than JSON: shown as it is
        return text
    if not isinstance(values, dict):
        return text
    named = cast("dict[str, object]", values)
    return ", ".join(f"{name}={json.dumps(value, ensure_ascii=False)}" for name, value in named.items())


def result_words(result: ToolResultPart) -> str:
    """What a person is shown of a result: what its tool wants them to see, else its words on one line."""
    display = shown(result.display, result.content)
    if display != result.content:
        # Not clipped as other words are: blanks count in what is shown line by line.
        lines = [one_line(line[:RESULT_CHARS]) for line in display.split("\n")]
        more = [f"… {quantity(len(lines) - DISPLAY_LINES, 'more line')}"] if len(lines) > DISPLAY_LINES else []
        return "\n  ".join([*lines[:DISPLAY_LINES], *more])
    size = f" ({result.size_bytes:,} bytes)" if result.size_bytes > RESULT_CHARS else ""
    return f"{one_line(clip(result.content, RESULT_CHARS))}{size}"


def decision_words(decision: Decision) -> str:
    """What became of the question whether a call may run, through whom, and what they said."""
    match decision.resolution:
        case "cancelled":
            return "was not decided about"
        case "expired":
            return "was not decided about in time"
        case None:
            by = f" by {one_line(clip(decision.by, _TOOL_CHARS))}" if decision.by else ""
            always = ", as all such calls" if decision.remembered else ""
            said = decision.reason or decision.text
            why = f": {one_line(clip(said, RESULT_CHARS))}" if said else ""
            return f"is {'approved' if decision.approved else 'denied'}{by}{always}{why}"
