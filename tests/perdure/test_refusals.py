"""Why a decision is refused, where several reasons hold at once: the one that comes first is told."""

from collections.abc import Callable
from datetime import timedelta
from itertools import combinations

import pytest

from perdure.approval import ApprovalRequest, Decision
from perdure.control import ThreadControl
from perdure.errors import UsageError
from perdure.history import HistoryManager
from perdure.inputs import Approval, ToolResult, UserMessage
from perdure.messages import TextPart, ToolCallPart
from perdure.waiting import no_question
from stores.memory import MemoryStore
from tests.perdure.driven import Thread
from tests.perdure.recorded_calls import RecordedCalls
from tests.talk import THREAD, Talk

AT_WORK = "another branch is at work"
FOLLOWED = "another message followed"
OVER = "The time in which"
DECIDED = "decided about before"
ANSWERED = "has its result"


# -- what the thread itself tells of the turn that is open -------------------------------------------------------------


def at_work(thread: Thread, call_id: str) -> None:
    """The turn works on a branch that is not shown, and the one that is shown waits for people."""
    state = thread.history.state
    assert state.open is not None
    thread.history = HistoryManager(state.with_(open=state.open.with_(hidden=True), paused_head=True))


def followed(thread: Thread, call_id: str) -> None:
    """Words that nobody answers stand below the turn."""
    assert thread.take(UserMessage(id="m9", text="by the way", run=False)) == "appended"


def over(thread: Thread, call_id: str) -> None:
    """Its time has passed, and its timer has not gone off yet."""
    thread.history.mark_dispatched(call_id, 50.0)


def decided(thread: Thread, call_id: str) -> None:
    """Somebody said no, and another call is waited for."""
    assert thread.take(Approval(call_id=call_id, approved=False, reason="no", at=10.0)) == "settled"


def answered(thread: Thread, call_id: str) -> None:
    """It was given a result in place of a decision."""
    assert thread.take(ToolResult(call_id=call_id, content="mine")) == "settled"


ORDER: dict[str, Callable[[Thread, str], None]] = {
    AT_WORK: at_work,
    FOLLOWED: followed,
    OVER: over,
    DECIDED: decided,
    ANSWERED: answered,
}
EXCLUSIVE = {
    (OVER, DECIDED),  # what was decided about has no time any more in which that could be
    (OVER, ANSWERED),  # a question ends in one way
    (DECIDED, ANSWERED),
}


@pytest.mark.parametrize("first", ORDER)
def test_each_reason_is_told_and_holds_for_that_call_alone(first: str) -> None:
    """With none of them the same answer is taken, which is the control."""
    for reason in (None, first):
        thread = Thread()
        thread.say("go")
        _, call_id, _ = thread.act("watch", "pay", "pay")
        if reason is None:
            assert thread.take(Approval(call_id=call_id, approved=True, at=99.0)) == "settled"
            continue
        ORDER[reason](thread, call_id)
        assert reason in refusal(thread, call_id)


@pytest.mark.parametrize(("first", "second"), [pair for pair in combinations(ORDER, 2) if pair not in EXCLUSIVE])
def test_of_two_reasons_the_first_is_told(first: str, second: str) -> None:
    """In the order of the local runtime: at work, followed, resolved, decided."""
    thread = Thread()
    thread.say("go")
    _, call_id, _ = thread.act("watch", "pay", "pay")
    ORDER[second](thread, call_id)
    assert second in refusal(thread, call_id)
    ORDER[first](thread, call_id)
    assert first in refusal(thread, call_id)


@pytest.mark.parametrize("told", [OVER, DECIDED])
def test_another_process_tells_the_same(told: str) -> None:
    """What has expired is told from what was decided about, also after the thread was loaded again."""
    thread = Thread()
    thread.say("go")
    _, call_id, _ = thread.act("watch", "pay", "pay")
    if told == OVER:
        over(thread, call_id)
        thread.take(ToolResult(call_id=call_id, outcome="expired", content="too late"))
    else:
        decided(thread, call_id)
    assert told in refusal(thread, call_id)
    thread.reload()
    assert told in refusal(thread, call_id)


