"""What `complete` keeps of a path, and that it is never stale."""

from random import Random

import pytest

from activities.path_cache import PathCache
from perdure.batch import (
    AppendMessage,
    AppendParts,
    CommitResults,
    DeleteMessage,
    Operation,
    StoreLateResult,
    SwitchBranch,
    SyncBatch,
)
from perdure.large_text import MISSING
from perdure.messages import Message, Role, Status, TextPart, ToolCallPart, ToolResultPart
from perdure.records import Path, Summary, ThreadRecord
from tests.activities.conversation import FaultyStore


class Tree:
    """A thread of a store, written message by message."""

    def __init__(self, store: FaultyStore, thread_id: str) -> None:
        self.store = store
        self.thread_id = thread_id
        self.version = 0

    async def add(self, id: str, *texts: str, role: Role = "user", parent: str | None = None) -> None:
        """Append a message at the head, or at `parent`."""
        parts = tuple(TextPart(text=text) for text in texts)
        await self.apply(AppendMessage(message=self.message(id, role=role).with_(parent_id=parent, parts=parts)))

    def message(self, id: str, role: Role = "user") -> Message:
        """An empty message of the thread."""
        return Message(id=id, thread_id=self.thread_id, role=role)

    async def apply(self, *operations: Operation) -> None:
        """Apply a batch."""
        self.version += 1
        sync_id = str(self.version)
        batch = SyncBatch(thread_id=self.thread_id, number=self.version, sync_id=sync_id, operations=operations)
        assert not (await self.store.append_messages(batch)).refused


async def three_messages(store: FaultyStore, thread_id: str, prefix: str = "m") -> Tree:
    """A thread with the messages m1 to m3, or with another prefix: an id is there once in a store."""
    await store.create_thread(ThreadRecord(thread_id=thread_id, agent="a"))
    tree = Tree(store, thread_id)
    for name in (f"{prefix}1", f"{prefix}2", f"{prefix}3"):
        await tree.add(name, f"{name} one", f"{name} two")
    return tree


@pytest.fixture
async def tree() -> Tree:
    """The thread `t` in a store of its own."""
    return await three_messages(FaultyStore(), "t")


async def test_a_result_without_its_blob_says_so(tree: Tree) -> None:
    """Whatever blob a result from outside names, the model call goes on with what came with it."""
    named = ToolResultPart(call_id="c", content="it begins", blob="00", size_bytes=99)
    message = Message(id="m4", thread_id="t", role="assistant", parts=(named,))
    batch = SyncBatch(thread_id="t", number=4, sync_id="4", operations=(AppendMessage(message=message),))
    await tree.store.append_messages(batch)
    part = (await PathCache(tree.store).load("t")).messages[-1].parts[0]
    assert part == named.with_(content=f"it begins\n\n{MISSING}", blob=None)


def shape(path: Path) -> list[tuple[str, int]]:
    """Ids of the messages and the numbers of their parts."""
    return [(message.id, len(message.parts)) for message in path.messages]


async def same(cache: PathCache, tree: Tree, message_id: str | None = None) -> list[tuple[str, int]]:
    """Load through the cache; the result must be what a reader without one gets."""
    cached = await cache.load(tree.thread_id, message_id)
    fresh = await tree.store.load_history_with_ancestors(tree.thread_id, message_id=message_id)
    assert cached == fresh
    return shape(cached)


async def test_only_what_follows_the_kept_end_is_read_again(tree: Tree) -> None:
    """The second read asks from the last message but one on, which is the end of what cannot grow any more."""
    cache = PathCache(tree.store)
    await same(cache, tree)
    await tree.add("m4", "x")
    assert await same(cache, tree) == [("m1", 2), ("m2", 2), ("m3", 2), ("m4", 1)]
    assert tree.store.known == [None, None, "m2", None]


async def test_the_last_message_is_read_again_since_it_grows(tree: Tree) -> None:
    """Parts that were added to the head are seen."""
    cache = PathCache(tree.store)
    await same(cache, tree)
    await same(cache, tree)
    assert tree.store.known[2] == "m2"


