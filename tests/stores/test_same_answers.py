"""Random conversations, written to both stores: every answer, error and reading must be the same."""

from datetime import UTC, datetime
from typing import Any

import pytest

from perdure.batch import SyncReport
from perdure.codec import dumps
from perdure.errors import StaleWriter, StepSealed, StoreError
from perdure.ports import Store
from perdure.records import OpenCall, StoredTree, ThreadRecord
from stores.memory import MemoryStore
from stores.postgres import PostgresStore
from tests.stores.builders import started
from tests.stores.random_writer import THREADS, Call, Writer

SOME_TIME = datetime(2026, 1, 1, tzinfo=UTC)


async def answer(store: Store, call: Call) -> object:
    """What a caller gets: the answer, or the kind of the error."""
    try:
        found = await call(store)
        if isinstance(found, SyncReport) and any(refused.detail for refused in found.refused):
            return "refused"
        return plain(found)
    except (StaleWriter, StepSealed) as error:
        return type(error).__name__
    except StoreError:
        return "refused"  # which of several mistakes in one batch is found first is nobody's business


def plain(value: Any) -> Any:
    """A value that can be compared, without the times at which threads were made."""
    return dumps(value).replace('"created_at"', '"created_at_left_out"') if value is not None else None


def timeless(thread: ThreadRecord) -> ThreadRecord:
    """A thread without the times at which it was made and closed: only whether it is closed."""
    return thread.with_(created_at=None, closed_at=SOME_TIME if thread.closed_at else None)


def in_call_order(calls: tuple[OpenCall, ...]) -> tuple[OpenCall, ...]:
    """Calls that are each other's equals in it, which no thread makes, in the order of their names."""
    return tuple(sorted(calls, key=lambda call: (call.turn, call.step, call.index, call.call_id)))


def in_order(tree: StoredTree) -> StoredTree:
    """A tree in one order of the many that it may come in, and without the times at which messages were said."""
    messages = [stored if stored.given_id else stored.with_(created_at=None) for stored in tree.messages]
    return tree.with_(
        messages=tuple(sorted(messages, key=lambda stored: stored.message.id)),
        remembered=tuple(sorted(tree.remembered, key=lambda known: known[0] or "")),
        calls=in_call_order(tree.calls),
    )


async def reading(store: Store) -> list[object]:
    """Everything that can be read."""
    found: list[object] = []
    for thread_id in THREADS:
        thread = timeless(await store.get_thread(thread_id))
        snapshot, tail = await store.snapshot(thread_id), await store.load_tail(thread_id, processed=1000)
        snapshot = snapshot.with_(thread=thread, calls=in_call_order(snapshot.calls))
        tail = tail.with_(thread=thread, calls=in_call_order(tail.calls), processed=tuple(sorted(tail.processed)))
        path = await store.load_history_with_ancestors(thread_id)
        found += [in_order(await store.load_tree(thread_id, parts=parts)) for parts in (True, False)]
        for message_id in sorted(stored.message.id for stored in (await store.load_tree(thread_id)).messages):
            found.append(await store.load_history_with_ancestors(thread_id, message_id=message_id))
        found += [thread, snapshot, tail, path, await store.get_message_counts(thread_id)]
        found += [await store.load_history_with_ancestors(thread_id, message.id) for message in path.messages[-3:]]
        found += await store.read_changes(thread_id, 0)
        found.append(await store.load_history_with_ancestors(thread_id, whole=True))
        for turn in range(1, thread.turn + 2):
            found += [await store.get_turn_context(thread_id, turn, step) for step in range(3)]
            found += [
                await store.finished_hooks(thread_id, turn),
                (await store.get_spending(thread_id, turn)).turn.usage,
            ]
        spending = await store.get_spending(thread_id)
        found += [spending.thread.usage, spending.tree.usage, spending.tenant.usage]
        found += [await store.get_provider_states(thread_id), await store.read_log(thread_id, "log")]
        found += await store.get_active_subscriptions(thread_id)
        found += await store.get_choices(thread_id)
        found += [timeless(child) for child in await store.get_children(thread_id)]
        found += sorted((await store.get_processed_ids(thread_id, tuple(f"i{n}" for n in range(31)))).items())
    return found


@pytest.mark.parametrize("seed", range(6))
async def test_both_stores_give_the_same_answers(postgres: PostgresStore, seed: int) -> None:
    """The store in memory is as strict as the one in the database, and the other way round."""
    memory, writer = MemoryStore(), Writer(seed)
    stores: tuple[Store, Store] = (memory, postgres)
    refused = trees = 0
    for store in stores:
        await started(store)
        child = ThreadRecord(thread_id="k", agent="demo", kind="child", parent_thread_id="t", spawn_parts=1)
        await store.create_thread(child.with_(spawn_message_id="a"))
    for count in range(150):
        call = writer.call()
        answers = [await answer(store, call) for store in stores]
        assert answers[0] == answers[1], (seed, count)
        refused += answers[0] in ("refused", "StaleWriter", "StepSealed")
        trees += '"tree":' in str(answers[0])
        if count % 10 == 9:
            assert await reading(memory) == await reading(postgres), (seed, count)
        await writer.learn(memory)
    assert 20 < refused < 130, "the calls are all refused or all accepted, so they compare little"
    assert trees > 5, "hardly anything was done to the tree"
