"""Whatever people decide lasts: over continue-as-new, hibernation and another worker, however often it is asked for."""

from collections.abc import Awaitable, Callable

import pytest

from perdure.agent import Agent
from perdure.approval import ApprovalOption, ApprovalRequest
from perdure.contract import TreeChanged
from perdure.errors import UsageError
from perdure.inputs import Accepted
from perdure.testing import Call, Reply, ScriptedModel
from tests.cases.breaks import Break
from tests.cases.conftest import Converse
from tests.cases.conversation import (
    ASK,
    PAY,
    Conversation,
    Gate,
    agent_of,
    call_in,
    kinds_of,
    results_of,
    text_of,
    with_gate,
)
from tests.eventually import eventually

Ask = Callable[[], Awaitable[TreeChanged | Accepted]]

BOTH = Reply(Call("pay", '{"amount": 1}'), Call("pay", '{"amount": 2}'))
# A run takes a second to end: Temporal's timers are no quicker.
ENDS_RUNS = pytest.param("continue", marks=pytest.mark.slow)


@pytest.fixture(params=[ENDS_RUNS, "hibernate", "restart"])
def between(request: pytest.FixtureRequest) -> Break:
    """Each of what a thread has to outlast."""
    return Break(request.param)


class People:
    """They ask for changes, and ask for each of them again, at once and much later."""

    def __init__(self, talk: Conversation, between: Break) -> None:
        self.talk = talk
        self.between = between
        self.asked: list[Ask] = []

    async def ask(self, ask: Ask) -> TreeChanged | Accepted:
        """Something is done once: after the break the same request is known, and nothing is changed by it."""
        answer = await ask()
        assert answer.disposition not in ("duplicate", "conflict")

        async def rests() -> bool:
            status = await self.talk.client.status(self.talk.thread)
            # A run that has just begun says that it is idle before it knows its thread.
            return status.agent != "" and status.state == "idle"

        await eventually(rests)
        await self.between.come(self.talk)
        await self.again(ask)
        self.asked.append(ask)
        return answer

    async def again(self, ask: Ask) -> None:
        """The same request, which is known."""
        before = await self.talk.client.export_thread(self.talk.thread)
        assert (await ask()).disposition == "duplicate"
        assert await self.talk.client.export_thread(self.talk.thread) == before


async def test_changes_of_the_tree_last(between: Break, converse: Converse) -> None:
    """Each is done once, however often it is asked for, also when what it was about is long gone."""
    talk = await converse({"go": ["first", "second"]}, agent=between.declared())
    client, thread, people = talk.client, talk.thread, People(talk, between)
    first = await talk.say("go")
    words = (await talk.ids())[0]
    await between.come(talk)
    second = await people.ask(lambda: client.regenerate(thread, first.id, id="r1"))
    assert isinstance(second, TreeChanged)
    assert second.message_id is not None
    assert await talk.shown() == ["go", "second"]
    await people.ask(lambda: client.switch_branch(thread, first.id, id="s1"))
    assert await talk.shown() == ["go", "first"]
    await people.ask(lambda: client.edit(thread, words, "rather this", id="e1"))
    assert await talk.shown() == ["rather this", "answer 1 to rather this"]
    await people.ask(lambda: client.annotate(thread, words, {"mark": 1}, id="n1"))
    assert (await talk.message(words)).metadata == {"mark": 1}
    await people.ask(lambda: client.switch_branch(thread, words, id="s2"))
    assert await talk.shown() == ["go", "first"]
    exported = await client.export_thread(thread)
    await people.ask(lambda: client.delete_message(thread, first.id, id="d1"))
    assert await talk.shown() == ["go", "second"]
    await people.ask(lambda: client.import_thread(thread, exported, id="i1"))
    assert await talk.shown() == ["go", "first"]
    await people.ask(lambda: client.reset(thread, words, id="t1"))
    assert await talk.shown() == ["go"]
    asked = len(talk.model.requests)
    for request in people.asked:
        await people.again(request)
    assert await talk.shown() == ["go"]
    assert len(talk.model.requests) == asked == 3


