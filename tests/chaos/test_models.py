"""Context providers and compactions under attack: ended from outside, hanging, in the way of a run's end."""

import asyncio
from datetime import timedelta
from typing import Any

import pytest
from temporalio.client import WorkflowExecutionStatus

from perdure import ids
from perdure.agent import Agent
from perdure.client import PerdureClient
from perdure.compaction import Compaction
from perdure.contract import COMPACTED
from perdure.limits import Limits
from perdure.testing import Asked, Failure, Reply, ScriptedModel
from tests.chaos.faults import faults
from tests.eventually import eventually
from tests.recorded import chained_runs
from tests.stack import Stack
from tests.workflows.conftest import StackFactory
from tests.workflows.test_hooks import Diary

HANGING = Reply("well", hang=True)


class Talker:
    """An agent whose summariser does what a test wants, and whose model may refuse a request as too long."""

    def __init__(self, summary: str | Reply = "They said hello.", **changes: Any) -> None:
        self.summary: str | Reply = summary
        self.refusals = 0
        self.model = ScriptedModel(self._answer)
        self.summariser = ScriptedModel(lambda _: self.summary)
        compaction = Compaction(context_window=10_000, keep=0.0, model=self.summariser)
        self.agent = Agent("a", model=self.model, compaction=compaction, **changes)

    def _answer(self, asked: Asked) -> Reply:
        failures = [Failure(status=413)] if self.refusals else []
        self.refusals = max(self.refusals - 1, 0)
        return Reply(f"you said {asked.user_text[:20]}", failures=failures)

    async def summarising(self, times: int = 1) -> None:
        """Wait until the summariser was asked so often."""
        await eventually(lambda: len(self.summariser.requests) >= times)


async def summed_up(stack: Stack, thread: str) -> bool:
    """Whether a summary is on the path."""
    return (await stack.store.load_history_with_ancestors(thread)).summary is not None


async def end_compaction(stack: Stack, thread: str, how: str) -> None:
    """Somebody terminates or cancels the compaction's workflow."""
    handle = stack.temporal.get_workflow_handle(ids.compaction_id(thread))
    if how == "terminate":
        await handle.terminate()
    else:
        await handle.cancel()

    async def is_over() -> bool:
        return (await handle.describe()).status != WorkflowExecutionStatus.RUNNING

    await eventually(is_over)


# -- compactions that are ended from outside ---------------------------------------------------------------------------


@pytest.mark.parametrize("how", ["terminate", "cancel"])
async def test_a_compaction_that_was_ended_makes_room_for_the_next(
    how: str, start_stack: StackFactory, thread: str
) -> None:
    """The next one that a person asks for begins, and the thread talks meanwhile."""
    talker = Talker(HANGING)
    stack = await start_stack(talker.agent)
    await stack.client.ask(thread, "one")
    await stack.client.compact(thread)
    await talker.summarising()
    await end_compaction(stack, thread, how)
    talker.summary = "They said hello."
    assert await stack.client.ask(thread, "two") == "you said two"
    await stack.client.compact(thread)
    await eventually(lambda: summed_up(stack, thread))


@pytest.mark.parametrize("how", ["terminate", "cancel"])
async def test_a_turn_does_not_wait_for_a_compaction_that_was_ended(
    how: str, start_stack: StackFactory, thread: str
) -> None:
    """It fails with the provider's reason, and says what became of the compaction."""
    talker = Talker(HANGING)
    stack = await start_stack(talker.agent)
    await stack.client.ask(thread, "one")
    talker.refusals = 1
    accepted = await stack.client.send(thread, "two")
    await talker.summarising()
    await end_compaction(stack, thread, how)
    turn = await asyncio.wait_for(stack.client.wait_settled(thread, accepted.message_id), 10)
    assert (turn.status.state, turn.status.reason) == ("incomplete", "error")
    assert "too long" in str(turn.status.detail)
    assert await stack.client.ask(thread, "three") == "you said three"


async def compaction_ended_in_a_later_run(start_stack: StackFactory, thread: str) -> tuple[Talker, Stack]:
    """A thread whose compaction is terminated when the run that began it is over."""
    talker = Talker(HANGING, limits=Limits(history_events=30))
    stack = await start_stack(talker.agent)
    await stack.client.ask(thread, "one")
    await stack.client.compact(thread)
    await talker.summarising()
    before = len(await chained_runs(stack.temporal, thread))
    for number in range(6):
        await stack.client.ask(thread, f"{number}")
    assert len(await chained_runs(stack.temporal, thread)) > before
    await end_compaction(stack, thread, "terminate")
    return talker, stack


