"""Timers: what a call of `sleep` or `sleep_until` waits for."""

import os
import time as clock
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from itertools import pairwise
from zoneinfo import ZoneInfo

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from perdure.codec import dumps, loads_object
from perdure.timer import MAX_SECONDS, YEARS, Timer, time_zone, timer


def until(date: str, time: str, zone: str | None = None, declared: str = "UTC") -> Timer:
    """The timer of a call."""
    named = {} if zone is None else {"timezone": zone}
    return timer("sleep_until", {"date": date, "time": time, **named}, declared)


def utc(moment: str) -> float:
    """Seconds since 1970 of a time in UTC."""
    return datetime.fromisoformat(f"{moment}+00:00").timestamp()


@pytest.fixture
def _machine_in_kiritimati() -> Iterator[None]:
    """A machine 14 hours ahead of UTC, for the time of a test."""
    before = os.environ.get("TZ")
    os.environ["TZ"] = "Pacific/Kiritimati"
    clock.tzset()
    yield
    if before is None:
        del os.environ["TZ"]
    else:
        os.environ["TZ"] = before
    clock.tzset()


# -- sleep ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("seconds", "told"), [(5, "Slept 5 seconds."), (1, "Slept 1 second."), (0.25, "Slept 0.25 seconds.")]
)
def test_a_sleep_lasts_as_long_as_was_asked_and_says_so(seconds: float, told: str) -> None:
    """Fractions count too."""
    assert timer("sleep", {"seconds": seconds, "reason": "waiting"}, "UTC") == Timer(
        seconds=seconds, woke=told, past=told
    )


@pytest.mark.parametrize("seconds", [0, -1, -0.5, -(10**400), float("-inf")])
def test_no_time_is_over_at_once(seconds: float) -> None:
    """Zero and less is no wait."""
    asleep = timer("sleep", {"seconds": seconds}, "UTC")
    assert (asleep.seconds, asleep.due, asleep.woke) == (0, None, "Slept 0 seconds.")


@pytest.mark.parametrize("seconds", [None, "60", "soon", True, [], {}, float("nan")])
def test_what_is_no_number_is_over_at_once_and_said(seconds: object) -> None:
    """The model learns why it did not sleep."""
    asleep = timer("sleep", {"seconds": seconds}, "UTC")
    assert (asleep.seconds, asleep.due) == (0, None)
    assert "not a number" in asleep.woke


@pytest.mark.parametrize("seconds", [MAX_SECONDS + 1, 10**400, float("inf"), 1e300])
def test_more_than_ten_years_is_refused(seconds: float) -> None:
    """No such timer reaches Temporal; the longest one does."""
    with pytest.raises(ValueError, match="10 years"):
        timer("sleep", {"seconds": seconds}, "UTC")
    assert timer("sleep", {"seconds": MAX_SECONDS}, "UTC").seconds == MAX_SECONDS


# -- sleep_until ------------------------------------------------------------------------------------------------


def test_b37_a_local_time_is_that_of_its_zone() -> None:
    """B37 (d): 09:00 in New York on the day of the change is 14:00Z, and the text names the time as it was asked."""
    asleep = until("2026-11-01", "09:00", "America/New_York")
    assert (asleep.due, asleep.seconds) == (utc("2026-11-01T14:00"), None)
    assert asleep.woke == "Woke at 2026-11-01 09:00:00 America/New_York."
    assert asleep.past == "Did not sleep: 2026-11-01 09:00:00 America/New_York was in the past already."


@pytest.mark.parametrize("day", ["2026-11-01", "2027-03-14"])
def test_b37_every_quarter_of_an_hour_over_a_change_of_the_clocks(day: str) -> None:
    """B37 (c): who sleeps 15 minutes again and again wakes every 15 minutes, in the hour that comes twice as well.

    The control: by the clock on the wall two of the steps would not be 15 minutes, or not be there.
    """
    zone = ZoneInfo("America/New_York")
    moments = [datetime.fromisoformat(f"{day}T00:00").replace(tzinfo=zone).timestamp()]
    for _ in range(20):
        asleep = timer("sleep", {"seconds": 900}, "America/New_York")
        assert (asleep.seconds, asleep.due) == (900.0, None)
        moments.append(moments[-1] + (asleep.seconds or 0.0))
    walls = [datetime.fromtimestamp(moment, zone).replace(tzinfo=None) for moment in moments]
    assert {later - earlier for earlier, later in pairwise(moments)} == {900.0}
    assert len({later - earlier for earlier, later in pairwise(walls)}) == 2


