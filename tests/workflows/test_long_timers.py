"""Sleeps of hours and years, on a server that skips the time in which nothing happens.

Of case B37 what applies here is (d), (e) and (f): there are no recurring schedules in Perdure, so (a), (b) and (c) have
nothing to go wrong in. The clock changes themselves are tried in `tests/perdure/test_timer.py`.
"""

import os
import time
from collections.abc import AsyncGenerator, Generator
from datetime import UTC, datetime, timedelta

import pytest
from temporalio.client import Client
from temporalio.testing import TimeSkipper

from perdure.agent import Agent
from perdure.builtins import Timers
from perdure.connection import connect_temporal
from perdure.dev.temporal_server import TemporalServer
from perdure.limits import Limits
from perdure.messages import ToolResultPart
from perdure.testing import Call, Reply, ScriptedModel
from perdure.timer import MAX_SECONDS
from perdure.watch import answer_text
from stores.postgres import PostgresStore
from tests.eventually import eventually
from tests.recorded import chained_runs
from tests.stack import Stack
from tests.workflows.soundness import assert_sound

NINE_IN_NEW_YORK = datetime(2027, 11, 7, 14, 0, tzinfo=UTC)
"""09:00 on the Sunday on which the clocks were put back in the night."""


@pytest.fixture(scope="module")
async def skipping() -> AsyncGenerator[Client]:
    """A client of a server whose workflows have clocks of their own."""
    async with TemporalServer(dynamic_config=["frontend.WorkflowTimeSkippingEnabled=true"]) as server:
        yield await connect_temporal({"target_host": server.address})


@pytest.fixture
def tokyo() -> Generator[None]:
    """A worker's machine whose zone is nobody's."""
    before = os.environ.get("TZ")
    os.environ["TZ"] = "Asia/Tokyo"
    time.tzset()
    yield
    del os.environ["TZ"]
    if before is not None:
        os.environ["TZ"] = before
    time.tzset()


class Sleeper:
    """A thread that makes one call, and says `awake` after it."""

    def __init__(self, temporal: Client, store: PostgresStore, thread: str, call: Call, zone: str = "UTC") -> None:
        self.model = ScriptedModel([Reply(call), "awake"])
        limits = Limits(idle=timedelta(hours=1))
        agent = Agent("a", model=self.model, toolsets=[Timers(timezone=zone)], limits=limits)
        self.stack = Stack(temporal, store, [agent])
        self._skipper = TimeSkipper(temporal)
        self._thread = thread

    async def asleep(self) -> datetime:
        """Send the words that send it to sleep; returns when it is to wake, as the store has it."""
        await self.stack.client.send(self._thread, "sleep", id="m1")

        async def known() -> float | None:
            calls = (await self.stack.store.load_tail(self._thread)).calls
            return calls[0].due if calls else None

        due = await eventually(known)
        assert due is not None
        return datetime.fromtimestamp(due, UTC)

    async def skip(self, time: timedelta) -> datetime:
        """Let so much time pass in the thread's workflow; returns what its clock shows."""
        handle = self.stack.handle(self._thread)
        assert await self._skipper.fast_forward(handle, time)
        return await self._skipper.get_current_time(handle)

    async def is_asleep(self) -> bool:
        """Whether its call is open."""
        return bool((await self.stack.store.load_tail(self._thread)).calls)

    async def woke_once(self) -> str:
        """Wait until it is awake; returns the result of its call."""

        async def is_awake() -> bool:
            return answer_text((await self.stack.client.history(self._thread))[-1]) == "awake"

        await eventually(is_awake)
        message = (await self.stack.client.history(self._thread))[-1]
        (result,) = (part for part in message.parts if isinstance(part, ToolResultPart))
        assert result.outcome == "ok"
        assert len(self.model.requests) == 2
        await assert_sound(self.stack, self._thread)
        return result.content


async def test_b37_d_a_local_time_is_that_of_the_zone_that_was_named(
    skipping: Client, store: PostgresStore, thread: str, tokyo: None
) -> None:
    """B37 (d): 09:00 in New York is 14:00 UTC on that day, whatever the zone of the worker's machine."""
    until = {"date": "2027-11-07", "time": "09:00", "timezone": "America/New_York"}
    sleeper = Sleeper(skipping, store, thread, Call("sleep_until", until))
    async with sleeper.stack:
        assert await sleeper.asleep() == NINE_IN_NEW_YORK
        now = datetime.now(UTC)
        await sleeper.skip(NINE_IN_NEW_YORK - now - timedelta(minutes=1))
        assert await sleeper.is_asleep()
        await sleeper.skip(timedelta(minutes=1))
        assert await sleeper.woke_once() == "Woke at 2027-11-07 09:00:00 America/New_York."


async def test_b37_e_a_time_without_a_zone_is_that_of_the_declared_one(
    skipping: Client, store: PostgresStore, thread: str, tokyo: None
) -> None:
    """B37 (e): the agent's zone counts, never that of the worker's machine."""
    until = {"date": "2027-11-07", "time": "09:00"}
    sleeper = Sleeper(skipping, store, thread, Call("sleep_until", until), zone="America/New_York")
    async with sleeper.stack:
        assert await sleeper.asleep() == NINE_IN_NEW_YORK
        await sleeper.stack.client.stop(thread)


async def test_b37_f_hours_of_sleep_with_other_workers_in_between_end_once(
    skipping: Client, store: PostgresStore, thread: str
) -> None:
    """B37 (f): each worker that takes over leaves the timer as it is."""
    sleeper = Sleeper(skipping, store, thread, Call("sleep", {"seconds": 5 * 3600}))
    async with sleeper.stack:
        due = await sleeper.asleep()
        for _ in range(2):
            await sleeper.skip(timedelta(hours=2))
            await sleeper.stack.restart_worker()
        assert await sleeper.is_asleep()
        assert await sleeper.skip(timedelta(hours=1)) >= due
        assert await sleeper.woke_once() == "Slept 18000 seconds."


async def test_ten_years_of_sleep_cost_nothing(skipping: Client, store: PostgresStore, thread: str) -> None:
    """The longest sleep wakes once, and no hour of it leaves an event in the thread's history."""
    sleeper = Sleeper(skipping, store, thread, Call("sleep", {"seconds": MAX_SECONDS}))
    async with sleeper.stack:
        due = await sleeper.asleep()
        now = await sleeper.skip(timedelta(seconds=MAX_SECONDS / 2))
        (events,) = await chained_runs(skipping, thread)
        await sleeper.skip(due - now + timedelta(seconds=1))
        assert await sleeper.woke_once() == f"Slept {MAX_SECONDS:.0f} seconds."
        assert len(events) < 50
