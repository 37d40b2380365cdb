"""Failures that others had with their stores, each under its number."""

import re
from collections.abc import Awaitable, Callable
from datetime import UTC, datetime

import asyncpg
import pytest

from perdure.batch import AppendMessage
from perdure.codec import dumps, loads
from perdure.errors import StaleWriter, StoreUnavailable
from perdure.messages import Message, ReasoningPart, ToolCallPart, ToolResultPart
from perdure.ports import Store
from perdure.records import Summary, ThreadRecord
from stores.postgres import PostgresStore
from tests.stores.builders import (
    DONE,
    THREAD,
    assistant,
    call,
    commit,
    result,
    settle,
    started,
    text,
    texts,
    user,
    with_calls,
    write,
)
from tests.stores.postgres_eye import connected

READS: dict[str, Callable[[Store], Awaitable[object]]] = {
    "get_thread": lambda store: store.get_thread(THREAD),
    "get_ancestor_chain": lambda store: store.get_ancestor_chain(THREAD),
    "load_history_with_ancestors": lambda store: store.load_history_with_ancestors(THREAD),
    "snapshot": lambda store: store.snapshot(THREAD),
    "read_changes": lambda store: store.read_changes(THREAD, 0),
    "get_blob": lambda store: store.get_blob(THREAD, BLOB),
    "get_message_counts": lambda store: store.get_message_counts(THREAD),
    "load_tail": lambda store: store.load_tail(THREAD),
    "get_processed_ids": lambda store: store.get_processed_ids(THREAD, ("in-u",)),
    "get_active_subscriptions": lambda store: store.get_active_subscriptions(THREAD),
    "get_metadata": lambda store: store.get_metadata(THREAD),
    "get_choices": lambda store: store.get_choices(THREAD),
    "get_children": lambda store: store.get_children(THREAD),
    "get_key": lambda store: store.get_key("callbacks"),
    "begin_step": lambda store: store.begin_step(THREAD, 1, 7, 1),
    "start_call": lambda store: store.start_call(THREAD, "c1"),
}
BLOB = "2d711642b726b04401627ca9fbac32f5c8530fb1903cc4db02258717921a4881"  # of b"x"


@pytest.mark.parametrize("read", READS)
async def test_b08_a_failed_read_is_an_error(own_database_url: str, read: str) -> None:
    """B08: a read that waits too long raises and says so; when the store recovers, everything is there."""
    async with connected(own_database_url) as eye:
        database = await eye.fetchval("select current_database()")
        await eye.execute(f"alter database {database} set lock_timeout = '50ms'")
        async with await PostgresStore.connect(own_database_url) as store:
            await with_calls(store, "c1")
            assert await store.put_blob(THREAD, b"x") == BLOB
            before = await store.load_history_with_ancestors(THREAD)
            tables = await eye.fetch("select tablename from pg_tables where schemaname = 'perdure'")
            names = ", ".join(f"perdure.{row['tablename']}" for row in tables)
            async with eye.transaction():
                await eye.execute(f"lock table {names} in access exclusive mode")
                with pytest.raises(StoreUnavailable, match=re.escape(database)):
                    await READS[read](store)
            assert await READS[read](store) is not None
            assert (await store.load_history_with_ancestors(THREAD)).messages == before.messages


@pytest.mark.parametrize(
    "arguments",
    ['{"path":"a","content":"z","b":1}', '{"a":1.0,"n":1e2}', '{ "x" : 1,\n "x" : 2 }', '{"broken": ', "\x00\ud800"],
)
async def test_b32_arguments_come_back_byte_for_byte(store: Store, arguments: str) -> None:
    """B32: the text of a call is not parsed and built again, whatever it is."""
    await started(store)
    await store.finish_step(THREAD, 1, 0, 1, (call("c1", arguments=arguments),), DONE, [])
    await write(store, 2, commit("a"))
    path = await store.load_history_with_ancestors(THREAD)
    part = path.messages[-1].parts[0]
    assert isinstance(part, ToolCallPart)
    assert part.arguments == arguments
    assert (await store.start_call(THREAD, "c1")).arguments == arguments


async def test_b52_order_is_that_of_writing(postgres: PostgresStore, database_url: str) -> None:
    """B52: rows of one transaction have one time; neither that nor an update nor a clock set back changes the order."""
    await postgres.create_thread(ThreadRecord(thread_id=THREAD, agent="demo"))
    parts = (ReasoningPart(text="hm", signature="s"), call("c1"), result("c1"), text("x"))
    await write(postgres, 1, user("u1"), assistant("a1", 1, *parts), settle("a1"), user("u2"), assistant("a2", 2))
    async with connected(database_url) as eye:
        await eye.execute("update perdure.messages set metadata = '{}' where id = 'u1'")
        await eye.execute("update perdure.parts set body = body where position = 0")
        await eye.execute("update perdure.threads set created_at = created_at - interval '1 hour'")
    await write(postgres, 2, settle("a2"), user("u3"))
    for _ in range(20):
        path = await postgres.load_history_with_ancestors(THREAD)
        assert [message.id for message in path.messages] == ["u1", "a1", "u2", "a2", "u3"]
        assert path.messages[1].parts == parts
        newest = (await postgres.load_tail(THREAD, processed=2)).processed
        assert [input_id for input_id, _ in newest] == ["in-u2", "in-u3"]


