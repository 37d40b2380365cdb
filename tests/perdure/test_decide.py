"""Decisions about calls, and stops of turns that wait for them, as the client sends them."""

import asyncio
from datetime import timedelta
from typing import Any

import pytest

from perdure.approval import REASON_CHARS, ApprovalRequest, Decision
from perdure.batch import AppendMessage
from perdure.contract import Approved
from perdure.control import ThreadControl
from perdure.errors import ThreadClosed, ThreadNotFound, Unreachable, UsageError
from perdure.inputs import INLINE_BYTES, Disposition
from perdure.messages import Message, TextPart, ToolCallPart
from perdure.thread_calls import NoRunningWorkflow
from perdure.waiting import no_question
from stores.memory import MemoryStore
from tests.eventually import eventually
from tests.perdure.recorded_calls import RecordedCalls
from tests.talk import THREAD, Talk

DECIDED = Approved(call_id="c1", pending=("c2",))


class Asleep(RecordedCalls):
    """Calls to threads without a running workflow."""

    def no_worker(self) -> Unreachable:
        """Nobody answers."""
        return Unreachable("No worker answered.")

    async def update(self, thread_id: str, update: str, answer: type[Any]) -> Any:
        """There is none to ask."""
        raise NoRunningWorkflow(thread_id)


class Fixture:
    """A thread whose turn waits for a decision, and what the client sends to it."""

    def __init__(self, talk: Talk) -> None:
        self.talk = talk
        self.calls = Asleep(answers={"decide": DECIDED})
        self.client = ThreadControl(talk.store, self.calls, timedelta(seconds=0.5))


@pytest.fixture
async def paused() -> Fixture:
    """The thread and its client."""
    talk = await Talk.begin(MemoryStore())
    await talk.say("hi")
    await talk.commit((TextPart(text="let me"), ToolCallPart(call_id="c1", tool="send", approval=ApprovalRequest())))
    await talk.pause()
    return Fixture(talk)


@pytest.mark.parametrize(
    ("decision", "sent"),
    [
        ({"approved": True}, {"approved": True}),
        ({"approved": False, "reason": "no"}, {"approved": False, "reason": "no"}),
        ({"option_id": "always", "by": "Ann"}, {"option_id": "always", "by": "Ann"}),
        ({"approved": True, "text": "do it"}, {"approved": True, "text": "do it"}),
        ({"answers": {"q": {"option_ids": ["a"]}}}, {"answers": {"q": {"option_ids": ["a"]}}}),
    ],
)
async def test_a_decision_says_only_what_was_said(
    paused: Fixture, decision: dict[str, Any], sent: dict[str, Any]
) -> None:
    """Whether that answers the question is the thread's to judge; it tells which calls wait still."""
    assert await paused.client.decide(THREAD, "c1", **decision) == DECIDED
    assert paused.calls.last() == ("decide", {"call_id": "c1", **sent})


async def test_yes_and_no_have_words_of_their_own(paused: Fixture) -> None:
    """`approve` and `deny` decide."""
    await paused.client.approve(THREAD, "c1", by="Ann")
    assert paused.calls.last() == ("decide", {"call_id": "c1", "approved": True, "by": "Ann"})
    await paused.client.deny(THREAD, "c1", "too late")
    assert paused.calls.last() == ("decide", {"call_id": "c1", "approved": False, "reason": "too late"})


@pytest.mark.parametrize(
    ("decision", "reason"),
    [
        ({"reason": "x" * (REASON_CHARS + 1)}, "the reason"),
        ({"answers": {"q": "x" * INLINE_BYTES}}, "32,768 bytes"),
        ({"answers": {"q": {1}}}, "JSON object"),
        ({"option_id": ""}, "the option_id"),
    ],
)
async def test_a_decision_that_cannot_travel_is_refused_here(
    paused: Fixture, decision: dict[str, Any], reason: str
) -> None:
    """With a sentence that names what is wrong."""
    with pytest.raises(UsageError, match=reason):
        await paused.client.decide(THREAD, "c1", **decision)
    assert paused.calls.sent == []


@pytest.mark.parametrize("disposition", ["dropped", "rejected", "refused", "conflict"])
async def test_a_decision_that_changes_nothing_is_an_error(paused: Fixture, disposition: Disposition) -> None:
    """A repetition of the same decision is none."""
    paused.calls.answers["decide"] = DECIDED.with_(disposition=disposition)
    with pytest.raises(UsageError, match="Nobody waits for a decision about 'c1'"):
        await paused.client.approve(THREAD, "c1")
    paused.calls.answers["decide"] = DECIDED.with_(disposition="duplicate")
    assert (await paused.client.approve(THREAD, "c1")).pending == ("c2",)
    paused.calls.answers["decide"] = UsageError("The call 'c1' was decided about before; that stays.")
    with pytest.raises(UsageError, match="decided about before"):
        await paused.client.approve(THREAD, "c1")


async def test_a_decision_is_known_when_its_turn_has_gone_on() -> None:
    """Whoever lost the answer and asks again is told that it stands; nobody else, and not of what nobody decided."""
    talk = await Talk.begin(MemoryStore())
    await talk.say("hi")
    await talk.commit(
        tuple(ToolCallPart(call_id=name, tool="send", approval=ApprovalRequest()) for name in ("c1", "c2"))
    )
    await talk.decide("c1", Decision(approved=True, by="Ann", at=1.0))
    await talk.decide("c2", Decision(resolution="cancelled"))
    await talk.stop()
    paused = Fixture(talk)
    for call_id in ("c1", "c2", "c3"):
        paused.calls.answers["decide"] = UsageError(no_question(call_id))
        if call_id == "c1":
            assert (await paused.client.approve(THREAD, "c1", by="Bob")).disposition == "duplicate"
        for approved, reason in ((False, None), (True, "since yesterday")):
            with pytest.raises(UsageError, match=f"{call_id!r} (cannot be decided about any more|waits for approval)"):
                await paused.client.decide(THREAD, call_id, approved, reason=reason)


async def test_a_thread_that_takes_nothing_is_told(paused: Fixture) -> None:
    """One that never was, or is closed."""
    with pytest.raises(ThreadNotFound):
        await paused.client.approve("nope", "c1")
    await paused.talk.store.close_thread(THREAD)
    with pytest.raises(ThreadClosed):
        await paused.client.deny(THREAD, "c1")
    assert paused.calls.sent == []


@pytest.mark.parametrize("hidden", [False, True])
async def test_a_turn_that_sleeps_is_stopped_on_whatever_branch_it_is(paused: Fixture, hidden: bool) -> None:
    """The stop is over when the turn is settled, shown or not; a pause that waits for people is one to stop."""
    talk = paused.talk
    if hidden:
        await talk.pause(False)
        await talk.sync(AppendMessage(message=Message(id="x", thread_id=THREAD, role="user"), at_root=True))
        assert [message.id for message in await paused.client.history(THREAD)] == ["x"]
    stopping = asyncio.create_task(paused.client.stop(THREAD))
    await eventually(lambda: paused.calls.sent)
    assert not stopping.done()
    await talk.stop()
    assert (await asyncio.wait_for(stopping, 10)).turn == 1
    assert (await paused.client.stop(THREAD)).turn == 0, "there is nothing more to stop"


async def test_a_stop_that_nobody_carries_out_ends(paused: Fixture) -> None:
    """After the client's patience."""
    with pytest.raises(Unreachable):
        await paused.client.stop(THREAD)
