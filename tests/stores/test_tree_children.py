"""Child threads and summaries, when the branches of what they rest on change."""

import asyncio
from contextlib import aclosing

import pytest

from perdure.batch import StoreLateResult
from perdure.errors import UnknownMessage
from perdure.messages import ToolResultPart
from perdure.ports import Store
from perdure.records import Change, Summary, ThreadRecord
from tests.stores.builders import call, result, text
from tests.stores.trees import (
    answer,
    branches,
    conversation,
    delete,
    imported,
    item,
    path,
    refused,
    reset,
    said,
    switch,
    written,
)


async def child(store: Store, message_id: str, parts: int | None = None, thread_id: str = "k", of: str = "t") -> None:
    """A thread that inherits up to a point of another one."""
    await store.create_thread(
        ThreadRecord(
            thread_id=thread_id,
            agent="demo",
            kind="child",
            parent_thread_id=of,
            root_thread_id="t",
            spawn_message_id=message_id,
            spawn_parts=parts,
        )
    )


async def inheriting(store: Store, parts: int | None = None) -> Store:
    """The conversation with a child `k` that inherits up to a2 and has said k1."""
    await conversation(store)
    await child(store, "a2", parts)
    await written(store, said("k1", thread_id="k"), thread_id="k")
    return store


def summary(message_id: str, text_: str = "so far", thread_id: str = "t") -> Summary:
    """A summary of everything up to the end of a message."""
    return Summary(id=f"of-{message_id}", thread_id=thread_id, message_id=message_id, parts=1, text=text_)


async def summarised(store: Store, thread_id: str = "t") -> str | None:
    """What the path of the thread begins with, if that is a summary."""
    found = (await store.load_history_with_ancestors(thread_id)).summary
    return found.message_id if found else None


# -- child threads ---------------------------------------------------------------------------------------------


async def test_a_child_keeps_what_it_inherited(store: Store) -> None:
    """Whatever branch the parent shows, and whatever it edits."""
    await inheriting(store)
    for operation in (
        said("u2b", beside="u2"),
        switch("u1", "s1"),
        said("v", at_root=True),
        answer("a1b", 3, answering="u1"),
    ):
        await written(store, operation)
        assert await path(store, "k") == ["u1", "a1", "u2", "a2", "k1"]
    assert await path(store) == ["u1", "a1b"]


async def test_a_child_inherits_up_to_the_parent_of_a_deleted_message(store: Store) -> None:
    """Whole, also where it was spawned in the middle of what is gone; what it said itself stays."""
    await inheriting(store, parts=0)
    await child(store, "a2", 1, "fresh")
    await written(store, delete("a2"))
    assert await path(store, "k") == ["u1", "a1", "u2", "k1"]
    found = await store.load_history_with_ancestors("k")
    assert [len(message.parts) for message in found.messages] == [1, 1, 1, 1]
    assert (found.messages[-1].parent_id, found.messages[-1].parent_parts) == ("u2", None)
    for thread_id in ("k", "fresh"):
        record = await store.get_thread(thread_id)
        assert (record.spawn_message_id, record.spawn_parts) == ("u2", None)
    assert await path(store, "fresh") == ["u1", "a1", "u2"]
    assert (await store.get_message_counts("fresh")).total == 3
    await written(store, said("f1", thread_id="fresh"), thread_id="fresh")
    assert await path(store, "fresh") == ["u1", "a1", "u2", "f1"]


async def test_readers_below_are_told_what_goes(store: Store) -> None:
    """Those of all threads whose path had it, however far below, and no others; their own numbers go on from there."""
    await inheriting(store)
    await child(store, "k1", None, "below", of="k")
    await child(store, "k1", 0, "beside", of="below")
    await child(store, "u1", None, "above")
    await written(store, said("v", at_root=True))
    await child(store, "v", None, "elsewhere")
    names = ("k", "below", "beside", "above", "elsewhere")
    before = {name: (await store.get_thread(name)).seq for name in names}
    shapes = {name: (await store.load_history_with_ancestors(name)).shape for name in names}
    await written(store, delete("a1"))
    for name in ("k", "below", "beside"):
        assert await store.read_changes(name, before[name]) == (Change(seq=before[name] + 1, tree=True),)
        assert (await store.get_thread(name)).seq == before[name] + 1
        assert (await store.load_history_with_ancestors(name)).shape > shapes[name]
    for name in ("above", "elsewhere"):
        assert await store.read_changes(name, before[name]) == ()
    await written(store, said("k2", thread_id="k"), thread_id="k")
    (message, part) = await store.read_changes("k", before["k"] + 1)
    assert (message.seq, part.seq) == (before["k"] + 2, before["k"] + 3)


