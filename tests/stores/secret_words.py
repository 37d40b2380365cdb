"""Words that nobody may find any more once they are deleted, and the ways in which they are."""

from collections.abc import Awaitable, Callable

import pytest

from perdure.batch import Operation, SyncReport
from perdure.ports import Store
from tests.stores.trees import conversation, delete, reset, written

SECRET = "xyzzy"
WORDS = f"the {SECRET} word"

Traces = Callable[[], Awaitable[list[str]]]
Deletion = Callable[[Store, str], Awaitable[SyncReport]]


async def by_deletion(store: Store, message_id: str) -> SyncReport:
    """The message alone goes."""
    return await written(store, delete(message_id, input_id=f"delete-{message_id}"))


async def by_reset(store: Store, message_id: str) -> SyncReport:
    """All below what it hangs on goes."""
    tree = await store.load_tree("t")
    (parent,) = [stored.parent_id for stored in tree.messages if stored.message.id == message_id]
    return await written(store, reset(parent, f"reset-{message_id}"))


ways = pytest.mark.parametrize("way", [by_deletion, by_reset])


async def secretive(store: Store, traces: Traces, *operations: Operation) -> Store:
    """A conversation, and then these operations; the words are there before they are deleted."""
    await conversation(store)
    await written(store, *operations)
    assert await traces(), "a search that finds nothing proves nothing"
    return store
