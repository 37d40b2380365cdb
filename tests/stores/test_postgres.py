"""What only PostgreSQL can get wrong: round trips, plans, notifications, lost servers, bad addresses."""

import asyncio

import asyncpg
import pytest

from perdure.errors import ConfigurationError, StoreUnavailable
from perdure.messages import Usage
from perdure.records import Choice, LoggedMessage, ProviderState, Summary, ThreadRecord
from perdure.turn_context import TurnContext
from stores.database import Database
from stores.hint_sender import HintSender
from stores.postgres import PostgresStore
from stores.queries import QUERIES, parse
from tests.databases import execute, in_database
from tests.eventually import eventually
from tests.stores.builders import (
    DONE,
    THREAD,
    assistant,
    commit,
    delta,
    long_thread,
    result,
    settle,
    started,
    text,
    user,
    with_calls,
    write,
)
from tests.stores.plans import numbers, planner, rows_read, rows_touched, scans
from tests.stores.postgres_eye import connected, run


async def turn(store: PostgresStore, number: int) -> None:
    """One turn as the runtime does it: input and running message, answer at once, commit."""
    known = (await store.get_thread(THREAD)).head_id
    await write(store, 2 * number - 1, user(f"u{number}"), assistant(f"a{number}", number))
    await store.load_history_with_ancestors(THREAD, known)
    await store.finish_step(THREAD, number, 0, 1, (text("answer"),), DONE, [delta("answer")])
    await write(store, 2 * number, commit(f"a{number}", turn=number), settle(f"a{number}"))


async def test_each_call_of_a_turn_is_one_statement(postgres: PostgresStore, statements: list[str]) -> None:
    """The hot path costs one round trip each: input, history, step, chunks, commit, tail, changes, call and result."""
    await with_calls(postgres, "c1")
    for attempt in (
        lambda: postgres.load_history_with_ancestors(THREAD, "u"),
        lambda: postgres.begin_step(THREAD, 1, 1, 1),
        lambda: postgres.append_chunks(THREAD, 1, 1, 1, [delta("x")]),
        lambda: postgres.finish_step(THREAD, 1, 1, 1, (text("x"),), DONE, [delta("y")]),
        lambda: postgres.start_call(THREAD, "c1"),
        lambda: postgres.put_choice(THREAD, Choice(id="q", call_id="c1")),
        lambda: postgres.remove_choice(THREAD, "q"),
        lambda: postgres.put_view(THREAD, "diff", "1"),
        lambda: postgres.stage_result(THREAD, result("c1")),
        lambda: write(postgres, 3, commit("a", 1, step=1), settle("a"), user("u2"), assistant("a2", 2)),
        lambda: postgres.get_children(THREAD),
        lambda: postgres.load_tail(THREAD),
        lambda: postgres.read_changes(THREAD, 0),
        lambda: postgres.get_message_counts(THREAD),
        lambda: postgres.put_turn_context(THREAD, 2, 0, TurnContext()),
        lambda: postgres.get_turn_context(THREAD, 2, 0),
        lambda: postgres.finish_hook(THREAD, 2, "p", ProviderState()),
        lambda: postgres.append_log(THREAD, "log", (LoggedMessage(id="u", role="user", text="x"),)),
        lambda: postgres.add_usage(THREAD, 2, 0, 1, Usage(requests=1)),
        lambda: postgres.get_spending(THREAD, 2),
        lambda: postgres.add_summary(Summary(id="s", thread_id=THREAD, message_id="u", parts=1, text="x")),
        lambda: postgres.set_model(THREAD, "m"),
    ):
        statements.clear()
        await attempt()
        assert len(statements) == 1, statements


async def test_statements_are_counted(postgres: PostgresStore, statements: list[str]) -> None:
    """The control: a stop takes a transaction of several statements, and the count shows it."""
    await started(postgres)
    await postgres.append_chunks(THREAD, 1, 0, 1, [delta("x")])
    statements.clear()
    await write(postgres, 2, commit("a").with_(sealed=True))
    assert len(statements) == 5
    assert statements[0].startswith("BEGIN")


