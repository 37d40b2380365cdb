"""A message's status in the words of assistant-ui, which has fewer of them."""

from typing import Any, Final, cast

from perdure.codec import Text
from perdure.import_fields import Fault, Json, mapping, text
from perdure.messages import Status, StatusReason, StatusState

_STATES: Final[dict[StatusState, str]] = {
    "running": "running",
    "requires_action": "requires-action",
    "complete": "complete",
    "incomplete": "incomplete",
}
_REASONS: Final[dict[StatusState, dict[StatusReason | None, str]]] = {
    "running": {},
    "requires_action": {None: "tool-calls", "interrupt": "interrupt"},
    "complete": {None: "stop", "unknown": "unknown"},
    "incomplete": {
        "cancelled": "cancelled",
        "error": "error",
        "length": "length",
        "content_filter": "content-filter",
        # What it says of a turn that was not given another step.
        "limit": "tool-calls",
        "other": "other",
    },
}
# What has no word of its own: a turn that gave way to other words was cancelled, as far as a client can show.
_ELSE: Final[dict[StatusState, str]] = {"requires_action": "tool-calls", "complete": "unknown", "incomplete": "other"}
_STEERED: Final = "cancelled"

_read_states: Final[dict[str, StatusState]] = {there: ours for ours, there in _STATES.items()}
_read_reasons: Final[dict[StatusState, dict[str, StatusReason | None]]] = {
    ours: {there: reason for reason, there in reasons.items()} for ours, reasons in _REASONS.items()
}


def shown_status(status: Status) -> Json:
    """The status as a client knows it. What went wrong is its `error`; other details have no place there."""
    shown: Json = {"type": _STATES[status.state]}
    if status.state == "running":
        return shown
    known = _STEERED if status.reason == "steered" else _ELSE[status.state]
    shown["reason"] = _REASONS[status.state].get(status.reason, known)
    if shown["reason"] == "error" and status.detail is not None:
        shown["error"] = {"code": "unknown", "message": status.detail}
    return shown


def read_status(fields: Json) -> Status:
    """The status that a client means; a reason that nobody knows is the least specific one. Raises Fault."""
    state = _read_states.get(text(fields, "type"))
    if state is None:
        raise Fault(f"must be one of {', '.join(_read_states)}", ".type")
    if state == "running":
        return Status(state=state)
    said = text(fields, "reason", _ELSE[state])
    reasons = _read_reasons[state]
    reason = reasons[said] if said in reasons else reasons[_ELSE[state]]
    return Status(state=state, reason=reason, detail=_detail(fields) if reason == "error" else None)


def exact_status(fields: Json, exact: object) -> Status:
    """The status that an export tells in full beside what it shows, as long as the two agree. Raises Fault."""
    if exact is not None:
        status = Status.model_validate(mapping(exact))
        if shown_status(status) == fields:
            return status
    return read_status(fields)


def _detail(fields: Json) -> Text | None:
    error: Any = fields.get("error")
    if isinstance(error, dict):
        error = cast("Json", error).get("message")
    return error if isinstance(error, str) else None