async def test_readers_below_are_told_of_other_content(store: Store) -> None:
    """Of a reset, an import over what is known and a late result, and of nothing that leaves their path as it is."""
    await conversation(store)
    await written(store, answer("s", 3, call("c"), ToolResultPart(call_id="c", outcome="cancelled")))
    await child(store, "s")
    seq = (await store.get_thread("k")).seq

    async def told() -> bool:
        nonlocal seq
        changes, before = await store.read_changes("k", seq), seq
        seq = (await store.get_thread("k")).seq
        assert changes in ((), (Change(seq=before + 1, tree=True),))
        return bool(changes)

    late = StoreLateResult(message_id="s", result=result("c"))
    await written(store, late)
    assert await told()
    await written(store, late)
    assert not await told(), "it changes nothing any more"
    for operation in (said("w"), switch("a1"), said("v", at_root=True), delete("w")):
        await written(store, operation)
        assert not await told()
    await written(store, await imported(store, item("u1", None, text("other")), head_id="s"))
    assert await told()
    await written(store, reset("a1"))
    assert await told()
    assert await path(store, "k") == ["u1", "a1"]


async def test_who_listens_below_is_woken(store: Store) -> None:
    """And need not look by itself."""
    await inheriting(store)
    names = ("k", "l", "m")
    for name in names[1:]:
        await child(store, "a2", None, name)

    async def is_told(name: str) -> None:
        seq = (await store.get_thread(name)).seq
        async with aclosing(store.listen(name)) as hints:
            async for _ in hints:
                ready.release()
                if await store.read_changes(name, seq):
                    return

    ready = asyncio.Semaphore(0)
    async with asyncio.timeout(10), asyncio.TaskGroup() as readers:
        for name in names:
            readers.create_task(is_told(name))
        for _ in names:
            await ready.acquire()
        await written(store, delete("u1"))


async def test_a_child_does_not_follow_what_moves(store: Store) -> None:
    """What was below the deleted message may go elsewhere; the child goes on from where it hung."""
    await inheriting(store)
    await written(store, answer("b1", 3, answering="a1"))
    await child(store, "a1", None, "fresh")
    await written(store, delete("a1", "b1"))
    assert await path(store, "k") == ["u1", "b1", "u2", "a2", "k1"]
    assert await path(store, "fresh") == ["u1"]


async def test_a_child_inherits_up_to_what_is_left(store: Store) -> None:
    """After a reset up to the message that everything below is gone of; after all is gone, nothing."""
    await inheriting(store)
    await child(store, "u2", None, "fresh")
    await written(store, reset("a1", "r1"))
    assert await path(store, "k") == ["u1", "a1", "k1"]
    assert await path(store, "fresh") == ["u1", "a1"]
    await written(store, reset(None, "r2"))
    assert await path(store, "k") == ["k1"]
    assert await path(store, "fresh") == []
    record = await store.get_thread("fresh")
    assert (record.spawn_message_id, record.spawn_parts) == (None, None)


async def test_a_grandchild_that_hangs_on_the_deleted_message(store: Store) -> None:
    """Whoever inherits up to it follows, in whichever thread."""
    await inheriting(store)
    await child(store, "a2", None, "g", of="k")
    await child(store, "k1", None, "h", of="k")
    await written(store, said("g1", thread_id="g"), thread_id="g")
    await written(store, delete("a2"))
    assert await path(store, "g") == ["u1", "a1", "u2", "g1"]
    assert await path(store, "h") == ["u1", "a1", "u2", "k1"]


