"""Branches, questions and late results under whatever people and programs do to them at a bad moment."""

import asyncio
from collections.abc import AsyncGenerator
from datetime import UTC, datetime
from typing import Any

import pytest
from temporalio.client import WorkflowUpdateFailedError
from typing_extensions import override

from perdure.approval import ApprovalRequest
from perdure.batch import Decide, SwitchBranch, SyncBatch, SyncReport, TreeReport
from perdure.contract import CallOutline
from perdure.errors import UsageError
from perdure.history import HistoryManager
from perdure.history_state import HistoryState, LiveCall, OpenTurn, SpawnPoint
from perdure.inputs import Approval, Event, TreeChange, UserMessage
from perdure.records import Subscription
from perdure.testing import Call, Reply, ScriptedModel
from stores.database import Database
from tests.cases.conversation import ASK, PAY, Conversation, Gate, agent_of, by_words, call_in, results_of, typed
from tests.cases.recorded_store import RecordedStore, Which, having, nothing
from tests.eventually import eventually
from tests.recorded import chain
from tests.workflows.conftest import StackFactory


class Rig:
    """A conversation whose answer to `other` holds on until the gate is opened, and then takes a few more steps."""

    def __init__(self, gate: Gate, talk: Conversation) -> None:
        self.gate = gate
        self.talk = talk
        self.client = talk.client
        self.thread = talk.thread

    async def update(self, name: str, payload: object) -> Any:
        """What anybody may type."""
        return await typed(self.talk, name, payload)

    async def subscribe(self) -> str:
        """A call that goes on sending events."""
        accepted = await self.client.send(self.thread, "ask")
        _, (call_id,) = await self.talk.paused()
        await self.client.tool_result(self.thread, call_id, "subscribed", subscription=True)
        await self.client.wait_settled(self.thread, accepted.message_id)
        return call_id

    async def hidden_at_work(self, words: str) -> tuple[str, str, str]:
        """What is shown waits for people, and on another branch a turn is at work: paused turn, its call, that turn."""
        accepted = await self.client.send(self.thread, words)
        paused, (call_id,) = await self.talk.paused()
        await self.client.edit(self.thread, accepted.message_id, "other")
        await self.gate.begun.wait()
        hidden = (await self.talk.ids())[-1]
        await self.client.switch_branch(self.thread, paused)
        return paused, call_id, hidden

    async def deferred(self, count: int) -> None:
        """Wait until so many events wait."""

        async def wait() -> bool:
            return (await self.client.status(self.thread)).deferred == count

        await eventually(wait)


class StuckStore(RecordedStore):
    """A store whose reply to the first batch of a kind (`stuck`) never comes, although it is written."""

    def __init__(self, database: Database) -> None:
        super().__init__(database)
        self.stuck: Which = nothing

    @override
    async def append_messages(self, batch: SyncBatch) -> SyncReport:
        report = await super().append_messages(batch)
        if self.stuck(batch):
            self.stuck = nothing
            await self._pass()
        return report


@pytest.fixture
async def store(database_url: str) -> AsyncGenerator[StuckStore]:
    """A store that can be held up."""
    store = await StuckStore.connect(database_url)
    yield store
    await store.close()


async def has_come(talk: Conversation, update: str, signal: str) -> None:
    """Wait until an update and a signal are with the thread: then its workflow has begun a task with them."""

    async def are_there() -> bool:
        events = await chain(talk.stack.temporal, talk.thread)
        updates = {
            one.workflow_execution_update_accepted_event_attributes.accepted_request.input.name for one in events
        }
        signals = {one.workflow_execution_signaled_event_attributes.signal_name for one in events}
        return update in updates and signal in signals

    await eventually(are_there, timeout=20)


@pytest.fixture
async def rig(start_stack: StackFactory, thread: str) -> Rig:
    """One."""
    gate = Gate()
    look = Reply(Call("look"))
    replies: dict[str, list[Reply | str]] = {
        "go": [PAY, "paid up"],
        "ask": [ASK, "thanks", ASK],
        "other": [Reply(Call("hold")), look, look, "other done"],
    }
    model = ScriptedModel(by_words(replies))
    agent = agent_of(model)

    @agent.tool
    async def hold() -> str:
        """Hold on."""
        await gate.passed()
        return "held"

    return Rig(gate, Conversation(await start_stack(agent), thread, model))


# -- what is shown waits for people, and another turn is at work ----------------------------------------------------