@pytest.mark.usefixtures("_machine_in_kiritimati")
def test_b37_without_a_zone_the_declared_one_holds_and_never_the_machines() -> None:
    """B37 (e): on a machine that lives elsewhere the same words mean the same moment."""
    assert clock.timezone == -14 * 3600
    assert until("2026-11-01", "09:00", None, "America/New_York").due == utc("2026-11-01T14:00")
    assert until("2026-11-01", "09:00").due == utc("2026-11-01T09:00")
    assert until("2026-11-01", "09:00", "Asia/Tokyo", "America/New_York").due == utc("2026-11-01T00:00")


@pytest.mark.parametrize(
    ("date", "time", "zone", "moment"),
    [
        ("2026-11-01", "01:30", "America/New_York", "2026-11-01T05:30"),
        ("2026-11-01", "01:00", "America/New_York", "2026-11-01T05:00"),
        ("2026-10-25", "02:59:59", "Europe/Paris", "2026-10-25T00:59:59"),
        ("2026-04-05", "01:45", "Australia/Lord_Howe", "2026-04-04T14:45"),
        ("2090-10-29", "02:30", "Europe/Paris", "2090-10-29T00:30"),
    ],
)
def test_b37_a_time_that_comes_twice_is_its_first(date: str, time: str, zone: str, moment: str) -> None:
    """B37 (a): the clocks are put back, also by half an hour, also far in the future; the text says so."""
    asleep = until(date, time, zone)
    assert asleep.due == utc(moment)
    assert "comes twice" in asleep.woke
    assert "comes twice" in asleep.past


@pytest.mark.parametrize(
    ("date", "time", "zone", "moment", "there"),
    [
        ("2027-03-14", "02:30", "America/New_York", "2027-03-14T07:00", "2027-03-14 03:00:00-04:00"),
        ("2027-03-14", "02:00", "America/New_York", "2027-03-14T07:00", "2027-03-14 03:00:00-04:00"),
        ("2027-03-14", "02:59:59", "America/New_York", "2027-03-14T07:00", "2027-03-14 03:00:00-04:00"),
        ("2026-10-04", "02:15", "Australia/Lord_Howe", "2026-10-03T15:30", "2026-10-04 02:30:00+11:00"),
        ("2090-03-26", "02:30", "Europe/Paris", "2090-03-26T01:00", "2090-03-26 03:00:00+02:00"),
        ("2011-12-30", "12:00", "Pacific/Apia", "2011-12-30T10:00", "2011-12-31 00:00:00+14:00"),
    ],
    ids=["middle", "first second", "last second", "half an hour", "far future", "a whole day"],
)
def test_b37_a_time_that_never_comes_is_the_change_itself(
    date: str, time: str, zone: str, moment: str, there: str
) -> None:
    """B37 (b): the clocks are put forward over it, so the moment of the change counts, and the text says so."""
    asleep = until(date, time, zone)
    assert asleep.due == utc(moment)
    assert f"does not exist; the change itself counts, {there}" in asleep.woke


def test_b37_times_beside_a_change_are_what_they_say() -> None:
    """The second before and the first one after a change are ordinary times."""
    assert until("2027-03-14", "01:59:59", "America/New_York").due == utc("2027-03-14T06:59:59")
    assert until("2027-03-14", "03:00", "America/New_York").due == utc("2027-03-14T07:00")
    assert until("2026-11-01", "02:00", "America/New_York").due == utc("2026-11-01T07:00")
    assert "clocks" not in until("2027-03-14", "03:00", "America/New_York").woke


zones = st.sampled_from(["UTC", "America/New_York", "Europe/Dublin", "Australia/Lord_Howe", "Africa/Casablanca", "GB"])
moments = st.integers(631_152_000, 5_680_281_600).map(lambda second: datetime.fromtimestamp(second, UTC))


