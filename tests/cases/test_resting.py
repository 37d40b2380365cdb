"""Turns that wait for people on a branch that is not shown: they are answered there, go on there, and expire there."""

from datetime import timedelta

import pytest

from perdure.agent import Agent
from perdure.approval import ApprovalRequest
from perdure.errors import UsageError
from perdure.inputs import ToolResult
from perdure.limits import Limits
from perdure.messages import FileRef
from perdure.testing import Call, Reply, ScriptedModel
from tests.cases.conftest import Converse
from tests.cases.conversation import ASK, PAY, Conversation, Gate, agent_of, call_in, results_of, text_of, with_gate
from tests.eventually import eventually

SOON_S = 2.0
"""How long a question waits that is to expire in a test."""


async def hidden(talk: Conversation, count: int = 1) -> tuple[str, list[str]]:
    """The turn about `go` rests, since its words were edited; returns it and its calls."""
    await talk.client.send(talk.thread, "go", id="m1")
    turn, calls = await talk.paused(count)
    await talk.client.edit(talk.thread, (await talk.ids())[0], "rather this", id="e1")
    await talk.client.wait_settled(talk.thread)
    assert (await talk.status(turn)).state == "requires_action"
    return turn, calls


async def goes_on(talk: Conversation, turn: str, said: str) -> None:
    """The turn ends by itself, and what is shown stays shown."""
    shown = await talk.ids()
    assert turn not in shown
    settled = await talk.until(turn, "complete")
    assert text_of(settled) == said
    assert await talk.ids() == shown


async def test_a_result_reaches_a_turn_that_is_not_shown(converse: Converse) -> None:
    """Without its message being named: it goes on at once, on its own branch, and the head stays where it is."""
    talk = await converse({"go": [ASK, "thanks"]})
    turn, (call_id,) = await hidden(talk)
    assert await talk.client.tool_result(talk.thread, call_id, "blue") is None
    await goes_on(talk, turn, "thanks")
    assert results_of(await talk.message(turn)) == [("ok", "blue")]
    assert "blue" in str(talk.model.requests[-1].messages)
    status = await talk.client.status(talk.thread)
    assert (status.state, status.dropped, status.problems) == ("idle", 0, ())


async def test_a_signal_is_enough(converse: Converse) -> None:
    """Typed by anybody, as the Temporal UI sends it; a second one changes nothing."""
    talk = await converse({"go": [ASK, "thanks"]})
    turn, (call_id,) = await hidden(talk)
    handle = talk.stack.handle(talk.thread)
    for content in ("first", "second"):
        await handle.signal("tool_result", {"call_id": call_id, "content": content})
    await goes_on(talk, turn, "thanks")
    assert results_of(await talk.message(turn)) == [("ok", "first")]


async def test_a_result_of_a_call_that_is_closed_or_unknown_is_dropped(converse: Converse) -> None:
    """The control: without the message nothing takes it, it is counted, and who waits for an answer is told."""
    talk = await converse({"go": [ASK]})
    await talk.client.send(talk.thread, "go", id="m1")
    turn, (call_id,) = await talk.paused()
    await talk.say("never mind")
    handle = talk.stack.handle(talk.thread)
    for name in (call_id, "call_nowhere"):
        await handle.signal("tool_result", {"call_id": name, "content": "late"})
        with pytest.raises(UsageError, match="Nobody waits"):
            await talk.client.tool_result(talk.thread, name, "half", preliminary=True)
    status = await talk.client.status(talk.thread)
    assert (status.dropped, status.problems) == (4, ())
    assert results_of(await talk.message(turn))[0][0] == "interrupted"


async def test_a_preliminary_result_is_shown_where_the_call_is(converse: Converse) -> None:
    """The call stays open, and its turn rests."""
    talk = await converse({"go": [ASK, "thanks"]})
    turn, (call_id,) = await hidden(talk)
    taken = await talk.client.tool_result(talk.thread, call_id, "half", preliminary=True)
    assert taken is not None
    assert taken.disposition == "changed"
    call = await talk.client.store.get_call(talk.thread, call_id)
    assert call.interim is not None
    assert (call.interim.content, call.result) == ("half", None)
    assert (await talk.status(turn)).state == "requires_action"
    await talk.client.tool_result(talk.thread, call_id, "whole")
    await goes_on(talk, turn, "thanks")


