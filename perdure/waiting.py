"""What a thread waits for: calls and until when, in words for people, and the approvals that nobody has given. Pure."""

from collections.abc import Iterable, Iterator
from datetime import UTC, date, datetime, tzinfo
from typing import Final

from perdure.approval import ApprovalRequest
from perdure.codec import Text, Wire, clip
from perdure.contract import CallStatus
from perdure.messages import Message, Status, ToolCallPart, ToolResultPart

_ID_CHARS: Final = 80


class PendingApproval(Wire):
    """A call that waits for somebody to approve it; `arguments` is its whole JSON text.

    `due` is when nobody is waited for any longer, in seconds since 1970.
    """

    call_id: str
    message_id: str
    tool: Text
    arguments: Text = "{}"
    request: ApprovalRequest = ApprovalRequest()
    due: float | None = None


def pending_approvals(messages: Iterable[Message]) -> tuple[PendingApproval, ...]:
    """The calls among messages that wait for a decision, in their order. A settled turn asks nothing any more."""
    return tuple(
        PendingApproval(
            call_id=call.call_id, message_id=message.id, tool=call.tool, arguments=call.arguments, request=request
        )
        for message in messages
        if message.status.state in ("running", "requires_action")
        for call, request in _undecided(message)
    )


def no_question(call_id: str) -> str:
    """That nothing of this id is asked, in a sentence."""
    return f"No call {clip(call_id, _ID_CHARS)!r} waits for approval in what this thread shows."


def question_over(message: Message, call: ToolCallPart) -> str:
    """Why nobody decides about a call of a settled turn any more, in a sentence."""
    turn = "was cancelled" if message.status.reason == "cancelled" else "is over"
    return (
        f"The call {clip(call.call_id, _ID_CHARS)!r} cannot be decided about any more: its turn {turn}{_became(call)}."
    )


def _became(call: ToolCallPart) -> str:
    decision = call.decision
    if decision is None:
        return ""
    match decision.resolution:
        case "cancelled":
            return ", and the question with it"
        case "expired":
            return ", and the time in which to decide had passed"
        case None:
            return f", and the call was {'approved' if decision.approved else 'denied'}"


def _undecided(message: Message) -> Iterator[tuple[ToolCallPart, ApprovalRequest]]:
    settled = {part.call_id for part in message.parts if isinstance(part, ToolResultPart)}
    for part in message.parts:
        if isinstance(part, ToolCallPart) and part.approval and not (part.decision or part.call_id in settled):
            yield part, part.approval


def call_state(call: CallStatus, zone: tzinfo | None = UTC, today: date | None = None) -> str:
    """How a call stands: `running`, `waiting for the user's side`, `sleeping until 09:00`.

    Args:
        call: the call.
        zone: what times are told in; None for that of this machine.
        today: a time of this day is told without its date.
    """
    until = f" until {moment(call.due, zone, today)}" if call.due is not None else ""
    if call.state == "approval":
        return f"waiting for approval{until}"
    if call.state != "waiting":
        return call.state
    match call.kind:
        case "workflow":
            return f"sleeping{until or ' until something happens'}"
        case "client":
            return f"waiting for the user's side{until}"
        case "rap":
            return f"waiting for its tool server{until}"
        case _:
            return f"waiting{until}"


def ended_early(status: Status) -> str:
    """Why a turn ended early, in a word or two."""
    match status.reason:
        case "steered":
            return "made room for what came"
        case "content_filter":
            return "content filter"
        case _:
            return status.reason or "incomplete"


def moment(at: float, zone: tzinfo | None = UTC, today: date | None = None) -> str:
    """A time, given in seconds since 1970: `2026-12-01 09:00 UTC`, or `09:00` on the day that is given."""
    try:
        time = datetime.fromtimestamp(at, UTC).astimezone(zone)
    except (OverflowError, OSError, ValueError):
        # No timer of ours, but whoever shows it must not fail over it: a workflow's task would do so for ever.
        return "a time beyond the calendar"
    hour = f"{time:%H:%M:%S}".removesuffix(":00")
    return hour if time.date() == today else f"{time:%Y-%m-%d} {hour} {time:%Z}"