async def test_an_event_neither_cuts_a_hidden_turn_nor_stands_below_a_pause(rig: Rig) -> None:
    """It waits for the hidden turn's end, and then for the decision; so it comes before the next step of that turn."""
    talk = rig.talk
    subscription = await rig.subscribe()
    paused, call_id, hidden = await rig.hidden_at_work("go")
    await rig.client.event(rig.thread, subscription, "rain", id="e1")
    await rig.deferred(1)
    rig.gate.open.set()
    assert (await talk.until(hidden, "complete")).status.reason is None
    await talk.waiting()
    await rig.deferred(1)
    assert (await talk.ids())[-1] == paused
    await rig.client.approve(rig.thread, call_id)
    assert results_of(await talk.until(paused, "incomplete")) == [("ok", "paid 3")]
    await rig.deferred(0)
    settled = await rig.client.wait_settled(rig.thread)
    path = await talk.path()
    assert [message.role for message in path[-3:]] == ["assistant", "event", "assistant"]
    assert (path[-3].id, path[-1].id) == (paused, settled.id)


async def test_an_event_waits_for_a_hidden_turn_and_not_for_its_next_step(rig: Rig) -> None:
    """A turn that goes on unseen is finished: what is told elsewhere has nothing to add to it."""
    talk = rig.talk
    subscription = await rig.subscribe()
    shown = (await talk.ids())[-1]
    await rig.client.edit(rig.thread, (await talk.ids())[0], "other")
    await rig.gate.begun.wait()
    hidden = (await talk.ids())[-1]
    await rig.client.switch_branch(rig.thread, shown)
    await rig.client.event(rig.thread, subscription, "rain", id="e1")
    await rig.deferred(1)
    rig.gate.open.set()
    await talk.until(hidden, "complete")
    await rig.deferred(0)
    assert [message.role for message in (await talk.path())[-3:]] == ["assistant", "event", "assistant"]
    assert (await talk.ids())[-3] == shown


@pytest.mark.parametrize("named", [False, True])
async def test_a_result_for_a_pause_that_cannot_be_loaded_yet_is_kept(named: bool, rig: Rig) -> None:
    """Whether its giver says which message the call is of or not; the turn goes on when the hidden one has ended."""
    talk = rig.talk
    paused, call_id, hidden = await rig.hidden_at_work("ask")
    message_id = paused if named else None
    await rig.client.tool_result(rig.thread, call_id, "half", preliminary=True, message_id=message_id)
    (call,) = [call for call in (await rig.client.store.snapshot(rig.thread)).calls if call.call_id == call_id]
    assert call.interim is not None
    assert (call.interim.content, call.result) == ("half", None)
    await rig.client.tool_result(rig.thread, call_id, "mine", message_id=message_id)
    rig.gate.open.set()
    assert (await talk.until(hidden, "complete")).status.reason is None
    assert results_of(await talk.until(paused, "complete")) == [("ok", "mine")]


async def test_who_decides_while_another_turn_is_at_work_is_told_so(rig: Rig) -> None:
    """One turn works at a time. The question waits, and is not said to be none."""
    talk = rig.talk
    paused, call_id, hidden = await rig.hidden_at_work("go")
    with pytest.raises(UsageError, match="another branch is at work"):
        await rig.client.approve(rig.thread, call_id)
    rig.gate.open.set()
    await talk.until(hidden, "complete")
    await talk.waiting()
    await rig.client.approve(rig.thread, call_id)
    assert results_of(await talk.until(paused, "complete")) == [("ok", "paid 3")]


# -- late results ---------------------------------------------------------------------------------------------------


async def test_a_preliminary_result_of_a_call_that_rests_or_is_over_settles_nothing(rig: Rig) -> None:
    """The final one is the result; where nobody waits any more, a preliminary one is none, and its bringer is told."""
    talk = rig.talk
    words = (await rig.client.send(rig.thread, "ask")).message_id
    paused, (call_id,) = await talk.paused()
    await rig.client.edit(rig.thread, words, "rather this")
    await rig.client.wait_settled(rig.thread)
    await rig.client.tool_result(rig.thread, call_id, "half", preliminary=True, message_id=paused)
    await rig.client.tool_result(rig.thread, call_id, "whole", message_id=paused)
    await rig.client.switch_branch(rig.thread, paused)
    assert results_of(await talk.until(paused, "complete")) == [("ok", "whole")]

    await rig.client.regenerate(rig.thread, words)
    stopped, (other,) = await talk.paused()
    await rig.client.stop(rig.thread)
    with pytest.raises(UsageError, match="Nobody waits"):
        await rig.client.tool_result(rig.thread, other, "half", preliminary=True, message_id=stopped)
    ((outcome, _),) = results_of(await talk.message(stopped))
    assert outcome == "interrupted"


