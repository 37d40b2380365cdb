"""Summaries: what they hold, when they are void, what they cost, and what of a path they stand for."""

import asyncio
from contextlib import aclosing
from typing import Any

import pytest

from perdure.batch import StoreLateResult
from perdure.errors import ContentConflict, ThreadNotFound
from perdure.messages import Usage
from perdure.ports import Store
from perdure.records import Change, Counts, Summary, SummaryItem, ThreadRecord
from stores.postgres import PostgresStore
from tests.eventually import eventually
from tests.stores.builders import call, result, seed, write
from tests.stores.postgres_eye import connected, waiting
from tests.stores.trees import answer, conversation, delete, path, said, switch, written

COST = Usage(requests=1, input_tokens=5000, output_tokens=300, nano_usd=12)


def summary(message_id: str, name: str = "s", thread_id: str = "t", **fields: Any) -> Summary:
    """A summary of all up to the first part of a message."""
    return Summary(id=name, thread_id=thread_id, message_id=message_id, parts=1, text=f"so far: {name}", **fields)


async def shape_of(store: Store, thread_id: str = "t") -> int:
    """What a path was read under."""
    return (await store.load_history_with_ancestors(thread_id)).shape


async def basis_of(store: Store, thread_id: str = "t") -> int:
    """What a summary of a path is made of."""
    return (await store.load_history_with_ancestors(thread_id)).basis


async def shown(store: Store, thread_id: str = "t") -> str | None:
    """The summary that the path begins with."""
    found = (await store.load_history_with_ancestors(thread_id)).summary
    return found.id if found else None


async def child(store: Store, message_id: str = "u2") -> None:
    """The thread `k`, which inherits up to a message of `t`."""
    record = ThreadRecord(thread_id="k", agent="demo", kind="child", parent_thread_id="t", root_thread_id="t")
    await store.create_thread(record.with_(spawn_message_id=message_id))
    await write(store, 1, seed("k"), thread_id="k")


@pytest.mark.parametrize("text", ["\x00", "\ud800", "'", "\U0001f600"])
async def test_all_of_it_comes_back(store: Store, text: str) -> None:
    """Whatever the texts are."""
    await conversation(store)
    items = (SummaryItem(role="user", text=text), SummaryItem(role="assistant", text=f"{text}!"))
    shape = await basis_of(store)
    given = summary("u2", kind="trace", items=items, covered=3, previous_id="earlier", shape=shape, usage=COST)
    given = given.with_(text=text)
    assert await store.add_summary(given)
    assert (await store.load_history_with_ancestors("t")).summary == given
    assert (await store.snapshot("t")).path.summary == given


async def test_what_is_kept_of_paths_is_void_when_one_comes(store: Store) -> None:
    """In the thread of its point and in those below, since their paths may go through it; not in those above."""
    await conversation(store)
    await child(store)
    before = {name: await shape_of(store, name) for name in ("t", "k")}
    await store.add_summary(summary("k-seed", "own", "k"))
    assert await shape_of(store) == before["t"]
    assert await shape_of(store, "k") > before["k"]
    middle = await shape_of(store, "k")
    await store.add_summary(summary("u1", "above", "k"))
    assert await shape_of(store) > before["t"]
    assert await shape_of(store, "k") > middle


async def test_the_shape_rises_with_each(store: Store) -> None:
    """Two in a row, or one right after a deletion, are two numbers."""
    await conversation(store)
    shapes = [await shape_of(store)]
    await written(store, delete("a2"))
    shapes.append(await shape_of(store))
    for name, message_id in (("1", "u1"), ("2", "a1"), ("3", "u2")):
        await store.add_summary(summary(message_id, name))
        shapes.append(await shape_of(store))
    await written(store, delete("u2", input_id="again"))
    shapes.append(await shape_of(store))
    assert shapes == sorted(set(shapes))


async def test_readers_are_told_of_it(store: Store) -> None:
    """Once, in its place among all changes, and without a new snapshot: what people see stays."""
    await conversation(store)
    seq = (await store.snapshot("t")).seq
    given = summary("u2", usage=COST, items=(SummaryItem(role="user", text="\x00"),), kind="trace", covered=3)
    for _ in range(2):
        await store.add_summary(given)
    await written(store, said("u3"))
    changes = await store.read_changes("t", seq)
    assert changes[0] == Change(seq=seq + 1, summary=given)
    assert [change.message.id for change in changes if change.message] == ["u3"]
    assert [bool(change.summary or change.tree) for change in changes].count(True) == 1
    assert [change.seq for change in changes] == list(range(seq + 1, seq + 1 + len(changes)))
    assert (await store.snapshot("t")).seq == changes[-1].seq


