"""Cases 19 to 35: answers under way, beside each other, stopped, hidden, superseded."""

import asyncio
from collections.abc import AsyncGenerator, Callable

import pytest

from perdure.agent import Agent
from perdure.errors import TurnFailed
from perdure.limits import Limits
from perdure.messages import Status
from perdure.testing import Call, Failure, Reply, ScriptedModel
from tests.cases.conftest import Converse
from tests.cases.conversation import Conversation, Gate, agent_of, call_in, kinds_of, results_of, text_of, with_gate
from tests.cases.late_model import FIRST_WORDS, Ending, LateModel, SealedStore
from tests.eventually import eventually

SLOW = Reply("one two three four five six", chunk_chars=4, delay_s=0.1)
CANCELLED = Status(state="incomplete", reason="cancelled")


@pytest.fixture
async def store(database_url: str) -> AsyncGenerator[SealedStore]:
    """A store that tells when it has refused an answer that came late."""
    store = await SealedStore.connect(database_url)
    store.refused = asyncio.Event()
    yield store
    await store.close()


def with_late_model(ending: Ending, gate: Gate) -> Callable[[ScriptedModel], Agent]:
    """An agent whose model takes no notice of being cancelled."""

    def declare(model: ScriptedModel) -> Agent:
        agent = agent_of(model)
        agent.model = LateModel(model, ending, gate)
        return agent

    return declare


async def begun(talk: Conversation, words: str = FIRST_WORDS) -> str:
    """Say something and wait until the answer streams; its id."""
    await talk.client.send(talk.thread, "go", id="m1")
    await talk.until_streams(words)
    return (await talk.ids())[-1]


async def test_case_19_words_and_their_answer(converse: Converse) -> None:
    """A question and an answer, complete; or incomplete with the provider's reason."""
    talk = await converse({"go": ["hello"], "on": [Reply("cut o", finish="length")], "by": [Reply("x", finish="stop")]})
    assert (await talk.say("go")).status == Status()
    assert [message.role for message in await talk.path()] == ["user", "assistant"]
    assert await talk.shown() == ["go", "hello"]
    cut = (await talk.say("on")).status
    assert (cut.state, cut.reason) == ("incomplete", "length")
    assert (await talk.say("by")).status == Status()


async def test_case_20_another_attempt_takes_the_place_of_the_first(converse: Converse) -> None:
    """What streams is added up; but what a new attempt brings replaces what the one before had brought."""
    twice = Reply("one two three", chunk_chars=4, delay_s=0.1, failures=[Failure(after_chunks=2)])
    talk = await converse(script=[twice])
    await begun(talk, "one")
    settled = await talk.client.wait_settled(talk.thread)
    assert text_of(settled) == "one two three"
    assert settled.status == Status()
    assert len(talk.model.requests) == 2


async def test_case_21_a_provider_that_fails_ends_the_turn(converse: Converse) -> None:
    """Incomplete with the error, which the caller is told; the thread goes on."""
    talk = await converse({"go": [Reply("never", failures=[Failure(400, body="no such thing")])]})
    with pytest.raises(TurnFailed) as failed:
        await talk.client.ask(talk.thread, "go")
    status = (await talk.path())[-1].status
    assert (status.state, status.reason) == ("incomplete", "error")
    assert status.detail
    assert failed.value.status == status
    exported = await talk.client.export_thread(talk.thread)
    assert exported["messages"][-1]["message"]["status"] == {
        "type": "incomplete",
        "reason": "error",
        "error": {"code": "unknown", "message": status.detail},
    }
    assert text_of(await talk.say("and now")) == "answer 1 to and now"


@pytest.mark.parametrize("ending", ["raises", "returns", "delivers"])
async def test_case_22_a_stop_keeps_what_has_come(ending: Ending, converse: Converse, store: SealedStore) -> None:
    """Cancelled, with the words so far, whatever the provider does about it and when."""
    gate = Gate()
    talk = await converse(agent=with_late_model(ending, gate))
    turn = await begun(talk)
    assert (await talk.client.stop(talk.thread)).turn == 1
    stopped = await talk.message(turn)
    assert stopped.status == CANCELLED
    assert text_of(stopped) == FIRST_WORDS
    gate.open.set()
    if ending != "raises":
        await eventually(store.refused.is_set)
    # What the call that was stopped has cost is counted afterwards; nothing else may change.
    assert (await talk.message(turn)).with_(usage=None, seq=0) == stopped.with_(usage=None, seq=0)
    assert len(talk.model.requests) == 1
    assert text_of(await talk.say("and now")) == "answer 1 to and now"


