"""Model calls that brought nothing, counted beside the work."""

import asyncio

from structlog.testing import capture_logs

from activities.lost_calls import LostCalls
from perdure.contract import CompleteRequest
from perdure.errors import StoreUnavailable
from perdure.messages import Usage
from perdure.records import ThreadRecord
from stores.memory import MemoryStore

REQUEST = CompleteRequest(thread_id="t", agent="a", turn=1, step=2)
USAGE = Usage(requests=1, input_tokens=7)


class AwayStore(MemoryStore):
    """Is away for the first so many tries, and says when one waits at the `gate`, if it has one."""

    def __init__(self, away: int = 0, gate: asyncio.Event | None = None) -> None:
        super().__init__()
        self.away = away
        self.tries = 0
        self.gate = gate
        self.waiting = asyncio.Event()

    async def add_usage(self, thread_id: str, turn: int, step: int, attempt: int, usage: Usage) -> None:
        """See the class."""
        self.tries += 1
        self.waiting.set()
        if self.gate is not None:
            await self.gate.wait()
        if self.tries <= self.away:
            raise StoreUnavailable("The database cannot be reached.")
        await super().add_usage(thread_id, turn, step, attempt, usage)


async def begin(store: MemoryStore) -> MemoryStore:
    """A store with one thread."""
    await store.create_thread(ThreadRecord(thread_id="t", agent="a"))
    return store


async def spent(store: MemoryStore) -> Usage:
    """What the thread has spent."""
    return (await store.get_thread("t")).usage


async def test_an_attempt_is_counted_once() -> None:
    """However often it is told; the next attempt is another call."""
    store = await begin(MemoryStore())
    lost = LostCalls(store)
    for attempt in (1, 1, 2):
        lost.count(REQUEST, attempt, USAGE)
    await lost.close()
    assert await spent(store) == USAGE + USAGE


async def test_a_store_that_is_away_for_a_while_gets_it_later() -> None:
    """Nothing is lost by an outage that is short."""
    store = AwayStore(away=2)
    await begin(store)
    lost = LostCalls(store, retry_s=(0, 0))
    lost.count(REQUEST, 1, USAGE)
    await lost.counted("t")
    assert (store.tries, await spent(store)) == (3, USAGE)


async def test_what_cannot_be_counted_is_told_in_the_log() -> None:
    """And is no failure of anything else."""
    store = AwayStore(away=9)
    await begin(store)
    lost = LostCalls(store, retry_s=(0,))
    with capture_logs() as records:
        lost.count(REQUEST, 1, USAGE)
        await lost.close()
    assert store.tries == 2
    assert [(record["event"], record["thread_id"]) for record in records] == [("a model call is not counted", "t")]
    assert "cannot be reached" in records[0]["reason"]


async def test_a_worker_that_ends_does_not_wait_for_ever() -> None:
    """What is not counted by then is told in the log."""
    store = AwayStore(gate=asyncio.Event())
    await begin(store)
    lost = LostCalls(store, close_s=0.01)
    with capture_logs() as records:
        lost.count(REQUEST, 1, USAGE)
        await lost.close()
    assert [record["reason"] for record in records] == ["the worker ended first"]


async def test_whoever_judges_a_thread_waits_for_its_counts_and_not_for_those_of_others() -> None:
    """A stop is counted beside the next message, which comes at once."""
    gate = asyncio.Event()
    store = AwayStore(gate=gate)
    await begin(store)
    lost = LostCalls(store)
    lost.count(REQUEST, 1, USAGE)
    await store.waiting.wait()
    await lost.counted("another")
    judged = asyncio.create_task(lost.counted("t"))
    done, _ = await asyncio.wait({judged}, timeout=0)
    assert not done
    gate.set()
    await judged
    assert await spent(store) == USAGE
