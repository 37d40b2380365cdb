"""Child threads: seeded by one batch, they see what they inherit by reference and nothing that came after."""

import pytest

from perdure.batch import AppendMessage, AppendParts, CloseThread, CommitResults
from perdure.errors import StoreError
from perdure.messages import EventPart, TextPart, ToolCallPart, ToolResultPart
from perdure.ports import Store
from perdure.records import MAX_UNSTARTED, ThreadRecord
from stores.postgres import PostgresStore
from stores.queries import QUERIES
from tests.stores.builders import (
    THREAD,
    assistant,
    call,
    commit,
    long_thread,
    result,
    seed,
    settle,
    spawn,
    started,
    text,
    texts,
    user,
    with_calls,
    write,
)
from tests.stores.plans import indexes, planner, rows_touched, scans


async def says(store: Store, thread_id: str) -> list[str]:
    """The path: texts, events in brackets, calls and results by their ids."""
    said: list[str] = []
    for message in (await store.load_history_with_ancestors(thread_id)).messages:
        for part in message.parts:
            match part:
                case TextPart():
                    said.append(part.text)
                case EventPart():
                    said.append(f"<{part.content}>")
                case ToolCallPart() | ToolResultPart():
                    said.append(f"{part.kind} {part.call_id}")
                case _:
                    raise AssertionError(part.kind)
    return said


def seeded(thread_id: str) -> list[str]:
    """What the seed of a child says."""
    return [f"tool_call call-{thread_id}", f"tool_result call-{thread_id}", "<go>"]


async def test_a_seed_hangs_on_the_spawn_point(store: Store) -> None:
    """The parent's message that still runs, cut; the call in the seed is history and nobody has to carry it out."""
    await with_calls(store, "c1", "c2")
    assert not (await spawn(store, "k", THREAD, "a", 1)).refused
    path = await store.load_history_with_ancestors("k")
    assert [(message.id, len(message.parts), message.thread_id) for message in path.messages] == [
        ("u", 1, THREAD),
        ("a", 1, THREAD),
        ("k-seed", 3, "k"),
    ]
    assert (path.messages[-1].parent_id, path.messages[-1].parent_parts) == ("a", 1)
    tail = await store.load_tail("k")
    assert (tail.calls, tail.parts, tail.step, tail.thread.version, tail.thread.turn) == ((), 3, 0, 1, 0)
    assert tail.processed == (("spawn-k", seed("k").digest),)
    assert [open_call.call_id for open_call in (await store.load_tail(THREAD)).calls] == ["c1", "c2"]


async def test_seeding_again_changes_nothing(store: Store) -> None:
    """Whoever lost a reply makes and seeds the thread again; another seed is a stale writer's."""
    await with_calls(store, "c1")
    first = await spawn(store, "k", THREAD, "a", 1)
    before = await store.load_tail("k")
    assert await spawn(store, "k", THREAD, "a", 1) == first
    assert await store.load_tail("k") == before


async def test_a_child_of_a_child_of_a_child(store: Store) -> None:
    """Each sees its line up to the cuts, though every message above it was running and grew afterwards."""
    await started(store)
    await write(store, 2, AppendParts(message_id="a", start=0, parts=(text("root before"), call("c1"))))
    await spawn(store, "one", THREAD, "a", 2)
    await write(store, 2, assistant("one-a"), thread_id="one")
    await write(store, 3, AppendParts(message_id="one-a", start=0, parts=(text("one before"),)), thread_id="one")
    await spawn(store, "two", "one", "one-a", 1)
    await write(store, 2, assistant("two-a"), thread_id="two")
    await spawn(store, "three", "two", "two-a", 0)

    async def check() -> None:
        root = ["hi", "root before", "tool_call c1"]
        one = [*root, *seeded("one"), "one before"]
        two = [*one, *seeded("two")]
        assert (await says(store, "one"))[: len(one)] == one
        assert (await says(store, "two"))[: len(two)] == two
        assert await says(store, "three") == [*two, *seeded("three")]
        counts = await store.get_message_counts("three")
        assert (counts.total, counts.user, counts.assistant, counts.event) == (7, 1, 3, 3)

    await check()
    await write(store, 3, CommitResults(message_id="a", start=2, call_ids=("c1",), results=(result("c1"),)))
    await write(store, 4, AppendParts(message_id="a", start=3, parts=(text("root after"),)), settle("a"))
    await write(store, 4, AppendParts(message_id="one-a", start=1, parts=(text("one after"),)), thread_id="one")
    await write(store, 3, AppendParts(message_id="two-a", start=0, parts=(text("two after"),)), thread_id="two")
    await write(store, 5, user("u2", "root later"))
    await check()
    assert await says(store, "two") == [
        *("hi", "root before", "tool_call c1"),
        *(*seeded("one"), "one before"),
        *(*seeded("two"), "two after"),
    ]
    chain = await store.get_ancestor_chain("three")
    assert [thread.thread_id for thread in chain] == [THREAD, "one", "two", "three"]