async def test_a_run_after_the_one_that_began_a_compaction_hears_that_it_was_ended(
    start_stack: StackFactory, thread: str
) -> None:
    """Temporal tells only the run that began it; a person asks for another one in the next run, and gets it."""
    talker, stack = await compaction_ended_in_a_later_run(start_stack, thread)
    talker.summary = "They said hello."
    await stack.client.compact(thread)
    await eventually(lambda: summed_up(stack, thread))


async def test_a_turn_in_a_later_run_does_not_wait_for_a_compaction_that_was_ended(
    start_stack: StackFactory, thread: str
) -> None:
    """What a run before began is not there any more: another one begins, and the turn is answered."""
    talker, stack = await compaction_ended_in_a_later_run(start_stack, thread)
    talker.summary, talker.refusals = "They said hello.", 1
    assert await asyncio.wait_for(stack.client.ask(thread, "two"), 10) == "you said two"


async def test_compactions_that_follow_each_other_closely_all_come(start_stack: StackFactory, thread: str) -> None:
    """The workflow of one still closes when the thread has heard from it and begins the next one."""
    talker = Talker(" ")
    stack = await start_stack(talker.agent)
    await stack.client.ask(thread, "one")
    for number in range(1, 9):
        await stack.client.compact(thread)
        await talker.summarising(number)
        await until_heard(stack, thread, number)


async def until_heard(stack: Stack, thread: str, times: int) -> None:
    """Wait until compactions have told the thread so often how they went."""

    async def is_heard() -> bool:
        events = [event async for event in stack.handle(thread).fetch_history_events()]
        names = [event.workflow_execution_signaled_event_attributes.signal_name for event in events]
        return names.count(COMPACTED) == times

    await eventually(is_heard, interval=0.002)


async def test_twenty_requests_at_once_are_one_or_two_compactions(start_stack: StackFactory, thread: str) -> None:
    """They are no storm of model calls, and the thread goes on."""
    talker = Talker(Reply("They said hello.", start_delay_s=0.3))
    stack = await start_stack(talker.agent)
    await stack.client.ask(thread, "one")
    await asyncio.gather(*(stack.client.compact(thread) for _ in range(20)))
    await eventually(lambda: summed_up(stack, thread))
    assert await stack.client.ask(thread, "two") == "you said two"
    assert len(talker.summariser.requests) <= 2
    assert (await stack.client.status(thread)).problems == ()


# -- what people do while a turn waits for a compaction --------------------------------------------------------------


async def act(client: PerdureClient, thread: str, what: str) -> None:
    """Do something to the thread whose last turn waits."""
    messages = await client.history(thread)
    match what:
        case "stop":
            await client.stop(thread)
        case "delete the words":
            await client.delete_message(thread, messages[-2].id)
        case "delete the answer":
            await client.delete_message(thread, messages[-1].id)
        case "switch":
            await client.switch_branch(thread, messages[1].id)
        case "regenerate":
            await client.regenerate(thread, messages[1].id)
        case _:
            await client.send(thread, "more", mode="steer")


@pytest.mark.slow
@pytest.mark.parametrize(
    ("what", "reason", "shown"),
    [
        ("stop", "cancelled", True),
        ("delete the words", "error", True),
        ("delete the answer", None, False),
        ("switch", None, True),
        ("regenerate", None, False),
        ("steer", "steered", True),
    ],
)
async def test_a_turn_that_waits_can_be_acted_upon(
    what: str, reason: str | None, shown: bool, start_stack: StackFactory, thread: str
) -> None:
    """Nobody waits for the summariser, also where the run ends meanwhile; the next words are answered."""
    talker = Talker(Reply("They said hello.", start_delay_s=1.0), limits=Limits(history_events=30))
    stack = await start_stack(talker.agent)
    await stack.client.ask(thread, "one")
    await stack.client.ask(thread, "one and a half")
    talker.refusals = 1
    await stack.client.send(thread, "two")
    await talker.summarising()
    waiting = (await stack.client.history(thread))[-1].id
    await asyncio.wait_for(act(stack.client, thread, what), 10)
    assert await asyncio.wait_for(stack.client.ask(thread, "three", mode="queue"), 20) == "you said three"
    messages = await stack.client.history(thread, whole=True)
    assert faults(messages) == []
    found = [message.status.reason for message in messages if message.id == waiting]
    assert found == ([reason] if shown else [])
    assert len(await chained_runs(stack.temporal, thread)) > 1


