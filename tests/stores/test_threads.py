"""Threads, their ancestors and their blobs."""

from datetime import UTC, datetime

import pytest

from perdure.errors import StoreError, ThreadNotFound
from perdure.ports import Store
from perdure.records import Choice, ThreadRecord
from tests.stores.builders import started


async def family(store: Store) -> Store:
    """A root, a child and a grandchild."""
    await store.create_thread(ThreadRecord(thread_id="root", agent="a"))
    await store.create_thread(ThreadRecord(thread_id="child", agent="a", kind="child", parent_thread_id="root"))
    await store.create_thread(ThreadRecord(thread_id="grandchild", agent="a", kind="child", parent_thread_id="child"))
    return store


async def test_create_thread_keeps_what_it_is_given(store: Store) -> None:
    """A thread comes back as it was made, with a title that no encoding of PostgreSQL could hold."""
    made = ThreadRecord(
        thread_id="t", agent="demo", tenant="acme", title="\x00\ud800 é", created_at=datetime(2026, 1, 2, tzinfo=UTC)
    )
    assert await store.create_thread(made) == made
    assert await store.get_thread("t") == made


async def test_create_thread_again_changes_nothing(store: Store) -> None:
    """The first thread of an id stays, whatever a second call says."""
    first = await store.create_thread(ThreadRecord(thread_id="t", agent="first", tenant="acme"))
    assert await store.create_thread(ThreadRecord(thread_id="t", agent="second")) == first
    assert first.created_at is not None


async def test_unknown_thread_is_an_error(store: Store) -> None:
    """No read or write takes a thread that does not exist for an empty one."""
    for attempt in (
        store.get_thread("nobody"),
        store.get_ancestor_chain("nobody"),
        store.load_history_with_ancestors("nobody"),
        store.load_tail("nobody"),
        store.snapshot("nobody"),
        store.get_message_counts("nobody"),
        store.close_thread("nobody"),
        store.put_blob("nobody", b"x"),
        store.set_metadata("nobody", {"a": 1}),
        store.put_choice("nobody", Choice(id="c", call_id="call")),
        store.remove_choice("nobody", "c"),
        store.put_view("nobody", "diff", "{}"),
        store.begin_step("nobody", 1, 0, 1),
        store.create_thread(ThreadRecord(thread_id="t", agent="a", parent_thread_id="nobody")),
    ):
        with pytest.raises(ThreadNotFound) as caught:
            await attempt
        assert caught.value.thread_id == "nobody"


async def test_ancestor_chain_has_the_root_first(store: Store) -> None:
    """The chain goes from the root down to the thread itself."""
    await family(store)
    chain = await store.get_ancestor_chain("grandchild")
    assert [thread.thread_id for thread in chain] == ["root", "child", "grandchild"]


async def test_close_thread_keeps_the_first_time(store: Store) -> None:
    """Closing again is no error and does not move the time."""
    await started(store)
    await store.close_thread("t")
    closed_at = (await store.get_thread("t")).closed_at
    await store.close_thread("t")
    assert closed_at is not None
    assert (await store.get_thread("t")).closed_at == closed_at


async def test_blob_of_an_ancestor_is_readable_and_of_a_descendant_is_not(store: Store) -> None:
    """A child reads what it inherits; a parent and a stranger do not read the child's."""
    await family(store)
    await store.create_thread(ThreadRecord(thread_id="stranger", agent="a"))
    above = await store.put_blob("root", b"\x00\xff above")
    below = await store.put_blob("grandchild", b"below")
    assert await store.get_blob("grandchild", above) == b"\x00\xff above"
    assert await store.get_blob("grandchild", below) == b"below"
    for thread_id, blob in (("root", below), ("child", below), ("stranger", above), ("nobody", above), ("root", "x")):
        with pytest.raises(StoreError, match="no blob"):
            await store.get_blob(thread_id, blob)


async def test_blob_is_named_by_its_content(store: Store) -> None:
    """The same bytes are one blob; five megabytes are no problem."""
    await started(store)
    data = bytes(range(256)) * 20_000
    blob = await store.put_blob("t", data, "application/octet-stream")
    assert await store.put_blob("t", data) == blob
    assert await store.get_blob("t", blob) == data
