"""Cases 49 to 59: what follows an answer that waits for people, or that is still under way."""

import pytest

from perdure.errors import UsageError
from perdure.messages import Status
from perdure.testing import Call, Reply
from tests.cases.conftest import Converse
from tests.cases.conversation import PAY, Conversation, Gate, call_in, results_of, text_of, with_gate
from tests.eventually import eventually

BOTH = Reply(Call("hold"), Call("pay", '{"amount": 3}'))


async def followed_in_flight(converse: Converse) -> tuple[Conversation, Gate, str, str, str]:
    """A turn whose one call runs and whose other one waits for approval, with words below that nobody answers.

    Returns the conversation, the gate of the running call, the turn, its call that waits, and the words.
    """
    gate = Gate()
    talk = await converse({"go": [BOTH, "all done"]}, agent=with_gate(gate))
    await talk.client.send(talk.thread, "go", id="m1")
    await gate.begun.wait()
    (call,) = await talk.waiting()
    turn = (await talk.ids())[-1]
    follow_up = await talk.client.send(talk.thread, "by the way", run=False)
    assert follow_up.disposition == "appended"
    return talk, gate, turn, call.call_id, follow_up.message_id


async def test_case_49_words_over_a_pause_cancel_it(converse: Converse) -> None:
    """The question is cancelled, the turn too, and the model reads of a call that did not run."""
    talk = await converse({"go": [PAY]})
    await talk.client.send(talk.thread, "go")
    turn, (call_id,) = await talk.paused()
    await talk.say("never mind")
    assert call_in(await talk.message(turn)).call_id == call_id
    assert await talk.status(turn) == Status(state="incomplete", reason="cancelled")
    decision = call_in(await talk.message(turn)).decision
    assert decision is not None
    assert decision.resolution == "cancelled"
    assert len(await talk.path()) == 4
    assert "did not run" in str(talk.model.requests[-1].messages)


async def test_case_50_a_late_result_is_stored_and_runs_nothing(converse: Converse) -> None:
    """Two model calls in all; what came after stays as it was."""
    talk = await converse({"go": [Reply(Call("ask"))]})
    await talk.client.send(talk.thread, "go")
    turn, (call_id,) = await talk.paused()
    await talk.say("never mind")
    later = (await talk.path())[2:]
    await talk.client.tool_result(talk.thread, call_id, "42", message_id=turn)
    assert results_of(await talk.message(turn)) == [("ok", "42")]
    assert (await talk.status(turn)).reason == "cancelled"
    assert (await talk.path())[2:] == later
    assert len(talk.model.requests) == 2


async def test_case_51_a_cancelled_question_cannot_be_answered(converse: Converse) -> None:
    """Not after words have followed."""
    talk = await converse({"go": [PAY]})
    await talk.client.send(talk.thread, "go")
    _, (call_id,) = await talk.paused()
    await talk.say("never mind")
    with pytest.raises(UsageError, match="its turn was cancelled, and the question with it"):
        await talk.client.approve(talk.thread, call_id)
    assert len(talk.model.requests) == 2


async def test_case_52_words_below_a_turn_under_way_end_it_with_its_pause(converse: Converse) -> None:
    """They interrupt nothing; but the turn that then waits for people is cancelled, and a late result runs nothing."""
    talk, gate, turn, call_id, _ = await followed_in_flight(converse)
    assert (await talk.status(turn)).state == "running"
    gate.open.set()
    settled = await talk.until(turn, "incomplete")
    assert settled.status.reason == "cancelled"
    assert [outcome for outcome, _ in results_of(settled)] == ["ok", "cancelled"]
    with pytest.raises(UsageError):
        await talk.client.approve(talk.thread, call_id)
    await talk.client.tool_result(talk.thread, call_id, "late", message_id=turn)
    assert results_of(await talk.message(turn))[1] == ("ok", "late")
    assert len(talk.model.requests) == 1


async def test_case_53_words_below_a_turn_that_ends_by_itself_change_nothing(converse: Converse) -> None:
    """It is complete, and both are stored."""
    talk = await converse({"go": [Reply("one two three four", chunk_chars=4, delay_s=0.1)]})
    await talk.client.send(talk.thread, "go")
    await talk.until_streams("one")
    turn = (await talk.ids())[-1]
    follow_up = await talk.client.send(talk.thread, "by the way", run=False)
    settled = await talk.until(turn, "complete")
    assert text_of(settled) == "one two three four"
    assert (await talk.ids())[-1] == follow_up.message_id
    assert len(talk.model.requests) == 1


async def test_case_54_a_turn_whose_follow_up_is_deleted_goes_on_with_its_result(converse: Converse) -> None:
    """The mark goes with the last message below the turn: the pause is real again, and the turn completes once."""
    talk, gate, turn, call_id, follow_up = await followed_in_flight(converse)
    await talk.client.delete_message(talk.thread, follow_up)
    gate.open.set()
    assert (await talk.paused())[1] == [call_id]
    await talk.client.tool_result(talk.thread, call_id, "paid by hand")
    settled = await talk.until(turn, "complete")
    assert text_of(settled) == "all done"
    assert [content for _, content in results_of(settled)] == ["held", "paid by hand"]
    assert len(talk.model.requests) == 2


