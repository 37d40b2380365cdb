"""Turns that wait for a compaction, since a model has refused their request as too long."""

import asyncio
from datetime import timedelta

import pytest
from temporalio.client import WorkflowHistory
from temporalio.worker import Replayer, UnsandboxedWorkflowRunner

from perdure import ids
from perdure.context import ProviderRun, RunOutcome
from perdure.converter import data_converter
from perdure.limits import Limits
from perdure.testing import Reply
from tests.eventually import eventually
from tests.stack import Stack
from tests.workflows.conftest import StackFactory
from tests.workflows.test_compactions import Talker
from workflows.thread import ThreadWorkflow


async def refused_starts(stack: Stack, thread: str) -> int:
    """How often the thread's run was refused to begin a compaction, since another one had the name."""
    events = [event async for event in stack.handle(thread).fetch_history_events()]
    return sum(event.HasField("start_child_workflow_execution_failed_event_attributes") for event in events)


async def test_one_of_an_earlier_run_that_is_ended_from_outside_is_noticed(
    start_stack: StackFactory, thread: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The run that waits was not told of its end, and begins another one: the turn is answered.

    As long as the first one runs, none is begun beside it.
    """
    monkeypatch.setattr("workflows.compactions.STARTS", 1)
    monkeypatch.setattr("workflows.shortening.COMPACTION_ASKED", timedelta(seconds=0.5))
    talker = Talker(summary=Reply("well", hang=True))
    talker.agent.limits = Limits(history_events=1)
    stack = await start_stack(talker.agent, sandbox=False)
    await stack.client.ask(thread, "one")
    await stack.client.compact(thread)
    await eventually(lambda: talker.summariser.requests)
    assert await stack.client.ask(thread, "two") == "you said two"
    talker.refusals = 1
    accepted = await stack.client.send(thread, "three")

    async def was_asked_about() -> bool:
        return await refused_starts(stack, thread) > 1

    await eventually(was_asked_about, timeout=30)
    assert len(talker.summariser.requests) == 1
    run_id = (await stack.handle(thread).describe()).run_id
    talker.summary = "They said hello."
    await stack.temporal.get_workflow_handle(ids.compaction_id(thread)).terminate()
    async with asyncio.timeout(60):
        turn = await stack.client.wait_settled(thread, accepted.message_id)
    assert turn.status.state == "complete"
    assert "They said hello." in talker.first_words
    history = await stack.temporal.get_workflow_handle(ids.workflow_id(thread), run_id=run_id).fetch_history()
    assert await replayed(history) is None
    monkeypatch.setattr("workflows.compactions.STARTS", 2)
    assert await replayed(history) is not None, "control: another number of tries makes other commands"


async def replayed(history: WorkflowHistory) -> Exception | None:
    """Replay outside of the sandbox, where what the test has set holds; returns what went wrong."""
    replayer = Replayer(
        workflows=[ThreadWorkflow], workflow_runner=UnsandboxedWorkflowRunner(), data_converter=data_converter
    )
    return (await replayer.replay_workflow(history, raise_on_replay_failure=False)).replay_failure


async def says(stack: Stack, thread: str, words: str) -> bool:
    """Whether the last lines of the thread have these words."""
    return words in str(await stack.handle(thread).query("transcript"))


class Slow:
    """A provider whose hooks after turns end when the test says so."""

    name = "slow"

    def __init__(self) -> None:
        self.release = asyncio.Event()

    async def after_run(self, run: ProviderRun, outcome: RunOutcome) -> None:
        """See the class."""
        await self.release.wait()


async def test_a_turn_waits_for_no_other_compaction_than_its_own(
    start_stack: StackFactory, thread: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Somebody asks for one when the turn has got its own and is about to ask the model again: that one finds nothing.

    The turn stands at its first step then, where it waits for the hooks of the turn before.
    """
    monkeypatch.setattr("workflows.hooks.HOOKS_PATIENCE", timedelta(seconds=2))
    slow = Slow()
    talker = Talker()
    talker.agent.context = (slow,)
    stack = await start_stack(talker.agent, sandbox=False)
    await stack.client.ask(thread, "one")
    talker.refusals = 1
    accepted = await stack.client.send(thread, "two")
    # The thread has heard of it, so its turn has taken the outcome: that is in the store a moment before.
    await eventually(lambda: says(stack, thread, "summed up"), timeout=30)
    await stack.client.compact(thread)
    turn = await stack.client.wait_settled(thread, accepted.message_id)
    assert (turn.status.state, turn.status.detail) == ("complete", None)
    await eventually(lambda: says(stack, thread, "nothing that could be left out"), timeout=30)
    slow.release.set()


@pytest.mark.parametrize("way", ["asked for", "needed"])
async def test_a_turn_that_is_stopped_while_it_waits_leaves_nothing_behind(
    way: str, start_stack: StackFactory, thread: str
) -> None:
    """The outcome that it did not take is nobody's: the next compaction begins, whatever it is for."""
    talker = Talker(summary=Reply("well", hang=True))
    stack = await start_stack(talker.agent)
    await stack.client.ask(thread, "one")
    talker.refusals = 1
    await stack.client.send(thread, "two")
    await eventually(lambda: talker.summariser.requests)
    await stack.client.stop(thread)
    await stack.temporal.get_workflow_handle(ids.compaction_id(thread)).terminate()
    await eventually(lambda: says(stack, thread, "ended from outside"))
    talker.summary = "They said hello."
    if way == "asked for":
        assert (await stack.client.compact(thread, wait=True)).outcome == "done"
    else:
        talker.refusals = 1
    assert await stack.client.ask(thread, "three") == "you said three"
    assert "They said hello." in talker.first_words
