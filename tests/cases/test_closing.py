"""What closing a thread does to turns that wait for people."""

import pytest

from perdure.errors import UsageError
from tests.cases.conftest import Converse
from tests.cases.conversation import PAY, call_in, results_of


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