async def test_another_branch_is_read_whole(tree: Tree) -> None:
    """The head moved to a branch that the kept end is not on."""
    cache = PathCache(tree.store)
    await same(cache, tree)
    await tree.add("m2b", "edited", parent="m1")
    assert await same(cache, tree) == [("m1", 2), ("m2b", 1)]


async def test_what_a_child_thread_inherits_is_cut_where_it_began(tree: Tree) -> None:
    """Only the first part of the message that it hangs on is on its path, whoever has read that message before."""
    spawned = ThreadRecord(thread_id="c", agent="a", parent_thread_id="t", spawn_message_id="m2", spawn_parts=1)
    await tree.store.create_thread(spawned)
    cache, child = PathCache(tree.store), Tree(tree.store, "c")
    await same(cache, tree)
    for name in ("c1", "c2", "c3"):
        await child.add(name, "x")
        assert (await same(cache, child))[:2] == [("m1", 2), ("m2", 1)]
    await child.apply(AppendMessage(message=child.message("c1b"), beside="c1"))
    assert await same(cache, child) == [("m1", 2), ("m2", 1), ("c1b", 0)]


async def test_the_path_to_a_message_is_read_wherever_the_head_is(tree: Tree) -> None:
    """A turn that goes on behind another branch; what was read of the one serves the other as far as they agree."""
    cache = PathCache(tree.store)
    assert await same(cache, tree, "m3") == [("m1", 2), ("m2", 2), ("m3", 2)]
    await tree.add("m3b", "edited", parent="m2")
    assert await same(cache, tree) == [("m1", 2), ("m2", 2), ("m3b", 1)]
    assert await same(cache, tree, "m3") == [("m1", 2), ("m2", 2), ("m3", 2)]
    assert tree.store.known[::2] == [None, "m2", "m2"]


async def test_a_message_that_was_inside_of_another_path_still_grows_at_the_end_of_its_own(tree: Tree) -> None:
    """A turn with words below it goes on: what was kept of it as part of the longer path is not all of it any more."""
    cache = PathCache(tree.store)
    await tree.apply(AppendMessage(message=tree.message("a", role="assistant").with_(status=Status(state="running"))))
    await tree.add("below", "x")
    assert (await same(cache, tree))[-2:] == [("a", 0), ("below", 1)]
    await tree.apply(AppendParts(message_id="a", start=0, parts=(TextPart(text="more"),)))
    assert (await same(cache, tree, "a"))[-1] == ("a", 1)


async def test_the_head_goes_to_and_fro_between_branches(tree: Tree) -> None:
    """Each time the path is that of the branch that is open."""
    cache = PathCache(tree.store)
    await tree.add("m2b", "edited", parent="m1")
    await tree.add("m3b", "after it")
    for number, open_ in enumerate(("m3", "m3b", "m3", "m3b")):
        await tree.apply(SwitchBranch(message_id=open_, input_id=f"i{number}", digest="d"))
        assert (await same(cache, tree))[-1] == (open_, 2 if open_ == "m3" else 1)


async def test_a_change_in_the_middle_voids_what_was_kept(tree: Tree) -> None:
    """A message is deleted and its children move up: the kept end is on the path, but not all that was above it."""
    cache = PathCache(tree.store)
    for name in ("m4", "m5"):
        await tree.add(name, "x")
    await same(cache, tree)
    await tree.apply(DeleteMessage(message_id="m2", input_id="i", digest="d"))
    assert await same(cache, tree) == [("m1", 2), ("m3", 2), ("m4", 1), ("m5", 1)]
    assert tree.store.known[-3:] == ["m4", None, None], "the kept end was asked for, and then the whole path"


async def test_a_late_result_is_read(tree: Tree) -> None:
    """It takes the place of the one that was made up, in the middle of the path; of a child thread's path too."""
    made_up = ToolResultPart(call_id="c", outcome="interrupted", content="cut short")
    await tree.apply(
        AppendMessage(message=tree.message("a", role="assistant")),
        AppendParts(message_id="a", start=0, parts=(ToolCallPart(call_id="c", tool="t"),)),
        CommitResults(message_id="a", start=1, call_ids=("c",), results=(made_up,)),
    )
    for name in ("m5", "m6"):
        await tree.add(name, "x")
    await tree.store.create_thread(ThreadRecord(thread_id="c", agent="a", parent_thread_id="t", spawn_message_id="m6"))
    cache, child = PathCache(tree.store), Tree(tree.store, "c")
    for name in ("c1", "c2"):
        await child.add(name, "x")
    for one in (tree, child):
        await same(cache, one)
    late = made_up.with_(outcome="ok", content="late")
    await tree.apply(StoreLateResult(message_id="a", result=late))
    for one in (tree, child):
        await same(cache, one)
        (answer,) = [message for message in (await cache.load(one.thread_id)).messages if message.id == "a"]
        assert answer.parts[1] == late


