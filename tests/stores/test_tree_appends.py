"""Messages that do not go on at the head: edits, answers anew, messages under others."""

from typing import Any

import pytest

from perdure.batch import Refused, TreeReport
from perdure.errors import ContentConflict, StaleWriter, StoreError, ThreadNotFound
from perdure.messages import Status
from perdure.ports import Store
from perdure.records import StoredTree, ThreadRecord
from tests.stores.builders import RUNNING, settle, write
from tests.stores.trees import answer, branches, conversation, path, refused, running, said, switch, written


async def test_going_on_at_the_head_says_nothing_of_the_tree(store: Store) -> None:
    """What needs no look at the shape gives no report of it."""
    await conversation(store)
    report = await written(store, said("u3"), answer("a3", 3))
    assert report.tree is None
    assert await path(store) == ["u1", "a1", "u2", "a2", "u3", "a3"]


async def test_a_tree_that_is_not_there(store: Store) -> None:
    """No thread is an error, a thread without messages an empty tree."""
    with pytest.raises(ThreadNotFound):
        await store.load_tree("t")
    await store.create_thread(ThreadRecord(thread_id="t", agent="demo"))
    assert await store.load_tree("t") == StoredTree()


async def test_an_edit_stands_beside_what_it_replaces(store: Store) -> None:
    """The old branch stays below its own message, and the next message answers the edited one."""
    await conversation(store)
    report = await written(store, said("u2b", beside="u2"), answer("a2b", 3, status=RUNNING))
    assert await path(store) == ["u1", "a1", "u2b", "a2b"]
    shape = await branches(store)
    assert shape.children == {"": ["u1"], "u1": ["a1"], "a1": ["u2", "u2b"], "u2": ["a2"], "u2b": ["a2b"]}
    assert report.tree == TreeReport(head_id="a2b", last=RUNNING, turn=3)


async def test_an_edit_of_the_first_message_begins_another_conversation(store: Store) -> None:
    """Its place is at the root, where what it replaces was."""
    await conversation(store)
    await written(store, said("u1b", beside="u1"))
    assert (await branches(store)).children[""] == ["u1", "u1b"]
    assert await path(store) == ["u1b"]
    assert (await store.load_history_with_ancestors("t")).messages[0].parent_id is None


async def test_an_answer_anew_stands_beside_the_old_one(store: Store) -> None:
    """Or below the message, if that is none: it is the words that are answered once more."""
    await conversation(store)
    report = await written(store, answer("a2b", 3, answering="a2"))
    assert (await path(store), report.tree) == (
        ["u1", "a1", "u2", "a2b"],
        TreeReport(head_id="a2b", last=Status(), turn=3),
    )
    await written(store, answer("a1b", 4, answering="u1"))
    assert await path(store) == ["u1", "a1b"]
    assert (await branches(store)).children["u1"] == ["a1", "a1b"]


async def test_an_answer_at_the_root_is_answered_beside_it(store: Store) -> None:
    """An answer that nobody asked for has no message above it."""
    await store.create_thread(ThreadRecord(thread_id="t", agent="demo"))
    await written(store, answer("a1", 1), answer("a2", 2, answering="a1"))
    assert (await branches(store)).children[""] == ["a1", "a2"]
    assert await path(store) == ["a2"]


async def test_words_at_the_root_and_under_any_message(store: Store) -> None:
    """They become the head wherever they stand; all on the way to them is what is open."""
    await conversation(store)
    await written(store, said("v", at_root=True))
    assert await path(store) == ["v"]
    report = await written(store, said("u3", under="u2"))
    assert await path(store) == ["u1", "a1", "u2", "u3"]
    shape = await branches(store)
    assert (shape.opened[""], shape.opened["u2"], shape.children["u2"]) == ("u1", "u3", ["a2", "u3"])
    assert report.tree == TreeReport(head_id="u3", last=None, turn=2)


async def test_a_message_under_an_inner_head_is_a_sibling(store: Store) -> None:
    """The head moves to it, and what the parent remembered gives way (sheet, T10)."""
    await conversation(store)
    await written(store, said("u2b", beside="u2"), switch("u2", "back"))
    await written(store, said("u3"))
    assert (await branches(store)).opened["a1"] == "u2"
    await written(store, said("u2c", under="a1"))
    assert await path(store) == ["u1", "a1", "u2c"]
    assert (await branches(store)).children["a1"] == ["u2", "u2b", "u2c"]


async def test_a_parent_may_be_of_the_same_batch(store: Store) -> None:
    """Operations are applied in order, so what stands before is there."""
    await conversation(store)
    await written(
        store,
        said("u3", beside="u2"),
        answer("a3", 3),
        said("u4", beside="u3"),
        said("u5", under="a3"),
        answer("a5", 4),
    )
    assert await path(store) == ["u1", "a1", "u3", "a3", "u5", "a5"]
    assert (await branches(store)).children["a1"] == ["u2", "u3", "u4"]