async def test_a_result_with_files_keeps_them(converse: Converse) -> None:
    """Large words and images are named by the result as they are by one that is shown."""
    talk = await converse({"go": [ASK, "thanks"]})
    turn, (call_id,) = await hidden(talk)
    blob = await talk.client.store.put_blob(talk.thread, b"\x89PNG", "image/png")
    file = FileRef(media_type="image/png", blob=blob, size_bytes=4)
    result = ToolResult(call_id=call_id, content="see", files=(file,))
    await talk.stack.handle(talk.thread).signal("tool_result", result)
    await goes_on(talk, turn, "thanks")
    (part,) = [part for part in (await talk.message(turn)).parts if part.kind == "tool_result"]
    assert part.files == (file,)


async def test_a_turn_goes_on_with_its_last_result(converse: Converse) -> None:
    """As long as something is lacking it rests; decisions are for what is shown."""
    talk = await converse({"go": [Reply(Call("ask"), Call("ask"), Call("pay", '{"amount": 3}')), "thanks"]})
    turn, (first, second, pay) = await hidden(talk, 3)
    for call_id in (second, first):
        taken = await talk.client.tool_result(talk.thread, call_id, call_id, message_id=turn)
        assert taken is not None
        assert taken.disposition == "settled"
    assert (await talk.status(turn)).state == "requires_action"
    with pytest.raises(UsageError, match="in what this thread shows"):
        await talk.client.approve(talk.thread, pay)
    await talk.client.switch_branch(talk.thread, turn)
    await talk.paused()
    await talk.client.approve(talk.thread, pay)
    settled = await talk.until(turn, "complete")
    assert results_of(settled) == [("ok", first), ("ok", second), ("ok", "paid 3")]


async def test_one_turn_works_at_a_time(converse: Converse) -> None:
    """Two are answered while a third one works: they go on after it, one after the other."""
    gate = Gate()
    replies = {"go": [ASK, ASK, Reply(Call("hold")), "first", "second"], "rather this": [Reply(Call("hold")), "done"]}
    talk = await converse(replies, agent=with_gate(gate))
    await talk.client.send(talk.thread, "go", id="m1")
    one, (first,) = await talk.paused()
    other = (await talk.client.regenerate(talk.thread, one)).message_id
    assert other is not None
    assert (await talk.paused())[0] == other
    (second,) = [call.call_id for call in await talk.waiting()]
    await talk.client.edit(talk.thread, (await talk.ids())[0], "rather this", id="e1")
    await gate.begun.wait()
    working = (await talk.ids())[-1]
    for call_id in (second, first):
        await talk.client.tool_result(talk.thread, call_id, "blue")

    async def are_staged() -> bool:
        return all([(await talk.client.store.get_call(talk.thread, name)).result for name in (first, second)])

    await eventually(are_staged)
    assert [(await talk.status(name)).state for name in (one, other)] == ["requires_action"] * 2
    gate.open.set()
    await talk.until(working, "complete")
    ended = [await talk.until(name, "complete") for name in (one, other)]
    assert sorted(map(text_of, ended)) == ["first", "second"]
    assert results_of(ended[0]) == [("ok", "blue"), ("ok", "held")], "the one that began first goes on first"
    assert (await talk.ids())[-1] == working


async def test_a_pause_that_is_shown_waits_for_it(converse: Converse) -> None:
    """It rests meanwhile, and can be answered afterwards; its time is not lost."""
    talk = await converse({"go": [ASK, "thanks"], "rather this": [PAY, "paid"]})
    await talk.client.send(talk.thread, "go", id="m1")
    turn, (call_id,) = await talk.paused()
    await talk.client.edit(talk.thread, (await talk.ids())[0], "rather this", id="e1")

    async def asks() -> bool:
        return (await talk.path())[-1].status.state == "requires_action" and (await talk.ids())[-1] != turn

    await eventually(asks)
    await talk.client.tool_result(talk.thread, call_id, "blue")
    await goes_on(talk, turn, "thanks")
    shown, (pay,) = await talk.paused()
    await talk.client.approve(talk.thread, pay)
    assert results_of(await talk.until(shown, "complete")) == [("ok", "paid 3")]


@pytest.mark.parametrize("kind", ["hibernate", "restart"])
async def test_a_result_wakes_a_thread_for_a_turn_that_is_not_shown(kind: str, converse: Converse) -> None:
    """Whoever owns the thread next."""

    def declare(model: ScriptedModel) -> Agent:
        agent = agent_of(model)
        agent.limits = Limits(idle=timedelta(seconds=0.7)) if kind == "hibernate" else Limits()
        return agent

    talk = await converse({"go": [ASK, "thanks"]}, agent=declare)
    turn, (call_id,) = await hidden(talk)
    if kind == "hibernate":
        await talk.stack.handle(talk.thread).result()
    else:
        await talk.stack.restart_worker()
    await talk.client.tool_result(talk.thread, call_id, "blue")
    await goes_on(talk, turn, "thanks")