async def test_b53_the_version_is_an_integer(own_database_url: str) -> None:
    """B53: a zone, a summary in between and writes of the same microsecond are no conflict; another writer is."""
    async with connected(own_database_url) as eye:
        database = await eye.fetchval("select current_database()")
        await eye.execute(f"alter database {database} set timezone = 'America/Los_Angeles'")
    created_at = datetime(2026, 3, 8, 10, 30, 0, 123456, tzinfo=UTC)
    async with await PostgresStore.connect(own_database_url) as store:
        await store.create_thread(ThreadRecord(thread_id=THREAD, agent="demo", created_at=created_at))
        await write(store, 1, user("u"))
        version = (await store.load_tail(THREAD)).thread.version
        await store.add_summary(Summary(id="s", thread_id=THREAD, message_id="u", parts=1, text="so far"))
        await store.set_metadata(THREAD, {"title": "x"})
        await store.begin_step(THREAD, 1, 0, 1)
        for number in range(version + 1, version + 21):
            await write(store, number, user(f"m{number}", f"m{number}"))
        with pytest.raises(StaleWriter):
            await write(store, version + 1, user("late"))
        assert (await store.get_thread(THREAD)).created_at == created_at
        assert (await store.get_thread(THREAD)).version == 21


@pytest.mark.parametrize("number", [2512292042121000001, -(2**63) - 1, 10**30, 2**53 + 1])
async def test_b69_integers_keep_all_digits(store: Store, number: int) -> None:
    """B69: in arguments, results, metadata and what readers are told."""
    await started(store)
    body = dumps({"id": number})
    await store.finish_step(THREAD, 1, 0, 1, (call("c1", arguments=body),), DONE, [])
    await write(store, 2, commit("a"))
    await store.stage_result(THREAD, result("c1", body))
    await store.set_metadata(THREAD, {"id": number})
    started_call = await store.start_call(THREAD, "c1")
    assert loads(started_call.arguments) == {"id": number}
    assert started_call.result is not None
    assert loads(started_call.result.content) == {"id": number}
    assert await store.get_metadata(THREAD) == {"id": number}
    told = [change.part for change in await store.read_changes(THREAD, 0) if isinstance(change.part, ToolCallPart)]
    assert [part.arguments for part in told] == [body]


HOSTILE = {
    "NUL": "a\x00b",
    "lone surrogates": "\ud83d and \udc00",
    "emoji": "👩‍👩‍👧 é ä̈",
    "escapes": '\\u0000 \\" \\\\x "quoted" \'single\'',
    "controls": "\r\n\t\x1b[31m\x7f\u2028\ufeff",
    "SQL": "'; drop table perdure.threads; --",
    "long": "x" * 300_000,
    "blank": " ",
}


@pytest.mark.parametrize("words", HOSTILE.values(), ids=list(HOSTILE))
async def test_hostile_text_comes_back_as_it_was(store: Store, words: str) -> None:
    """In every place that holds words of people, models and tools."""
    await store.create_thread(ThreadRecord(thread_id=THREAD, agent="demo", title=words))
    message = Message(id="m", thread_id=THREAD, role="user", parts=(text(words),), metadata={"words": [words]})
    await write(store, 1, AppendMessage(message=message), assistant("a"))
    thought = ReasoningPart(text=words, signature=words)
    await store.finish_step(THREAD, 1, 0, 1, (thought, text(words), call("c1", words, words)), DONE, [])
    await write(store, 2, commit("a"))
    staged = await store.stage_result(THREAD, ToolResultPart(call_id="c1", content=words))
    await store.add_summary(Summary(id="s", thread_id=THREAD, message_id="m", parts=1, text=words))
    path = await store.load_history_with_ancestors(THREAD)
    assert (await store.get_thread(THREAD)).title == words
    assert path.summary is not None
    assert path.summary.text == words
    assert path.messages[0].parts == (thought, text(words), call("c1", words, words))
    assert staged.content == words
    (first, *_) = await store.read_changes(THREAD, 0)
    assert first.message is not None
    assert first.message.metadata == {"words": [words]}


async def test_a_result_of_five_megabytes(store: Store) -> None:
    """A large result is one part like any other."""
    await with_calls(store, "c1")
    content = "0123456789" * 500_000
    await store.stage_result(THREAD, result("c1", content))
    assert (await store.start_call(THREAD, "c1")).result == result("c1", content)


async def test_text_in_the_database_is_ascii(postgres: PostgresStore, database_url: str) -> None:
    """What PostgreSQL cannot hold never reaches it: the control for the tests above is that it would refuse it."""
    await started(postgres)
    await write(postgres, 2, settle("a"), user("m", "\x00\ud800"))
    assert await texts(postgres) == ["hi", "\x00\ud800"]
    async with connected(database_url) as eye:
        assert "\\u0000\\ud800" in await eye.fetchval("select body from perdure.parts where message_id = 'm'")
        with pytest.raises(asyncpg.DataError):
            await eye.execute("update perdure.parts set body = $1", "\x00")