@given(moments, zones)
@settings(max_examples=200)
def test_b37_any_moment_is_found_again_by_what_the_clocks_showed(moment: datetime, zone: str) -> None:
    """A time that a zone's clocks show is that moment, or an earlier one at which they showed the same."""
    shown = moment.astimezone(ZoneInfo(zone))
    due = until(shown.date().isoformat(), shown.strftime("%H:%M:%S"), zone).due
    assert due is not None
    found = datetime.fromtimestamp(due, UTC).astimezone(ZoneInfo(zone))
    assert found.replace(tzinfo=None, fold=0) == shown.replace(tzinfo=None, fold=0)
    assert found.fold == 0
    assert timedelta(0) <= shown.astimezone(UTC) - found.astimezone(UTC) <= timedelta(hours=2)


@pytest.mark.parametrize(
    "zone",
    [
        "",
        "localtime",
        "../../etc/passwd",
        "/etc/passwd",
        "/usr/share/zoneinfo/UTC",
        "America",
        "America/",
        "UTC\x00",
        "right/UTC",
        "posix/UTC",
        "europe/paris",
        "Mars/Phobos",
        "+02:00",
        "CEST",
        "\ud800",
        "é",
        "x" * 10_000,
        5,
        [],
    ],
)
def test_a_name_that_is_no_time_zone_is_refused(zone: object) -> None:
    """Nothing outside of the list of zones is ever opened; the sentence names what came, in printable words."""
    with pytest.raises(ValueError, match="There is no time zone") as refused:
        timer("sleep_until", {"date": "2026-11-01", "time": "09:00", "timezone": zone}, "UTC")
    assert len(str(refused.value)) < 200
    assert str(refused.value).encode().decode().isprintable()


def test_every_zone_of_the_list_can_be_used() -> None:
    """The control: the check lets names pass, with and without a region."""
    assert [time_zone(name).key for name in ("UTC", "Europe/Paris", "America/Argentina/Ushuaia")]
    assert time_zone("EST5EDT").key == "EST5EDT"


@pytest.mark.parametrize(
    "date",
    [
        "2026-02-30",
        "2026-13-01",
        "2026-1-1",
        "20261101",
        "2026-W44-7",
        "01.11.2026",
        "tomorrow",
        "",
        "2026-11-01\n",
        None,
        "٢٠٢٦-١١-٠١",
        "0001-01-01",
        "9999-12-31",
        "2200-01-01",
        20261101,
    ],
)
def test_a_date_that_is_none_is_refused(date: object) -> None:
    """The sentence names the field and what is wanted."""
    with pytest.raises(ValueError, match=r"^`date` must be YYYY-MM-DD"):
        timer("sleep_until", {"date": date, "time": "09:00"}, "UTC")


@pytest.mark.parametrize(
    "time",
    ["24:00", "9:00", "09", "0900", "09:00:60", "09:60", "09:00Z", "09:00+01:00", "09:00:00.5", "noon", "", None, 9],
)
def test_a_time_that_is_none_is_refused(time: object) -> None:
    """The sentence names the field and what is wanted."""
    with pytest.raises(ValueError, match=r"^`time` must be HH:MM"):
        timer("sleep_until", {"date": "2026-11-01", "time": time}, "UTC")


@pytest.mark.parametrize("zone", ["Pacific/Kiritimati", "Etc/GMT+12"])
@pytest.mark.parametrize("year", [YEARS[0], YEARS[-1]])
def test_the_first_and_the_last_day_work_in_every_zone(year: int, zone: str) -> None:
    """No overflow at the ends of what is taken."""
    assert until(f"{year}-01-01", "00:00", zone).due is not None
    assert until(f"{year}-12-31", "23:59:59", zone).due is not None


def test_a_timer_travels_small() -> None:
    """On the wire there is only what is set, and it comes back the same."""
    asleep = timer("sleep", {"seconds": 2}, "UTC")
    assert set(loads_object(dumps(asleep))) == {"seconds", "woke", "past"}
    assert Timer.model_validate_json(dumps(asleep)) == asleep


def test_what_is_no_timer_is_a_bug() -> None:
    """Another operation has no timer."""
    with pytest.raises(ValueError, match="bug"):
        timer("sleep_until_event_or_input", {}, "UTC")