async def test_a_subscription_is_opened_from_a_branch_that_is_not_shown(converse: Converse) -> None:
    """It sends its events as any other one does, and they join what is shown."""
    talk = await converse({"go": [ASK, "watching"]})
    turn, (call_id,) = await hidden(talk)
    await talk.client.tool_result(talk.thread, call_id, "It is on.", subscription=True)
    await goes_on(talk, turn, "watching")
    (subscription,) = (await talk.client.status(talk.thread)).subscriptions
    assert (subscription.call_id, subscription.tool) == (call_id, "ask")
    assert "cancel_subscription" in results_of(await talk.message(turn))[0][1]
    await talk.client.event(talk.thread, call_id, "tick", id="v1")

    async def has_come() -> bool:
        return any(message.role == "event" for message in await talk.path())

    await eventually(has_come)


def hurried(model: ScriptedModel) -> Agent:
    """An agent one of whose questions waits for a moment only; it hibernates soon."""
    agent = agent_of(model)
    agent.limits = Limits(idle=timedelta(seconds=0.7))

    @agent.tool(approval=lambda arguments: ApprovalRequest(expires_s=SOON_S))
    async def hurry() -> str:
        """Hurry."""
        return "hurried"

    return agent


async def test_a_question_expires_where_nobody_sees_it(converse: Converse) -> None:
    """Its turn goes on with that, and says what became of the question; the thread does not hibernate before."""
    talk = await converse({"go": [Reply(Call("hurry")), "too late"]}, agent=hurried)
    turn, _ = await hidden(talk)
    await goes_on(talk, turn, "too late")
    settled = await talk.message(turn)
    assert results_of(settled) == [("expired", "Nobody had approved the call in the time that was given.")]
    decision = call_in(settled).decision
    assert decision is not None
    assert decision.resolution == "expired"


async def test_a_question_that_was_never_shown_expires(converse: Converse) -> None:
    """Its time begins when its turn comes to it, though another branch is shown already."""
    gate = Gate()

    def declare(model: ScriptedModel) -> Agent:
        agent = hurried(model)

        @agent.tool
        async def hold() -> str:
            """Hold on."""
            await gate.passed()
            return "held"

        return agent

    talk = await converse({"go": ["first", Reply(Call("hold")), Reply(Call("hurry")), "too late"]}, agent=declare)
    old = await talk.say("go")
    turn = (await talk.client.regenerate(talk.thread, old.id)).message_id
    assert turn is not None
    await gate.begun.wait()
    await talk.client.switch_branch(talk.thread, old.id)
    gate.open.set()
    await talk.until(turn, "requires_action")
    await goes_on(talk, turn, "too late")
    assert [outcome for outcome, _ in results_of(await talk.message(turn))] == ["ok", "expired"]


async def test_deadlines_of_several_turns_are_kept_in_their_order(converse: Converse) -> None:
    """One that is deleted is waited for no more, and holds nothing up; what is left rests on."""
    two = Reply(Call("hurry"), Call("pay"))
    talk = await converse({"go": [two, Reply(Call("hurry")), "too late"]}, agent=hurried)
    await talk.client.send(talk.thread, "go", id="m1")
    one, (hurry, pay) = await talk.paused(2)
    other = (await talk.client.regenerate(talk.thread, one)).message_id
    assert other is not None
    assert (await talk.paused())[0] == other
    gone = (await talk.client.regenerate(talk.thread, one)).message_id
    assert gone is not None
    await talk.client.edit(talk.thread, (await talk.ids())[0], "rather this", id="e1")
    await talk.client.delete_message(talk.thread, gone)
    await talk.until(other, "complete")

    async def has_expired() -> bool:
        return (await talk.client.store.get_call(talk.thread, hurry)).result is not None

    await eventually(has_expired)
    assert (await talk.status(one)).state == "requires_action", "the other question of the turn waits on"
    assert (await talk.client.status(talk.thread)).dropped == 0
    await talk.client.switch_branch(talk.thread, one)
    assert (await talk.paused())[1] == [pay]
    await talk.client.approve(talk.thread, pay)
    assert [outcome for outcome, _ in results_of(await talk.until(one, "complete"))] == ["expired", "ok"]


async def test_a_stop_leaves_what_rests(converse: Converse) -> None:
    """It is for the turn that works or is shown: one that waits elsewhere is no part of what people look at."""
    talk = await converse({"go": [ASK, "thanks"]})
    turn, (call_id,) = await hidden(talk)
    assert (await talk.client.stop(talk.thread)).turn == 0
    assert (await talk.status(turn)).state == "requires_action"
    await talk.client.tool_result(talk.thread, call_id, "blue")
    await goes_on(talk, turn, "thanks")
