"""What an open call waits for, in words."""

from datetime import date, timedelta, timezone

import pytest

from perdure.contract import CallStatus
from perdure.waiting import call_state, moment

NINE = 1_796_115_600.0  # 2026-12-01 09:00 UTC


@pytest.mark.parametrize(
    ("call", "words"),
    [
        ({"state": "running", "kind": "function"}, "running"),
        ({"state": "settled", "kind": "workflow", "due": NINE}, "settled"),
        ({"kind": "client"}, "waiting for the user's side"),
        ({"kind": "rap", "due": NINE}, "waiting for its tool server until 2026-12-01 09:00 UTC"),
        ({"kind": "workflow", "due": NINE}, "sleeping until 2026-12-01 09:00 UTC"),
        ({"kind": "workflow"}, "sleeping until something happens"),
        ({"due": NINE}, "waiting until 2026-12-01 09:00 UTC"),
        ({}, "waiting"),
    ],
)
def test_a_call_says_what_it_waits_for(call: dict[str, object], words: str) -> None:
    """By who carries it out, with the time at which it ends by itself; of an unknown kind only that it waits."""
    assert call_state(CallStatus.model_validate({"call_id": "c", "tool": "t"} | call)) == words


def test_a_time_of_today_needs_no_date() -> None:
    """In the zone in which it is told: the same moment is another day elsewhere."""
    east = timezone(timedelta(hours=16), "FAR")
    assert moment(NINE, today=date(2026, 12, 1)) == "09:00"
    assert moment(NINE + 5, today=date(2026, 12, 1)) == "09:00:05"
    assert moment(NINE, east, date(2026, 12, 1)) == "2026-12-02 01:00 FAR"
    assert moment(NINE, east, date(2026, 12, 2)) == "01:00"


@pytest.mark.parametrize("odd", [1e300, -1e300, float("nan"), float("inf"), 1e18, 253402300799.0])
def test_no_number_is_too_odd_to_be_told(odd: float) -> None:
    """Times come from the thread's own timers, but the page is shown whatever they are."""
    assert moment(odd, timezone(timedelta(hours=1)))
