"""The path from the head up: branches, inheritance, summaries, and reading only what is new."""

import pytest

from perdure.batch import AppendMessage, AppendParts
from perdure.errors import ContentConflict, StoreError, ThreadNotFound
from perdure.messages import Message
from perdure.ports import Store
from perdure.records import Counts, Path, Summary, ThreadRecord
from tests.stores.builders import assistant, call, result, settle, started, text, texts, user, write


async def conversation(store: Store) -> Store:
    """u1, a1 (four parts: text, call, result, text), u2, a2 (one text)."""
    await store.create_thread(ThreadRecord(thread_id="t", agent="demo"))
    parts = (text("let me see"), call("c"), result("c"), text("one"))
    await write(store, 1, user("u1", "first"), assistant("a1", 1, *parts), settle("a1"))
    await write(store, 2, user("u2", "second"), assistant("a2", 2, text("two")), settle("a2"))
    return store


async def child(store: Store, message_id: str, parts: int | None) -> Store:
    """A child thread `k` that inherits up to a point."""
    record = ThreadRecord(
        thread_id="k",
        agent="demo",
        kind="child",
        parent_thread_id="t",
        root_thread_id="t",
        spawn_message_id=message_id,
        spawn_parts=parts,
    )
    await store.create_thread(record)
    return store


def shape(path: Path) -> list[tuple[str, int]]:
    """Ids and numbers of parts."""
    return [(message.id, len(message.parts)) for message in path.messages]


def summary(message_id: str, parts: int, name: str = "s", thread_id: str = "t") -> Summary:
    """A summary of everything up to a point."""
    return Summary(id=name, thread_id=thread_id, message_id=message_id, parts=parts, text=f"summary {name}")


async def test_an_empty_thread_has_an_empty_path(store: Store) -> None:
    """Nothing was said yet, and that is not an error."""
    await store.create_thread(ThreadRecord(thread_id="t", agent="demo"))
    assert await store.load_history_with_ancestors("t") == Path()
    assert await store.load_history_with_ancestors("t", "unknown") == Path()
    assert await store.get_message_counts("t") == Counts()


async def test_path_from_the_root_to_the_head(store: Store) -> None:
    """Oldest first, with all parts in order."""
    await conversation(store)
    path = await store.load_history_with_ancestors("t")
    assert shape(path) == [("u1", 1), ("a1", 4), ("u2", 1), ("a2", 1)]
    assert path.messages[1].parts == (text("let me see"), call("c"), result("c"), text("one"))
    assert (path.summary, path.extends) == (None, None)
    assert path.seq == (await store.get_thread("t")).seq


@pytest.mark.parametrize(
    ("known", "rest"),
    [("u1", ["a1", "u2", "a2"]), ("u2", ["a2"]), ("a2", [])],
)
async def test_only_what_follows_a_known_message(store: Store, known: str, rest: list[str]) -> None:
    """The known message is not among what comes; `extends` says that it was found."""
    await conversation(store)
    path = await store.load_history_with_ancestors("t", known)
    assert [message.id for message in path.messages] == rest
    assert path.extends == known


async def test_a_known_message_off_the_path_gives_the_whole_path(store: Store) -> None:
    """After an edit the reader's copy is of another branch; nothing says `extends` then."""
    await conversation(store)
    await write(store, 3, user("u2b", "second, edited", parent_id="a1"))
    for known in ("a2", "u2", "never seen"):
        path = await store.load_history_with_ancestors("t", known)
        assert [message.id for message in path.messages] == ["u1", "a1", "u2b"]
        assert path.extends is None


async def test_siblings_stay_in_the_tree(store: Store) -> None:
    """An edit is another child of the same parent; what hung below the first one can be reached again."""
    await conversation(store)
    await write(store, 3, user("u2b", "second, edited", parent_id="a1"), assistant("a2b", 3, text("other")))
    assert await texts(store) == ["first", "let me see", "one", "second, edited", "other"]
    await write(store, 4, settle("a2b"), user("u3", "third", parent_id="a2"))
    assert await texts(store) == ["first", "let me see", "one", "second", "two", "third"]


async def test_counts_are_of_the_current_path(store: Store) -> None:
    """Messages of other branches do not count, inherited ones do, events by themselves."""
    await conversation(store)
    event = Message(id="e", thread_id="t", role="event", parent_id="a1")
    await write(store, 3, AppendMessage(message=event))
    assert await store.get_message_counts("t") == Counts(total=3, user=1, assistant=1, event=1, visible=3)
    await child(store, "u2", None)
    assert await store.get_message_counts("k") == Counts(total=3, user=2, assistant=1, visible=3)


async def test_a_fresh_child_sees_what_it_inherits(store: Store) -> None:
    """Before it says anything its path ends where it was spawned, at the part where it was spawned."""
    await conversation(store)
    await child(store, "a1", 3)
    path = await store.load_history_with_ancestors("k")
    assert shape(path) == [("u1", 1), ("a1", 3)]
    assert path.messages[1].thread_id == "t"
    assert await store.load_history_with_ancestors("k", "a1") == Path(extends="a1")


async def test_a_thread_does_not_begin_at_a_message_that_is_not_there(store: Store) -> None:
    """Its path would be taken for an empty one."""
    await conversation(store)
    with pytest.raises(StoreError, match="not stored"):
        await child(store, "nobody", None)
    with pytest.raises(StoreError, match="not stored"):
        await store.create_thread(ThreadRecord(thread_id="f", agent="demo", head_id="nobody"))
    fork = await store.create_thread(ThreadRecord(thread_id="f", agent="demo", head_id="u2"))
    assert shape(await store.load_history_with_ancestors(fork.thread_id)) == [("u1", 1), ("a1", 4), ("u2", 1)]