async def test_decisions_last(between: Break, converse: Converse) -> None:
    """The first answer stays, the turn goes on with the last one, and each tool runs as often as it was approved."""
    talk = await converse({"go": [BOTH, "thanks"]}, agent=between.declared())
    await talk.client.send(talk.thread, "go", id="m1")
    turn, (first, second) = await talk.paused(2)
    await between.come(talk)
    assert (await talk.client.deny(talk.thread, first, "too much")).disposition == "settled"
    await between.come(talk)
    assert (await talk.client.deny(talk.thread, first, "too much", by="bob")).disposition == "duplicate"
    with pytest.raises(UsageError, match="decided about before"):
        await talk.client.approve(talk.thread, first)
    await between.come(talk)
    assert (await talk.paused())[1] == [second]
    assert len(talk.model.requests) == 1
    await talk.client.approve(talk.thread, second)
    settled = await talk.until(turn, "complete")
    await between.come(talk)
    assert results_of(settled) == [("denied", '{"error":"too much"}'), ("ok", "paid 2")]
    with pytest.raises(UsageError):
        await talk.client.deny(talk.thread, second)
    assert (await talk.client.approve(talk.thread, second, by="bob")).disposition == "duplicate"
    assert await talk.message(turn) == settled
    assert len(talk.model.requests) == 2


async def test_results_of_people_last(between: Break, converse: Converse) -> None:
    """A preliminary one, the first of two, the last one: each stays, and comes again without effect."""
    talk = await converse({"go": [Reply(Call("ask"), Call("ask")), "thanks"]}, agent=between.declared())
    client, thread = talk.client, talk.thread
    await client.send(thread, "go", id="m1")
    turn, (first, second) = await talk.paused(2)
    await between.come(talk)
    await client.tool_result(thread, first, "half", preliminary=True)
    await between.come(talk)
    interim = {call.call_id: call.interim for call in (await client.store.snapshot(thread)).calls}[first]
    assert interim is not None
    assert interim.content == "half"
    brought = await client.tool_result(thread, first, "1", message_id=turn)
    assert brought is not None
    assert brought.disposition == "settled"
    await between.come(talk)
    again = await client.tool_result(thread, first, "1", message_id=turn)
    assert again is not None
    assert again.disposition == "duplicate"
    assert len(talk.model.requests) == 1
    await client.tool_result(thread, second, "2", message_id=turn)
    settled = await talk.until(turn, "complete")
    await between.come(talk)
    assert results_of(settled) == [("ok", "1"), ("ok", "2")]
    await client.tool_result(thread, second, "2", message_id=turn)
    assert await talk.message(turn) == settled
    assert len(talk.model.requests) == 2


async def test_a_late_result_lasts(between: Break, converse: Converse) -> None:
    """It takes the place of what was put there when the turn ended, and nothing runs, then or later."""
    talk = await converse({"go": [ASK]}, agent=between.declared())
    await talk.client.send(talk.thread, "go", id="m1")
    turn, (call_id,) = await talk.paused()
    await talk.say("never mind")
    await between.come(talk)
    for _ in range(2):
        await talk.client.tool_result(talk.thread, call_id, "42", message_id=turn)
        await between.come(talk)
        assert results_of(await talk.message(turn)) == [("ok", "42")]
    await talk.say("and now")
    assert "42" in str(talk.model.requests[-1].messages)
    assert len(talk.model.requests) == 3


@pytest.mark.parametrize("kind", ["allow_always", "reject_always"])
async def test_remembered_decisions_last(kind: str, between: Break, converse: Converse) -> None:
    """What was decided for all such calls holds in later turns, without a question."""

    def declare(model: ScriptedModel) -> Agent:
        agent = Agent("a", model=model)
        always = ApprovalRequest(options=(ApprovalOption(id="always", kind=kind),))

        @agent.tool(approval=lambda arguments: always)
        async def pay(amount: int = 0) -> str:
            """Pay."""
            return f"paid {amount}"

        return agent

    talk = await converse({"go": [PAY, "thanks"], "once more": [BOTH, "thanks"]}, agent=between.declared(declare))
    await talk.client.send(talk.thread, "go", id="m1")
    turn, (call_id,) = await talk.paused()
    await between.come(talk)
    await talk.client.decide(talk.thread, call_id, option_id="always", by="ann")
    await talk.until(turn, "complete")
    await between.come(talk)
    settled = await talk.say("once more")
    outcome = "ok" if kind == "allow_always" else "denied"
    assert [what for what, _ in results_of(settled)] == [outcome, outcome]
    decision = call_in(settled).decision
    assert decision is not None
    assert (decision.remembered, decision.by) == (True, "ann")


