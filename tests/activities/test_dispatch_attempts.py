"""Attempts of `dispatch` that Temporal gives up while the tool runs on."""

import asyncio
import dataclasses
from datetime import timedelta

import pytest
from temporalio.activity import ActivityCancellationDetails
from temporalio.testing import ActivityEnvironment

from activities import dispatch as module
from activities.dispatch import DispatchActivities
from perdure.agent import Agent, Agents
from perdure.contract import DispatchRequest, DispatchResult
from perdure.messages import ToolCallPart
from perdure.records import OpenCall
from perdure.testing import ScriptedModel
from stores.memory import MemoryStore
from tests.eventually import eventually
from tests.talk import THREAD, Talk


class WatchedStore(MemoryStore):
    """Counts how often a call is looked at."""

    looks = 0

    async def get_call(self, thread_id: str, call_id: str) -> OpenCall:
        """Look at it."""
        self.looks += 1
        return await super().get_call(thread_id, call_id)


class Kitchen:
    """A tool that takes its time and must not run twice, on one worker."""

    def __init__(self, store: WatchedStore, talk: Talk, call_id: str) -> None:
        self.begun = 0
        self.stopped = False
        self.is_ready = asyncio.Event()
        self.store = store
        self.settle = talk.settle_calls
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

    async def abandoned(self, limit: timedelta) -> None:
        """An attempt of which Temporal knows no more, while the tool goes on."""
        environment, first = self.attempt(limit)
        await eventually(lambda: self.begun)
        environment.cancel(ActivityCancellationDetails(not_found=True))
        with pytest.raises(asyncio.CancelledError):
            await first

    def attempt(
        self, limit: timedelta = timedelta(hours=1)
    ) -> tuple[ActivityEnvironment, "asyncio.Task[DispatchResult]"]:
        """Temporal gives the call to the worker."""
        environment = ActivityEnvironment()
        environment.info = dataclasses.replace(environment.info, start_to_close_timeout=limit)
        return environment, asyncio.create_task(environment.run(self._activities.dispatch, self._request))


@pytest.fixture
async def kitchen() -> Kitchen:
    """A call of the tool is open."""
    store = WatchedStore()
    talk = await Talk.begin(store)
    await talk.say("hungry")
    await talk.commit((ToolCallPart(call_id="c", tool="cook"),))
    return Kitchen(store, talk, "c")


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
    """The turn was stopped, or another worker had the call: it is settled, and nobody wants what this one brings."""
    monkeypatch.setattr(module, "_ABANDONED_S", 0.05)
    await kitchen.abandoned(timedelta(hours=1))
    await kitchen.settle()
    await eventually(lambda: kitchen.stopped)


async def test_a_run_ends_with_its_time_though_its_call_is_open(
    kitchen: Kitchen, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The workflow was terminated: no attempt will come, and nobody settles the call."""
    monkeypatch.setattr(module, "_ABANDONED_S", 0.05)
    await kitchen.abandoned(timedelta(seconds=0.1))
    await eventually(lambda: kitchen.stopped)


async def test_a_run_goes_on_for_as_long_as_its_call_is_open(kitchen: Kitchen, monkeypatch: pytest.MonkeyPatch) -> None:
    """Temporal is away for longer than anybody looks at the run: the attempt that comes then finds it."""
    monkeypatch.setattr(module, "_ABANDONED_S", 0.001)
    await kitchen.abandoned(timedelta(hours=1))
    await eventually(lambda: kitchen.store.looks >= 3)
    _, second = kitchen.attempt()
    kitchen.is_ready.set()
    assert await second == DispatchResult(outcome="ok", preview="cooked")
    assert (kitchen.begun, kitchen.stopped) == (1, False)


async def test_a_stop_reaches_the_tool_at_once(kitchen: Kitchen) -> None:
    """Control: what was asked for is no accident, so nothing goes on."""
    environment, first = kitchen.attempt()
    await eventually(lambda: kitchen.begun)
    environment.cancel(ActivityCancellationDetails(cancel_requested=True))
    with pytest.raises(asyncio.CancelledError):
        await first
    assert kitchen.stopped