async def test_a_path_of_2000_messages_is_one_statement(postgres: PostgresStore, statements: list[str]) -> None:
    """Parts included, whatever its length."""
    await long_thread(postgres, 2000)
    statements.clear()
    path = await postgres.load_history_with_ancestors(THREAD)
    assert len(statements) == 1
    assert [message.id for message in path.messages] == [f"m{n}" for n in range(2000)]
    assert all(len(message.parts) == 2 for message in path.messages)


async def test_a_long_path_is_read_by_keys(postgres: PostgresStore, own_database_url: str) -> None:
    """No table is walked through: the plan takes indexes, and reads no more rows than the path has."""
    async with await PostgresStore.connect(own_database_url) as store:
        await long_thread(store, 2000)
    async with planner(own_database_url) as explain:
        plan = await explain(QUERIES["path"], THREAD, None, None, False)
    assert scans(plan, "Seq Scan") == []
    assert set(scans(plan, "Index Scan", "Index Only Scan")) >= {"threads", "messages", "parts"}
    assert max(rows_read(plan)) <= 4000


async def test_counts_and_sums_are_read_by_keys(own_database_url: str) -> None:
    """No other thread's rows are read to count messages, or to know what a turn and its thread have spent."""
    async with await PostgresStore.connect(own_database_url) as store:
        await started(store)
        await long_thread(store, 500, "other")
    async with planner(own_database_url) as explain:
        for query, *args in (
            ("message_counts", THREAD),
            ("spending", THREAD, 1, True, True),
            ("spending", "other", None, False, False),
            ("tenant_usage", "default"),
        ):
            plan = await explain(QUERIES[query], *args)
            assert scans(plan, "Seq Scan") == []
            assert max(rows_read(plan)) <= 2


async def test_the_plan_of_a_scan_is_recognised(own_database_url: str) -> None:
    """The control: a statement without an index is found out by the same look."""
    async with planner(own_database_url) as explain:
        plan = await explain("select * from perdure.messages where role = $1", "user")
    assert scans(plan, "Seq Scan") == ["messages"]


async def test_a_turn_reads_as_many_rows_in_a_long_thread_as_in_a_short_one(own_database_url: str) -> None:
    """Though all plans were made while the tables were empty, and nobody has analysed them since."""
    tables = ("threads", "messages", "inputs", "parts", "steps", "chunks")
    await execute(own_database_url, *(f"alter table perdure.{name} set (autovacuum_enabled = off)" for name in tables))
    async with await PostgresStore.connect(own_database_url, max_size=1) as store:
        await store.create_thread(ThreadRecord(thread_id=THREAD, agent="demo"))
        for number in range(1, 11):
            await turn(store, number)
        early = await rows_touched(store, lambda: turn(store, 11))
        for number in range(12, 150):
            await turn(store, number)
        late = await rows_touched(store, lambda: turn(store, 150))
    assert early["messages"] > 0
    assert late == pytest.approx(early, abs=3)


async def test_thread_rows_are_updated_in_place(own_database_url: str) -> None:
    """Every write updates the thread's row; none of these updates touches an index (HOT)."""
    async with await PostgresStore.connect(own_database_url, max_size=1) as store:
        await store.create_thread(ThreadRecord(thread_id=THREAD, agent="demo"))
        for number in range(1, 11):
            await turn(store, number)
        row = next(row for row in await numbers(store) if row["relname"] == "threads")
    assert (row["n_tup_upd"], row["n_tup_hot_upd"]) == (30, 30)


async def test_the_turn_buffer_is_empty_after_a_turn(postgres: PostgresStore, database_url: str) -> None:
    """Steps and chunks are gone with the commit, so a conversation keeps its messages and nothing else."""
    await postgres.create_thread(ThreadRecord(thread_id=THREAD, agent="demo"))
    await turn(postgres, 1)
    async with connected(database_url) as eye:
        assert await eye.fetchval("select count(*) from perdure.steps") == 0
        assert await eye.fetchval("select count(*) from perdure.chunks") == 0


async def heard_by(eye: "asyncpg.Connection[asyncpg.Record]") -> "asyncio.Queue[object]":
    """The thread ids that a connection is told from now on."""
    told: asyncio.Queue[object] = asyncio.Queue()

    def take(connection: object, pid: int, channel: str, thread_id: object) -> None:
        told.put_nowait(thread_id)

    await eye.add_listener("perdure", take)
    return told


