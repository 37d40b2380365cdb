"""What deletions do to turns that are under way, wait for people, or wait for their turn."""

import asyncio

import pytest

from perdure.agent import Agent
from perdure.builtins import Timers
from perdure.errors import UsageError
from perdure.testing import Asked, Call, Reply, ScriptedModel
from tests.cases.conftest import Converse
from tests.cases.conversation import ASK, PAY, results_of, text_of
from tests.eventually import eventually


async def test_a_question_outlives_the_words_above_it(converse: Converse) -> None:
    """Its turn moves up, and goes on when it is approved: the model reads nothing of the deleted words."""

    def script(asked: Asked) -> Reply | str:
        return "thanks" if asked.results else PAY

    talk = await converse(script=script)
    await talk.client.send(talk.thread, "go")
    turn, (call_id,) = await talk.paused()
    await talk.client.delete_message(talk.thread, (await talk.ids())[0])
    assert await talk.ids() == [turn]
    assert (await talk.status(turn)).state == "requires_action"
    await talk.stack.restart_worker()
    await talk.client.approve(talk.thread, call_id)
    settled = await talk.until(turn, "complete")
    assert results_of(settled) == [("ok", "paid 3")]
    assert "'go'" not in str(talk.model.requests[-1].messages)


@pytest.mark.parametrize("running", [False, True], ids=["complete", "running"])
async def test_a_pause_that_a_deletion_shows_again_can_be_answered(running: bool, converse: Converse) -> None:
    """The answer that was made beside it goes, whether it is complete or under way."""
    other = Reply("one two", chunk_chars=4, hang=running)
    talk = await converse({"go": [PAY, other, "thanks"]})
    await talk.client.send(talk.thread, "go")
    turn, (call_id,) = await talk.paused()
    made = await talk.client.regenerate(talk.thread, turn)
    if running:
        await talk.until_streams("one")
    else:
        await talk.client.wait_settled(talk.thread, made.message_id)
    assert made.message_id is not None
    await talk.client.delete_message(talk.thread, made.message_id)
    assert (await talk.paused())[1] == [call_id]
    await talk.client.approve(talk.thread, call_id)
    settled = await talk.until(turn, "complete")
    assert (results_of(settled), text_of(settled)) == ([("ok", "paid 3")], "thanks")


async def test_words_that_queue_are_answered_after_the_turn_before_them_is_deleted(converse: Converse) -> None:
    """They follow what is left."""
    talk = await converse({"go": [Reply("one two", chunk_chars=4, hang=True)]})
    await talk.client.send(talk.thread, "go")
    await talk.until_streams("one")
    queued = await talk.client.send(talk.thread, "next", mode="queue")
    assert queued.disposition == "queued"
    await talk.client.delete_message(talk.thread, (await talk.ids())[-1])
    await talk.client.wait_settled(talk.thread, queued.message_id)
    assert await talk.shown() == ["go", "next", "answer 1 to next"]


async def test_a_sleeper_that_is_deleted_wakes_nobody(converse: Converse) -> None:
    """Its timer goes with it; the thread is idle, and takes the next words."""

    def declare(model: ScriptedModel) -> Agent:
        return Agent("a", model=model, toolsets=[Timers()])

    talk = await converse({"go": [Reply(Call("sleep", {"seconds": 3600})), "awake"]}, agent=declare)
    await talk.client.send(talk.thread, "go")

    async def sleeps() -> bool:
        return any(call.due for call in await talk.client.open_calls(talk.thread))

    await eventually(sleeps)
    await talk.client.delete_message(talk.thread, (await talk.ids())[-1])
    status = await talk.client.status(talk.thread)
    assert (status.state, status.open_calls) == ("idle", ())
    assert text_of(await talk.say("hello")) == "answer 1 to hello"
    assert len(talk.model.requests) == 2


async def test_a_stop_and_a_deletion_at_once(converse: Converse) -> None:
    """Whichever comes first: the turn is gone, and neither is an error."""
    talk = await converse({"go": [Reply("one two", chunk_chars=4, hang=True)]})
    await talk.client.send(talk.thread, "go")
    await talk.until_streams("one")
    turn = (await talk.ids())[-1]
    await asyncio.gather(talk.client.stop(talk.thread), talk.client.delete_message(talk.thread, turn))
    assert turn not in await talk.ids()
    assert text_of(await talk.say("and now?")) == "answer 1 to and now?"


async def test_a_result_for_a_deleted_call_is_dropped(converse: Converse) -> None:
    """There is nothing that it could belong to, and nothing of it is stored. Who can be told so is told."""
    talk = await converse({"go": [ASK]})
    await talk.client.send(talk.thread, "go")
    turn, (call_id,) = await talk.paused()
    await talk.client.delete_message(talk.thread, turn)
    with pytest.raises(UsageError, match="There is no call"):
        await talk.client.tool_result(talk.thread, call_id, "42")
    await talk.stack.handle(talk.thread).signal("tool_result", {"call_id": call_id, "content": "42"})
    assert text_of(await talk.say("and now?")) == "answer 1 to and now?"
    assert await talk.shown() == ["go", "and now?", "answer 1 to and now?"]


async def test_another_answer_for_deleted_words_is_refused(converse: Converse) -> None:
    """Regenerating, editing, switching, annotating: all name what is not there, and change nothing."""
    talk = await converse()
    answer = await talk.say("go")
    words = (await talk.ids())[0]
    for message in (answer.id, words):
        await talk.client.delete_message(talk.thread, message)
        for change in (
            talk.client.regenerate(talk.thread, message),
            talk.client.edit(talk.thread, message, "else"),
            talk.client.switch_branch(talk.thread, message),
            talk.client.feedback(talk.thread, message, 1),
            talk.client.send(talk.thread, "below", parent_id=message),
            talk.client.reset(talk.thread, message),
        ):
            with pytest.raises(UsageError):
                await change
    assert await talk.path() == []
    assert len(talk.model.requests) == 1
