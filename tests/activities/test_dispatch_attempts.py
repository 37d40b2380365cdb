"""Attempts of `dispatch` that Temporal gives up while the tool runs on."""

import asyncio

import pytest
from temporalio.activity import ActivityCancellationDetails
from temporalio.testing import ActivityEnvironment

from activities import dispatch as module
from activities.dispatch import DispatchActivities
from perdure.agent import Agent, Agents
from perdure.contract import DispatchRequest, DispatchResult
from perdure.messages import ToolCallPart
from perdure.testing import ScriptedModel
from stores.memory import MemoryStore
from tests.eventually import eventually
from tests.talk import THREAD, Talk


class Kitchen:
    """A tool that takes its time and must not run twice, on one worker."""

    def __init__(self, store: MemoryStore, call_id: str) -> None:
        self.begun = 0
        self.stopped = False
        self.is_ready = asyncio.Event()
        self.store = store
        agent = Agent("demo", model=ScriptedModel(["hi"]))
        agent.tool(self.cook)
        self._activities = DispatchActivities(store, Agents([agent]))
        self._request = DispatchRequest(thread_id=THREAD, agent="demo", call_id=call_id)

    async def cook(self) -> str:
        """Cook."""
        self.begun += 1
        try:
            await self.is_ready.wait()
        except asyncio.CancelledError:
            self.stopped = True
            raise
        return "cooked"

    def attempt(self) -> tuple[ActivityEnvironment, "asyncio.Task[DispatchResult]"]:
        """Temporal gives the call to the worker."""
        environment = ActivityEnvironment()
        return environment, asyncio.create_task(environment.run(self._activities.dispatch, self._request))


@pytest.fixture
async def kitchen() -> Kitchen:
    """A call of the tool is open."""
    store = MemoryStore()
    talk = await Talk.begin(store)
    await talk.say("hungry")
    await talk.commit((ToolCallPart(call_id="c", tool="cook"),))
    return Kitchen(store, "c")


@pytest.mark.parametrize("why", [{"not_found": True}, {"timed_out": True}])
async def test_the_next_attempt_finds_the_run_that_goes_on(kitchen: Kitchen, why: dict[str, bool]) -> None:
    """The tool is not stopped, not run again, and its outcome is known."""
    environment, first = kitchen.attempt()
    await eventually(lambda: kitchen.begun)
    environment.cancel(ActivityCancellationDetails(**why))
    with pytest.raises(asyncio.CancelledError):
        await first
    _, second = kitchen.attempt()
    kitchen.is_ready.set()
    assert await second == DispatchResult(outcome="ok", preview="cooked")
    assert (kitchen.begun, kitchen.stopped) == (1, False)


async def test_a_run_that_no_attempt_comes_for_is_stopped(kitchen: Kitchen, monkeypatch: pytest.MonkeyPatch) -> None:
    """The workflow has ended, or another worker has the call: nobody wants what this one brings."""
    monkeypatch.setattr(module, "_ABANDONED_S", 0.05)
    environment, first = kitchen.attempt()
    await eventually(lambda: kitchen.begun)
    environment.cancel(ActivityCancellationDetails(not_found=True))
    with pytest.raises(asyncio.CancelledError):
        await first
    await eventually(lambda: kitchen.stopped)


async def test_a_stop_reaches_the_tool_at_once(kitchen: Kitchen) -> None:
    """Control: what was asked for is no accident, so nothing goes on."""
    environment, first = kitchen.attempt()
    await eventually(lambda: kitchen.begun)
    environment.cancel(ActivityCancellationDetails(cancel_requested=True))
    with pytest.raises(asyncio.CancelledError):
        await first
    assert kitchen.stopped