# -- hooks that hang -------------------------------------------------------------------------------------------------


async def test_a_thread_whose_hooks_hang_goes_from_run_to_run(
    start_stack: StackFactory, thread: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A run takes so many signals and updates and no more: hooks must not keep it from its end for ever."""
    monkeypatch.setattr("workflows.hooks.HOOKS_PATIENCE", timedelta(seconds=0.2))
    diary = Diary()
    diary.may_go_on.clear()
    stack = await start_stack(
        Agent(
            "a", model=ScriptedModel(lambda asked: asked.user_text), context=[diary], limits=Limits(history_events=30)
        )
    )
    for number in range(4):
        await stack.client.ask(thread, f"{number}")
    runs = await chained_runs(stack.temporal, thread)
    diary.may_go_on.set()
    await eventually(lambda: len({turn for turn, *_ in diary.told}) == 4)
    states = await eventually(lambda: counted(stack, thread, 4))
    assert states == {"turns": 4}
    assert len(runs) > 1


async def counted(stack: Stack, thread: str, turns: int) -> dict[str, Any] | None:
    """What the diary keeps, once it has counted so many turns."""
    state = (await stack.store.get_provider_states(thread)).get("diary")
    return state.values if state and state.values["turns"] >= turns else None


async def test_a_closed_thread_whose_hooks_hang_can_be_deleted(start_stack: StackFactory, thread: str) -> None:
    """Whoever deletes words of a thread that is being closed is answered, though a hook still runs."""
    diary = Diary()
    diary.may_go_on.clear()
    stack = await start_stack(Agent("a", model=ScriptedModel(lambda asked: asked.user_text), context=[diary]))
    await stack.client.ask(thread, "one")
    await eventually(lambda: diary.running)
    await stack.client.close_thread(thread)
    messages = await stack.client.history(thread)
    try:
        await asyncio.wait_for(stack.client.delete_message(thread, messages[0].id), 10)
    finally:
        diary.may_go_on.set()
    assert messages[0].id not in [message.id for message in await stack.client.history(thread)]


async def test_a_cancelled_thread_does_not_wait_for_hooks_that_hang(
    start_stack: StackFactory, thread: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its run ends within moments, and the next words are answered by another one, not cancelled with this one."""
    monkeypatch.setattr("workflows.hooks.HOOKS_PATIENCE", timedelta(seconds=0.2))
    diary = Diary()
    diary.may_go_on.clear()
    stack = await start_stack(Agent("a", model=ScriptedModel(lambda asked: asked.user_text), context=[diary]))
    await stack.client.ask(thread, "one")
    await eventually(lambda: diary.running)
    handle = stack.handle(thread)
    await handle.cancel()
    await eventually(lambda: is_cancelled(stack, thread))
    diary.may_go_on.set()
    assert await stack.client.ask(thread, "two") == "two"


async def is_cancelled(stack: Stack, thread: str) -> bool:
    """Whether the thread's run has ended as cancelled."""
    return (await stack.handle(thread).describe()).status == WorkflowExecutionStatus.CANCELED


# -- much at once ----------------------------------------------------------------------------------------------------


async def test_nothing_that_streams_in_beside_compactions_is_lost(start_stack: StackFactory, thread: str) -> None:
    """Case B02: words of several senders, runs that end and compactions, all at once; each word is there once."""
    talker = Talker(Reply("They said hello.", start_delay_s=0.05), limits=Limits(history_events=60))
    stack = await start_stack(talker.agent)
    await stack.client.ask(thread, "zero")

    async def talk(sender: str) -> None:
        for number in range(40):
            await stack.client.post(thread, f"{sender}{number}", id=f"{sender}{number}", mode="queue")

    async def compact() -> None:
        for number in range(10):
            await stack.client.compact(thread)
            await stack.client.ask(thread, f"again{number}", mode="queue")

    await asyncio.gather(*(talk(sender) for sender in ("ann", "bob", "cem", "dee", "eve")), compact())
    last = await stack.client.post(thread, "last", id="last", mode="queue")
    await stack.client.wait_settled(thread, last)
    messages = await stack.client.history(thread, whole=True)
    assert faults(messages) == []
    heard = [message.input_id for message in messages if message.role == "user"]
    for sender in ("ann", "bob", "cem", "dee", "eve"):
        assert [id for id in heard if id and id.startswith(sender)] == [f"{sender}{number}" for number in range(40)]
    assert await summed_up(stack, thread)
    assert (await stack.client.status(thread)).problems == ()