async def test_a_child_goes_on_from_its_spawn_point(store: Store) -> None:
    """Its first message hangs on the parent's message, cut; what the parent does later does not reach it."""
    await conversation(store)
    await child(store, "a1", 3)
    first = Message(id="k1", thread_id="k", role="user", parts=(text("go"),))
    await write(store, 1, AppendMessage(message=first), thread_id="k")
    await write(store, 3, user("u3"))
    path = await store.load_history_with_ancestors("k")
    assert shape(path) == [("u1", 1), ("a1", 3), ("k1", 1)]
    assert (path.messages[-1].parent_id, path.messages[-1].parent_parts) == ("a1", 3)
    assert shape(await store.load_history_with_ancestors("t")) == [
        ("u1", 1),
        ("a1", 4),
        ("u2", 1),
        ("a2", 1),
        ("u3", 1),
    ]
    assert shape(await store.load_history_with_ancestors("k", "a1")) == [("k1", 1)]


async def test_a_child_sees_no_part_that_was_added_after_its_spawn(store: Store) -> None:
    """The parent's message is still running when the child is spawned from it."""
    await started(store)
    await write(store, 2, AppendParts(message_id="a", start=0, parts=(text("before"),)))
    await child(store, "a", 1)
    await write(store, 3, AppendParts(message_id="a", start=1, parts=(text("after"),)))
    assert await texts(store, "k") == ["hi", "before"]
    assert await texts(store, "t") == ["hi", "before", "after"]


async def test_a_cut_of_zero_parts_leaves_the_message_empty(store: Store) -> None:
    """Zero is a number of parts and not the absence of a cut."""
    await conversation(store)
    await child(store, "a1", 0)
    assert shape(await store.load_history_with_ancestors("k")) == [("u1", 1), ("a1", 0)]


async def test_a_summary_takes_the_place_of_what_it_covers(store: Store) -> None:
    """The path begins with it; the messages stay in the store and are counted."""
    await conversation(store)
    await store.add_summary(summary("a1", 4))
    path = await store.load_history_with_ancestors("t")
    assert path.summary == summary("a1", 4)
    assert shape(path) == [("u2", 1), ("a2", 1)]
    assert (await store.get_message_counts("t")).total == 4


async def test_a_summary_may_end_inside_a_message(store: Store) -> None:
    """What follows its point is still there, word for word."""
    await conversation(store)
    await store.add_summary(summary("a1", 3))
    path = await store.load_history_with_ancestors("t")
    assert shape(path) == [("a1", 1), ("u2", 1), ("a2", 1)]
    assert path.messages[0].parts == (text("one"),)


async def test_the_newest_summary_on_the_path_wins(store: Store) -> None:
    """The one nearest to the head is taken, whenever it was made; at one point the later one."""
    await conversation(store)
    await store.add_summary(summary("u2", 1, "late"))
    await store.add_summary(summary("a1", 4, "early"))
    assert (await store.load_history_with_ancestors("t")).summary == summary("u2", 1, "late")
    await store.add_summary(summary("u2", 1, "again"))
    assert (await store.load_history_with_ancestors("t")).summary == summary("u2", 1, "again")


async def test_a_summary_of_another_branch_does_not_count(store: Store) -> None:
    """It holds for the paths through its point, and for no other."""
    await conversation(store)
    await store.add_summary(summary("u2", 1))
    await write(store, 3, user("u2b", "second, edited", parent_id="a1"))
    path = await store.load_history_with_ancestors("t")
    assert path.summary is None
    assert [message.id for message in path.messages] == ["u1", "a1", "u2b"]


async def test_a_child_does_not_see_a_summary_beyond_its_spawn_point(store: Store) -> None:
    """B02, B27: what a child inherited is not changed by a compaction of what came after."""
    await conversation(store)
    await child(store, "a1", 2)
    await store.add_summary(summary("a1", 4))
    assert shape(await store.load_history_with_ancestors("k")) == [("u1", 1), ("a1", 2)]
    await store.add_summary(summary("u1", 1, "own", "k"))
    path = await store.load_history_with_ancestors("k")
    assert (path.summary, shape(path)) == (summary("u1", 1, "own", "k"), [("a1", 2)])


async def test_a_known_message_behind_a_summary_is_not_extended(store: Store) -> None:
    """What the reader holds is covered by the summary, so it gets the path that begins with it."""
    await conversation(store)
    await store.add_summary(summary("a1", 4))
    path = await store.load_history_with_ancestors("t", "u1")
    assert (path.summary, path.extends, shape(path)) == (summary("a1", 4), None, [("u2", 1), ("a2", 1)])
    path = await store.load_history_with_ancestors("t", "u2")
    assert (path.summary, path.extends, shape(path)) == (None, "u2", [("a2", 1)])


async def test_adding_a_summary_again(store: Store) -> None:
    """The same one is no error, another one under its id is; the version of the thread is not touched (B53)."""
    await conversation(store)
    assert await store.add_summary(summary("a1", 4))
    assert await store.add_summary(summary("a1", 4))
    with pytest.raises(ContentConflict):
        await store.add_summary(summary("a1", 3))
    with pytest.raises(ThreadNotFound):
        await store.add_summary(summary("a1", 4, "other", "nobody"))
    assert not await store.add_summary(summary("nobody", 4, "another"))
    assert (await store.load_history_with_ancestors("t")).summary == summary("a1", 4)
    assert (await store.get_thread("t")).version == 2