async def test_a_pause_on_a_hidden_branch_lasts(between: Break, converse: Converse) -> None:
    """Nobody can decide there while it is hidden; shown again it goes on where it was."""
    talk = await converse({"go": [PAY, "thanks"]}, agent=between.declared())
    await talk.client.send(talk.thread, "go", id="m1")
    turn, (call_id,) = await talk.paused()
    words = (await talk.ids())[0]
    await talk.client.edit(talk.thread, words, "rather this", id="e1")
    await talk.client.wait_settled(talk.thread)
    await between.come(talk)
    assert (await talk.status(turn)).state == "requires_action"
    with pytest.raises(UsageError):
        await talk.client.approve(talk.thread, call_id)
    assert (await talk.client.status(talk.thread)).state == "idle"
    await between.come(talk)
    await talk.client.switch_branch(talk.thread, turn)
    await between.come(talk)
    assert (await talk.paused())[1] == [call_id]
    await talk.client.approve(talk.thread, call_id)
    settled = await talk.until(turn, "complete")
    assert results_of(settled) == [("ok", "paid 3")]
    assert await talk.shown() == ["go", "thanks"]
    assert len(talk.model.requests) == 3


async def test_two_pauses_on_two_branches_last(between: Break, converse: Converse) -> None:
    """Each is decided about on its own branch, in any order."""
    talk = await converse({"go": [PAY, BOTH, "first done", "second done"]}, agent=between.declared())
    await talk.client.send(talk.thread, "go", id="m1")
    first, (call_id,) = await talk.paused()
    await between.come(talk)
    second = (await talk.client.regenerate(talk.thread, first)).message_id
    assert second is not None
    assert (await talk.paused(2))[0] == second
    await between.come(talk)
    await talk.client.switch_branch(talk.thread, first)
    await between.come(talk)
    assert (await talk.paused())[0] == first
    await talk.client.approve(talk.thread, call_id)
    assert text_of(await talk.until(first, "complete")) == "first done"
    assert (await talk.status(second)).state == "requires_action"
    await between.come(talk)
    await talk.client.switch_branch(talk.thread, second)
    _, calls = await talk.paused(2)
    await between.come(talk)
    for each in calls:
        await talk.client.approve(talk.thread, each)
    assert results_of(await talk.until(second, "complete")) == [("ok", "paid 1"), ("ok", "paid 2")]
    assert len(talk.model.requests) == 4


@pytest.mark.parametrize("kind", [ENDS_RUNS, "restart"])
async def test_an_expiry_lasts(kind: str, converse: Converse) -> None:
    """The time of a question goes on, whoever owns the thread; a thread with such a time does not hibernate."""
    between = Break(kind)

    def declare(model: ScriptedModel) -> Agent:
        agent = agent_of(model)

        @agent.tool(approval=lambda arguments: ApprovalRequest(expires_s=3))
        async def hurry() -> str:
            """Hurry."""
            return "hurried"

        return agent

    talk = await converse({"go": [Reply(Call("hurry"), Call("pay")), "too late"]}, agent=between.declared(declare))
    await talk.client.send(talk.thread, "go", id="m1")
    turn, (hurried, paid) = await talk.paused(2)

    async def asked_until() -> float | None:
        return {call.call_id: call.due for call in await talk.client.open_calls(talk.thread)}.get(hurried)

    due = await eventually(asked_until)
    await between.come(talk)
    await talk.client.approve(talk.thread, paid)
    await between.come(talk)
    assert await asked_until() in (due, None), "the time does not begin anew"
    settled = await talk.until(turn, "complete")
    assert [outcome for outcome, _ in results_of(settled)] == ["expired", "ok"]


@pytest.mark.slow
async def test_a_hidden_answer_lasts_from_run_to_run(converse: Converse) -> None:
    """Steps end runs here: the thread knows in each of them that another branch is shown."""
    between, gate = Break("continue"), Gate()
    replies = {"go": ["old", Reply(Call("hold")), Reply(Call("look")), Reply(Call("look")), "new"]}
    talk = await converse(replies, agent=between.declared(with_gate(gate)))
    old = await talk.say("go")
    turn = (await talk.client.regenerate(talk.thread, old.id)).message_id
    assert turn is not None
    await gate.begun.wait()
    await talk.client.switch_branch(talk.thread, old.id)
    gate.open.set()
    new = await talk.until(turn, "complete")
    assert kinds_of(new.parts) == ["tool_call", "tool_result"] * 3 + ["text"]
    assert await talk.shown() == ["go", "old"]
    assert (await talk.client.status(talk.thread)).problems == ()