async def test_case_23_a_stop_after_the_end_changes_nothing(converse: Converse) -> None:
    """What is complete stays so."""
    talk = await converse({"go": ["hello"]})
    answer = await talk.say("go")
    assert (await talk.client.stop(talk.thread)).turn == 0
    assert await talk.message(answer.id) == answer
    assert answer.status == Status()


async def test_case_24_another_answer_stands_beside_the_first(converse: Converse) -> None:
    """Below the same words; it is shown, and the first is as it was."""
    talk = await converse({"go": ["first", "second"]})
    first = await talk.say("go")
    changed = await talk.client.regenerate(talk.thread, first.id)
    second = await talk.client.wait_settled(talk.thread, changed.message_id)
    assert await talk.shown() == ["go", "second"]
    branches = await talk.client.branches(talk.thread, first.id)
    assert [(branch.message_id, branch.selected) for branch in branches] == [(first.id, False), (second.id, True)]
    assert await talk.message(first.id) == first
    # The model did not read the answer that is made anew.
    assert "first" not in str(talk.model.requests[-1].messages)


async def test_case_25_edited_first_words_begin_another_conversation(converse: Converse) -> None:
    """Beside the first one, which can be shown again."""
    talk = await converse()
    await talk.say("go")
    await talk.say("on")
    before = await talk.path()
    edited = await talk.client.edit(talk.thread, before[0].id, "rather this")
    await talk.client.wait_settled(talk.thread, edited.message_id)
    assert await talk.shown() == ["rather this", "answer 1 to rather this"]
    words = await talk.message(edited.message_id)
    assert (words.parent_id, words.source_id) == (None, before[0].id)
    await talk.client.switch_branch(talk.thread, before[0].id)
    assert await talk.path() == before


async def test_case_26_a_hidden_answer_goes_on_and_stays_hidden(converse: Converse) -> None:
    """Two more steps of it do not bring it back into view."""
    gate = Gate()
    replies = {"go": ["old", Reply(Call("hold")), Reply(Call("look")), "new"]}
    talk = await converse(replies, agent=with_gate(gate))
    old = await talk.say("go")
    turn = (await talk.client.regenerate(talk.thread, old.id)).message_id
    assert turn is not None
    await gate.begun.wait()
    await talk.client.switch_branch(talk.thread, old.id)
    assert await talk.shown() == ["go", "old"]
    gate.open.set()
    new = await talk.until(turn, "complete")
    assert kinds_of(new.parts) == ["tool_call", "tool_result", "tool_call", "tool_result", "text"]
    assert await talk.shown() == ["go", "old"]
    assert (await talk.client.status(talk.thread)).head_id == old.id
    await talk.client.switch_branch(talk.thread, turn)
    assert await talk.shown() == ["go", "new"]


async def test_case_27_a_hidden_answer_runs_and_can_be_stopped(converse: Converse) -> None:
    """The thread says that it is at work, and a stop reaches what nobody sees."""
    talk = await converse({"go": ["old", SLOW]})
    old = await talk.say("go")
    turn = (await talk.client.regenerate(talk.thread, old.id)).message_id
    assert turn is not None
    await talk.until_streams("one")
    await talk.client.switch_branch(talk.thread, old.id)
    assert (await talk.client.status(talk.thread)).state == "running"
    assert (await talk.status(turn)).state == "running"
    assert (await talk.client.stop(talk.thread)).turn == 2
    stopped = await talk.message(turn)
    assert stopped.status == CANCELLED
    assert text_of(stopped).startswith("one")
    assert await talk.shown() == ["go", "old"]
    assert (await talk.client.status(talk.thread)).state == "idle"


async def test_words_stop_a_hidden_answer(converse: Converse) -> None:
    """One answer at a time: what is said on the shown branch supersedes the hidden one."""
    talk = await converse({"go": ["old", SLOW]})
    old = await talk.say("go")
    turn = (await talk.client.regenerate(talk.thread, old.id)).message_id
    assert turn is not None
    await talk.until_streams("one")
    await talk.client.switch_branch(talk.thread, old.id)
    await talk.say("go on")
    assert await talk.status(turn) == CANCELLED
    assert await talk.shown() == ["go", "old", "go on", "answer 1 to go on"]


