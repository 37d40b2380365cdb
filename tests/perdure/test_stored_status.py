"""The status of a thread whose workflow does not run."""

from datetime import UTC, datetime

import pytest

from perdure.approval import ApprovalRequest, Decision
from perdure.messages import Message, Status, ToolResultPart
from perdure.records import OpenCall, Tail, ThreadRecord
from perdure.stored_status import open_turn, stored_status

THREAD = ThreadRecord(thread_id="t", agent="a", head_id="m", turn=2)
PAUSED = Message(id="m", thread_id="t", role="assistant", turn=2, status=Status(state="requires_action"))
ASKED = OpenCall(
    call_id="c1", message_id="m", turn=2, step=0, index=0, tool="send", approval=ApprovalRequest(), due=9.0
)


def test_a_turn_that_sleeps_for_approvals_is_not_broken() -> None:
    """Each call says whether it waits for a decision, for its result, or for nothing."""
    calls = (
        ASKED,
        ASKED.with_(call_id="c2", decision=Decision(approved=True)),
        ASKED.with_(call_id="c3", decision=Decision(approved=False), result=ToolResultPart(call_id="c3")),
        ASKED.with_(call_id="c4", approval=None, due=None),
    )
    status = stored_status(Tail(thread=THREAD, message=PAUSED, calls=calls, last=PAUSED.status, paused=True))
    assert (status.state, status.problems, status.last) == ("waiting", (), PAUSED.status)
    assert [(call.state, call.due) for call in status.open_calls] == [
        ("approval", 9.0),
        ("waiting", 9.0),
        ("settled", 9.0),
        ("waiting", None),
    ]


def test_words_that_nobody_answers_are_no_problem() -> None:
    """The thread is idle: they came without a turn, so none is to begin."""
    words = Message(id="m", thread_id="t", role="user")
    status = stored_status(Tail(thread=THREAD, message=words))
    assert (status.state, status.problems, status.last) == ("idle", (), words.status)


def test_the_head_is_told_and_not_the_turn_that_works_elsewhere() -> None:
    """A turn of another branch whose workflow ended is a problem, and the head that waits for people is not."""
    hidden = PAUSED.with_(id="x", status=Status(state="running"))
    status = stored_status(Tail(thread=THREAD, message=hidden, hidden=True, last=PAUSED.status, paused=True))
    assert (status.state, status.head_id, status.last) == ("waiting", "m", PAUSED.status)
    assert "ended in the middle of a turn" in status.problems[0]


@pytest.mark.parametrize("state", ["running", "requires_action"])
def test_a_turn_without_open_calls_stands_still(state: str) -> None:
    """Nothing will come for it but the next message; a closed thread has no such problem."""
    turn = PAUSED.with_(status=Status.model_validate({"state": state}))
    tail = Tail(thread=THREAD, message=turn)
    assert "ended in the middle of a turn" in stored_status(tail).problems[0]
    closed = tail.with_(thread=THREAD.with_(closed_at=datetime(2026, 1, 1, tzinfo=UTC)))
    assert (stored_status(closed).state, stored_status(closed).problems) == ("closed", ())


def test_a_paused_turn_is_open() -> None:
    """A stop has something to stop; a settled one has nothing."""
    assert open_turn(Tail(thread=THREAD, message=PAUSED)) == PAUSED
    assert open_turn(Tail(thread=THREAD, message=PAUSED.with_(status=Status()))) is None