async def test_several_deletions_in_one_batch(store: Store) -> None:
    """What a child is handed on to may be deleted next, and the next after that."""
    await inheriting(store)
    await written(store, delete("u2", input_id="d1"), delete("a2", input_id="d2"), delete("a1", input_id="d3"))
    assert await path(store, "k") == ["u1", "k1"]


async def test_the_root_of_a_child_is_what_it_inherits(store: Store) -> None:
    """Its first message goes, and what was below it hangs on the same point, with the same cut; a reset leaves that."""
    await store.create_thread(ThreadRecord(thread_id="t", agent="demo"))
    await written(store, said("u1"), answer("a1", 1, text("one"), text("two"), text("three")))
    await child(store, "a1", 2)
    await child(store, "a1", 2, "g")
    await written(
        store, said("k1", thread_id="k"), said("k2", thread_id="k"), answer("k3", 1, thread_id="k"), thread_id="k"
    )
    assert (await branches(store, "k")).children == {"": ["k1"], "k1": ["k2"], "k2": ["k3"]}
    await child(store, "k1", None, "below", of="k")
    await written(store, delete("k1"), thread_id="k")
    found = await store.load_history_with_ancestors("k")
    assert [(message.id, len(message.parts)) for message in found.messages] == [
        ("u1", 1),
        ("a1", 2),
        ("k2", 1),
        ("k3", 1),
    ]
    below = await store.get_thread("below")
    assert (below.spawn_message_id, below.spawn_parts) == ("a1", 2)
    await written(store, said("k1b", beside="k2", thread_id="k"), thread_id="k")
    assert [
        (message.id, len(message.parts)) for message in (await store.load_history_with_ancestors("k")).messages
    ] == [("u1", 1), ("a1", 2), ("k1b", 1)]
    report = await written(store, reset(None), thread_id="k")
    assert report.tree is not None
    assert report.tree.head_id is None
    assert await path(store, "k") == ["u1", "a1"]
    await written(store, said("k9", thread_id="k"), thread_id="k")
    assert await path(store, "k") == ["u1", "a1", "k9"]
    assert await path(store, "g") == ["u1", "a1"]


async def test_moved_to_and_from_the_root_of_a_child(store: Store) -> None:
    """At the root it hangs on what is inherited, elsewhere on its parent, whole."""
    await conversation(store)
    await child(store, "a1", 1)
    await written(store, said("k1", thread_id="k"), answer("k2", 1, thread_id="k"), thread_id="k")
    await written(store, await imported(store, item("k2", role="assistant"), thread_id="k"), thread_id="k")
    found = (await store.load_history_with_ancestors("k")).messages[-1]
    assert (found.id, found.parent_id, found.parent_parts) == ("k2", "a1", 1)
    await written(store, await imported(store, item("k1", "k2"), input_id="i2", thread_id="k"), thread_id="k")
    found = (await store.load_history_with_ancestors("k")).messages[-1]
    assert (found.id, found.parent_id, found.parent_parts) == ("k1", "k2", None)
    assert await path(store, "k") == ["u1", "a1", "k2", "k1"]


async def test_a_child_cannot_delete_what_it_inherits(store: Store) -> None:
    """That belongs to its parent."""
    await inheriting(store)
    for operation in (delete("a2"), switch("a2"), reset("a2")):
        assert (await refused(store, operation, thread_id="k"))[0].detail == "There is no message 'a2' in this thread."


async def test_a_change_above_voids_what_is_kept_below(store: Store) -> None:
    """The shape of a child's path rises with that of all threads that it inherits from."""
    await inheriting(store)
    before = (await store.load_history_with_ancestors("k")).shape
    await written(store, switch("u1", "s"), said("u9"))
    assert (await store.load_history_with_ancestors("k")).shape == before
    await written(store, delete("u1"))
    middle = (await store.load_history_with_ancestors("k")).shape
    assert middle > before
    await written(
        store, answer("k2", 1, call("c"), ToolResultPart(call_id="c", outcome="expired"), thread_id="k"), thread_id="k"
    )
    await written(store, delete("k1"), thread_id="k")
    assert (await store.load_history_with_ancestors("k")).shape > middle


