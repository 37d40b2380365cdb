"""What an open call waits for and until when, in words for people. Pure."""

from datetime import UTC, date, datetime, tzinfo

from perdure.contract import CallStatus


def call_state(call: CallStatus, zone: tzinfo | None = UTC, today: date | None = None) -> str:
    """How a call stands: `running`, `waiting for the user's side`, `sleeping until 09:00`.

    Args:
        call: the call.
        zone: what times are told in; None for that of this machine.
        today: a time of this day is told without its date.
    """
    until = f" until {moment(call.due, zone, today)}" if call.due is not None else ""
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


def moment(at: float, zone: tzinfo | None = UTC, today: date | None = None) -> str:
    """A time, given in seconds since 1970: `2026-12-01 09:00 UTC`, or `09:00` on the day that is given."""
    try:
        time = datetime.fromtimestamp(at, UTC).astimezone(zone)
    except (OverflowError, OSError, ValueError):
        # No timer of ours, but whoever shows it must not fail over it: a workflow's task would do so for ever.
        return "a time beyond the calendar"
    hour = f"{time:%H:%M:%S}".removesuffix(":00")
    return hour if time.date() == today else f"{time:%Y-%m-%d} {hour} {time:%Z}"