async def test_each_write_notifies_once_when_it_is_visible(postgres: PostgresStore, database_url: str) -> None:
    """The thread's id is told to whoever listens: from inside the transaction, except for chunks."""
    await with_calls(postgres, "c1")
    async with connected(database_url) as eye, connected(database_url) as writer:
        told = await heard_by(eye)
        for attempt in (
            postgres.begin_step(THREAD, 1, 1, 1),
            postgres.append_chunks(THREAD, 1, 1, 1, [delta("x")]),
            postgres.finish_step(THREAD, 1, 1, 1, (text("x"),), DONE, []),
            postgres.start_call(THREAD, "c1"),
            postgres.put_choice(THREAD, Choice(id="q", call_id="c1")),
            postgres.remove_choice(THREAD, "q"),
            postgres.put_view(THREAD, "diff", "1"),
            postgres.stage_result(THREAD, result("c1")),
            write(postgres, 3, user("u2")),
            postgres.close_thread(THREAD),
        ):
            await attempt
            assert await asyncio.wait_for(told.get(), 10) == THREAD
        async with writer.transaction():
            await writer.fetch(QUERIES["append_messages"], THREAD, 4, "s", "{}", "[]")
            await eye.fetchval("select 1")
            assert told.empty()
        assert await asyncio.wait_for(told.get(), 10) == THREAD
        assert told.empty()


async def test_chunks_themselves_do_not_notify(postgres: PostgresStore, database_url: str) -> None:
    """Else all writers of the cluster would wait for each other; what is told next is the write after them."""
    await started(postgres)
    async with connected(database_url) as eye, connected(database_url) as writer:
        told = await heard_by(eye)
        for count in range(3):
            await run(writer, "append_chunks", THREAD, 1, 0, 1, ['{"index":0,"delta":"x"}'], count)
        await run(writer, "notify", ["control"])
        assert await asyncio.wait_for(told.get(), 10) == "control"
        assert told.empty()


async def test_hints_of_many_writes_go_out_together(postgres: PostgresStore, database_url: str) -> None:
    """Threads that have changed until a hint goes out share its transaction, each once; none is left out."""
    names = [f"t{n}" for n in range(20)]
    for name in names:
        await postgres.create_thread(ThreadRecord(thread_id=name, agent="demo"))
    async with connected(database_url) as eye:
        told = await heard_by(eye)
        await asyncio.gather(*(postgres.append_chunks(name, 1, 0, 1, [delta("x")]) for name in names))
        async with asyncio.timeout(10):
            assert {await told.get() for _ in names} == set(names)
        database = await Database.connect(database_url, max_size=2)
        sender = HintSender(database)
        for name in (*names, *names):
            sender.send(name)
        await sender.close()
        await database.close()
        async with asyncio.timeout(10):
            assert [await told.get() for _ in names] == names
        assert told.empty()


async def test_all_listeners_share_one_connection(postgres: PostgresStore, database_url: str) -> None:
    """However many readers there are."""
    await started(postgres)
    readers = [postgres.listen(THREAD) for _ in range(20)]
    for reader in readers:
        await anext(reader)
    async with connected(database_url) as eye:

        async def listening() -> int:
            count: int = await eye.fetchval(
                "select count(*) from pg_stat_activity where datname = current_database() and query ilike 'listen%'"
            )
            return count

        assert await eventually(listening) == 1
    for reader in readers:
        await reader.aclose()


async def test_a_listener_goes_on_after_a_lost_connection(postgres: PostgresStore, database_url: str) -> None:
    """It yields when the connection is back, for what happened in between, and hears what comes after."""
    await started(postgres)
    hints = postgres.listen(THREAD)
    await anext(hints)
    async with connected(database_url) as eye:
        terminated = await eventually(
            lambda: eye.fetchval(
                "select count(pg_terminate_backend(pid)) from pg_stat_activity "
                "where datname = current_database() and query ilike 'listen%'"
            )
        )
        assert terminated == 1
    seen = (await postgres.get_thread(THREAD)).seq
    await postgres.append_chunks(THREAD, 1, 0, 1, [delta("x")])
    async with asyncio.timeout(10):
        async for _ in hints:
            if await postgres.read_changes(THREAD, seen):
                break
    await hints.aclose()


