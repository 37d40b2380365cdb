"""What ends: threads that are closed, decisions that lasted; and what nobody may do by mistake."""

import pytest
from temporalio.client import WorkflowUpdateFailedError

from perdure.errors import ThreadClosed, UsageError
from tests.cases.conftest import Converse
from tests.cases.conversation import PAY, call_in, results_of, typed


async def test_closing_settles_what_waits_for_people_on_every_branch(converse: Converse) -> None:
    """Nobody could answer it any more: the one that is shown, and the one that rests on another branch."""
    talk = await converse({"go": [PAY], "go again": [PAY]})
    accepted = await talk.client.send(talk.thread, "go")
    resting, (resting_call,) = await talk.paused()
    await talk.client.edit(talk.thread, accepted.message_id, "go again")
    shown, _ = await talk.paused()
    assert shown != resting
    await talk.client.close_thread(talk.thread)
    for turn in (resting, shown):
        message = await talk.message(turn)
        assert (message.status.state, message.status.reason) == ("incomplete", "cancelled")
        decision = call_in(message).decision
        assert decision is not None
        assert decision.resolution == "cancelled"
        assert [outcome for outcome, _ in results_of(message)] == ["cancelled"]
    assert await talk.client.approvals(talk.thread) == ()
    with pytest.raises(UsageError):
        await talk.client.approve(talk.thread, resting_call)


async def test_a_closed_thread_takes_deletions_and_nothing_else(converse: Converse) -> None:
    """Whoever has a right to have words deleted has it after the conversation is over."""
    talk = await converse()
    await talk.say("one")
    await talk.say("two")
    await talk.client.close_thread(talk.thread)
    first = (await talk.ids())[0]
    for refused in (talk.client.regenerate(talk.thread, first), talk.client.switch_branch(talk.thread, first)):
        with pytest.raises(ThreadClosed):
            await refused
    assert (await talk.client.delete_message(talk.thread, first)).disposition == "changed"
    assert await talk.shown() == ["answer 1 to one", "two", "answer 1 to two"]
    await talk.client.reset(talk.thread)
    assert await talk.shown() == []


async def test_a_reset_of_everything_takes_lasting_decisions_along(converse: Converse) -> None:
    """Nothing is left of what they were made in view of, so people are asked again."""
    talk = await converse({"go": [PAY, "done", PAY, "done"], "again": [PAY, "done"]})
    await talk.client.send(talk.thread, "go")
    _, (call_id,) = await talk.paused()
    await talk.client.decide(talk.thread, call_id, option_id="allow_always")
    await talk.client.wait_settled(talk.thread)
    assert (await talk.say("again")).status.state == "complete", "it holds"
    await talk.client.reset(talk.thread)
    await talk.client.send(talk.thread, "go")
    await talk.paused()


async def test_only_yes_and_no_release_a_call(converse: Converse) -> None:
    """What is merely taken for one elsewhere does not."""
    talk = await converse({"go": [PAY]})
    await talk.client.send(talk.thread, "go")
    _, (call_id,) = await talk.paused()
    for approved in ("yes", 1, "true"):
        with pytest.raises(WorkflowUpdateFailedError):
            await typed(talk, "decide", {"call_id": call_id, "approved": approved})
    assert (await talk.paused())[1] == [call_id]


async def test_only_words_of_the_user_are_edited(converse: Converse) -> None:
    """An answer is made anew; words in its place would stand beside it as if it were a question."""
    talk = await converse()
    answer = await talk.say("one")
    with pytest.raises(UsageError, match="answer anew"):
        await talk.client.edit(talk.thread, answer.id, "other")