async def test_case_55_a_turn_whose_follow_up_is_deleted_can_be_approved(converse: Converse) -> None:
    """As 54, with a decision."""
    talk, gate, turn, call_id, follow_up = await followed_in_flight(converse)
    await talk.client.delete_message(talk.thread, follow_up)
    gate.open.set()
    await talk.paused()
    await talk.client.approve(talk.thread, call_id)
    settled = await talk.until(turn, "complete")
    assert results_of(settled) == [("ok", "held"), ("ok", "paid 3")]
    assert len(talk.model.requests) == 2


@pytest.mark.parametrize("way", ["result", "approve"])
async def test_case_54_55_while_another_call_of_the_step_runs(way: str, converse: Converse) -> None:
    """The mark is gone with the follow-up: what is decided is taken at once; the turn goes on with the last call."""
    talk, gate, turn, call_id, follow_up = await followed_in_flight(converse)
    with pytest.raises(UsageError, match="another message followed its turn"):
        await talk.client.approve(talk.thread, call_id)
    await talk.client.delete_message(talk.thread, follow_up)
    if way == "approve":
        assert (await talk.client.approve(talk.thread, call_id)).disposition == "settled"
    else:
        await talk.client.tool_result(talk.thread, call_id, "paid 3", message_id=turn)

    async def has_result() -> bool:
        return (await talk.client.store.get_call(talk.thread, call_id)).result is not None

    await eventually(has_result)
    assert (await talk.status(turn)).state == "running", "the other call is at work"
    gate.open.set()
    settled = await talk.until(turn, "complete")
    assert results_of(settled) == [("ok", "held"), ("ok", "paid 3")]
    assert text_of(settled) == "all done"
    assert len(talk.model.requests) == 2


async def test_a_second_follow_up_keeps_the_mark(converse: Converse) -> None:
    """Control of 54: with another message below the turn, deleting the first one brings nothing back."""
    talk, gate, turn, _, follow_up = await followed_in_flight(converse)
    await talk.client.send(talk.thread, "and another", run=False, parent_id=turn)
    await talk.client.delete_message(talk.thread, follow_up)
    gate.open.set()
    assert (await talk.until(turn, "incomplete")).status.reason == "cancelled"


async def test_case_56_a_pause_that_was_settled_stays_settled(converse: Converse) -> None:
    """Deleting what followed does not bring it back; a result is stored and runs nothing."""
    talk = await converse({"go": [Reply(Call("ask"))]})
    await talk.client.send(talk.thread, "go")
    turn, (call_id,) = await talk.paused()
    reply = await talk.say("never mind")
    question = (await talk.ids())[2]
    await talk.client.delete_message(talk.thread, reply.id)
    await talk.client.delete_message(talk.thread, question)
    assert (await talk.ids())[-1] == turn
    await talk.client.tool_result(talk.thread, call_id, "42", message_id=turn)
    settled = await talk.message(turn)
    assert (settled.status.state, settled.status.reason) == ("incomplete", "cancelled")
    assert results_of(settled) == [("ok", "42")]
    assert len(talk.model.requests) == 2


async def test_case_57_a_follow_up_that_is_refused_leaves_the_pause_intact(converse: Converse) -> None:
    """What could not be stored has never happened: the pause is answerable, and the turn goes on."""
    talk = await converse({"go": [PAY, "thanks"]})
    await talk.say("before", id="known")
    await talk.client.send(talk.thread, "go")
    turn, (call_id,) = await talk.paused()
    refused = await talk.client.send(talk.thread, "other words", id="known")
    assert refused.disposition == "conflict"
    assert (await talk.status(turn)).state == "requires_action"
    await talk.client.approve(talk.thread, call_id)
    assert text_of(await talk.until(turn, "complete")) == "thanks"


async def test_case_58_an_answer_below_a_pause_settles_it(converse: Converse) -> None:
    """A run that is placed under a paused answer is a follow-up too, also if another branch is shown meanwhile."""
    talk = await converse({"go": [PAY]})
    await talk.client.send(talk.thread, "go", id="m1")
    turn, _ = await talk.paused()
    words = (await talk.ids())[0]
    await talk.client.edit(talk.thread, words, "rather this")
    await talk.client.wait_settled(talk.thread)
    assert (await talk.status(turn)).state == "requires_action", "it rests on its own branch"
    accepted = await talk.client.send(talk.thread, "go on below", parent_id=turn)
    await talk.client.wait_settled(talk.thread, accepted.message_id)
    settled = await talk.status(turn)
    assert (settled.state, settled.reason) == ("incomplete", "cancelled")
    assert (await talk.ids())[:2] == [words, turn]


async def test_case_59_a_snapshot_from_before_the_follow_up_brings_the_pause_back(converse: Converse) -> None:
    """Imported over what became of it: the question can be answered, and the turn completes."""
    talk = await converse({"go": [PAY, "thanks"]})
    await talk.client.send(talk.thread, "go")
    turn, (call_id,) = await talk.paused()
    snapshot = await talk.client.export_thread(talk.thread)
    await talk.say("never mind")
    await talk.client.reset(talk.thread)
    await talk.client.import_thread(talk.thread, snapshot)
    shown, (again,) = await talk.paused()
    assert shown != turn, "what was deleted does not come back: the turn of the file is another one"
    assert again == call_id, "it asks about the same call"
    await talk.client.approve(talk.thread, again)
    assert text_of(await talk.until(shown, "complete")) == "thanks"