@pytest.mark.parametrize("seed", range(8))
async def test_whatever_is_done_to_the_tree_the_path_is_the_stored_one(tree: Tree, seed: int) -> None:
    """Two workers read to the head and to any message, while messages come, go, and change places."""
    choose = Random(seed)
    caches = PathCache(tree.store), PathCache(tree.store, max_chars=4_000)
    for number in range(60):
        known = [one.message.id for one in (await tree.store.load_tree("t")).messages]
        if not known:
            await tree.add(f"n{number}", "x")
            continue
        at, doing = choose.choice(known), f"i{number}"
        match choose.randrange(8):
            case 0:
                await tree.apply(SwitchBranch(message_id=at, input_id=doing, digest="d"))
            case 1:
                await tree.apply(DeleteMessage(message_id=at, input_id=doing, digest="d"))
            case 2:
                await tree.apply(AppendMessage(message=tree.message(f"n{number}"), beside=at))
            case 3:
                await tree.add(f"n{number}", "x", parent=at)
            case _:
                await tree.add(f"n{number}", "x")
        for cache in caches:
            if choose.randrange(3):
                await same(cache, tree)
            left = [one.message.id for one in (await tree.store.load_tree("t")).messages]
            if left and choose.randrange(2):
                await same(cache, tree, choose.choice(left))


async def test_writes_of_another_worker_are_seen(tree: Tree) -> None:
    """Two caches over one store see the same at any time."""
    here, there = PathCache(tree.store), PathCache(tree.store)
    for number in range(5):
        await same(here, tree)
        await tree.add(f"n{number}", "x")
        await same(there, tree)
        await tree.add(f"o{number}", "x")


async def test_a_thread_that_was_dropped_is_read_whole(tree: Tree) -> None:
    """Memory is bounded: what is over the bound goes, least recently used first, and is read again."""
    cache = PathCache(tree.store, max_chars=5_000)
    await tree.store.create_thread(ThreadRecord(thread_id="t2", agent="a"))
    await same(cache, tree)
    await same(cache, tree)
    assert tree.store.known[2] == "m2"
    for name in ("big1", "big2", "big3"):
        await tree.add(name, "x" * 10_000)
    await same(cache, tree)
    await same(cache, tree)
    assert tree.store.known[-2] is None


async def test_no_more_threads_are_kept_than_allowed() -> None:
    """Short threads are dropped too, the least recently used first: memory does not grow with every thread served."""
    store = FaultyStore()
    trees = {name: await three_messages(store, name, prefix=name) for name in ("a", "b", "c")}
    cache = PathCache(store, max_threads=2)
    for name in ("a", "b", "a", "c", "a", "b"):
        await same(cache, trees[name])
    # Every other read is that of `same` itself.
    assert store.known[::2] == [None, None, "a2", None, "a2", None]


async def test_a_worker_that_keeps_no_thread_keeps_no_path(tree: Tree) -> None:
    """A bound of zero is one, not the absence of it."""
    cache = PathCache(tree.store, max_threads=0)
    for _ in range(2):
        await same(cache, tree)
    assert tree.store.known == [None] * 4


async def test_a_summary_on_what_follows_replaces_what_was_kept(tree: Tree) -> None:
    """A compaction up to a message after the kept end: the path begins with it."""
    cache = PathCache(tree.store)
    await same(cache, tree)
    for name in ("m4", "m5"):
        await tree.add(name, "x")
    await tree.store.add_summary(Summary(id="s", thread_id="t", message_id="m4", parts=1, text="what was"))
    assert await same(cache, tree) == [("m5", 1)]
    assert (await cache.load("t")).summary is not None