async def test_a_child_without_a_cut_inherits_the_message_that_is_settled(store: Store) -> None:
    """The control: with no number of parts it sees all of them."""
    await started(store)
    await write(store, 2, AppendParts(message_id="a", start=0, parts=(text("one"), text("two"))), settle("a"))
    await spawn(store, "k", THREAD, "a", None)
    assert await says(store, "k") == ["hi", "one", "two", *seeded("k")]


async def test_a_child_reads_the_blobs_above_it(store: Store) -> None:
    """Those of its whole line, also as the words of its seed; a blob that nobody above it has refuses the seed."""
    await with_calls(store, "c1")
    await spawn(store, "one", THREAD, "a", 1)
    blobs = [await store.put_blob(thread_id, thread_id.encode()) for thread_id in (THREAD, "one")]
    await spawn(store, "two", "one", "one-seed", 3)
    elsewhere = await store.put_blob("two", b"two")
    assert [await store.get_blob("two", blob) for blob in blobs] == [THREAD.encode(), b"one"]
    for number, blob in enumerate(blobs):
        name = f"three{number}"
        await store.create_thread(ThreadRecord(thread_id=name, agent="demo", kind="child", parent_thread_id="two"))
        assert not (await write(store, 1, seed(name, blob=blob), thread_id=name)).refused
    await store.create_thread(ThreadRecord(thread_id="sibling", agent="demo", kind="child", parent_thread_id="one"))
    (refused,) = (await write(store, 1, seed("sibling", blob=elsewhere), thread_id="sibling")).refused
    assert (refused.input_id, refused.missing) == ("spawn-sibling", True)


async def test_every_blob_of_an_input_must_be_there(store: Store) -> None:
    """One that is stored does not stand for another that is not, wherever it is among the parts."""
    await started(store)
    there = await store.put_blob(THREAD, b"there")
    for number, blobs in enumerate(((there, "00"), ("00", there))):
        message = seed(f"k{number}").message
        parts = tuple(EventPart(event_id="e", origin_call_id="c", blob=blob) for blob in blobs)
        report = await write(store, 2, AppendMessage(message=message.with_(parts=parts)))
        assert [item.missing for item in report.refused] == [True]


async def test_the_tail_counts_children_that_are_not_closed(store: Store) -> None:
    """Its own only; those that were seeded and never ran are named, oldest first."""
    await with_calls(store, "c1")
    assert ((await store.load_tail(THREAD)).children, (await store.load_tail(THREAD)).unstarted) == (0, ())
    for name in ("z", "y", "x", "w", "v"):
        await spawn(store, name, THREAD, "a", 1)
    await spawn(store, "grandchild", "z", "z-seed", 3)
    await store.create_thread(ThreadRecord(thread_id="bare", agent="demo", kind="child", parent_thread_id=THREAD))
    await store.create_thread(ThreadRecord(thread_id="stranger", agent="demo"))
    await write(store, 2, assistant("y-a"), thread_id="y")
    await write(store, 2, CloseThread(), thread_id="w")
    await store.close_thread("v")
    tail = await store.load_tail(THREAD)
    assert (tail.children, tail.unstarted) == (4, ("z", "x"))
    assert [child.thread_id for child in await store.get_children(THREAD)] == ["z", "y", "x", "bare"]
    assert await store.get_children(THREAD) == tuple([await store.get_thread(name) for name in ("z", "y", "x", "bare")])
    assert [child.thread_id for child in await store.get_children("z")] == ["grandchild"]
    assert await store.get_children("grandchild") == await store.get_children("nobody") == ()


