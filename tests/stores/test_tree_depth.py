"""Conversations of 30,000 messages: nothing goes down them by recursion, and nothing takes long."""

import time
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager

import pytest

from perdure.batch import ImportedMessage
from perdure.ports import Store
from tests.stores.builders import long_thread
from tests.stores.trees import answer, delete, imported, item, path, reset, said, switch, written

DEPTH = 30_000
WITHIN_S = 2.0

pytestmark = pytest.mark.slow


@asynccontextmanager
async def soon(what: str) -> AsyncGenerator[None]:
    """What is done here takes no longer than it may."""
    began = time.monotonic()
    yield
    took = time.monotonic() - began
    assert took < WITHIN_S, f"{what} took {took:.2f} s"


async def test_the_operations_of_a_deep_thread(store: Store) -> None:
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


async def test_a_deep_import(store: Store) -> None:
    """As one batch; and once more, when all of it is there."""
    await long_thread(store, 1)
    items: list[ImportedMessage] = [item(f"g{n}", f"g{n - 1}" if n else None) for n in range(DEPTH)]
    operation = await imported(store, *items, input_id="i1")
    began = time.monotonic()
    await written(store, operation)
    took = time.monotonic() - began
    assert len(await path(store)) == DEPTH
    again = await imported(store, *items, input_id="i2")
    began = time.monotonic()
    await written(store, again)
    assert len(await path(store)) == DEPTH
    # Twice the bound: these write every word of the thread, where the others write a few rows.
    assert max(took, time.monotonic() - began) < 5 * WITHIN_S
