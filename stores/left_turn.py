"""What a store makes of turns that rest: of paused ones that are left, and of imported ones that can go on."""

from collections import Counter
from dataclasses import dataclass
from typing import Final

from perdure.messages import Part, Status, ToolCallPart, ToolResultPart
from perdure.records import OpenCall
from perdure.turn import FOLLOWED, UNDECIDED

LEFT: Final = Status(state="incomplete", reason="cancelled", detail=FOLLOWED)
"""How a turn that waits for people ends when something else follows it."""

CLOSED: Final = Status(state="incomplete", reason="cancelled", detail="The thread was closed.")
"""How it ends when its thread is closed: nobody could answer it any more."""

UNANSWERED: Final = "Nobody gave a result before the turn ended."


def awaits_decision(call: OpenCall) -> bool:
    """Whether a question about the call is open, which is resolved as cancelled when its turn is left."""
    return call.approval is not None and call.decision is None


def last_result(call: OpenCall) -> ToolResultPart:
    """What answers an open call when its turn is left: what is staged, or else that nobody waits for it."""
    content = UNDECIDED if awaits_decision(call) else UNANSWERED
    return call.result or ToolResultPart(call_id=call.call_id, outcome="cancelled", content=content, step=call.step)


@dataclass(frozen=True, slots=True)
class UnansweredCall:
    """A call among parts, with its position and its place among all calls of its step."""

    position: int
    index: int
    part: ToolCallPart


def unanswered(parts: tuple[Part, ...]) -> tuple[UnansweredCall, ...]:
    """The calls without a result: they are open when the message can go on."""
    answered = {part.call_id for part in parts if isinstance(part, ToolResultPart)}
    in_step: Counter[int] = Counter()
    found: list[UnansweredCall] = []
    for position, part in enumerate(parts):
        if isinstance(part, ToolCallPart):
            if part.call_id not in answered:
                found.append(UnansweredCall(position, in_step[part.step], part))
            in_step[part.step] += 1
    return tuple(found)