async def test_case_28_two_steps_are_one_message(converse: Converse) -> None:
    """Call, result and words, one after the other."""
    talk = await converse({"go": [Reply(Call("look", '{"what": "it"}')), "seen"]})
    answer = await talk.say("go")
    assert kinds_of(answer.parts) == ["tool_call", "tool_result", "text"]
    assert [part.step for part in answer.parts] == [0, 0, 1]
    assert results_of(answer) == [("ok", "saw it")]
    assert len(await talk.path()) == 2
    assert len((await talk.client.tree(talk.thread)).messages) == 2


async def test_case_29_a_turn_gets_no_step_above_the_limit(converse: Converse) -> None:
    """After the result the model is not asked again, and the turn says why."""

    def limited(model: ScriptedModel) -> Agent:
        agent = agent_of(model)
        agent.limits = Limits(steps=1)
        return agent

    talk = await converse({"go": [Reply(Call("look")), Reply(Call("look"))]}, agent=limited)
    answer = await talk.say("go")
    assert (answer.status.state, answer.status.reason) == ("incomplete", "limit")
    assert kinds_of(answer.parts) == ["tool_call", "tool_result"]
    assert len(talk.model.requests) == 1
    exported = await talk.client.export_thread(talk.thread)
    assert exported["messages"][-1]["message"]["status"]["reason"] == "tool-calls"
    assert text_of(await talk.say("and now")) == "answer 1 to and now"


async def test_case_30_words_under_a_running_answer_supersede_it(converse: Converse) -> None:
    """It is cancelled, and the model reads what it had said."""
    talk = await converse({"go": [SLOW]})
    turn = await begun(talk, "one")
    accepted = await talk.client.send(talk.thread, "wait")
    assert accepted.disposition == "interrupted"
    await talk.client.wait_settled(talk.thread, accepted.message_id)
    stopped = await talk.message(turn)
    assert stopped.status == CANCELLED
    assert await talk.shown() == ["go", text_of(stopped), "wait", "answer 1 to wait"]
    assert text_of(stopped) in str(talk.model.requests[-1].messages)
    assert len(talk.model.requests) == 2


@pytest.mark.parametrize("superseded_by", ["words", "another answer", "words elsewhere"])
async def test_case_31_what_a_superseded_provider_delivers_late_is_ignored(
    superseded_by: str, converse: Converse, store: SealedStore
) -> None:
    """Words and a question for approval: the answer stays cancelled, and the one in its place is not disturbed."""
    gate, hold = Gate(), Gate()

    def declare(model: ScriptedModel) -> Agent:
        agent = with_gate(hold)(model)
        agent.model = LateModel(model, "delivers", gate)
        return agent

    talk = await converse(
        {"go": ["not asked", Reply(Call("hold")), "done"], "wait": [Reply(Call("hold")), "done"]}, agent=declare
    )
    turn = await begun(talk)
    words = (await talk.ids())[0]
    if superseded_by == "words":
        await talk.client.send(talk.thread, "wait")
    elif superseded_by == "another answer":
        await talk.client.regenerate(talk.thread, turn)
    else:
        await talk.client.edit(talk.thread, words, "wait")
    await hold.begun.wait()
    replacement = (await talk.ids())[-1]
    cancelled = await talk.message(turn)
    gate.open.set()
    await eventually(store.refused.is_set)
    assert (await talk.status(replacement)).state == "running"
    assert await talk.client.approvals(talk.thread) == ()
    hold.open.set()
    assert text_of(await talk.until(replacement, "complete")) == "done"
    assert cancelled.status == CANCELLED
    assert text_of(cancelled) == FIRST_WORDS
    # What the call that was stopped has cost is counted afterwards; nothing else may change.
    assert (await talk.message(turn)).with_(usage=None, seq=0) == cancelled.with_(usage=None, seq=0)
    assert (await talk.ids())[-1] == replacement
    assert len(talk.model.requests) == 3


async def test_a_provider_that_is_not_superseded_delivers(converse: Converse, store: SealedStore) -> None:
    """Control of 31: the same words and the same question, in time."""
    gate = Gate()
    talk = await converse(agent=with_late_model("delivers", gate))
    turn = await begun(talk)
    gate.open.set()
    assert (await talk.paused())[0] == turn
    assert kinds_of((await talk.message(turn)).parts) == ["text", "tool_call"]
    assert not store.refused.is_set()


