"""What people do with branches: they open another one, delete a message, go back to a point."""

from typing import Any

import pytest

from perdure.batch import DeleteMessage, Operation, Refused, ResetThread, SwitchBranch, TreeReport
from perdure.inputs import ROOT
from perdure.messages import Status
from perdure.ports import Store
from perdure.records import Change, ThreadRecord
from tests.stores.builders import write
from tests.stores.trees import (
    COMPLETE,
    PAUSED,
    annotate,
    answer,
    branches,
    conversation,
    delete,
    imported,
    item,
    path,
    refused,
    reset,
    running,
    said,
    switch,
    written,
)


async def branched(store: Store) -> Store:
    """u1 > a1 > (u2 > a2, u3 > a3), u1 > b1; the head is a3."""
    await conversation(store)
    await written(store, answer("b1", 3, answering="u1"))
    await written(store, said("u3", under="a1"), answer("a3", 4))
    return store


async def news(store: Store, after: int) -> list[Change]:
    """What readers are told, without the words."""
    return [change for change in await store.read_changes("t", after) if change.tree]


# -- switch ----------------------------------------------------------------------------------------------------


async def test_a_branch_opens_again_where_it_was_left(store: Store) -> None:
    """Up to the message, and below it what was last open there (sheet, T11 and case 3)."""
    await branched(store)
    await written(store, switch("u2", "s1"))
    assert await path(store) == ["u1", "a1", "u2", "a2"]
    await written(store, switch("b1", "s2"))
    assert await path(store) == ["u1", "b1"]
    report = await written(store, switch("a1", "s3"))
    assert await path(store) == ["u1", "a1", "u2", "a2"]
    assert report.tree == TreeReport(head_id="a2", last=COMPLETE, turn=4)
    await written(store, switch("u3", "s4"), switch("b1", "s5"), switch("u1", "s6"))
    assert await path(store) == ["u1", "b1"]


async def test_readers_are_told_of_another_path(store: Store) -> None:
    """Once, with the number of the change; what is kept of paths stays good."""
    await branched(store)
    seq, shape = (await store.get_thread("t")).seq, (await store.load_history_with_ancestors("t")).shape
    await written(store, switch("u2"))
    assert await news(store, seq) == [Change(seq=seq + 1, tree=True)]
    assert (await store.load_history_with_ancestors("t")).shape == shape
    await written(store, switch("u2", "again"))
    assert (await store.get_thread("t")).seq == seq + 1, "the branch was open already"
    assert await store.get_processed_ids("t", ("switch", "again")) != {}


# -- delete ----------------------------------------------------------------------------------------------------


async def test_what_is_below_a_deleted_message_moves_up(store: Store) -> None:
    """To the end of its parent's children, in order; the head stays the message that it is."""
    await branched(store)
    await written(store, delete("a1"))
    assert await path(store) == ["u1", "u3", "a3"]
    assert (await branches(store)).children == {"": ["u1"], "u1": ["b1", "u2", "u3"], "u2": ["a2"], "u3": ["a3"]}
    assert [message.parent_id for message in (await store.load_history_with_ancestors("t")).messages] == [
        None,
        "u1",
        "u3",
    ]


async def test_what_was_first_goes_and_all_below_it_begins_conversations(store: Store) -> None:
    """The parent of the first message is the root."""
    await branched(store)
    await written(store, delete("u1"))
    assert await path(store) == ["a1", "u3", "a3"]
    assert (await branches(store)).children[""] == ["a1", "b1"]


async def test_a_deleted_head_gives_way_to_its_last_sibling(store: Store) -> None:
    """Or to its parent if it had none (sheet, T15)."""
    await branched(store)
    await written(store, delete("a3", input_id="d1"))
    assert await path(store) == ["u1", "a1", "u3"]
    report = await written(store, delete("u3", input_id="d2"))
    assert await path(store) == ["u1", "a1", "u2", "a2"]
    assert report.tree == TreeReport(head_id="a2", last=COMPLETE, turn=4, untitled=True)


