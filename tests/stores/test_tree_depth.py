"""Conversations of 30,000 messages: nothing goes down them by recursion, and nothing takes long."""

import os
import time
from collections.abc import AsyncGenerator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from pathlib import Path

import pytest
import pytest_asyncio

from perdure.batch import ImportedMessage
from perdure.ports import Store
from stores.memory import MemoryStore
from stores.postgres import PostgresStore
from tests.stores.builders import long_thread
from tests.stores.postgres_eye import connected
from tests.stores.trees import answer, delete, imported, item, path, reset, said, switch, written

DEPTH = 30_000
WITHIN_S = 2.0
TICKS_PER_S = os.sysconf("SC_CLK_TCK")

Soon = Callable[..., AbstractAsyncContextManager[None]]

pytestmark = pytest.mark.slow


@pytest_asyncio.fixture(loop_scope="session")
async def postgres(own_database_url: str) -> AsyncGenerator[PostgresStore]:
    """A store on a database of its own: one that was emptied often is planned for as if it stayed empty."""
    async with await PostgresStore.connect(own_database_url) as store:
        yield store


@pytest.fixture
def soon(request: pytest.FixtureRequest, store: Store) -> Soon:
    """What is done in the block takes no longer than it may, with a machine for itself.

    That is: the time that this process and the connections' server processes work, and not the time in which they
    wait for others, of whom a machine that runs tests has many.
    """

    async def worked() -> float:
        if isinstance(store, MemoryStore):
            return time.process_time()
        async with connected(request.getfixturevalue("own_database_url")) as eye:
            rows = await eye.fetch("select pid from pg_stat_activity where datname = current_database()")
        return time.process_time() + sum(_worked(row["pid"]) for row in rows)

    @asynccontextmanager
    async def within(what: str, within_s: float = WITHIN_S) -> AsyncGenerator[None]:
        before = await worked()
        yield
        took = await worked() - before
        assert took < within_s, f"{what} took {took:.2f} s"

    return within


def _worked(pid: int) -> float:
    try:
        stat = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8")
    except (FileNotFoundError, ProcessLookupError):  # the connection that has asked for the others is gone
        return 0.0
    user, system = stat.rpartition(") ")[2].split()[11:13]
    return (int(user) + int(system)) / TICKS_PER_S


async def test_the_operations_of_a_deep_thread(store: Store, soon: Soon) -> None:
    """An edit at the top, an answer anew at the bottom, a switch over the whole of it, deletion of what is first."""
    await long_thread(store, DEPTH)
    last = f"m{DEPTH - 1}"
    async with soon("an answer anew at the bottom"):
        await written(store, answer("b", 1, answering=last))
    async with soon("an edit at the top"):
        await written(store, said("v", beside="m0"))
    async with soon("a switch from the top to the bottom"):
        await written(store, switch("m0", "s1"))
    async with soon("a switch to the middle"):
        await written(store, switch(f"m{DEPTH // 2}", "s2"))
    assert (await store.get_thread("t")).head_id == "b"
    async with soon("the deletion of the first message"):
        await written(store, delete("m0"))
    async with soon("the tail"):
        assert (await store.load_tail("t")).followers == 0
    async with soon("the tree without words"):
        assert len((await store.load_tree("t", parts=False)).messages) == DEPTH + 1
    async with soon("the tree"):
        assert len((await store.load_tree("t")).messages) == DEPTH + 1
    found = await path(store)
    assert (found[0], found[-1], len(found)) == ("m1", "b", DEPTH)
    async with soon("a reset to the second message"):
        await written(store, reset("m1"))
    assert await path(store) == ["m1"]


@pytest.mark.timeout(300)
async def test_a_deep_import(store: Store, soon: Soon) -> None:
    """As one batch; and once more, when all of it is there. It writes every word, so it may take longer."""
    await long_thread(store, 1)
    items: list[ImportedMessage] = [item(f"g{n}", f"g{n - 1}" if n else None) for n in range(DEPTH)]
    for number in range(2):
        operation = await imported(store, *items, input_id=f"i{number}")
        async with soon("an import", 5 * WITHIN_S):
            await written(store, operation)
        assert len(await path(store)) == DEPTH


async def test_time_is_measured(store: Store, soon: Soon) -> None:
    """A bound that holds whatever is done would show nothing."""

    async def work() -> None:
        async with soon("a thread", 0.001):
            await long_thread(store, 500)

    with pytest.raises(AssertionError, match="took"):
        await work()
