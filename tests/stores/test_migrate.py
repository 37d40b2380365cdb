"""Migrations: numbered, applied once by one of many, and refused on a database of the future."""

import asyncio
from collections.abc import AsyncGenerator
from pathlib import Path

import asyncpg
import pytest
import pytest_asyncio

from perdure.codec import dumps
from perdure.errors import ConfigurationError, StoreUnavailable
from perdure.messages import Usage
from perdure.records import Subscription, Summary
from stores import migrate as module
from stores.batch_sql import calls
from stores.migrate import MIGRATIONS, SCHEMA_VERSION, Migration, migrate, read_migrations
from stores.postgres import PostgresStore
from tests.databases import execute, new_database
from tests.eventually import eventually
from tests.stores.builders import call
from tests.stores.postgres_eye import connected, run, waiting


async def are_waiting(eye: "asyncpg.Connection[asyncpg.Record]", count: int) -> bool:
    """Whether so many statements wait for a lock."""
    return await waiting(eye) == count


async def migrated_to(version: int, url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The tables as they were at this version."""
    monkeypatch.setattr(module, "MIGRATIONS", MIGRATIONS[:version])
    monkeypatch.setattr(module, "SCHEMA_VERSION", version)
    assert await migrate(url) == version
    monkeypatch.undo()


@pytest_asyncio.fixture(loop_scope="session")
async def empty_url(postgres_url: str) -> AsyncGenerator[str]:
    """A database without tables."""
    async with new_database(postgres_url, "template1") as url:
        yield url


async def test_an_empty_database_gets_every_migration(empty_url: str) -> None:
    """They are recorded by number and name; a second run has nothing to do."""
    assert await migrate(empty_url) == SCHEMA_VERSION
    assert await migrate(empty_url) == 0
    async with connected(empty_url) as eye:
        rows = await eye.fetch("select version, name from perdure.schema_version order by version")
    assert [(row["version"], row["name"]) for row in rows] == [(m.number, m.name) for m in MIGRATIONS]


async def test_of_many_that_start_at_once_one_migrates(empty_url: str) -> None:
    """The others wait for its lock and find nothing to do."""
    applied = await asyncio.gather(*(migrate(empty_url) for _ in range(4)))
    assert sorted(applied) == [0, 0, 0, SCHEMA_VERSION]


async def test_a_migration_waits_for_the_lock(empty_url: str) -> None:
    """Nothing is read or written before it is held."""
    async with connected(empty_url) as other, connected(empty_url) as eye:
        await other.execute("select pg_advisory_lock($1)", module.LOCK)
        second = asyncio.create_task(migrate(empty_url))
        await eventually(lambda: waiting(eye))
        assert await eye.fetchval("select to_regclass('perdure.threads')") is None
        await other.execute("select pg_advisory_unlock($1)", module.LOCK)
        assert await second == SCHEMA_VERSION


async def test_a_migration_that_fails_leaves_the_ones_before_it(
    empty_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each is a transaction of its own: the next run goes on where this one ended."""
    broken = Migration(SCHEMA_VERSION + 1, "broken", "create table perdure.half (x int); select nonsense;")
    monkeypatch.setattr(module, "MIGRATIONS", (*MIGRATIONS, broken))
    monkeypatch.setattr(module, "SCHEMA_VERSION", SCHEMA_VERSION + 1)
    with pytest.raises(Exception, match="nonsense"):
        await migrate(empty_url)
    async with connected(empty_url) as eye:
        assert await eye.fetchval("select max(version) from perdure.schema_version") == SCHEMA_VERSION
        assert await eye.fetchval("select to_regclass('perdure.half')") is None
    mended = broken._replace(sql="create table perdure.half (x int)")
    monkeypatch.setattr(module, "MIGRATIONS", (*MIGRATIONS, mended))
    assert await migrate(empty_url) == 1


async def test_a_database_that_is_too_new_is_refused(own_database_url: str) -> None:
    """By the migration and by the store: this release does not know what the tables mean."""
    await execute(
        own_database_url, f"insert into perdure.schema_version (version, name) values ({SCHEMA_VERSION + 1}, 'later')"
    )
    for attempt in (migrate(own_database_url), PostgresStore.connect(own_database_url)):
        with pytest.raises(ConfigurationError, match="newer than this release"):
            await attempt


async def test_a_database_that_is_too_old_says_what_to_run(empty_url: str) -> None:
    """The store does not migrate by itself; it names the command."""
    with pytest.raises(ConfigurationError, match="`perdure migrate`"):
        await PostgresStore.connect(empty_url)


async def test_a_server_that_is_away(postgres_url: str) -> None:
    """The error is the same as everywhere."""
    with pytest.raises(StoreUnavailable):
        await migrate("postgresql://u@127.0.0.1:1/x")


async def test_what_the_release_before_has_written_is_read(empty_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Subscriptions and open calls from before migration 3 have what they lacked."""
    await migrated_to(2, empty_url, monkeypatch)
    operations = [
        {
            "kind": "append_parts",
            "message_id": "a",
            "start": 0,
            "parts": [dumps(call("c"))],
            "calls": calls([call("c")]),
        },
        {"kind": "track_subscription", "call_id": "s", "tool": "feed"},
    ]
    async with connected(empty_url) as older:
        await older.execute("insert into perdure.threads (thread_id, tenant, agent, kind) values ('t', '', '', 'root')")
        message = {"id": "a", "at": 1, "on_head": True, "role": "assistant", "turn": 1, "state": "running"}
        append = {"kind": "append_messages", "messages": [message], "parts": [], "count": 1, "head_id": "a", "turn": 1}
        await run(older, "append_messages", "t", 1, "s", "{}", dumps([append, *operations]))
    assert await migrate(empty_url) == len(MIGRATIONS) - 2
    async with await PostgresStore.connect(empty_url) as store:
        tail = await store.load_tail("t")
        assert tail.subscriptions == (Subscription(call_id="s", tool="feed"),)
        assert [(item.call_id, item.due) for item in tail.calls] == [("c", None)]
        assert (tail.children, tail.unstarted) == (0, ())


async def test_what_a_writer_of_the_release_before_counts_is_counted(
    empty_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A summary and costs from before migration 6, and a step that such a writer commits after it."""
    await migrated_to(5, empty_url, monkeypatch)
    message = {"id": "a", "at": 1, "on_head": True, "role": "assistant", "turn": 1, "state": "running"}
    append = {"kind": "append_messages", "messages": [message], "parts": [], "count": 1, "head_id": "a", "turn": 1}
    usage = {"requests": 1, "input_tokens": 2, "output_tokens": 3, "cached_tokens": 4}
    step = {"kind": "commit_step", "message_id": "a", "start": 0, "turn": 1, "discard": False, "trim_reasoning": False}
    async with connected(empty_url) as older:
        await older.execute("insert into perdure.threads (thread_id, tenant, agent, kind) values ('t', '', '', 'root')")
        await run(older, "append_messages", "t", 1, "s", "{}", dumps([append, {**step, **usage, "step": 0}]))
        await older.execute(
            "insert into perdure.summaries (id, thread, message_id, parts, body) "
            "select 's', thread, 'a', 0, '\"so far\"' from perdure.threads"
        )
        assert await migrate(empty_url) == len(MIGRATIONS) - 5
        await run(older, "append_messages", "t", 2, "s", "{}", dumps([{**step, **usage, "step": 1}]))
    async with await PostgresStore.connect(empty_url) as store:
        one = Usage(requests=1, input_tokens=2, output_tokens=3, cached_tokens=4)
        assert (await store.get_thread("t")).usage == one + one
        summary = Summary(id="s", thread_id="t", message_id="a", parts=0, text="so far")
        assert (await store.load_history_with_ancestors("t")).summary == summary
        assert await store.add_summary(summary)


async def test_hooks_that_have_run_before_have_run(empty_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """And what a process of the release before writes during the upgrade is known too, to it and to this one."""
    await migrated_to(9, empty_url, monkeypatch)
    finished = "select 1 from perdure.finished_hooks where turn = $1 order by number"
    async with connected(empty_url) as older:
        await older.execute("insert into perdure.threads (thread_id, tenant, agent, kind) values ('t', '', '', 'root')")
        for turn in (1, 2, 4):
            await run(older, "finish_hook", "t", turn, '"audit"', None, None, None)
        assert await migrate(empty_url) == len(MIGRATIONS) - 9
        await run(older, "finish_hook", "t", 6, '"audit"', None, None, None)
        assert [await older.fetchval(finished, turn) for turn in range(1, 8)] == [1, 1, None, 1, None, 1, None]
    async with await PostgresStore.connect(empty_url) as store:
        assert [turn for turn in range(8) if await store.finished_hooks("t", turn) == ("audit",)] == [1, 2, 4, 6]


async def test_a_hook_that_is_finished_while_hooks_are_migrated_has_run(
    empty_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One that is not committed yet when the migration begins, and one whose writer waits for the migration's end."""
    await migrated_to(9, empty_url, monkeypatch)
    async with connected(empty_url) as first, connected(empty_url) as second, connected(empty_url) as eye:
        await eye.execute("insert into perdure.threads (thread_id, tenant, agent, kind) values ('t', '', '', 'root')")
        await run(second, "finish_hook", "t", 1, '"audit"', None, None, None)
        async with first.transaction():
            await run(first, "finish_hook", "t", 2, '"audit"', None, None, None)
            migrating = asyncio.create_task(migrate(empty_url))
            await eventually(lambda: waiting(eye))
            late = asyncio.create_task(run(second, "finish_hook", "t", 3, '"audit"', None, None, None))
            await eventually(lambda: are_waiting(eye, 2))
        assert await migrating == len(MIGRATIONS) - 9
        await late
    async with await PostgresStore.connect(empty_url) as store:
        assert [turn for turn in range(5) if await store.finished_hooks("t", turn) == ("audit",)] == [1, 2, 3]


async def test_a_summary_that_comes_while_summaries_are_migrated_is_kept(
    empty_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its writer waits for the migration's end, and then goes on with the function of before, which needs others."""
    await migrated_to(7, empty_url, monkeypatch)
    added = {"id": "s", "message_id": "m", "parts": 1, "body": '"so far"', "kind": "summary", "covered": 1, "shape": 0}
    async with connected(empty_url) as first, connected(empty_url) as second, connected(empty_url) as eye:
        await eye.execute("insert into perdure.threads (thread_id, tenant, agent, kind) values ('t', '', '', 'root')")
        message = {"id": "m", "at": 1, "on_head": True, "role": "user", "turn": 0, "state": "complete"}
        append = {"kind": "append_messages", "messages": [message], "parts": [], "count": 1, "head_id": "m", "turn": 0}
        await run(second, "append_messages", "t", 1, "s", "{}", dumps([append]))
        async with first.transaction():
            await first.execute("lock table perdure.threads in access share mode")
            migrating = asyncio.create_task(migrate(empty_url))
            await eventually(lambda: waiting(eye))
            late = asyncio.create_task(run(second, "add_summary", "t", dumps(added)))
            await eventually(lambda: are_waiting(eye, 2))
        assert await migrating == len(MIGRATIONS) - 7
        await late
    async with await PostgresStore.connect(empty_url) as store:
        summary = (await store.load_history_with_ancestors("t")).summary
        assert summary is not None
        assert summary.text == "so far"


def test_migrations_are_numbered_one_by_one(tmp_path: Path) -> None:
    """A gap, a repetition or another kind of name is a mistake of ours that must not reach a database."""
    for names in (["0001_a.sql", "0003_b.sql"], ["0001_a.sql", "0001_b.sql"], ["first.sql"]):
        folder = tmp_path / "-".join(names)
        folder.mkdir()
        for name in names:
            (folder / name).write_text("select 1")
        with pytest.raises(ValueError, match="bug"):
            read_migrations(folder)
