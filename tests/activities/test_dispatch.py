"""The activity `dispatch`: a call is run once, and what is not known about it is said."""

from datetime import timedelta

import pytest
from temporalio.exceptions import ApplicationError

from activities import dispatch as module
from activities.dispatch import OUTCOME_UNKNOWN, DispatchActivities
from perdure.agent import Agent, Agents
from perdure.approval import ApprovalRequest, Decision
from perdure.batch import AppendMessage, AppendParts, Decide, SyncBatch
from perdure.contract import DispatchRequest, DispatchResult
from perdure.messages import Message, Status, ToolCallPart, ToolResultPart
from perdure.policy import ErrorType
from perdure.records import OpenCall, ThreadRecord
from perdure.testing import ScriptedModel
from perdure.tools import ApprovalPolicy, Tool, function_tool
from stores.memory import MemoryStore
from tests.activities.lossy_store import LossyStore

THREAD = "t"
REQUEST = DispatchRequest(thread_id=THREAD, agent="a", call_id="c")
ASK = Tool(name="ask", description="Ask the user.", parameters={"type": "object"}, kind="client")


class Booking:
    """A tool that must not run twice, its thread, and the worker that runs it."""

    def __init__(self, store: MemoryStore, policy: ApprovalPolicy = "never", *, with_client: bool = True) -> None:
        self.store = store
        self.runs = 0
        book = function_tool(self.book, timeout=timedelta(seconds=9))
        tools = [book, ASK] if with_client else [book]
        agents = Agents([Agent(name="a", model=ScriptedModel(["hi"]), tools=tools, approval=policy)])
        self.activities = DispatchActivities(store, agents)

    async def book(self) -> str:
        """Book."""
        self.runs += 1
        return "booked"

    async def called(
        self, tool: str = "book", approval: ApprovalRequest | None = None, decision: Decision | None = None
    ) -> "Booking":
        """The model has called the tool, and perhaps somebody was asked and has decided."""
        await self.store.create_thread(ThreadRecord(thread_id=THREAD, agent="a"))
        message = Message(id="m", thread_id=THREAD, role="assistant", turn=1, status=Status(state="running"))
        call = ToolCallPart(call_id="c", tool=tool, approval=approval)
        decisions = () if decision is None else (Decide(call_id="c", decision=decision),)
        operations = (
            AppendMessage(message=message),
            AppendParts(message_id="m", start=0, parts=(call,)),
            *decisions,
        )
        await self.store.append_messages(SyncBatch(thread_id=THREAD, number=1, sync_id="s", operations=operations))
        return self

    async def call(self) -> OpenCall:
        """The call as it is stored."""
        (call,) = (await self.store.load_tail(THREAD)).calls
        return call


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """The store is asked again at once."""
    monkeypatch.setattr(module, "_RETRY_S", 0.001)


async def test_a_start_whose_reply_was_lost_is_asked_for_again() -> None:
    """The tool has not run, so it runs, and its outcome is known."""
    booking = await Booking(LossyStore(start=3, stage=2)).called()
    assert await booking.activities.execute(REQUEST) == DispatchResult(outcome="ok", preview="booked")
    call = await booking.call()
    assert (booking.runs, call.started) == (1, 1)
    assert call.result is not None
    assert call.result.content == "booked"


async def test_a_call_that_another_run_has_started_is_not_run_again() -> None:
    """Control: the other one may have had effects, so the model is told, in words that blame nobody."""
    booking = await Booking(MemoryStore()).called()
    await booking.store.start_call(THREAD, "c", "another")
    answer = await booking.activities.execute(REQUEST)
    assert (answer.outcome, booking.runs) == ("error", 0)
    call = await booking.call()
    assert call.result is not None
    assert call.result.content == OUTCOME_UNKNOWN
    assert "worker" not in OUTCOME_UNKNOWN