async def test_the_tail_names_the_newest_unstarted_children(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    """The oldest of those first; all are counted."""
    for module in ("memory_state", "postgres_state"):
        monkeypatch.setattr(f"stores.{module}.MAX_UNSTARTED", 3)
    await with_calls(store, "c1")
    for number in range(5):
        await spawn(store, f"k{number}", THREAD, "a", 1)
    tail = await store.load_tail(THREAD)
    assert (tail.children, tail.unstarted) == (5, ("k2", "k3", "k4"))


async def test_a_batch_closes_its_thread(store: Store) -> None:
    """The first time stays; what settles is written after it, and before it in the same batch."""
    await started(store)
    await write(store, 2, commit("a"), CloseThread(), settle("a"), CloseThread())
    closed_at = (await store.get_thread(THREAD)).closed_at
    assert closed_at is not None
    assert (await store.load_tail(THREAD)).thread.closed_at == closed_at
    await write(store, 3, AppendParts(message_id="a", start=0, parts=(text("late"),)), CloseThread())
    await store.close_thread(THREAD)
    assert (await store.get_thread(THREAD)).closed_at == closed_at
    assert await texts(store) == ["hi", "late"]


async def test_a_batch_that_fails_does_not_close_its_thread(store: Store) -> None:
    """The control for closing at the wrong time."""
    await started(store)
    with pytest.raises(StoreError, match="bug"):
        await write(store, 2, CloseThread(), settle("nobody"))
    assert (await store.get_thread(THREAD)).closed_at is None


async def test_spawning_costs_the_same_however_long_the_parent_is(own_database_url: str, statements: list[str]) -> None:
    """No message is copied: the same statements, the same rows, under 10 messages and under 2,000."""
    costs: dict[int, tuple[list[str], dict[str, int]]] = {}
    async with await PostgresStore.connect(own_database_url, max_size=1) as store:
        await long_thread(store, 10, "warm")
        await spawn(store, "warm-child", "warm", "warm-9", 1)  # what a connection does once is done
        for length in (10, 2000):
            parent = f"parent{length}"
            await long_thread(store, length, parent)
            sent: list[str] = []

            async def child(parent: str = parent, length: int = length, sent: list[str] = sent) -> None:
                statements.clear()
                await spawn(store, f"child{length}", parent, f"{parent}-{length - 1}", 1)
                sent.extend(statements)

            touched = await rows_touched(store, child)
            costs[length] = sent, touched
        path = await store.load_history_with_ancestors("child2000")
    assert len(path.messages) == 2001
    assert len(costs[10][0]) == 2
    assert costs[2000][0] == costs[10][0]
    assert costs[2000][1] == pytest.approx(costs[10][1], abs=3)


async def test_children_are_found_by_keys(own_database_url: str) -> None:
    """The tail reads as much for one of many threads as if it were alone: no table is walked through."""
    async with await PostgresStore.connect(own_database_url) as store:
        await with_calls(store, "c1")
        for number in range(20):
            await store.create_thread(ThreadRecord(thread_id=f"other{number}", agent="demo"))
        await spawn(store, "k", THREAD, "a", 1)
        async with planner(own_database_url) as explain:
            for query, args in (("tail", (THREAD, 200, MAX_UNSTARTED)), ("children", (THREAD,))):
                plan = await explain(QUERIES[query], *args)
                assert scans(plan, "Seq Scan") == []
                assert "threads_children" in indexes(plan)