async def test_a_pool_replaces_connections_that_were_ended(postgres: PostgresStore, database_url: str) -> None:
    """A server that was restarted while the pool was idle is not noticed by the next caller."""
    await started(postgres)
    async with connected(database_url) as eye:
        await eye.execute(
            "select pg_terminate_backend(pid) from pg_stat_activity "
            "where datname = current_database() and pid <> pg_backend_pid() and application_name = 'perdure'"
        )

    async def works() -> bool:
        try:
            return (await postgres.get_thread(THREAD)).thread_id == THREAD
        except StoreUnavailable:
            return False  # the end of the connection had not been read yet

    await eventually(works)


async def test_a_cancelled_write_leaves_a_usable_pool(postgres: PostgresStore, database_url: str) -> None:
    """A caller that gives up while its statement waits takes its connection back in order, and nothing is written."""
    await started(postgres)
    async with connected(database_url) as eye, eye.transaction():
        await eye.execute("select * from perdure.threads for update")
        for _ in range(12):  # more than the pool has connections
            with pytest.raises(TimeoutError):
                async with asyncio.timeout(0.02):
                    await write(postgres, 2, user("u2"))
    assert (await postgres.get_thread(THREAD)).version == 1


@pytest.mark.parametrize(
    ("url", "complaint"),
    [
        ("mysql://u:secret@h/db", "mysql://"),
        ("just words secret", "no scheme"),
        ("postgresql://u:secret@h:port/db", "port"),
        ("postgresql://u:secret@[::1/db", "host or port"),
        ("postgresql://u:secret@h/db?target_session_attrs=nonsense", "target_session_attrs"),
    ],
)
async def test_a_bad_url_is_named_without_its_password(url: str, complaint: str) -> None:
    """One sentence that says what is wrong and how it should look."""
    with pytest.raises(ConfigurationError, match=complaint) as caught:
        await PostgresStore.connect(url)
    assert "secret" not in str(caught.value)
    assert "postgresql://user:password@host:5432/database" in str(caught.value)


async def test_an_unreachable_server_is_named_without_its_password() -> None:
    """The host and the database are in the sentence."""
    with pytest.raises(StoreUnavailable, match=r"database 'threads' at 127\.0\.0\.1:1\b") as caught:
        await PostgresStore.connect("postgresql://u:secret@127.0.0.1:1/threads")
    assert "secret" not in str(caught.value)


async def test_an_unknown_database_is_a_wrong_setting(postgres_url: str) -> None:
    """Waiting does not help, so it is not called unavailable."""
    with pytest.raises(ConfigurationError, match="nowhere"):
        await PostgresStore.connect(in_database(postgres_url, "nowhere"))


async def test_lost_tables_are_a_wrong_setting(own_database_url: str) -> None:
    """A database that was dropped under the store says what to do."""
    async with connected(own_database_url) as eye, await PostgresStore.connect(own_database_url) as store:
        await eye.execute("drop schema perdure cascade")
        with pytest.raises(ConfigurationError, match="perdure migrate"):
            await store.get_thread(THREAD)


async def test_a_store_survives_the_next_migration(own_database_url: str) -> None:
    """While workers of two releases run, columns may be added under the older one's prepared statements."""
    async with connected(own_database_url) as eye, await PostgresStore.connect(own_database_url) as store:
        await store.create_thread(ThreadRecord(thread_id=THREAD, agent="demo"))
        await turn(store, 1)
        await eye.execute("alter table perdure.threads add column later text")
        await eye.execute("alter table perdure.messages add column later text default 'x'")
        await turn(store, 2)
        assert (await store.get_message_counts(THREAD)).total == 4


async def test_the_memory_of_a_database_is_its_address(own_database_url: str) -> None:
    """A pool can be made while the server is away; it connects when it is used."""
    database = await Database.connect("postgresql://u@127.0.0.1:1/x", max_size=1)
    with pytest.raises(StoreUnavailable):
        await database.row("get_thread", THREAD)
    await database.close()


def test_statements_have_names_of_their_own() -> None:
    """A name that is used twice would hide a statement."""
    assert parse("-- name: a\nselect 1\n\n-- name: b\n-- why\nselect 2\n") == {"a": "select 1", "b": "-- why\nselect 2"}
    with pytest.raises(ValueError, match="same name"):
        parse("-- name: a\nselect 1\n-- name: a\nselect 2\n")
