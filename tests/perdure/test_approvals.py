"""Approvals, pauses and late results, as the history manager decides about them. Numbers are those of the cases."""

from typing import Literal

import pytest

from perdure.approval import Decision
from perdure.batch import Operation, Refused, SetStatus, StoreLateResult, SyncReport
from perdure.errors import UsageError
from perdure.inputs import Approval, Control, Disposition, Event, Interrupt, ToolResult, UserMessage
from perdure.messages import Status, ToolResultPart
from perdure.turn import UNDECIDED
from tests.perdure.driven import Thread, results


@pytest.fixture
def thread() -> Thread:
    """A new thread that has been asked something."""
    thread = Thread()
    thread.say("go")
    return thread


def decide(thread: Thread, call_id: str, **answer: object) -> Disposition:
    """Somebody decides."""
    return thread.take(Approval.model_validate({"call_id": call_id, **answer}))


def status(thread: Thread) -> Status:
    """Of the turn's message, as it is stored."""
    return thread.last.status


def waiting(thread: Thread) -> list[str]:
    """The calls that wait for approval."""
    turn = thread.history.open_turn
    return [call.call_id for call in turn.calls if call.awaits_approval] if turn else []


def test_case_39_a_call_that_needs_approval_pauses_its_turn(thread: Thread) -> None:
    """The turn says so in its status, in the batch that makes the call durable; nothing runs."""
    (call_id,) = thread.act("pay")
    assert status(thread) == Status(state="requires_action")
    assert waiting(thread) == [call_id]


def test_case_40_an_approved_call_may_run_and_the_turn_goes_on(thread: Thread) -> None:
    """Its status is `running` again, in the batch of the decision."""
    (call_id,) = thread.act("pay")
    assert decide(thread, call_id, approved=True) == "settled"
    assert waiting(thread) == []
    assert status(thread) == Status(state="running")
    thread.take(ToolResult(call_id=call_id, content="paid"))
    assert results(thread.last) == [("ok", "paid")]
    assert thread.phase() == "boundary"


@pytest.mark.parametrize("reason", ["too much", None])
def test_case_42_a_denied_call_is_answered_with_the_reason(thread: Thread, reason: str | None) -> None:
    """And the turn goes on: the model reads why."""
    (call_id,) = thread.act("pay")
    decide(thread, call_id, approved=False, reason=reason)
    ((outcome, content),) = results(thread.last)
    assert outcome == "denied"
    assert (reason or "not approved") in content
    assert (thread.phase(), status(thread)) == ("boundary", Status(state="running"))


def test_case_43_several_calls_are_decided_about_separately(thread: Thread) -> None:
    """The turn goes on when all are, whoever decided; a second answer to one of them is refused."""
    first, second = thread.act("pay", "pay")
    decide(thread, first, approved=False, by="ann")
    assert status(thread) == Status(state="requires_action")
    assert waiting(thread) == [second]
    with pytest.raises(UsageError, match="decided about before"):
        decide(thread, first, approved=True)
    decide(thread, second, approved=True, by="bob")
    thread.take(ToolResult(call_id=second, content="paid"))
    assert [outcome for outcome, _ in results(thread.last)] == ["denied", "ok"]


def test_a_decision_that_comes_again_changes_nothing(thread: Thread) -> None:
    """Whoever lost the reply may ask again, also after another process has taken over."""
    (call_id,) = thread.act("pay")
    decide(thread, call_id, approved=True, reason="fine", by="ann")
    assert decide(thread, call_id, approved=True, reason="fine", by="ann") == "duplicate"
    thread.reload()
    assert decide(thread, call_id, approved=True, reason="fine", by="ann") == "duplicate"


def test_case_46_what_waits_for_no_approval_cannot_be_decided_about(thread: Thread) -> None:
    """An unknown call, one without a question, one that is settled."""
    plain, asked = thread.act("watch", "pay")
    for call_id in ("call_nowhere", plain):
        with pytest.raises(UsageError, match="waits for approval"):
            decide(thread, call_id, approved=True)
    thread.take(Interrupt())
    with pytest.raises(UsageError, match="waits for approval"):
        decide(thread, asked, approved=True)


def test_an_answer_that_says_nothing_is_refused_and_changes_nothing(thread: Thread) -> None:
    """The question stays."""
    (call_id,) = thread.act("pay")
    with pytest.raises(UsageError):
        decide(thread, call_id)
    assert waiting(thread) == [call_id]
    assert thread.sync() == []