async def test_what_is_below_may_go_to_another_message(store: Store) -> None:
    """Or to the root, whose name is that of inputs."""
    await branched(store)
    await written(store, delete("a1", "b1", input_id="d1"))
    assert (await branches(store)).children == {
        "": ["u1"],
        "u1": ["b1"],
        "b1": ["u2", "u3"],
        "u2": ["a2"],
        "u3": ["a3"],
    }
    assert await path(store) == ["u1", "b1", "u3", "a3"]
    await written(store, delete("b1", ROOT, input_id="d2"))
    assert (await branches(store)).children[""] == ["u1", "u2", "u3"]
    assert await path(store) == ["u3", "a3"]


async def test_the_last_message_may_go(store: Store) -> None:
    """Then the thread is empty, and can go on."""
    await store.create_thread(ThreadRecord(thread_id="t", agent="demo"))
    await written(store, said("u1"))
    report = await written(store, delete("u1"))
    assert (await path(store), report.tree) == ([], TreeReport(untitled=True))
    assert (await store.get_thread("t")).head_id is None
    assert (await store.load_tail("t")).message is None
    await written(store, said("u2"))
    assert await path(store) == ["u2"]


async def test_a_deletion_voids_what_is_kept_of_paths(store: Store) -> None:
    """Readers and whoever keeps a path are told, by a number that only rises."""
    await branched(store)
    thread = await store.get_thread("t")
    await written(store, delete("a1"))
    after = await store.get_thread("t")
    found = await store.load_history_with_ancestors("t")
    assert found.shape > thread.seq
    assert [change.seq for change in await news(store, thread.seq)] == [after.seq]
    await written(store, said("u5"))
    assert (await store.load_history_with_ancestors("t")).shape == found.shape
    await written(store, delete("u5", input_id="d2"))
    assert (await store.load_history_with_ancestors("t")).shape > found.shape


async def test_a_turn_that_runs_may_hang_on_something_else(store: Store) -> None:
    """It goes on under its own name wherever it is."""
    await running(store)
    report = await written(store, delete("u2"))
    assert await path(store) == ["u1", "a1", "a2"]
    assert report.tree == TreeReport(head_id="a2", last=Status(state="running"), turn=2, untitled=True)


# -- reset -----------------------------------------------------------------------------------------------------


async def test_all_below_a_message_goes(store: Store) -> None:
    """On all its branches; its siblings stay, and it is the head (sheet, T13 and case 11)."""
    await branched(store)
    report = await written(store, reset("a1"))
    assert await path(store) == ["u1", "a1"]
    assert (await branches(store)).children == {"": ["u1"], "u1": ["a1", "b1"]}
    assert report.tree == TreeReport(head_id="a1", last=COMPLETE, turn=4, untitled=True)
    assert [message.parent_id for message in (await store.load_history_with_ancestors("t")).messages] == [None, "u1"]


async def test_all_there_is_goes(store: Store) -> None:
    """The thread is empty, its numbers go on."""
    await branched(store)
    report = await written(store, reset(None))
    assert (await path(store), report.tree) == ([], TreeReport(turn=4, untitled=True))
    assert (await store.load_tree("t")).messages == ()
    await written(store, said("u9"), answer("a9", 5))
    assert await path(store) == ["u9", "a9"]


# -- what is not allowed ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("operation", "names"),
    [
        (switch("x"), "'x'"),
        (delete("x"), "'x'"),
        (delete("u1", "x"), "'x'"),
        (delete("u1", "u1"), "'u1'"),
        (delete("u1", "a2"), "'a2'"),
        (reset("x"), "'x'"),
        (annotate("x", good=True), "'x'"),
    ],
)
async def test_what_cannot_be_is_refused_in_a_sentence(store: Store, operation: Any, names: str) -> None:
    """It names the message; the batch has done nothing, not even what stands before it."""
    await conversation(store)
    before: tuple[Operation, ...] = (said("u3"), delete("u2", input_id="before"), reset("u1", "reset before"))
    for others in ((), before[:1], before[1:2]):
        (found,) = await refused(store, *others, operation)
        assert (found.input_id, found.conflict, found.missing) == (operation.input_id, False, False)
        assert found.detail is not None
        assert names in found.detail
        assert found.detail.endswith(".")


