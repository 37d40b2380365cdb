"""Races in PostgreSQL, staged: one writer is held in the middle, the other is seen to wait, then the first goes on."""

import asyncio
import json
from random import Random

import pytest

from perdure.batch import Operation, SyncBatch
from perdure.codec import dumps
from perdure.errors import StaleWriter, StepSealed
from perdure.records import Change, ThreadRecord
from stores import batch_sql
from stores.postgres import PostgresStore
from tests.eventually import eventually
from tests.stores.builders import (
    DONE,
    THREAD,
    call,
    commit,
    delta,
    result,
    started,
    text,
    texts,
    user,
    with_calls,
    write,
)
from tests.stores.postgres_eye import connected, run, waiting
from tests.stores.trees import conversation, delete, path, said, written


def batch_of(operation: Operation) -> str:
    """A batch of one operation, as the store sends it."""
    batch = SyncBatch(thread_id=THREAD, number=2, sync_id="sync-2", operations=(operation,))
    return dumps(batch_sql.operations(batch, {}))


async def test_a_chunk_that_is_being_written_is_part_of_the_sealed_answer(
    postgres: PostgresStore, database_url: str
) -> None:
    """The stop waits for the writer that was first, and then sees its chunk; after it nobody writes."""
    await started(postgres)
    await postgres.append_chunks(THREAD, 1, 0, 1, [delta("Hel")])
    async with connected(database_url) as writer, connected(database_url) as eye:
        async with writer.transaction():
            await run(writer, "append_chunks", THREAD, 1, 0, 1, ['{"index":0,"delta":"lo"}'], None)
            stop = asyncio.create_task(write(postgres, 2, commit("a").with_(sealed=True)))
            await eventually(lambda: waiting(eye))
        await stop
    assert await texts(postgres) == ["hi", "Hello"]
    with pytest.raises(StepSealed):
        await postgres.append_chunks(THREAD, 1, 0, 1, [delta("!")])


async def test_a_chunk_that_waits_while_the_step_is_sealed_is_refused(
    postgres: PostgresStore, database_url: str
) -> None:
    """Though the writer had begun before the stop was through."""
    await started(postgres)
    await postgres.append_chunks(THREAD, 1, 0, 1, [delta("Hel")])
    operations = batch_of(commit("a").with_(discard=True))
    async with connected(database_url) as stopper, connected(database_url) as eye:
        async with stopper.transaction():
            await run(stopper, "append_messages", THREAD, 2, "stop", "{}", operations)
            late = asyncio.create_task(postgres.append_chunks(THREAD, 1, 0, 1, [delta("lo")]))
            await eventually(lambda: waiting(eye))
        with pytest.raises(StepSealed):
            await late
        assert await eye.fetchval("select count(*) from perdure.chunks") == 0


async def test_a_step_that_finishes_while_its_batch_waits_is_committed_whole(
    postgres: PostgresStore, database_url: str
) -> None:
    """One statement with several parts would not see what was committed while it waited for the lock."""
    await started(postgres)
    async with connected(database_url) as writer, connected(database_url) as eye:
        async with writer.transaction():
            await run(
                writer,
                "finish_step",
                *(THREAD, 1, 0, 1),
                ['{"kind":"text","text":"whole"}'],
                1,
                "[]",
                "{}",
                ['{"index":0,"delta":"whole"}'],
            )
            batch = asyncio.create_task(write(postgres, 2, commit("a")))
            await eventually(lambda: waiting(eye))
        await batch
        assert await eye.fetchval("select count(*) from perdure.chunks") == 0
    assert await texts(postgres) == ["hi", "whole"]


