"""Timers that a model asks for: for how long or until when, and what it is told afterwards.

Pure and without a clock: a moment is worked out from the words alone, and whoever waits compares it with the present.
A time of day means that time in a zone that is named, by the model or in the agent's declaration; the zone of the
machine is never looked at.
"""

import re
from datetime import UTC, date, datetime, time, timedelta
from functools import cache
from importlib import resources
from typing import Any, Final
from zoneinfo import ZoneInfo

from perdure.codec import Text, Wire, clip

MAX_SECONDS: Final = 10 * 365.25 * 24 * 3600
YEARS: Final = range(1900, 2200)
"""Near the ends of the calendar a zone's time has no UTC, and Temporal takes no timer of more than about 292 years."""

_date = re.compile(r"[0-9]{4}-[0-9]{2}-[0-9]{2}")
_time = re.compile(r"[0-9]{2}:[0-9]{2}(:[0-9]{2})?")
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


class Timer(Wire):
    """A wait: for `seconds`, or until `due` (seconds since 1970); exactly one of the two is set.

    `woke` is the result when it fires, `past` the one when there was nothing to wait for at the start.
    """

    seconds: float | None = None
    due: float | None = None
    woke: Text
    past: Text


def timer(operation: str, arguments: dict[str, Any], zone: str) -> Timer:
    """The timer that a call of `sleep` or `sleep_until` asks for.

    Args:
        operation: which of the two.
        arguments: of the call.
        zone: the time zone where the arguments name none.

    Raises:
        ValueError: with a sentence for the model.
    """
    match operation:
        case "sleep":
            return _sleep(arguments.get("seconds"))
        case "sleep_until":
            named = arguments.get("timezone")
            return _sleep_until(arguments.get("date"), arguments.get("time"), zone if named is None else named)
        case _:
            raise ValueError(f"bug: {operation!r} is not a timer")


def time_zone(name: object) -> ZoneInfo:
    """The time zone of an IANA name.

    Only names of the IANA's own list are taken. So no name can lead to another file, and names that mean something
    else on each machine (`localtime`), or count leap seconds (`right/...`), are none.

    Raises:
        ValueError: with a sentence, if there is no such zone.
    """
    if not isinstance(name, str) or name not in _zone_names():
        raise ValueError(f"There is no time zone {_quoted(name)}; give an IANA name such as `Europe/Paris` or `UTC`.")
    return ZoneInfo(name)


def _sleep(seconds: object) -> Timer:
    # Not `math.isnan`, which refuses integers that are too large for a float.
    if isinstance(seconds, bool) or not isinstance(seconds, int | float) or seconds != seconds:
        told = f"Slept 0 seconds: `seconds` was {_quoted(seconds)}, which is not a number."
        return Timer(seconds=0.0, woke=told, past=told)
    if seconds > MAX_SECONDS:
        raise ValueError(f"No sleep is longer than 10 years, which are {MAX_SECONDS:.0f} seconds.")
    wait = float(seconds) if seconds > 0 else 0.0
    told = f"Slept {_number(wait)} second{'' if wait == 1 else 's'}."
    return Timer(seconds=wait, woke=told, past=told)


def _sleep_until(day: object, hour: object, zone_name: object) -> Timer:
    zone = time_zone(zone_name)
    wall = datetime.combine(_read_date(day), _read_time(hour))
    due, note = _moment(wall, zone)
    asked = f"{wall.isoformat(sep=' ')} {zone.key}"
    return Timer(
        due=(due - _EPOCH).total_seconds(),
        woke=f"Woke at {asked}.{note}",
        past=f"Did not sleep: {asked} was in the past already.{note}",
    )


def _read_date(value: object) -> date:
    try:
        if isinstance(value, str) and _date.fullmatch(value) and int(value[:4]) in YEARS:
            return date.fromisoformat(value)
    except ValueError:
        pass
    years = f"{YEARS[0]} to {YEARS[-1]}"
    raise ValueError(f"`date` must be YYYY-MM-DD, a day of the calendar in the years {years}, not {_quoted(value)}.")


def _read_time(value: object) -> time:
    try:
        if isinstance(value, str) and _time.fullmatch(value):
            return time.fromisoformat(value)
    except ValueError:
        pass
    raise ValueError(f"`time` must be HH:MM or HH:MM:SS, from 00:00 to 23:59:59, not {_quoted(value)}.")


def _moment(wall: datetime, zone: ZoneInfo) -> tuple[datetime, str]:
    """When the clocks of a zone show a time, and a note if they do so twice or never.

    `fold` names the two offsets that may hold: 0 is the one before a change of the clocks, 1 the one after it. Where
    no change is near they are equal. Clocks that are put back show a time under both; clocks that are put forward show
    it under neither, since each offset puts it on the other side of the change.
    """
    before, after = (wall.replace(tzinfo=zone, fold=fold) for fold in (0, 1))
    first, second = (aware.astimezone(UTC) for aware in (before, after))
    if first == second:
        return first, ""
    if first < second:
        return first, " The clocks are put back there, so that time comes twice; this is the first."
    jump = _jump(second, first, zone)
    there = jump.astimezone(zone).isoformat(sep=" ")
    return jump, f" The clocks are put forward there, so that time does not exist; the change itself counts, {there}."


def _jump(low: datetime, high: datetime, zone: ZoneInfo) -> datetime:
    """The first second with the offset that holds at `high`; at `low` another one does."""
    after = high.astimezone(zone).utcoffset()
    while high - low > timedelta(seconds=1):
        middle = low + timedelta(seconds=(high - low) // timedelta(seconds=2))
        if middle.astimezone(zone).utcoffset() == after:
            high = middle
        else:
            low = middle
    return high


@cache
def _zone_names() -> frozenset[str]:
    # The package's list, not that of the machine: which zones there are must not depend on where a worker runs.
    return frozenset(resources.files("tzdata").joinpath("zones").read_text("ascii").split())


def _number(seconds: float) -> str:
    return str(int(seconds)) if seconds.is_integer() else repr(seconds)


def _quoted(value: object) -> str:
    return f"`{clip(value, 60)}`" if isinstance(value, str) else f"`{clip(repr(value), 60)}`"
