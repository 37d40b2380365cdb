"""Case B11: a stop reaches every thread below the one that is stopped, above all one that starts a moment later."""

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable
from datetime import timedelta
from typing import Literal

import asyncpg
import pytest
from temporalio.api.enums.v1 import EventType
from temporalio.client import Client, WorkflowExecutionStatus

from perdure.agent import Agent
from perdure.builtins import Threads
from perdure.limits import Limits
from perdure.testing import Call, Reply
from tests.eventually import eventually
from tests.recorded import chained_runs
from tests.stack import Stack
from tests.workflows.family import ROOT, Family, Me, Role, child_of, closed, made, spawn
from tests.workflows.gated_store import GatedStore
from tests.workflows.soundness import assert_sound

pytestmark = pytest.mark.slow

QUIET_S = 2.0
"""How soon after a stop all below it must be quiet, and how much longer it is looked at."""


class House:
    """A root, its child `k1` and the child `g1` of that, both at work without end; `k2` if the root is told more."""

    def __init__(self, temporal: Client, store: GatedStore, thread: str, idle: timedelta) -> None:
        self.thread = thread
        self.k1 = child_of(thread)
        self.g1 = child_of(self.k1)
        self.k2 = child_of(thread, turn=2)
        self.works = 0
        roles: dict[str, Role] = {ROOT: _root, "k1": _k1, "g1": _talk, "k2": _toil}
        self.model = Family(roles)
        self.agent = Agent("a", model=self.model, toolsets=[Threads()], limits=Limits(steps=100_000, idle=idle))
        self.agent.tool(name="work", retry_safe=True)(self._work)
        self.stack = Stack(temporal, store, [self.agent])
        self._store = store

    async def _work(self) -> str:
        self.works += 1
        await asyncio.sleep(0.02)
        return "worked"

    async def at_work(self) -> None:
        """Set the family to work; returns when the root idles and all below it are busy."""
        await self.stack.client.ask(self.thread, "go", id="m1")
        await eventually(lambda: self.works > 3 and self.model.requests_of(self.g1))

    def activity(self) -> tuple[int, int]:
        """Requests to the model by any descendant, and runs of tools, so far."""
        requests = len(self.model.requests) - len(self.model.requests_of(self.thread))
        return requests, self.works

    async def assert_quiet(self, database_url: str) -> None:
        """Within 2 s nothing runs any more below the root, and 2 s later nothing has run since."""
        clock = asyncio.get_running_loop().time
        await eventually(lambda: _nothing_runs(database_url), timeout=QUIET_S)
        before, until = self.activity(), clock() + QUIET_S
        await eventually(lambda: clock() > until, timeout=2 * QUIET_S)
        assert self.activity() == before
        assert await _nothing_runs(database_url)
        for thread in (self.k1, self.g1):
            last = (await self.stack.client.history(thread))[-1]
            assert (last.status.state, last.status.reason) == ("incomplete", "cancelled")
        await assert_sound(self.stack, self.thread, self.k1, self.g1)


def _root(who: Me) -> Reply | str:
    if who.heard:
        return "I wait for them"
    return spawn(who, "k1") if who.asked.user_text == "go" else spawn(who, "k2")


def _k1(who: Me) -> Reply:
    return spawn(who, "g1") if who.answered == 0 else _toil(who)


def _talk(who: Me) -> Reply:
    return Reply("on and on", hang=True)


def _toil(who: Me) -> Reply:
    return Reply(Call("work"))


async def _nothing_runs(database_url: str) -> bool:
    """Whether no message of any thread is `running`, and no child waits to be started."""
    connection: asyncpg.Connection[asyncpg.Record] = await asyncpg.connect(database_url)
    try:
        return not await connection.fetchval(
            "select (select count(*) from perdure.messages where state = 'running') + (select count(*) from "
            "perdure.threads where parent_thread_id is not null and closed_at is null and turn = 0)"
        )
    finally:
        await connection.close()


@pytest.fixture
async def gated(database_url: str) -> AsyncGenerator[GatedStore]:
    """A store over a database of its own."""
    store = await GatedStore.connect(database_url)
    yield store
    await store.close()


@pytest.fixture
async def house(temporal: Client, gated: GatedStore, thread: str) -> AsyncGenerator[House]:
    """A family whose root stays awake."""
    house = House(temporal, gated, thread, timedelta(hours=1))
    async with house.stack:
        yield house


Stop = Callable[[House], Awaitable[object]]


async def _stop(house: House) -> object:
    return await house.stack.client.stop(house.thread)


async def _interrupt(house: House) -> None:
    await house.stack.client.interrupt(house.thread, "enough")


async def _signal(house: House) -> None:
    await house.stack.handle(house.thread).signal("interrupt")


async def _close(house: House) -> None:
    await house.stack.client.close_thread(house.thread)


async def _cancel(house: House) -> None:
    handle = house.stack.handle(house.thread)
    await handle.cancel()

    async def is_cancelled() -> bool:
        return (await handle.describe()).status == WorkflowExecutionStatus.CANCELED

    await eventually(is_cancelled)


