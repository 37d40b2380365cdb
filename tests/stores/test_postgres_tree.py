"""What only PostgreSQL can get wrong of the message tree: plans, locks, and writers of the release before."""

import asyncio
import json
from typing import Any

from perdure.batch import DeleteMessage, ImportedMessage, ImportMessages, ResetThread, SwitchBranch, TreeReport
from perdure.messages import Message, Status
from perdure.records import ThreadRecord
from stores.postgres import PostgresStore
from tests.databases import execute
from tests.eventually import eventually
from tests.stores.builders import (
    THREAD,
    assistant,
    call,
    commit,
    long_thread,
    result,
    settle,
    spawn,
    started,
    texts,
    user,
    write,
)
from tests.stores.plans import numbers, rows_touched
from tests.stores.postgres_eye import connected, run, waiting


async def turns(store: PostgresStore, first: int, last: int) -> None:
    """Turns that answer at once."""
    for number in range(first, last + 1):
        message_id = f"a{number}"
        await write(store, 2 * number - 1, user(f"u{number}"), assistant(message_id, number))
        await write(store, 2 * number, commit(message_id, turn=number), settle(message_id))


async def test_a_tail_reads_as_many_rows_in_a_long_thread_as_in_a_short_one(own_database_url: str) -> None:
    """The turn that runs and what is below it are found by keys, though the plans were made on empty tables."""
    await execute(own_database_url, "alter table perdure.messages set (autovacuum_enabled = off)")
    async with await PostgresStore.connect(own_database_url, max_size=1) as store:

        async def tail() -> None:
            assert (await store.load_tail(THREAD, processed=4)).message is not None

        await store.create_thread(ThreadRecord(thread_id=THREAD, agent="demo"))
        await tail_of_nothing(store)
        await turns(store, 1, 10)
        early = await rows_touched(store, tail)
        await turns(store, 11, 150)
        late = await rows_touched(store, tail)
    assert 0 < early["messages"] < 40
    assert late["messages"] <= early["messages"]


async def tail_of_nothing(store: PostgresStore) -> None:
    """Makes the plan of the statement."""
    assert (await store.load_tail(THREAD)).message is None


async def test_a_claim_of_an_older_turn_reads_one_message(own_database_url: str) -> None:
    """A turn that goes on after later ones is looked up, not searched for."""
    await execute(own_database_url, "alter table perdure.messages set (autovacuum_enabled = off)")
    async with await PostgresStore.connect(own_database_url, max_size=1) as store:
        await store.create_thread(ThreadRecord(thread_id=THREAD, agent="demo"))
        await turns(store, 1, 100)
        await write(store, 201, user("u"), assistant("a", 101), settle("a", Status(state="requires_action")))
        await turns_after(store)
        await write(store, 205, settle("a", Status(state="running")))

        async def claim() -> None:
            await store.append_chunks(THREAD, 101, 0, 1, [])

        touched = await rows_touched(store, claim)
    assert touched["messages"] <= 2


async def turns_after(store: PostgresStore) -> None:
    """One more turn, on another branch."""
    await write(store, 202, user("other", parent_id="a1"), assistant("b", 102))
    await write(store, 203, commit("b", turn=102), settle("b"))
    await write(store, 204, SwitchBranch(message_id="u", input_id="back", digest="d"))


async def test_a_deletion_finds_what_refers_to_it_by_keys(own_database_url: str) -> None:
    """However many threads and messages there are besides, none of them is read."""
    tables = ("threads", "messages", "parts", "calls", "summaries")
    await execute(own_database_url, *(f"alter table perdure.{name} set (autovacuum_enabled = off)" for name in tables))
    async with await PostgresStore.connect(own_database_url, max_size=1) as store:
        await started(store)
        await long_thread(store, 2000, "other")
        for number in range(50):
            await store.create_thread(ThreadRecord(thread_id=f"t{number}", agent="demo"))
        before = {row["relname"]: row["seq_tup_read"] for row in await numbers(store)}
        touched = await rows_touched(
            store, lambda: written(store, DeleteMessage(message_id="u", input_id="d", digest="d"))
        )
        after = {row["relname"]: row["seq_tup_read"] for row in await numbers(store)}
    assert touched["messages"] < 60
    assert touched["threads"] < 60
    assert {name: after[name] - before[name] for name in tables} == dict.fromkeys(tables, 0)


async def written(store: PostgresStore, operation: DeleteMessage) -> None:
    """The second batch of a thread."""
    assert (await write(store, 2, operation)).refused == ()


async def test_a_child_that_begins_while_its_point_is_deleted(postgres: PostgresStore, database_url: str) -> None:
    """The deletion waits for the child's writer, who holds what it needs, and takes along what it wrote."""
    await started(postgres)
    await spawn(postgres, "k", THREAD, "a", None)
    message = {"id": "k1", "at": 1, "on_head": True, "role": "user", "turn": 0, "state": "complete"}
    async with connected(database_url) as child, connected(database_url) as eye:
        await eye.execute("update perdure.threads set head_id = null where thread_id = 'k'")
        async with child.transaction():
            await run(child, "lock_thread", "k")
            deletion = asyncio.create_task(written(postgres, DeleteMessage(message_id="a", input_id="d", digest="d")))
            await eventually(lambda: waiting(eye))
            await run(child, "append_messages", "k", 2, "s", "{}", json.dumps([appended(message)]))
        await asyncio.wait_for(deletion, 30)
    path = await postgres.load_history_with_ancestors("k")
    assert [found.id for found in path.messages] == ["u", "k1"]