async def test_case_74_a_deletion_that_was_made_before_is_no_error(store: Store) -> None:
    """Under another id it is a duplicate, in the same batch or any later one; of what never was it is refused.

    So is one that said something else of what is below. What an import has brought back can be deleted again.
    """
    await branched(store)
    assert await refused(store, delete("a1"), delete("a1", input_id="twin")) == (Refused(input_id="twin"),)
    await written(store, delete("a1"))
    assert await refused(store, delete("a1", input_id="later")) == (Refused(input_id="later"),)
    for other in (delete("a1", "u1", "other"), delete("never", input_id="other")):
        (found,) = await refused(store, other)
        assert found.detail is not None
        assert other.message_id in found.detail
    for round_number in (1, 2):
        back = await imported(store, item("a1", "u1"), head_id="a1", input_id=f"import {round_number}")
        await written(store, back)
        (_, name) = await path(store)
        assert not (await written(store, delete(name, input_id=f"round {round_number}"))).refused
        assert name not in await path(store)


async def test_an_operation_is_an_input_and_comes_once(store: Store) -> None:
    """The same again is a duplicate, another one under its id is a conflict."""
    await branched(store)
    operations: list[SwitchBranch | DeleteMessage | ResetThread] = [
        switch("u2", "i0"),
        delete("b1", input_id="i1"),
        reset("u2", "i2"),
    ]
    for number, operation in enumerate(operations):
        await written(store, operation)
        assert await refused(store, operation) == (Refused(input_id=f"i{number}"),)
        other = switch("u1", f"i{number}").with_(digest="another")
        assert await refused(store, other) == (Refused(input_id=f"i{number}", conflict=True),)
        assert await store.get_processed_ids("t", (f"i{number}",)) == {f"i{number}": operation.digest}


async def test_a_repeated_batch_changes_nothing_and_tells_the_same(store: Store) -> None:
    """Its reply was lost: what it asked for is done, and the report is of the tree after it."""
    await branched(store)
    for operation in (switch("u2", "i0"), delete("a1", input_id="i1"), reset("u1", "i2"), reset(None, "i3")):
        report = await written(store, operation)
        before = (await branches(store), await store.get_thread("t"))
        assert await write(store, report.number, operation) == report
        assert (await branches(store), await store.get_thread("t")) == before


async def test_operations_follow_each_other_in_a_batch(store: Store) -> None:
    """Each sees what those before it have done."""
    await branched(store)
    report = await written(
        store,
        switch("u2", "i0"),
        delete("a1", input_id="i1"),
        said("u4"),
        answer("a4", 5),
        said("u5", beside="u4"),
        reset("u5", "i2"),
        answer("a5", 6, status=PAUSED),
    )
    assert await path(store) == ["u1", "u2", "a2", "u5", "a5"]
    assert (await branches(store)).children["a2"] == ["u4", "u5"]
    assert report.tree == TreeReport(head_id="a5", last=PAUSED, paused=True, turn=6, untitled=True)


# -- annotations -----------------------------------------------------------------------------------------------


async def test_values_are_merged_into_a_messages_metadata(store: Store) -> None:
    """None removes a key; readers see the message again, as it is, and never as running."""
    await conversation(store)
    seq = (await store.get_thread("t")).seq
    report = await written(store, annotate("u1", "i1", rating=1, note="\x00\ud800", old=[1]))
    assert report.tree is None
    await written(store, annotate("u1", "i2", rating=None, note="better", more={"a": None}))
    expected = {"note": "better", "old": [1], "more": {"a": None}}
    assert (await store.load_history_with_ancestors("t")).messages[0].metadata == expected
    told = [change.message for change in await store.read_changes("t", seq) if change.message]
    assert [(message.id, message.metadata, message.status) for message in told] == [
        ("u1", expected, COMPLETE),
    ]
    every = [change.message for change in await store.read_changes("t", 0) if change.message]
    assert {message.status.state for message in every if message.id == "u1"} == {"complete"}
    await written(store, annotate("u1", "i3", note=None, old=None, more=None))
    assert (await store.load_history_with_ancestors("t")).messages[0].metadata is None


async def test_an_annotation_on_another_branch(store: Store) -> None:
    """Any message of the thread may be annotated, shown or not; the tree stays as it is."""
    await branched(store)
    shape = await branches(store)
    await written(store, annotate("a2", liked=True))
    assert await branches(store) == shape
    (found,) = [stored.message for stored in (await store.load_tree("t")).messages if stored.message.id == "a2"]
    assert found.metadata == {"liked": True}