async def test_the_place_among_siblings_is_that_of_the_order(store: Store) -> None:
    """Also for what is appended at the head after the tree was changed: no number is given twice."""
    await conversation(store)
    for count in range(3):
        await written(store, said(f"e{count}", beside="u2"), answer(f"f{count}", 3 + count))
        await written(store, switch("u1", f"switch{count}"), said(f"g{count}"))
    places = [stored.place for stored in (await store.load_tree("t")).messages]
    assert len(set(places)) == len(places)
    assert (await branches(store)).children["a1"] == ["u2", "e0", "e1", "e2"]
    assert max(places) <= (await store.get_thread("t")).seq


@pytest.mark.parametrize("placed", [{"under": "x"}, {"beside": "x"}, {"answering": "x"}])
async def test_an_unknown_message_refuses_the_whole_batch(store: Store, placed: dict[str, Any]) -> None:
    """With the input that named it and a sentence; the operations before it have done nothing either."""
    await conversation(store)
    found = await refused(store, said("u3"), said("u4", **placed))
    assert found == (Refused(input_id="in-u4", detail="There is no message 'x' in this thread."),)
    assert await refused(store, answer("a3", 3, **placed)) == (
        Refused(input_id="ask-a3", detail="There is no message 'x' in this thread."),
    )


async def test_a_message_of_another_thread_is_no_parent(store: Store) -> None:
    """Not even of the one that this thread inherits: there the root is."""
    await conversation(store)
    await store.create_thread(ThreadRecord(thread_id="k", agent="demo", parent_thread_id="t", spawn_message_id="a1"))
    assert (await refused(store, said("k1", under="u1", thread_id="k"), thread_id="k"))[0].input_id == "in-k1"


async def test_what_nobody_asked_for_is_a_bug(store: Store) -> None:
    """There is nobody to tell that it cannot be."""
    await conversation(store)
    operation = answer("a3", 3, answering="x")
    with pytest.raises(StoreError, match="bug"):
        await written(store, operation.with_(input_id=None))
    assert await path(store) == ["u1", "a1", "u2", "a2"]


async def test_a_taken_id_is_a_conflict(store: Store) -> None:
    """A message does not move by being appended again."""
    await conversation(store)
    taken = said("u2", at_root=True)
    with pytest.raises(ContentConflict):
        await written(store, taken.with_(input_id="another"))
    assert await path(store) == ["u1", "a1", "u2", "a2"]


async def test_the_same_batch_again_gives_the_same_report(store: Store) -> None:
    """The tree is told of as it stands after the batch, and nothing is written twice."""
    await conversation(store)
    operations = (said("u2b", beside="u2"), answer("a2b", 3, status=RUNNING))
    report = await written(store, *operations)
    before = await branches(store)
    assert await write(store, report.number, *operations) == report
    assert await branches(store) == before
    with pytest.raises(StaleWriter):
        await write(store, report.number - 1, *operations)


async def test_an_input_that_asked_for_an_answer_is_known(store: Store) -> None:
    """The input of an answer is not that of its message, and is recorded like all others."""
    await conversation(store)
    operation = answer("a2b", 3, answering="a2")
    await written(store, operation)
    assert await store.get_processed_ids("t", ("ask-a2b", "ask-x")) == {"ask-a2b": operation.digest}
    again = answer("a2c", 4, answering="a2").with_(input_id="ask-a2b", digest=operation.digest)
    assert await refused(store, again) == (Refused(input_id="ask-a2b"),)
    assert await refused(store, again.with_(digest="other")) == (Refused(input_id="ask-a2b", conflict=True),)
    processed = (await store.load_tail("t")).processed
    assert processed[-1] == ("ask-a2b", operation.digest)


async def test_source_is_kept_and_changes_nothing(store: Store) -> None:
    """Where an edited message came from is said with it."""
    await conversation(store)
    edited = said("u2b", beside="u2")
    await written(store, edited.with_(message=edited.message.with_(source_id="u2")))
    assert (await store.load_history_with_ancestors("t")).messages[-1].source_id == "u2"


async def test_a_running_answer_on_another_branch_is_hidden(store: Store) -> None:
    """The report says whether the turn that runs is on the path, and how many messages are below it."""
    await running(store)
    report = await written(store, said("u3", under="a2"))
    assert report.tree == TreeReport(head_id="u3", last=None, followers=1, turn=2)
    report = await written(store, said("u1b", at_root=True))
    assert report.tree == TreeReport(head_id="u1b", last=None, followers=1, hidden=True, turn=2)
    tail = await store.load_tail("t")
    assert tail.message is not None
    assert (tail.message.id, tail.followers, tail.hidden, tail.last, tail.paused) == ("a2", 1, True, None, False)
    await written(store, settle("a2"))
    tail = await store.load_tail("t")
    assert tail.message is not None
    assert (tail.message.id, tail.followers, tail.hidden) == ("u1b", 0, False)