def refusal(thread: Thread, call_id: str) -> str:
    """What somebody hears who approves a call, at the second 99."""
    with pytest.raises(UsageError) as refused:
        thread.take(Approval(call_id=call_id, approved=True, at=99.0))
    return str(refused.value)


# -- what the store alone knows, and the client tells ------------------------------------------------------------------


class Fixture:
    """A thread whose turn asks about `c1` and was settled, and a client whose requests the thread refuses."""

    def __init__(self, talk: Talk) -> None:
        self.talk = talk
        self.calls = RecordedCalls()
        self.client = ThreadControl(talk.store, self.calls, timedelta(seconds=1))

    async def refusal(self, call_id: str, said: str | None = None) -> str:
        """What somebody hears who approves a call, if the thread says this; by default, that it asks nothing."""
        self.calls.answers["decide"] = UsageError(no_question(call_id) if said is None else said)
        with pytest.raises(UsageError) as refused:
            await self.client.approve(THREAD, call_id, reason="now")
        return str(refused.value)


async def asked() -> Talk:
    """A turn that has asked about `c1` to `c3`; what became of them is known."""
    talk = await Talk.begin(MemoryStore())
    await talk.say("hi")
    calls = (ToolCallPart(call_id=name, tool="send", approval=ApprovalRequest()) for name in ("c1", "c2", "c3"))
    await talk.commit((*calls, ToolCallPart(call_id="c4", tool="plain")))
    await talk.decide("c1", Decision(resolution="cancelled"))
    await talk.decide("c2", Decision(resolution="expired"))
    await talk.decide("c3", Decision(approved=False))
    return talk


@pytest.fixture
async def settled() -> Fixture:
    """The thread, stopped, and its client."""
    talk = await asked()
    await talk.stop()
    return Fixture(talk)


@pytest.mark.parametrize(
    ("call_id", "told"),
    [
        ("c1", "its turn was cancelled, and the question with it."),
        ("c2", "its turn was cancelled, and the time in which to decide had passed."),
        ("c3", "its turn was cancelled, and the call was denied."),
        ("c4", "No call 'c4' waits for approval in what this thread shows."),
        ("nope", "No call 'nope' waits for approval in what this thread shows."),
    ],
)
async def test_after_the_turn_people_hear_what_became_of_it(settled: Fixture, call_id: str, told: str) -> None:
    """The turn first, that it does not wait any more; then the question. Of what was never asked, that it was not."""
    assert (await settled.refusal(call_id)).endswith(told)


async def test_a_turn_that_has_gone_on_to_its_end_is_over_too() -> None:
    """Nothing was cancelled there, and nobody is told so."""
    talk = await asked()
    await talk.settle_calls()
    await talk.commit((TextPart(text="done"),))
    assert (await Fixture(talk).refusal("c3")).endswith("its turn is over, and the call was denied.")


async def test_what_follows_a_settled_turn_changes_nothing_of_what_is_told(settled: Fixture) -> None:
    """That the turn does not wait any more comes before that another message follows it."""
    before = await settled.refusal("c1")
    await settled.talk.say("never mind")
    await settled.talk.commit((TextPart(text="fine"),))
    assert await settled.refusal("c1") == before


async def test_that_a_turn_is_at_work_comes_after_that_nothing_was_asked(settled: Fixture) -> None:
    """And before what became of a question that was."""
    at_work = f"A turn on {AT_WORK}."
    assert await settled.refusal("c1", at_work) == at_work
    for call_id in ("c4", "nope"):
        assert await settled.refusal(call_id, at_work) == no_question(call_id)


async def test_another_branch_asks_nothing_here(settled: Fixture) -> None:
    """What is not shown cannot be decided about, and is not said to be over."""
    await settled.talk.say("hello", beside="u1")
    await settled.talk.commit((TextPart(text="hello"),))
    assert await settled.refusal("c1") == no_question("c1")