async def test_readers_are_told_of_none_that_is_void_or_another_threads(store: Store) -> None:
    """One that was refused, one of a child, and one whose words went since; who waits is woken by one that holds."""
    await conversation(store)
    await child(store)
    seq = (await store.snapshot("t")).seq
    assert not await store.add_summary(summary("u2", "late", shape=-1))
    assert await store.add_summary(summary("k-seed", "below", "k"))
    assert await store.read_changes("t", seq) == ()
    async with aclosing(store.listen("t")) as hints:
        await anext(hints)
        assert await store.add_summary(summary("u2"))
        async with asyncio.timeout(10):
            await anext(hints)
    await written(store, delete("u1"))
    assert not any(change.summary for change in await store.read_changes("t", seq))
    assert any(change.tree for change in await store.read_changes("t", seq))


async def test_the_first_answer_stays(store: Store) -> None:
    """Also when the summary is void by now, or would hold by now; its cost counts once."""
    await conversation(store)
    held = summary("u2", shape=await basis_of(store), usage=COST)
    void = summary("u2", "void", shape=held.shape, usage=COST)
    assert await store.add_summary(held)
    assert not await store.add_summary(void)
    for _ in range(2):
        assert await store.add_summary(held)
        assert not await store.add_summary(void)
        assert not await store.add_summary(void.with_(shape=None))
    assert (await store.get_thread("t")).usage == COST + COST
    await written(store, delete("u1"))
    assert await shown(store) is None
    assert await store.add_summary(held)
    assert await shown(store) is None, "a summary that a deletion has voided came back"


async def test_one_with_other_content_under_its_id_is_refused(store: Store) -> None:
    """What is stored stays, whatever differs."""
    await conversation(store)
    first = summary("u2", kind="trace", covered=2, usage=COST)
    await store.add_summary(first)
    others: list[dict[str, Any]] = [{"text": "other"}, {"kind": "window"}, {"covered": 3}, {"usage": Usage()}]
    others += [{"message_id": "a1"}, {"items": (SummaryItem(role="user", text="x"),)}, {"previous_id": "p"}]
    for fields in others:
        with pytest.raises(ContentConflict):
            await store.add_summary(first.with_(**fields))
    assert (await store.load_history_with_ancestors("t")).summary == first


async def test_one_whose_point_is_gone_is_void(store: Store) -> None:
    """Whoever made it is told, and the money was spent."""
    await conversation(store)
    await written(store, delete("u2"))
    assert not await store.add_summary(summary("u2", usage=COST))
    assert not await store.add_summary(summary("nobody", "other"))
    assert await shown(store) is None
    assert (await store.get_thread("t")).usage == COST


async def test_one_that_was_made_before_a_deletion_is_void(store: Store) -> None:
    """Its words may be those of the deleted message. One that was made after it holds."""
    await conversation(store)
    before = await basis_of(store)
    await written(store, delete("u1"))
    assert not await store.add_summary(summary("u2", "old", shape=before))
    assert await store.add_summary(summary("u2", "new", shape=await basis_of(store)))
    assert await shown(store) == "new"


async def test_one_that_was_made_before_a_deletion_above_its_thread_is_void(store: Store) -> None:
    """A child's path begins in its parent."""
    await conversation(store)
    await child(store)
    before = await basis_of(store, "k")
    await written(store, delete("u1"))
    assert not await store.add_summary(summary("k-seed", "old", "k", shape=before))
    assert await store.add_summary(summary("k-seed", "new", "k", shape=await basis_of(store, "k")))


async def test_one_that_was_made_before_a_late_result_is_void(store: Store) -> None:
    """It tells of another result."""
    await conversation(store)
    await written(store, said("u3"), answer("a3", 3, call("c"), result("c").with_(outcome="expired")), said("u4"))
    before = await basis_of(store)
    await written(store, StoreLateResult(message_id="a3", result=result("c", "late")))
    assert not await store.add_summary(summary("u4", shape=before))


async def test_one_that_was_made_while_another_came_in_is_void(store: Store) -> None:
    """Be the other longer or shorter: the path that it was made of is read no more."""
    await conversation(store)
    before = await basis_of(store)
    assert await store.add_summary(summary("u2", "longer", shape=before))
    assert not await store.add_summary(summary("a1", "shorter", shape=before))
    assert not await store.add_summary(summary("a2", "longest", shape=before))
    assert await shown(store) == "longer"
    assert await store.add_summary(summary("a2", "next", shape=await basis_of(store), previous_id="longer"))
    assert await shown(store) == "next"


async def test_what_was_said_since_voids_nothing(store: Store) -> None:
    """The conversation goes on, or another branch is shown, while the summary is made."""
    await conversation(store)
    before = await basis_of(store)
    await written(store, said("u3"))
    await written(store, said("u2b", beside="u2"))
    assert await store.add_summary(summary("u2", shape=before))
    await written(store, switch("u2"))
    assert await shown(store) == "s"


async def test_of_two_at_once_one_holds(store: Store) -> None:
    """Both were made of the same path."""
    await conversation(store)
    before = await basis_of(store)
    names = [f"s{number}" for number in range(6)]
    held = await asyncio.gather(*(store.add_summary(summary("u2", name, shape=before, usage=COST)) for name in names))
    assert sorted(held) == [False] * 5 + [True]
    assert await shown(store) == names[held.index(True)]
    assert (await store.get_thread("t")).usage.requests == 6