def appended(*messages: dict[str, Any]) -> dict[str, Any]:
    """The operation that the release before writes for messages without parts."""
    last, turn = messages[-1]["id"], max(message["turn"] for message in messages)
    return {
        "kind": "append_messages", "messages": messages, "parts": [], "count": len(messages), "head_id": last,
        "turn": turn,
    }  # fmt: skip


async def test_a_writer_of_the_release_before_goes_on(postgres: PostgresStore, database_url: str) -> None:
    """During a deploy: what it does not say of places and branches means what it always meant."""
    await started(postgres)
    await write(postgres, 2, settle("a"), user("v", "edited", parent_id="u"))
    await write(postgres, 3, user("w", "again", parent_id="u"))
    await write(postgres, 4, SwitchBranch(message_id="a", input_id="s", digest="d"))
    own = {"at": 1, "on_head": True, "role": "user", "parent_id": None, "parent_parts": None, "turn": 0}
    old = {**own, "id": "x", "state": "complete", "reason": None, "detail": None, "input_id": "in-x", "metadata": None}
    running = {**old, "id": "y", "at": 2, "on_head": False, "parent_id": "x", "role": "assistant", "turn": 2}
    running |= {"state": "running", "input_id": None}
    status = {"kind": "set_status", "message_id": "y", "state": "complete", "reason": None, "detail": None}
    async with connected(database_url) as writer:
        await run(
            writer, "append_messages", THREAD, 5, "s", '{"in-x":"d"}', json.dumps([appended(old, running), status])
        )
    tail = await postgres.load_tail(THREAD)
    assert (tail.thread.head_id, tail.message and tail.message.status.state) == ("y", "complete")
    assert tail.processed[-1] == ("in-x", "d")
    tree = await postgres.load_tree(THREAD)
    assert [(found.message.id, found.parent_id) for found in tree.messages] == [
        ("u", None), ("a", "u"), ("v", "u"), ("w", "u"), ("x", "a"), ("y", "x"),
    ]  # fmt: skip
    assert all(found.created_at is not None for found in tree.messages)
    assert await texts(postgres) == ["hi"]
    await write(postgres, 6, SwitchBranch(message_id="v", input_id="s2", digest="d"))
    await write(postgres, 7, SwitchBranch(message_id="a", input_id="s3", digest="d"))
    assert (await postgres.get_thread(THREAD)).head_id == "y"


async def test_a_head_that_is_remembered_past_gives_way_to_what_follows_it(
    postgres: PostgresStore, database_url: str
) -> None:
    """The head may have children, of which it remembers one; what the release before appends is opened instead."""
    await started(postgres)
    await write(postgres, 2, settle("a"), user("v", parent_id="u"))
    async with connected(database_url) as eye:
        await eye.execute("update perdure.messages set remembered = 'a' where id = 'u'")
        await eye.execute("update perdure.threads set head_id = 'u' where thread_id = 't'")
        message = {"id": "x", "at": 1, "on_head": True, "role": "user", "turn": 0, "state": "complete"}
        await run(eye, "append_messages", THREAD, 3, "s", "{}", json.dumps([appended(message)]))
    assert (await postgres.load_tree(THREAD)).remembered == ()
    await write(postgres, 4, SwitchBranch(message_id="u", input_id="s", digest="d"))
    assert (await postgres.get_thread(THREAD)).head_id == "x"


async def test_an_interim_result_comes_in_with_its_call(postgres: PostgresStore) -> None:
    """A call that is open in a file shows what it had shown there."""
    await started(postgres)
    paused = Status(state="requires_action")
    message = Message(id="g", thread_id="", role="assistant", status=paused, parts=(call("c1"), call("c2")))
    blob = await postgres.put_blob(THREAD, b"a file")
    item = ImportedMessage(message=message, interim=(result("c2", "half"),))
    await write(postgres, 2, settle("a"), ImportMessages(blob=blob, input_id="i", digest="d", messages=(item,)))
    calls = (await postgres.load_tail(THREAD)).calls
    assert [(found.call_id, found.interim) for found in calls] == [("c1", None), ("c2", result("c2", "half"))]


async def test_a_tree_that_is_emptied_is_one(postgres: PostgresStore) -> None:
    """The report is of the tree that is left, which is empty, and not of rows that were read before the batch."""
    await started(postgres)
    await write(postgres, 2, settle("a"), user("v", parent_id="u"))
    await write(postgres, 3, SwitchBranch(message_id="a", input_id="s", digest="d"))
    other = user("other").with_(at_root=True)
    await write(postgres, 4, other, SwitchBranch(message_id="a", input_id="s2", digest="d"))
    report = await write(postgres, 5, ResetThread(message_id=None, input_id="r", digest="d"))
    assert report.tree == TreeReport(turn=1, untitled=True)
    assert await texts(postgres) == []
