"""What `complete` keeps of a path, and that it is never stale."""

import pytest

from activities.path_cache import PathCache
from perdure.batch import AppendMessage, SyncBatch
from perdure.large_text import MISSING
from perdure.messages import Message, Role, TextPart, ToolResultPart
from perdure.ports import Path, Summary, ThreadRecord
from tests.activities.conversation import FaultyStore


class Tree:
    """A thread of a store, written message by message."""

    def __init__(self, store: FaultyStore, thread_id: str) -> None:
        self.store = store
        self.thread_id = thread_id
        self.version = 0

    async def add(
        self, id: str, *texts: str, role: Role = "user", parent: str | None = None, cut: int | None = None
    ) -> None:
        """Append a message at the head, or at `parent` after its first `cut` parts."""
        self.version += 1
        message = Message(
            id=id,
            thread_id=self.thread_id,
            role=role,
            parent_id=parent,
            parent_parts=cut,
            parts=tuple(TextPart(text=text) for text in texts),
        )
        batch = SyncBatch(
            thread_id=self.thread_id,
            number=self.version,
            sync_id=str(self.version),
            operations=(AppendMessage(message=message),),
        )
        await self.store.append_messages(batch)


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


async def same(cache: PathCache, tree: Tree) -> list[tuple[str, int]]:
    """Load through the cache; the result must be what a reader without one gets."""
    cached = await cache.load(tree.thread_id)
    fresh = await tree.store.load_history_with_ancestors(tree.thread_id)
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


async def test_a_branch_that_cuts_the_kept_message_short_is_read_whole(tree: Tree) -> None:
    """The kept end is on the path, but only its first part; and back again."""
    cache = PathCache(tree.store)
    await same(cache, tree)
    await tree.add("m3b", "from the middle", parent="m2", cut=1)
    assert await same(cache, tree) == [("m1", 2), ("m2", 1), ("m3b", 1)]
    await tree.add("m3c", "from the end", parent="m2")
    assert await same(cache, tree) == [("m1", 2), ("m2", 2), ("m3c", 1)]


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