async def test_a_batch_that_waits_for_the_same_batch_is_a_repetition(
    postgres: PostgresStore, database_url: str
) -> None:
    """It was sent twice; the second one finds it done, another writer's finds itself stale."""
    await started(postgres)
    async with connected(database_url) as first, connected(database_url) as eye:
        async with first.transaction():
            await run(first, "append_messages", THREAD, 2, "sync-2", "{}", "[]")
            same = asyncio.create_task(write(postgres, 2))
            other = asyncio.create_task(write(postgres, 2, user("u2")))
            await eventually(lambda: waiting(eye))
        assert (await same).number == 2
        assert (await other).number == 2  # the same number and sync id, so it is taken for the same batch
        assert await texts(postgres) == ["hi"]
        async with first.transaction():
            await run(first, "append_messages", THREAD, 3, "somebody else", "{}", "[]")
            stale = asyncio.create_task(write(postgres, 3, user("u2")))
            await eventually(lambda: waiting(eye))
        with pytest.raises(StaleWriter):
            await stale


async def test_an_input_that_is_accepted_while_its_batch_waits_is_refused(
    postgres: PostgresStore, database_url: str
) -> None:
    """The check comes after the lock, so of two batches that bring the same input one writes it."""
    await started(postgres)
    message = {"id": "m", "at": 1, "on_head": True, "role": "user", "turn": 0, "state": "complete", "input_id": "in-u2"}
    operation = {
        "kind": "append_messages", "messages": [message], "parts": [], "count": 1, "head_id": "m", "turn": 0,
    }  # fmt: skip
    async with connected(database_url) as first, connected(database_url) as eye:
        async with first.transaction():
            await run(first, "append_messages", THREAD, 2, "first", '{"in-u2":"other words"}', json.dumps([operation]))
            second = asyncio.create_task(write(postgres, 3, user("u2", input_id="in-u2")))
            await eventually(lambda: waiting(eye))
        report = await second
    assert [(refused.input_id, refused.conflict) for refused in report.refused] == [("in-u2", True)]


async def test_a_second_result_waits_for_the_first_and_hears_it(postgres: PostgresStore, database_url: str) -> None:
    """The first staged result wins, also over one that is on its way."""
    await with_calls(postgres, "c1")
    async with connected(database_url) as first, connected(database_url) as eye:
        async with first.transaction():
            await run(first, "stage_result", THREAD, "c1", '{"kind":"tool_result","call_id":"c1","content":"first"}')
            second = asyncio.create_task(postgres.stage_result(THREAD, result("c1", "second")))
            await eventually(lambda: waiting(eye))
        assert (await second).content == "first"


async def test_readers_do_not_wait_for_writers(postgres: PostgresStore, database_url: str) -> None:
    """While a batch is under way all reads answer with what was there before it."""
    await started(postgres)
    await postgres.finish_step(THREAD, 1, 0, 1, (call("c"), text("x")), DONE, [])
    before = await postgres.snapshot(THREAD)
    async with connected(database_url) as writer, writer.transaction():
        operations = batch_of(commit("a").with_(discard=True))
        await run(writer, "append_messages", THREAD, 2, "slow", "{}", operations)
        async with asyncio.timeout(5):
            assert await postgres.snapshot(THREAD) == before
            assert (await postgres.load_tail(THREAD)).thread == before.thread
            assert await postgres.load_history_with_ancestors(THREAD) == before.path


async def test_b05_a_cursor_never_steps_over_a_late_commit(postgres: PostgresStore, database_url: str) -> None:
    """B05: a change that commits late is not below the cursor of a reader that polled before it."""
    await started(postgres)
    cursor = (await postgres.get_thread(THREAD)).seq
    async with connected(database_url) as first, connected(database_url) as eye:
        async with first.transaction():
            await run(first, "append_chunks", THREAD, 1, 0, 1, ['{"index":0,"delta":"E1"}'], None)
            second = asyncio.create_task(postgres.append_chunks(THREAD, 1, 0, 1, [delta("E2")]))
            await eventually(lambda: waiting(eye))
            early = await postgres.read_changes(THREAD, cursor)
            assert early == ()  # the second writer waits, so there is nothing to step over to
        await second
    assert deltas(await postgres.read_changes(THREAD, cursor)) == ["E1", "E2"]