async def test_the_same_one_at_once_is_one(store: Store) -> None:
    """All get the answer of the first."""
    await conversation(store)
    given = summary("u2", shape=await basis_of(store), usage=COST)
    assert all(await asyncio.gather(*(store.add_summary(given) for _ in range(6))))
    assert (await store.get_thread("t")).usage == COST


@pytest.mark.parametrize("thread_id", ["t", "k"])
async def test_one_that_waits_for_a_deletion_is_void(
    postgres: PostgresStore, database_url: str, thread_id: str
) -> None:
    """It had come before the deletion was through, in the thread itself or in one below."""
    await conversation(postgres)
    await child(postgres)
    given = summary("u2", thread_id=thread_id, shape=await basis_of(postgres, thread_id))
    async with connected(database_url) as first, connected(database_url) as eye:
        async with first.transaction():
            await first.fetch("select * from perdure.threads where thread_id = 't' for no key update")
            deletion = asyncio.create_task(written(postgres, delete("u1")))
            await eventually(lambda: waiting(eye))
            adding = asyncio.create_task(postgres.add_summary(given))

            async def both() -> bool:
                return await waiting(eye) == 2

            await eventually(both)
        await deletion
        assert not await adding
        assert await eye.fetchval("select count(*) from perdure.summaries where body <> '\"\"'") == 0


async def test_one_of_a_thread_that_is_not_there(store: Store) -> None:
    """It is an error: a thread is never gone."""
    await conversation(store)
    with pytest.raises(ThreadNotFound):
        await store.add_summary(summary("u2", thread_id="nobody"))


async def test_the_whole_path_goes_through_summaries(store: Store) -> None:
    """What they stand for is still there, and none of them is named."""
    await conversation(store)
    before = await store.load_history_with_ancestors("t")
    await store.add_summary(summary("u2"))
    await store.add_summary(summary("a1", "above"))
    assert await path(store) == ["a2"]
    whole = await store.load_history_with_ancestors("t", whole=True)
    assert (whole.messages, whole.summary) == (before.messages, None)
    part = await store.load_history_with_ancestors("t", "u1", "u2", whole=True)
    assert ([message.id for message in part.messages], part.extends) == (["a1", "u2"], "u1")
    assert await store.load_history_with_ancestors("t", "a1") == (await store.load_history_with_ancestors("t"))


async def test_the_whole_path_of_a_child_goes_to_its_root(store: Store) -> None:
    """Through a summary above it."""
    await conversation(store)
    await child(store)
    await store.add_summary(summary("a1"))
    whole = await store.load_history_with_ancestors("k", whole=True)
    assert [message.id for message in whole.messages] == ["u1", "a1", "u2", "k-seed"]


async def test_visible_messages_are_those_that_no_summary_stands_for(store: Store) -> None:
    """As many as the path has; all others count as before. A message in the middle of which one hangs is visible."""
    await conversation(store)
    await written(store, said("u3"), answer("a3", 3, call("c"), result("c")), said("u4"))
    everything = Counts(total=7, user=4, assistant=3, visible=7)
    assert await store.get_message_counts("t") == everything
    for message_id, visible in (("u2", 4), ("u1", 4), ("a3", 2)):
        await store.add_summary(summary(message_id, message_id))
        assert await store.get_message_counts("t") == everything.with_(visible=visible)
        assert len((await store.load_history_with_ancestors("t")).messages) == visible
    await store.add_summary(summary("u4", "all"))
    assert await store.get_message_counts("t") == everything.with_(visible=0)


async def test_visible_messages_of_a_child(store: Store) -> None:
    """Inherited ones among them, as far as they are inherited."""
    await conversation(store)
    await child(store)
    await store.add_summary(summary("a1"))
    await store.add_summary(summary("a2", "not on the path"))
    counts = await store.get_message_counts("k")
    assert (counts.total, counts.visible) == (4, 2)


async def test_one_of_a_thread_above_voids_none_of_a_child(store: Store) -> None:
    """What both inherit is as it was, so the child's was made of what is there. Another one of its own is another case.

    The control: something above was deleted meanwhile, before or after another one came in there.
    """
    await conversation(store)
    await child(store)
    before = await basis_of(store, "k")
    assert await store.add_summary(summary("a1", "above"))
    assert await store.add_summary(summary("k-seed", "below", "k", shape=before))
    assert not await store.add_summary(summary("k-seed", "second", "k", shape=before))
    before = await basis_of(store, "k")
    assert await store.add_summary(summary("u2", "above again"))
    await written(store, delete("u1"))
    assert not await store.add_summary(summary("k-seed", "old", "k", shape=before))
    before = await basis_of(store, "k")
    await written(store, delete("a1", input_id="again"))
    assert await store.add_summary(summary("u2", "above once more"))
    assert not await store.add_summary(summary("k-seed", "old too", "k", shape=before))
    assert await store.add_summary(summary("k-seed", "new", "k", shape=await basis_of(store, "k")))
    assert await shown(store, "k") == "new"