async def test_a_start_is_given_up_after_a_while(monkeypatch: pytest.MonkeyPatch) -> None:
    """The way to the store may be broken for this worker alone: another one is to try."""
    monkeypatch.setattr(module, "_START_PATIENCE_S", 0.01)
    booking = await Booking(LossyStore(start=10_000)).called()
    with pytest.raises(ApplicationError) as raised:
        await booking.activities.execute(REQUEST)
    assert (raised.value.type, raised.value.non_retryable, booking.runs) == (ErrorType.STORE, False, 0)


async def test_a_call_of_the_users_side_never_starts_here() -> None:
    """However often it comes by, readers are not told that it runs; a result that is there is reported."""
    booking = await Booking(MemoryStore()).called("ask")
    for _ in range(2):
        assert await booking.activities.execute(REQUEST) == DispatchResult(outcome="pending")
    assert (await booking.call()).started == 0
    await booking.store.stage_result(THREAD, ToolResultPart(call_id="c", content="yes"))
    assert (await booking.activities.execute(REQUEST)).preview == "yes"


async def test_a_settled_call_is_not_run() -> None:
    """A stop came first: nobody waits for this call any more."""
    booking = await Booking(MemoryStore()).called()
    with pytest.raises(ApplicationError) as raised:
        await booking.activities.execute(REQUEST.with_(call_id="other"))
    assert (raised.value.non_retryable, booking.runs) == (True, 0)


APPROVED = Decision(approved=True)


@pytest.mark.parametrize(
    "decision",
    [None, Decision(approved=False), Decision(resolution="expired"), Decision(resolution="cancelled"), Decision()],
)
@pytest.mark.parametrize("policy", ["always", "never"])
async def test_a_call_that_nobody_has_approved_does_not_run(policy: ApprovalPolicy, decision: Decision | None) -> None:
    """Whoever has it run: what is stored counts. It is not answered either, so that it can still be approved.

    Also if the agent asks nobody any more: then only its start is counted.
    """
    booking = Booking(MemoryStore(), policy, with_client=False)
    await booking.called(approval=ApprovalRequest(), decision=decision)
    with pytest.raises(
        ApplicationError, match="bug: this call was to be carried out before anybody had approved it"
    ) as refused:
        await booking.activities.execute(REQUEST)
    assert (refused.value.type, refused.value.non_retryable, booking.runs) == (ErrorType.BUG, True, 0)
    call = await booking.call()
    assert (call.result, call.started) == (None, 0 if policy == "always" else 1)


@pytest.mark.parametrize("policy", ["always", "never"])
async def test_an_approved_call_runs(policy: ApprovalPolicy) -> None:
    """The control; once, as any call does."""
    booking = await Booking(MemoryStore(), policy).called(approval=ApprovalRequest(), decision=APPROVED)
    for _ in range(2):
        assert await booking.activities.execute(REQUEST) == DispatchResult(outcome="ok", preview="booked")
    assert booking.runs == 1


async def test_a_call_of_the_users_side_is_not_handed_out_before_it_is_approved() -> None:
    """Nothing would run here, but somebody would be told to do it."""
    booking = await Booking(MemoryStore(), "always").called("ask", approval=ApprovalRequest())
    with pytest.raises(ApplicationError, match="before anybody had approved it"):
        await booking.activities.execute(REQUEST)
    approved = await Booking(MemoryStore(), "always").called("ask", approval=ApprovalRequest(), decision=APPROVED)
    assert await approved.activities.execute(REQUEST) == DispatchResult(outcome="pending")


async def test_a_denied_call_reports_its_denial() -> None:
    """It has its result, which is nobody's to replace."""
    decision = Decision(approved=False)
    booking = await Booking(MemoryStore(), "always").called(approval=ApprovalRequest(), decision=decision)
    await booking.store.stage_result(THREAD, ToolResultPart(call_id="c", outcome="denied", content='{"error":"no"}'))
    assert (await booking.activities.execute(REQUEST)).outcome == "error"
    assert booking.runs == 0
