"""What an open call waits for, in words, and which ones wait for somebody to approve them."""

from datetime import date, timedelta, timezone

import pytest

from perdure.approval import ApprovalRequest, Decision
from perdure.contract import CallStatus
from perdure.messages import Message, Status, ToolCallPart, ToolResultPart
from perdure.waiting import PendingApproval, call_state, moment, pending_approvals

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
        ({"state": "approval", "kind": "function"}, "waiting for approval"),
        ({"state": "approval", "kind": "rap", "due": NINE}, "waiting for approval until 2026-12-01 09:00 UTC"),
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


def turn(state: str, *parts: ToolCallPart | ToolResultPart) -> Message:
    """A turn with these parts."""
    return Message(
        id="a", thread_id="t", role="assistant", status=Status.model_validate({"state": state}), parts=tuple(parts)
    )


ASKED = ApprovalRequest(prompt="Send it?")
CALLS = (
    ToolCallPart(call_id="c1", tool="send", arguments='{"n":1}', approval=ASKED),
    ToolCallPart(call_id="c2", tool="send", approval=ASKED, decision=Decision(approved=True)),
    ToolCallPart(call_id="c3", tool="read"),
    ToolCallPart(call_id="c4", tool="send", approval=ASKED),
    ToolResultPart(call_id="c4", outcome="expired"),
)


@pytest.mark.parametrize("state", ["running", "requires_action"])
def test_a_call_waits_for_approval_until_it_is_decided_or_has_its_result(state: str) -> None:
    """It is told with its whole arguments and the question; while others of its turn still run it waits as well."""
    waiting = PendingApproval(call_id="c1", message_id="a", tool="send", arguments='{"n":1}', request=ASKED)
    assert pending_approvals([turn(state, *CALLS)]) == (waiting,)


@pytest.mark.parametrize("state", ["complete", "incomplete"])
def test_a_settled_turn_asks_nothing(state: str) -> None:
    """Nobody can decide about a call of a turn that has ended, whatever it had asked."""
    assert pending_approvals([turn(state, *CALLS)]) == ()
