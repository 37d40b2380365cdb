"""Cases 36 to 48: approvals and human tools, on a real thread."""

import asyncio

import pytest

from perdure.agent import Agent
from perdure.approval import ApprovalRequest
from perdure.errors import UsageError
from perdure.messages import Status
from perdure.testing import Call, Reply, ScriptedModel
from tests.cases.conftest import Converse
from tests.cases.conversation import ASK, PAY, Gate, call_in, kinds_of, results_of, text_of, with_gate
from tests.eventually import eventually


async def test_case_36_a_human_tool_pauses_after_one_model_call(converse: Converse) -> None:
    """Another tool goes on by itself."""
    talk = await converse({"go": [ASK], "look": [Reply(Call("look")), "seen"]})
    await talk.say("look")
    assert len(talk.model.requests) == 2
    await talk.client.send(talk.thread, "go")
    turn, _ = await talk.paused()
    assert len(talk.model.requests) == 3
    assert await talk.status(turn) == Status(state="requires_action")


@pytest.mark.parametrize(("content", "stored"), [(False, "false"), (0, "0"), ("", ""), (None, "null")])
async def test_case_37_every_result_is_one(converse: Converse, content: object, stored: str) -> None:
    """Also one that is empty or says no."""
    talk = await converse({"go": [ASK, "thanks"]})
    await talk.client.send(talk.thread, "go")
    turn, (call_id,) = await talk.paused()
    await talk.client.tool_result(talk.thread, call_id, content)
    settled = await talk.until(turn, "complete")
    assert results_of(settled) == [("ok", stored)]
    assert text_of(settled) == "thanks"


async def test_case_38_the_first_of_two_results_is_stored_and_the_second_resumes(converse: Converse) -> None:
    """One model call in between."""
    talk = await converse({"go": [Reply(Call("ask"), Call("ask")), "thanks"]})
    await talk.client.send(talk.thread, "go")
    turn, (first, second) = await talk.paused(2)
    await talk.client.tool_result(talk.thread, first, "1")
    await talk.waiting(1)
    assert len(talk.model.requests) == 1
    await talk.client.tool_result(talk.thread, second, "2")
    assert [content for _, content in results_of(await talk.until(turn, "complete"))] == ["1", "2"]


async def test_case_39_a_question_pauses_whatever_the_tool_is(converse: Converse) -> None:
    """A plain function is not run before somebody says so."""
    talk = await converse({"go": [PAY]})
    await talk.client.send(talk.thread, "go")
    turn, (call_id,) = await talk.paused()
    assert results_of(await talk.message(turn)) == []
    (waits,) = await talk.client.approvals(talk.thread)
    assert waits.call_id == call_id


async def test_case_40_41_an_approved_call_runs_once_and_its_turn_goes_on(converse: Converse) -> None:
    """On the same message: the call keeps its name and its decision, its result stands behind it, then the words."""
    talk = await converse({"go": [PAY, "thanks"]})
    await talk.client.send(talk.thread, "go")
    turn, (call_id,) = await talk.paused()
    approved = await talk.client.approve(talk.thread, call_id, by="ann")
    assert approved.pending == ()
    settled = await talk.until(turn, "complete")
    assert kinds_of(settled.parts) == ["tool_call", "tool_result", "text"]
    call = call_in(settled)
    assert call.tool == "pay"
    assert call.decision is not None
    assert (call.decision.approved, call.decision.by) == (True, "ann")
    assert results_of(settled) == [("ok", "paid 3")]
    assert len(talk.model.requests) == 2


@pytest.mark.parametrize("reason", [None, "too much"])
async def test_case_42_a_denied_call_does_not_run_and_its_turn_goes_on(converse: Converse, reason: str | None) -> None:
    """The model reads why."""
    talk = await converse({"go": [PAY, "I see"]})
    await talk.client.send(talk.thread, "go")
    turn, (call_id,) = await talk.paused()
    await talk.client.deny(talk.thread, call_id, reason)
    settled = await talk.until(turn, "complete")
    ((outcome, content),) = results_of(settled)
    assert outcome == "denied"
    assert '"error"' in content
    assert (reason or "") in content
    assert text_of(settled) == "I see"


async def test_case_43_a_turn_goes_on_when_all_is_decided(converse: Converse) -> None:
    """By different people; what was decided stays."""
    talk = await converse({"go": [Reply(Call("pay", '{"amount": 1}'), Call("pay", '{"amount": 2}')), "thanks"]})
    await talk.client.send(talk.thread, "go")
    turn, (first, second) = await talk.paused(2)
    assert (await talk.client.deny(talk.thread, first, by="ann")).pending == (second,)
    with pytest.raises(UsageError, match="decided about before"):
        await talk.client.approve(talk.thread, first, by="bob")
    assert len(talk.model.requests) == 1
    await talk.client.approve(talk.thread, second, by="bob")
    assert [outcome for outcome, _ in results_of(await talk.until(turn, "complete"))] == ["denied", "ok"]