def test_case_45_a_question_that_expires_counts_as_decided(thread: Thread) -> None:
    """The call is answered with that, and the turn goes on; nobody can decide about it any more."""
    (call_id,) = thread.act("pay")
    thread.take(ToolResult(call_id=call_id, outcome="expired", content="too late"))
    assert results(thread.last) == [("expired", "too late")]
    assert thread.phase() == "boundary"
    with pytest.raises(UsageError):
        decide(thread, call_id, approved=True)


@pytest.mark.parametrize(("outcome", "resolution"), [("expired", "expired"), ("ok", "cancelled")])
def test_a_question_that_was_over_while_nobody_had_the_thread_says_how(
    thread: Thread, outcome: Literal["expired", "ok"], resolution: Literal["expired", "cancelled"]
) -> None:
    """Its call got a result at rest: whoever loads the thread tells its time from a result that came in place of it."""
    (call_id,) = thread.act("pay")
    thread.store.stage(ToolResultPart(call_id=call_id, outcome=outcome, content="so"))
    thread.reload()
    thread.sync()
    assert thread.store.decisions[call_id] == Decision(resolution=resolution)
    assert results(thread.last) == [(outcome, "so")]


def test_case_49_words_over_a_pause_cancel_it(thread: Thread) -> None:
    """All its questions are resolved as cancelled, before the words and their turn."""
    thread.act("pay", "ask")
    batches = _operations(thread, UserMessage(id="m2", text="never mind"))
    paused = thread.store.messages[1]
    assert paused.status.state == "incomplete"
    assert paused.status.reason == "cancelled"
    assert results(paused)[0] == ("cancelled", UNDECIDED)
    assert [type(operation).__name__ for operation in batches] == [
        "Decide",
        "CommitResults",
        "SetStatus",
        "AppendMessage",
        "AppendMessage",
    ]


def test_a_stop_settles_a_pause(thread: Thread) -> None:
    """Nothing works there, and still it is over: nobody can decide any more."""
    (call_id,) = thread.act("pay")
    assert thread.take(Interrupt(reason="enough")) == "interrupted"
    assert thread.store.decisions[call_id] == Decision(resolution="cancelled")
    assert status(thread).reason == "cancelled"


def test_a_remembered_decision_releases_equal_calls_and_later_ones(thread: Thread) -> None:
    """Of the tool, for an option that says so; it is kept for the thread's next owner."""
    first, second = thread.act("pay", "pay")
    decide(thread, first, option_id="always", by="ann")
    assert waiting(thread) == []
    assert thread.store.decisions[second] == Decision(approved=True, by="ann", remembered=True)
    for call_id in (first, second):
        thread.take(ToolResult(call_id=call_id, content="paid"))
    thread.reload()
    thread.act("pay")
    assert waiting(thread) == []
    assert status(thread) == Status(state="running")


def test_a_remembered_refusal_answers_later_calls(thread: Thread) -> None:
    """Nobody is asked again."""
    (first,) = thread.act("pay")
    decide(thread, first, option_id="never")
    thread.act("pay")
    assert [outcome for outcome, _ in results(thread.last)] == ["denied", "denied"]
    assert thread.phase() == "boundary"


def test_a_decision_for_the_same_arguments_does_not_release_others(thread: Thread) -> None:
    """What is remembered is what was granted, and no more."""
    first, second = thread.act("pay", "pay")
    assert decide(thread, first, option_id="same") == "settled"
    assert waiting(thread) == [], "these two have the same arguments"
    for call_id in (first, second):
        thread.take(ToolResult(call_id=call_id, content="paid"))
    thread.act("pay", arguments='{"q":2}')
    assert len(waiting(thread)) == 1


def test_a_decision_is_withdrawn_and_no_other(thread: Thread) -> None:
    """People are asked again, also by the thread's next owner; another decision holds as before."""
    (first,) = thread.act("pay")
    decide(thread, first, option_id="same")
    thread.take(ToolResult(call_id=first, content="paid"))
    (second,) = thread.act("pay", arguments='{"q":2}')
    decide(thread, second, option_id="always")
    thread.take(ToolResult(call_id=second, content="paid"))
    assert [one.arguments is None for one in thread.store.remembered] == [False, True]
    kept = thread.store.remembered[0]
    assert thread.take(Control(action="forget_decision", tool="pay")) == "settled"
    assert thread.take(Control(action="forget_decision", tool="pay")) == "settled", "again: nothing is left to withdraw"
    assert thread.store.remembered == [kept]
    thread.reload()
    (third,) = thread.act("pay")
    assert waiting(thread) == [], "the control: what was decided for these arguments"
    thread.take(ToolResult(call_id=third, content="paid"))
    thread.act("pay", arguments='{"q":2}')
    assert len(waiting(thread)) == 1