async def test_a_result_given_to_a_question_that_rests_resolves_it(rig: Rig) -> None:
    """As it does to one that is shown: the question is cancelled, not left open in a turn that is over."""
    talk = rig.talk
    words = (await rig.client.send(rig.thread, "go")).message_id
    paused, (call_id,) = await talk.paused()
    await rig.client.edit(rig.thread, words, "rather this")
    await rig.client.wait_settled(rig.thread)
    await rig.client.tool_result(rig.thread, call_id, "paid by hand", message_id=paused)
    await rig.client.switch_branch(rig.thread, paused)
    settled = await talk.until(paused, "complete")
    decision = call_in(settled).decision
    assert decision is not None
    assert (decision.resolution, results_of(settled)) == ("cancelled", [("ok", "paid by hand")])


# -- what is shown is not loaded yet -------------------------------------------------------------------------------


async def test_a_question_is_answered_at_the_moment_in_which_it_is_shown(
    start_stack: StackFactory, thread: str, store: StuckStore
) -> None:
    """Whoever is quicker than the loading of its turn is not told that there is no question; nor is a result lost."""
    model = ScriptedModel(by_words({"go": [Reply(Call("pay", '{"amount": 3}'), Call("ask")), "paid up"]}))
    talk = Conversation(await start_stack(agent_of(model)), thread, model)
    accepted = await talk.client.send(thread, "go")
    paused, _ = await talk.paused(2)
    asked, given = [call.call_id for call in await talk.waiting(2)]
    await talk.client.edit(thread, accepted.message_id, "other")
    await talk.client.wait_settled(thread)
    store.held = having(SwitchBranch)
    async with asyncio.TaskGroup() as together:
        together.create_task(talk.client.switch_branch(thread, paused))
        await store.reached.wait()
        approved = together.create_task(talk.client.approve(thread, asked))
        await talk.client.tool_result(thread, given, "mine")
        await has_come(talk, "decide", "tool_result")
        store.gate.set()
    assert approved.result().disposition == "settled"
    assert results_of(await talk.until(paused, "complete")) == [("ok", "paid 3"), ("ok", "mine")]


# -- what anybody may type, and bad moments --------------------------------------------------------------------------


async def test_of_two_changes_under_one_id_only_one_is_said_to_be_made(rig: Rig) -> None:
    """Also if both come at once, so that one batch takes them."""
    words = (await rig.client.send(rig.thread, "hi")).message_id
    await rig.client.wait_settled(rig.thread)
    change = {"id": "c", "action": "annotate", "message_id": words}
    answers = await asyncio.gather(
        *(rig.update("change_tree", {**change, "metadata": {"number": number}}) for number in range(5))
    )
    made = [number for number, answer in enumerate(answers) if "disposition" not in answer]
    assert [answer["disposition"] for answer in answers if "disposition" in answer] == ["conflict"] * 4
    assert (await rig.talk.message(words)).metadata == {"number": made[0]}


async def test_a_call_id_that_no_database_takes_is_refused_and_harms_no_turn(rig: Rig) -> None:
    """It would have every batch refused, and with it the turn that runs."""
    first = await rig.talk.say("hi")
    await rig.client.send(rig.thread, "other")
    await rig.gate.begun.wait()
    running = (await rig.talk.ids())[-1]
    with pytest.raises(WorkflowUpdateFailedError) as refused:
        await rig.update("add_result", {"call_id": "a\0b", "message_id": first.id, "content": "x"})
    assert "NUL" in str(refused.value.cause)
    rig.gate.open.set()
    await rig.talk.until(running, "complete")
    assert (await rig.client.status(rig.thread)).problems == ()


async def test_a_question_whose_time_is_over_is_not_answered_any_more(start_stack: StackFactory, thread: str) -> None:
    """Also at the moment in which a worker is up again, or its branch is shown, and its timer has not gone off yet."""
    model = ScriptedModel(by_words({"go": [Reply(Call("hurry")), "too late"]}))
    agent = agent_of(model)

    @agent.tool(approval=lambda arguments: ApprovalRequest(expires_s=1))
    async def hurry() -> str:
        """Hurry."""
        return "hurried"

    stack = await start_stack(agent)
    talk = Conversation(stack, thread, model)
    await talk.client.send(thread, "go")
    turn, (call_id,) = await talk.paused()
    due = (await talk.client.open_calls(thread))[0].due
    assert due is not None
    await stack.stop_worker()
    late = asyncio.create_task(typed(talk, "decide", {"call_id": call_id, "approved": True}))
    await eventually(lambda: datetime.now(UTC).timestamp() > due)
    await stack.start_worker()
    with pytest.raises(WorkflowUpdateFailedError) as refused:
        await late
    assert "over" in str(refused.value.cause) or "waits for approval" in str(refused.value.cause)
    assert [outcome for outcome, _ in results_of(await talk.until(turn, "complete"))] == ["expired"]