async def test_a_path_to_a_message_off_the_head(store: Store) -> None:
    """What a turn on a hidden branch reads: up from its own message, inherited ones and all."""
    await inheriting(store)
    await written(store, said("k2", thread_id="k", at_root=True), thread_id="k")
    assert await path(store, "k") == ["u1", "a1", "u2", "a2", "k2"]
    assert await path(store, "k", "k1") == ["u1", "a1", "u2", "a2", "k1"]
    found = await store.load_history_with_ancestors("k", "a2", "k1")
    assert ([message.id for message in found.messages], found.extends) == (["k1"], "a2")
    await written(store, said("u2b", beside="u2"))
    assert await path(store, "t", "a2") == ["u1", "a1", "u2", "a2"]
    assert await path(store, "t", "a1") == ["u1", "a1"]
    with pytest.raises(UnknownMessage, match="'nobody'"):
        await path(store, "t", "nobody")


# -- summaries -------------------------------------------------------------------------------------------------


async def test_a_summary_holds_on_paths_through_its_point(store: Store) -> None:
    """On the other branch everything is said in full; when its branch is shown again it holds again."""
    await conversation(store)
    await store.add_summary(summary("u2"))
    assert await summarised(store) == "u2"
    await written(store, said("u2b", beside="u2"))
    assert (await summarised(store), await path(store)) == (None, ["u1", "a1", "u2b"])
    await written(store, switch("u2"))
    assert await summarised(store) == "u2"
    await store.add_summary(summary("a1"))
    await written(store, switch("u2b", "s2"))
    assert (await summarised(store), await path(store)) == ("a1", ["u2b"])


async def test_a_deletion_leaves_summaries_of_what_is_above_and_beside(store: Store) -> None:
    """They were not made of what is gone."""
    await conversation(store)
    await written(store, said("u2b", beside="u2"))
    for message_id in ("u1", "u2", "u2b"):
        await store.add_summary(summary(message_id))
    await written(store, delete("u2"))
    assert await summarised(store) == "u2b"
    await written(store, switch("a2"))
    assert (await summarised(store), await path(store)) == ("u1", ["a1", "a2"])


async def test_summaries_of_child_threads_below_a_deleted_message(store: Store) -> None:
    """They were made of it too; those of children that hang above it were not."""
    await inheriting(store)
    await child(store, "a1", None, "above")
    await written(store, said("v1", thread_id="above"), thread_id="above")
    await store.add_summary(summary("k1", thread_id="k"))
    await store.add_summary(summary("v1", thread_id="above"))
    await written(store, delete("u2"))
    assert await summarised(store, "k") is None
    assert await path(store, "k") == ["u1", "a1", "a2", "k1"]
    assert await summarised(store, "above") == "v1"


async def test_a_move_voids_the_summaries_of_what_moved(store: Store) -> None:
    """What they say came before it is another story now; so it is where a message has other words."""
    await conversation(store)
    await written(store, said("v", at_root=True))
    for message_id in ("a1", "a2", "v"):
        await store.add_summary(summary(message_id))
    await written(store, await imported(store, item("u2", "v"), head_id="a2"))
    assert (await path(store), await summarised(store)) == (["u2", "a2"], "v")
    await written(store, await imported(store, item("v", None, text("other")), head_id="a2", input_id="i2"))
    assert (await path(store), await summarised(store)) == (["v", "u2", "a2"], None)
    await written(store, switch("a1"))
    assert await summarised(store) == "a1"


async def test_a_late_result_leaves_summaries(store: Store) -> None:
    """They say what was known then, and stay what the conversation went on from."""
    await conversation(store)
    await written(store, answer("s", 3, call("c"), ToolResultPart(call_id="c", outcome="cancelled")))
    await store.add_summary(summary("s"))
    await written(store, StoreLateResult(message_id="s", result=result("c")))
    assert await summarised(store) == "s"