def test_case_36_37_a_human_tool_pauses_until_its_result(thread: Thread) -> None:
    """Whatever the result is, it is one."""
    (call_id,) = thread.act("ask")
    assert status(thread) == Status(state="requires_action")
    for content in ("false", "0", "", "null"):
        thread.take(ToolResult(call_id=call_id, content=content))
        assert results(thread.last)[-1] == ("ok", content)
        assert (thread.phase(), status(thread)) == ("boundary", Status(state="running"))
        (call_id,) = thread.act("ask")


def test_case_38_the_first_of_two_results_is_stored_and_the_second_goes_on(thread: Thread) -> None:
    """The turn stays paused in between."""
    first, second = thread.act("ask", "ask")
    thread.take(ToolResult(call_id=first, content="1"))
    assert status(thread) == Status(state="requires_action")
    thread.take(ToolResult(call_id=second, content="2"))
    assert (thread.phase(), status(thread)) == ("boundary", Status(state="running"))


def test_a_turn_with_something_at_work_does_not_pause(thread: Thread) -> None:
    """It does when all that is left is people."""
    work, _ = thread.act("watch", "pay")
    assert status(thread) == Status(state="running")
    thread.take(ToolResult(call_id=work, content="done"))
    assert status(thread) == Status(state="requires_action")


def test_case_47_a_preliminary_result_keeps_the_call_open(thread: Thread) -> None:
    """Readers see it; the final one settles the call."""
    (call_id,) = thread.act("ask")
    assert thread.take(ToolResult(call_id=call_id, content="half", preliminary=True)) == "changed"
    assert thread.store.interims[call_id].content == "half"
    assert status(thread) == Status(state="requires_action")
    thread.take(ToolResult(call_id=call_id, content="whole"))
    assert results(thread.last) == [("ok", "whole")]


def test_case_50_a_late_result_is_for_the_store(thread: Thread) -> None:
    """It names the message, since nothing here remembers the call; without that it belongs to nothing."""
    (call_id,) = thread.act("ask")
    thread.say("never mind", "m2")
    late = ToolResult(call_id=call_id, content="42", message_id=thread.store.messages[1].id)
    (operation,) = _operations(thread, late)
    assert isinstance(operation, StoreLateResult)
    assert thread.take(late.with_(message_id=None)) == "dropped"


def test_a_late_result_that_the_store_refuses_is_left_out(thread: Thread) -> None:
    """It alone: another one of the same call, which names the right message, stays with all else of the batch."""
    (call_id,) = thread.act("ask")
    thread.say("never mind", "m2")
    late = ToolResult(call_id=call_id, content="42", message_id=thread.store.messages[1].id)
    for content in (late.with_(message_id="nowhere"), late, UserMessage(id=call_id, text="and now?")):
        thread.history.handle_content(content)
    batch = thread.history.take_pending("s")
    assert batch is not None
    results = [one for one in batch.operations if isinstance(one, StoreLateResult)]
    assert [(one.message_id, one.named) for one in results] == [("nowhere", True), (late.message_id, True)]
    refused = Refused(input_id=call_id, message_id="nowhere", detail="There is no such message.")
    assert thread.history.synced(SyncReport(number=batch.number - 1, refused=(refused,))) == (refused,)
    again = thread.history.take_pending("s")
    assert again is not None
    assert again.operations == tuple(one for one in batch.operations if one != results[0])
    assert thread.history.disposition(call_id) == "interrupted"


def test_events_wait_for_a_paused_turn(thread: Thread) -> None:
    """As for every open call that is not passive; the question is not cancelled by them."""
    thread.act("pay")
    event = Event(id="e1", call_id="c", content="tick")
    with pytest.raises(AssertionError, match="while the thread is calling"):
        thread.take(event)


def test_releases_before_this_one_did_not_say_that_a_turn_waits_for_people() -> None:
    """Their histories replay: nothing is written that they did not write."""
    thread = Thread(pauses=False)
    thread.say("go")
    (call_id,) = thread.act("ask")
    assert status(thread) == Status(state="running")
    operations = _operations(thread, ToolResult(call_id=call_id, content="1"))
    assert not any(isinstance(operation, SetStatus) for operation in operations)


def _operations(thread: Thread, content: UserMessage | ToolResult) -> list[Operation]:
    thread.history.handle_content(content)
    return [operation for batch in thread.sync() for operation in batch.operations]