@pytest.mark.parametrize("hold", ["before", "after"])
@pytest.mark.parametrize("stop", [_stop, _signal])
async def test_b11_a_stop_while_a_second_child_is_being_made(
    stop: Stop, hold: Literal["before", "after"], house: House, gated: GatedStore, database_url: str
) -> None:
    """B11: k1 and g1 work, k2 is about to be registered, or was and has not started. It never starts."""
    gated.hold = hold
    await house.at_work()
    await house.stack.client.send(house.thread, "another", id="m2")
    await eventually(gated.reached.is_set)
    await stop(house)
    last = await house.stack.client.wait_settled(house.thread)
    assert (last.status.state, last.status.reason) == ("incomplete", "cancelled")
    gated.gate.set()
    await made(house.stack, house.k2)
    await house.assert_quiet(database_url)
    assert house.model.requests_of(house.k2) == []
    assert (await gated.get_thread(house.k2)).closed_at is not None
    assert {child.thread_id for child in await gated.get_children(house.thread)} == {house.k1}


@pytest.mark.parametrize("stop", [_stop, _interrupt, _signal, _close, _cancel])
async def test_b11_a_stop_of_an_idle_parent(stop: Stop, house: House, database_url: str) -> None:
    """B11: it does nothing itself, but those below it do.

    Its second case deletes the parent: no thread is deleted here, so what is left of that is that it is closed. Its
    rows stay, and so no late write of a child can miss them.
    """
    await house.at_work()
    assert (await house.stack.client.status(house.thread)).state == "idle"
    await stop(house)
    await house.assert_quiet(database_url)
    # The control: a stop is not the end. Whoever is spoken to goes on.
    before = house.activity()
    await house.stack.client.send(house.k1, "go on", id="m9")
    await eventually(lambda: house.activity() > before)
    await house.stack.client.stop(house.k1)


@pytest.mark.parametrize("stop", [_stop, _interrupt])
async def test_b11_a_stop_of_a_parent_that_hibernates(
    stop: Stop, temporal: Client, gated: GatedStore, thread: str, database_url: str
) -> None:
    """B11: its workflow has ended; the stop wakes it, and it passes the stop on."""
    house = House(temporal, gated, thread, timedelta(seconds=0.3))
    async with house.stack:
        await house.at_work()

        async def hibernates() -> bool:
            return (await house.stack.handle(thread).describe()).status == WorkflowExecutionStatus.COMPLETED

        await eventually(hibernates)
        await stop(house)
        await house.assert_quiet(database_url)


async def test_many_stops_are_one_for_the_children(house: House, database_url: str) -> None:
    """A hundred signals do not become a hundred for each thread below, and a hundred times that for the next."""
    await house.at_work()
    handle = house.stack.handle(house.thread)
    await asyncio.gather(*(handle.signal("interrupt") for _ in range(100)))
    await house.assert_quiet(database_url)
    (events,) = await chained_runs(house.stack.temporal, house.k1)
    signals = [event for event in events if event.event_type == EventType.EVENT_TYPE_WORKFLOW_EXECUTION_SIGNALED]
    assert 1 <= len(signals) < 50


async def test_a_stop_of_a_child_is_for_it_and_those_below_it(house: House) -> None:
    """Its parent and its sister go on: a stop goes down, never up or aside."""
    await house.at_work()
    await house.stack.client.send(house.thread, "another", id="m2")
    await eventually(lambda: house.model.requests_of(house.k2))
    await house.stack.client.stop(house.k1)

    async def g1_is_stopped() -> bool:
        return (await house.stack.client.history(house.g1))[-1].status.reason == "cancelled"

    await eventually(g1_is_stopped, timeout=QUIET_S)
    before = len(house.model.requests_of(house.k2))
    await eventually(lambda: len(house.model.requests_of(house.k2)) > before)
    await house.stack.client.stop(house.thread)
    await eventually(lambda: _stopped(house, house.k2), timeout=QUIET_S)


async def _stopped(house: House, thread: str) -> bool:
    return (await house.stack.client.history(thread))[-1].status.reason == "cancelled"


async def test_words_to_a_parent_do_not_stop_its_children(house: House) -> None:
    """They interrupt its own turn only: children are stopped by a stop."""
    await house.at_work()
    await house.stack.client.ask(house.thread, "another", id="m2")
    before = house.works
    await eventually(lambda: house.works > before)
    await house.stack.client.stop(house.thread)


async def test_b11_a_child_that_closes_itself_takes_those_below_it_along(
    temporal: Client, gated: GatedStore, thread: str, database_url: str
) -> None:
    """B11: nobody would hear their reports, and no stop from above would find them below a thread that is closed."""
    house = House(temporal, gated, thread, timedelta(hours=1))
    finish = asyncio.Event()

    @house.agent.tool(retry_safe=True)
    async def linger() -> str:
        await finish.wait()
        return "lingered"

    def k1(who: Me) -> Reply:
        close = Call("close_thread", {"thread_id": who.id})
        return Reply(*spawn(who, "g1").items, Call("linger")) if who.answered == 0 else Reply(close)

    house.model.roles["k1"] = k1
    async with house.stack:
        await house.stack.client.ask(thread, "go", id="m1")
        await eventually(lambda: house.model.requests_of(house.g1))
        finish.set()
        await closed(house.stack, house.k1)
        await eventually(lambda: _nothing_runs(database_url), timeout=QUIET_S)
        assert await _stopped(house, house.g1)
        assert len(house.model.requests_of(house.g1)) == 1