async def test_case_44_a_decision_about_what_streams_waits_until_it_is_stored(converse: Converse) -> None:
    """Nothing runs before; then the decision counts, and one about another call is refused."""
    talk = await converse({"go": [Reply(Call("pay", '{"amount": 3}'), "and words", chunk_chars=3, delay_s=0.1)]})
    await talk.client.send(talk.thread, "go")

    async def call_id() -> str | None:
        live = (await talk.client.store.snapshot(talk.thread)).live
        return next((part.call_id for part in live.parts if part.kind == "tool_call"), None) if live else None

    streaming = await eventually(call_id)
    assert streaming is not None
    unknown = asyncio.create_task(talk.client.approve(talk.thread, "call_nowhere"))
    assert (await talk.client.deny(talk.thread, streaming)).disposition == "settled"
    with pytest.raises(UsageError):
        await unknown
    assert results_of(await talk.client.wait_settled(talk.thread))[0][0] == "denied"


async def test_case_45_a_question_expires_by_a_durable_timer(converse: Converse) -> None:
    """That counts as decided: the turn goes on, also over a restart of the worker, and answering comes too late."""

    def hurried(model: ScriptedModel) -> Agent:
        agent = Agent("a", model=model)

        @agent.tool(approval=lambda arguments: ApprovalRequest(expires_s=1.5))
        async def pay(amount: int = 0) -> str:
            """Pay."""
            return f"paid {amount}"

        return agent

    talk = await converse({"go": [PAY, "too late then"]}, agent=hurried)
    await talk.client.send(talk.thread, "go")
    turn, (call_id,) = await talk.paused()
    await talk.stack.restart_worker()
    settled = await talk.until(turn, "complete")
    assert [outcome for outcome, _ in results_of(settled)] == ["expired"]
    decision = call_in(settled).decision
    assert decision is not None
    assert decision.resolution == "expired"
    with pytest.raises(UsageError):
        await talk.client.approve(talk.thread, call_id)


async def test_case_46_what_is_not_there_is_refused(converse: Converse) -> None:
    """An unknown call, a message that is no answer, a call of another message."""
    talk = await converse({"go": [PAY]})
    await talk.client.send(talk.thread, "go")
    turn, (call_id,) = await talk.paused()
    words = (await talk.ids())[0]
    with pytest.raises(UsageError):
        await talk.client.approve(talk.thread, "call_nowhere")
    for message_id, call in (("nowhere", call_id), (words, call_id), (turn, "call_nowhere")):
        with pytest.raises(UsageError):
            await talk.client.tool_result(talk.thread, call, "x", message_id=message_id)
    assert (await talk.status(turn)).state == "requires_action"


async def test_case_47_a_preliminary_result_gives_way_to_the_final_one(converse: Converse) -> None:
    """Meanwhile readers see it and the call stays open."""
    talk = await converse({"go": [ASK, "thanks"]})
    await talk.client.send(talk.thread, "go")
    turn, (call_id,) = await talk.paused()
    await talk.client.tool_result(talk.thread, call_id, "half", preliminary=True)
    (call,) = (await talk.client.store.snapshot(talk.thread)).calls
    assert call.interim is not None
    assert call.interim.content == "half"
    assert (await talk.status(turn)).state == "requires_action"
    await talk.client.tool_result(talk.thread, call_id, "whole")
    assert results_of(await talk.until(turn, "complete")) == [("ok", "whole")]
    assert (await talk.client.store.snapshot(talk.thread)).calls == ()


async def test_case_48_a_turn_may_pause_again(converse: Converse) -> None:
    """On the same message."""
    talk = await converse({"go": [PAY, PAY, "thanks"]})
    await talk.client.send(talk.thread, "go")
    turn, (first,) = await talk.paused()
    await talk.client.approve(talk.thread, first)

    async def second() -> str | None:
        calls = [call.call_id for call in await talk.client.open_calls(talk.thread) if call.state == "approval"]
        return calls[0] if calls and calls != [first] else None

    call_id = await eventually(second)
    assert call_id is not None
    await talk.client.approve(talk.thread, call_id)
    settled = await talk.until(turn, "complete")
    assert results_of(settled) == [("ok", "paid 3"), ("ok", "paid 3")]


async def test_approving_beside_a_call_that_runs(converse: Converse) -> None:
    """Better than the local runtime: a question may be answered while another call of its step is at work."""
    gate = Gate()
    talk = await converse({"go": [Reply(Call("hold"), Call("pay")), "done"]}, agent=with_gate(gate))
    await talk.client.send(talk.thread, "go")
    await gate.begun.wait()
    (call,) = await talk.waiting()
    await talk.client.approve(talk.thread, call.call_id)
    gate.open.set()
    message = await talk.client.wait_settled(talk.thread)
    assert results_of(message) == [("ok", "held"), ("ok", "paid 0")]
