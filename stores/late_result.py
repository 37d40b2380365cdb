"""Late results: those of calls that are not at hand, and of calls that nobody waited for any more."""

from collections.abc import Set
from typing import Final

from perdure.batch import Refused, TrackSubscription
from perdure.codec import dumps
from perdure.errors import UsageError
from perdure.messages import Part, ToolCallPart, ToolResultPart
from perdure.records import OpenCall
from perdure.subscriptions import ARGUMENT_CHARS

Parts = tuple[tuple[int, Part], ...]
"""The parts of a message with their sequence numbers."""

MADE_UP: Final = ("interrupted", "cancelled", "expired")
"""Outcomes of results that no tool has returned."""


class NoSuchCall(UsageError):
    """Whoever gave a late result has named a message that is not the one of its call."""

    def __init__(self, message_id: str, call_id: str) -> None:
        super().__init__(f"There is no message {message_id!r} with a call {call_id!r} in this thread.")
        self.refused = Refused(input_id=call_id, message_id=message_id, detail=str(self))


def missing_calls(wanted: Set[str], open_calls: Set[str]) -> tuple[Refused, ...]:
    """The refusals of results that name no message, and whose calls are not open."""
    return tuple(Refused(input_id=call_id, message_id="") for call_id in sorted(wanted - open_calls))


def opened(call: OpenCall) -> TrackSubscription:
    """What a call becomes that is answered while its turn rests, and whose tool goes on sending events."""
    arguments = call.arguments if len(dumps(call.arguments)) <= ARGUMENT_CHARS else "{}"
    return TrackSubscription(call_id=call.call_id, tool=call.tool, arguments=arguments)


def replaced(parts: Parts, result: ToolResultPart) -> Parts | None:
    """The parts of a message with a late result in the place of what was made up for it; None if nothing was."""
    for position, (seq, part) in enumerate(parts):
        if isinstance(part, ToolResultPart) and part.call_id == result.call_id and part.outcome in MADE_UP:
            return (*parts[:position], (seq, result.with_(step=part.step)), *parts[position + 1 :])
    return None


def has_call(parts: Parts, call_id: str) -> bool:
    """Whether a call is among the parts of a message."""
    return any(isinstance(part, ToolCallPart) and part.call_id == call_id for _, part in parts)