def test_a_decision_that_is_made_again_after_its_task_was_lost_is_the_same_batch() -> None:
    """Another clock is read then. As another batch it would be refused as a stale writer's, and the person too."""

    def batch(at: float, approved: bool) -> SyncBatch | None:
        asking = CallOutline(index=0, tool="pay", approval=ApprovalRequest())
        turn = OpenTurn(message_id="a1", turn=1, calls=(LiveCall(call_id="c1", outline=asking),), paused=True)
        manager = HistoryManager(HistoryState(thread_id="t", turn=1, head_id="a1", open=turn, pauses=True))
        manager.handle_content(Approval(call_id="c1", approved=approved, at=at))
        return manager.take_pending("run")

    first, again, other = batch(1.0, True), batch(2.0, True), batch(1.0, False)
    assert first is not None
    assert again is not None
    assert other is not None
    assert first.sync_id == again.sync_id != other.sync_id


def test_a_turn_that_was_closing_its_thread_takes_that_along_when_it_rests() -> None:
    """Else the thread would turn away all that is said on another branch, and never close."""
    closing = LiveCall(call_id="c1", outline=CallOutline(index=0, tool="close"), settled=True)
    asking = LiveCall(call_id="c2", outline=CallOutline(index=1, tool="pay", approval=ApprovalRequest()))
    turn = OpenTurn(message_id="a1", turn=1, calls=(closing, asking), paused=True)
    state = HistoryState(thread_id="t", turn=1, head_id="a1", open=turn, pauses=True, closing=True)
    manager = HistoryManager(state)
    manager.handle_content(TreeChange(id="s", action="switch", message_id="a0"))
    assert manager.take_pending("run") is not None
    manager.synced(SyncReport(number=1, tree=TreeReport(head_id="a0", turn=1)))
    assert manager.handle_content(UserMessage(id="m", text="hi")) == "started"


def test_the_child_for_an_event_hangs_on_what_is_shown() -> None:
    """Also while a turn sleeps on another branch, which the child has nothing to do with."""
    asleep = LiveCall(call_id="c1", outline=CallOutline(index=0, tool="sleep", kind="workflow", passive=True))
    turn = OpenTurn(message_id="a1", turn=1, calls=(asleep,), hidden=True)
    rain = Subscription(call_id="c0", tool="weather")
    state = HistoryState(thread_id="t", turn=1, head_id="a0", open=turn, pauses=True, subscriptions=(rain,))
    manager = HistoryManager(state)
    assert manager.handle_content(Event(id="e1", call_id="c0", content="rain", associative=False)) == "spawned"
    assert manager.take_pending("run") is not None
    manager.synced(SyncReport(number=1))
    (spawn,) = manager.take_spawns()
    assert spawn.point == SpawnPoint(message_id="a0")


async def test_a_decision_is_written_once_although_its_task_runs_again(
    start_stack: StackFactory, thread: str, store: StuckStore
) -> None:
    """The worker dies between the commit of the store and its reply: whoever decided is told that it is settled."""
    model = ScriptedModel(by_words({"go": [PAY, "I see"]}))
    stack = await start_stack(agent_of(model))
    talk = Conversation(stack, thread, model)
    await talk.client.send(thread, "go")
    turn, (call_id,) = await talk.paused()
    store.stuck = having(Decide)
    denied = asyncio.create_task(talk.client.deny(thread, call_id, "no"))
    await store.reached.wait()
    await stack.restart_worker()
    assert (await denied).disposition == "settled"
    assert [outcome for outcome, _ in results_of(await talk.until(turn, "complete"))] == ["denied"]
    assert (await talk.client.status(thread)).problems == ()


async def test_a_stop_that_comes_while_a_switch_is_stored_settles_what_is_shown_then(
    rig: Rig, store: StuckStore
) -> None:
    """The turn that is shown rests until it is loaded. A stop is not taken before that, when it would find nothing."""
    talk = rig.talk
    accepted = await rig.client.send(rig.thread, "go")
    turn, _ = await talk.paused()
    await rig.client.edit(rig.thread, accepted.message_id, "ask")
    await talk.paused()
    store.held = having(SwitchBranch)
    switching = asyncio.create_task(rig.client.switch_branch(rig.thread, turn))
    await store.reached.wait()
    await rig.client.interrupt(rig.thread, "enough")
    await has_come(talk, "change_tree", "interrupt")
    store.gate.set()
    await switching
    assert (await talk.until(turn, "incomplete")).status.detail == "enough"