@pytest.mark.parametrize("below", [True, False])
async def test_case_32_a_reset_leaves_nothing_of_an_open_run(
    below: bool, converse: Converse, store: SealedStore
) -> None:
    """What it brings later is refused without an error, and the thread goes on."""
    gate = Gate()
    talk = await converse({"before": ["known"]}, agent=with_late_model("delivers", gate))
    turn = await begun(talk)
    words = (await talk.ids())[0]
    await talk.client.reset(talk.thread, words if below else None)
    left = ["go"] if below else []
    assert await talk.shown() == left
    gate.open.set()
    await eventually(store.refused.is_set)
    status = await talk.client.status(talk.thread)
    assert (status.state, status.problems) == ("idle", ())
    assert await talk.shown() == left
    tree = await talk.client.tree(talk.thread)
    assert turn not in [one.message.id for one in tree.messages]
    await talk.say("before")
    assert await talk.shown() == [*left, "before", "known"]


async def test_case_32_a_reset_ends_a_call_that_runs(converse: Converse) -> None:
    """What the tool returns later belongs to nothing."""
    gate = Gate()
    talk = await converse({"go": [Reply(Call("hold")), "never"]}, agent=with_gate(gate))
    await talk.client.send(talk.thread, "go")
    await gate.begun.wait()
    await talk.client.reset(talk.thread)
    gate.open.set()
    await talk.say("again")
    assert await talk.shown() == ["again", "answer 1 to again"]
    status = await talk.client.status(talk.thread)
    assert (status.state, status.problems, status.open_calls) == ("idle", (), ())
    assert len(talk.model.requests) == 2


async def test_case_33_feedback_in_mid_answer_stays(converse: Converse) -> None:
    """Over all that streams later, and it ends nothing."""
    talk = await converse({"go": [Reply("one two ", Call("look"), chunk_chars=4, delay_s=0.1), "done"]})
    turn = await begun(talk, "one")
    await talk.client.feedback(talk.thread, turn, "positive", "good start")
    settled = await talk.client.wait_settled(talk.thread, turn)
    assert settled.status == Status()
    assert text_of(settled) == "one two done"
    assert settled.metadata == {"feedback": {"value": "positive", "comment": "good start"}}
    assert len(talk.model.requests) == 2
    assert "good start" not in str(talk.model.requests[-1].messages)


async def test_case_34_a_result_that_comes_while_its_call_streams_is_kept(converse: Converse) -> None:
    """It waits until the call is durable; the model is not asked again for it, and reads it in the next step."""
    reply = Reply(Call("ask"), "and some more words", chunk_chars=3, delay_s=0.1)
    talk = await converse({"go": [reply, "thanks"]})
    await talk.client.send(talk.thread, "go")

    async def call_id() -> str | None:
        live = (await talk.client.store.snapshot(talk.thread)).live
        return next((part.call_id for part in live.parts if part.kind == "tool_call"), None) if live else None

    streaming = await eventually(call_id)
    assert streaming is not None
    await talk.client.tool_result(talk.thread, streaming, "42")
    assert len(talk.model.requests) == 1
    settled = await talk.client.wait_settled(talk.thread)
    assert kinds_of(settled.parts) == ["tool_call", "text", "tool_result", "text"]
    assert results_of(settled) == [("ok", "42")]
    assert len(talk.model.requests) == 2
    assert talk.model.requests[-1].results == ("42",)


async def test_case_35_a_call_id_that_a_provider_uses_again_is_another_call(converse: Converse) -> None:
    """In a later step of the same message: each call keeps its own result."""
    first, second = Call("look", '{"what": "a"}', id="same"), Call("look", '{"what": "b"}', id="same")
    talk = await converse({"go": [Reply(first), Reply(second), "done"]})
    answer = await talk.say("go")
    assert kinds_of(answer.parts) == ["tool_call", "tool_result", "tool_call", "tool_result", "text"]
    assert results_of(answer) == [("ok", "saw a"), ("ok", "saw b")]
    assert call_in(answer).call_id != call_in(answer, 1).call_id
    assert len(talk.model.requests) == 3