async def test_b05_control_numbers_from_a_sequence_are_stepped_over(database_url: str) -> None:
    """The control: with positions from a sequence the same stage loses the first change, which the test must show."""
    async with connected(database_url) as first, connected(database_url) as reader:
        await reader.execute("create table naive (seq bigint generated always as identity, body text)")
        async with first.transaction():
            await first.execute("insert into naive (body) values ('E1')")
            await reader.execute("insert into naive (body) values ('E2')")
            rows = await reader.fetch("select seq, body from naive where seq > 0 order by seq")
            assert [row["body"] for row in rows] == ["E2"]
        assert await reader.fetch("select body from naive where seq > $1", rows[-1]["seq"]) == []


async def test_a_thread_below_that_writes_while_its_parent_deletes(postgres: PostgresStore, database_url: str) -> None:
    """Nobody waits in a circle: it holds its row and comes to need a message above, while a deletion wants its row."""
    await conversation(postgres)
    for name in ("k", "l"):
        await postgres.create_thread(
            ThreadRecord(thread_id=name, agent="demo", parent_thread_id=THREAD, spawn_message_id="a2")
        )
    words = dumps(batch_sql.operations(SyncBatch(thread_id="k", number=1, sync_id="k", operations=(said("k1"),)), {}))
    async with connected(database_url) as writer, connected(database_url) as eye, asyncio.timeout(20):
        async with writer.transaction():
            await run(writer, "lock_thread", "k")
            deletion = asyncio.create_task(written(postgres, delete("a2")))
            await eventually(lambda: waiting(eye))
            await run(writer, "append_messages", "k", 1, "k", "{}", words)
        assert (await deletion).refused == ()
    assert await path(postgres, "k") == ["u1", "a1", "u2", "k1"]
    assert await path(postgres, "l") == ["u1", "a1", "u2"]
    assert (await postgres.read_changes("k", 0))[-1].tree


@pytest.mark.slow
async def test_b05_under_stress(postgres: PostgresStore, database_url: str) -> None:
    """B05: eight writers of 500 changes each, which commit after a random delay, and one reader that polls meanwhile.

    The reader gets every change once, in the order of its number, which is that of each writer.
    """
    await started(postgres)
    cursor = (await postgres.get_thread(THREAD)).seq
    writers, each = 8, 500
    seen: list[Change] = []

    async def writer(name: int) -> None:
        delays = Random(name)
        async with connected(database_url) as connection:
            for number in range(each):
                async with connection.transaction():
                    chunk = dumps(delta(f"{name}-{number}"))
                    await run(connection, "append_chunks", THREAD, 1, 0, 1, [chunk], None)
                    # Not to wait for anything: the change is there, and nobody may see it yet. The others wait for it.
                    await asyncio.sleep(delays.choice((0.0, 0.0, 0.0005, 0.001)))

    async def reader() -> None:
        while len(seen) < writers * each + 1:  # the attempt that began is a change too
            seen.extend(await postgres.read_changes(THREAD, seen[-1].seq if seen else cursor, 50))

    async with asyncio.timeout(120), asyncio.TaskGroup() as tasks:
        tasks.create_task(reader())
        for name in range(writers):
            tasks.create_task(writer(name))
    told = deltas(tuple(seen))
    assert sorted(told) == sorted(f"{name}-{number}" for name in range(writers) for number in range(each))
    for name in range(writers):
        assert [words for words in told if words.startswith(f"{name}-")] == [f"{name}-{n}" for n in range(each)]
    numbers = [change.seq for change in seen]
    assert numbers == sorted(set(numbers))


def deltas(changes: tuple[Change, ...]) -> list[str]:
    """What streamed."""
    return [change.chunk.delta for change in changes if change.chunk]
