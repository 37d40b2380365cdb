"""Messages from outside: their ids, places, times and turns, and what they do to those that are there."""

from datetime import UTC, datetime, timedelta, timezone

import pytest

from perdure.approval import ApprovalRequest
from perdure.batch import ImportedMessage, ImportMessages, Refused, TreeReport
from perdure.errors import BlobNotFound, StepSealed
from perdure.ids import imported_message_id
from perdure.messages import FilePart, TextPart
from perdure.ports import Store
from perdure.records import StepOutcome, StoredTree, ThreadRecord
from tests.stores.builders import RUNNING, call, commit, result, settle, text, write
from tests.stores.trees import (
    COMPLETE,
    PAUSED,
    answer,
    branches,
    conversation,
    delete,
    imported,
    item,
    path,
    refused,
    running,
    said,
    switch,
    written,
)


def own(*given: str, thread_id: str = "t") -> list[str]:
    """The ids that these get in the thread."""
    return [imported_message_id(thread_id, name) for name in given]


async def empty(store: Store) -> Store:
    """A thread without messages."""
    await store.create_thread(ThreadRecord(thread_id="t", agent="demo"))
    return store


async def by_given(store: Store, thread_id: str = "t") -> dict[str, str]:
    """The ids of imported messages by those of the file."""
    tree = await store.load_tree(thread_id)
    return {stored.given_id: stored.message.id for stored in tree.messages if stored.given_id is not None}


async def test_a_tree_comes_in_with_its_branches_and_its_head(store: Store) -> None:
    """Under ids of the thread's own; those of the file are kept beside them."""
    await empty(store)
    operation = await imported(
        store,
        item("q"),
        item("r", "q", role="assistant"),
        item("s", "q", text("\x00"), text("two\ud800"), role="assistant"),
        item("t", "r"),
        head_id="s",
    )
    report = await written(store, operation)
    q, r, s, t = own("q", "r", "s", "t")
    assert await path(store) == [q, s]
    assert (await branches(store)).children == {"": [q], q: [r, s], r: [t]}
    assert report.tree == TreeReport(head_id=s, last=COMPLETE, turn=2, untitled=True)
    assert await by_given(store) == {"q": q, "r": r, "s": s, "t": t}
    found = {stored.message.id: stored.message for stored in (await store.load_tree("t")).messages}
    assert found[s].parts == (text("\x00"), text("two\ud800"))
    assert (found[q].role, found[q].thread_id, found[t].parent_id, found[q].parent_id) == ("user", "t", r, None)
    assert [found[name].turn for name in (q, r, s, t)] == [0, 1, 2, 0]


async def test_parents_may_come_after_their_children(store: Store) -> None:
    """Without a head it is the last one, in the order in which they were added (sheet, T19)."""
    await empty(store)
    await written(store, await imported(store, item("b", "a"), item("c", "b"), item("d", "a"), item("a")))
    assert (await branches(store)).children == dict(
        zip(["", *own("a", "b")], [own("a"), own("b", "d"), own("c")], strict=True)
    )
    assert await path(store) == own("a", "b", "c")


async def test_a_file_may_hang_on_what_is_there(store: Store) -> None:
    """Its parents may be messages of the thread, by their ids or by those under which they were imported."""
    await conversation(store)
    await written(store, await imported(store, item("x", "a1"), input_id="i1"))
    await written(store, await imported(store, item("y", "x"), item("z", "u2"), head_id="y", input_id="i2"))
    x, y, z = own("x", "y", "z")
    assert (await branches(store)).children == {
        "": ["u1"],
        "u1": ["a1"],
        "a1": ["u2", x],
        x: [y],
        "u2": ["a2", z],
    }
    assert await path(store) == ["u1", "a1", x, y]


async def test_an_imported_thread_goes_on(store: Store) -> None:
    """The next turn has a number of its own, places go on, and the inputs of the file are none of the thread's."""
    await empty(store)
    await written(store, await imported(store, item("q"), item("r", "q", role="assistant")))
    turn = (await store.get_thread("t")).turn
    assert turn == 1
    await written(store, said("u"), answer("a", turn + 1, status=RUNNING))
    await store.finish_step("t", turn + 1, 0, 1, (text("so"),), StepOutcome(), [])
    await written(store, commit("a", turn=turn + 1), settle("a"), said("u2", beside="u"))
    assert await path(store) == [*own("q", "r"), "u2"]
    assert (await branches(store)).children[own("r")[0]] == ["u", "u2"]


async def test_times_are_those_of_the_file(store: Store) -> None:
    """In whatever zone they were told; a message without one has none, and one that was said here has its own."""
    await empty(store)
    operation = await imported(
        store,
        item("a", created_at="2026-01-02T03:04:05.678901Z"),
        item("b", "a", created_at="2026-01-02T03:04:05+02:00"),
        item("c", "b", created_at="2026-01-02T03:04:05"),
        item("d", "c"),
    )
    await written(store, operation, said("u"))
    times = {stored.given_id: stored.created_at for stored in (await store.load_tree("t")).messages}
    assert times["a"] == datetime(2026, 1, 2, 3, 4, 5, 678901, tzinfo=UTC)
    assert times["b"] == datetime(2026, 1, 2, 3, 4, 5, tzinfo=timezone(timedelta(hours=2)))
    assert times["c"] == datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)
    assert times["d"] is None
    assert times[None] is not None


async def test_the_same_file_again_changes_nothing_but_the_head(store: Store) -> None:
    """Its messages are known by the ids that they were imported under; no message is there twice."""
    await empty(store)
    items = (item("q"), item("r", "q", role="assistant"), item("s", "q", role="assistant"))
    await written(store, await imported(store, *items, input_id="i1"))
    before = await store.load_tree("t")
    await written(store, said("u"))
    await written(store, await imported(store, *items, head_id="r", input_id="i2"), delete("u"))
    after = await store.load_tree("t")
    assert contents(after) == contents(before)
    assert await path(store) == own("q", "r")


def contents(tree: StoredTree) -> object:
    """What is said where, in order."""
    return [
        (stored.message.id, stored.parent_id, stored.message.parts, stored.message.status, stored.given_id)
        for stored in sorted(tree.messages, key=lambda stored: stored.place)
    ]


async def test_a_message_that_is_there_gets_what_the_file_says(store: Store) -> None:
    """Content, status, metadata; its role, turn, time, input and place stay, and readers need a new snapshot."""
    await conversation(store)
    before = {stored.message.id: stored for stored in (await store.load_tree("t")).messages}
    shape = (await store.load_history_with_ancestors("t")).shape
    seq = (await store.get_thread("t")).seq
    changed = item("a1", "u1", text("better"), role="assistant", created_at="2020-01-01T00:00:00Z")
    told = changed.with_(message=changed.message.with_(metadata={"rating": 5}))
    await written(store, await imported(store, told, head_id="a2"))
    after = {stored.message.id: stored for stored in (await store.load_tree("t")).messages}
    assert after["a1"].message.parts == (text("better"),)
    assert after["a1"].message.metadata == {"rating": 5}
    kept = ("role", "turn", "input_id", "parent_id", "seq")
    assert [getattr(after["a1"].message, name) for name in kept] == [
        getattr(before["a1"].message, name) for name in kept
    ]
    assert (after["a1"].created_at, after["a1"].place) == (before["a1"].created_at, before["a1"].place)
    assert {name: after[name] for name in after if name != "a1"} == {
        name: before[name] for name in before if name != "a1"
    }
    found = await store.load_history_with_ancestors("t")
    assert [message.id for message in found.messages] == ["u1", "a1", "u2", "a2"]
    assert found.shape > shape
    assert [change.seq for change in await store.read_changes("t", seq) if change.tree] == [found.shape]


async def test_new_messages_void_nothing_that_is_kept(store: Store) -> None:
    """Paths that were read go on to be what they were; readers see another branch."""
    await conversation(store)
    seq, shape = (await store.get_thread("t")).seq, (await store.load_history_with_ancestors("t")).shape
    await written(store, await imported(store, item("x", "a1")))
    assert (await store.load_history_with_ancestors("t")).shape == shape
    assert any(change.tree for change in await store.read_changes("t", seq))


async def test_an_import_may_move_what_is_there(store: Store) -> None:
    """With all below it, to the end of its new siblings."""
    await conversation(store)
    await written(store, await imported(store, item("u2"), head_id="u1"))
    assert (await branches(store)).children == {"": ["u1", "u2"], "u1": ["a1"], "u2": ["a2"]}
    assert await path(store) == ["u1"]
    await written(store, switch("u2"))
    assert await path(store) == ["u2", "a2"]


async def test_a_message_that_runs_keeps_its_content(store: Store) -> None:
    """Its turn is being written; the file can only say where it stands."""
    await running(store)
    await store.begin_step("t", 2, 0, 1)
    await written(store, await imported(store, item("a2", "u1", text("no"), role="assistant"), head_id="a2"))
    assert await path(store) == ["u1", "a2"]
    tail = await store.load_tail("t")
    assert tail.message is not None
    assert (tail.message.id, tail.message.status, tail.message.turn, tail.attempt) == ("a2", RUNNING, 2, 1)
    assert (await store.load_tree("t")).messages[-1].message.parts == ()


async def test_calls_without_a_result_are_open_if_their_turn_can_go_on(store: Store) -> None:
    """In the turn's own step and place; calls of a turn that has ended stay as they are."""
    await empty(store)
    asked = call("c3", "wipe").with_(step=1, approval=ApprovalRequest(prompt="May it?"))
    parts = (
        call("c1"),
        result("c1"),
        text("and").with_(step=1),
        call("c2").with_(step=1),
        asked,
        result("c2").with_(step=1),
    )
    await written(
        store,
        await imported(
            store,
            item("q"),
            item("old", "q", call("c9"), role="assistant"),
            item("r", "q", *parts, role="assistant", status=PAUSED),
        ),
    )
    tail = await store.load_tail("t")
    (opened,) = tail.calls
    assert (opened.call_id, opened.message_id, opened.turn, opened.step, opened.index, opened.position) == (
        "c3",
        own("r")[0],
        2,
        1,
        1,
        4,
    )
    assert opened.approval == asked.approval
    assert (tail.paused, tail.parts, tail.step, tail.thread.turn) == (True, 6, 1, 2)
    assert (await store.load_tree("t")).calls == (opened,)


async def test_preliminary_results_of_open_calls_come_along(store: Store) -> None:
    """Of those that are open; a result is none, and what is said of other calls is not kept."""
    await empty(store)
    asked = item("r", None, call("c1"), call("c2"), result("c2"), role="assistant", status=PAUSED)
    interim = tuple(result(name, "half\x00") for name in ("c1", "c2", "c3"))
    await written(store, await imported(store, asked.with_(interim=interim)))
    assert [(found.call_id, found.interim, found.result) for found in (await store.load_tail("t")).calls] == [
        ("c1", interim[0], None)
    ]


async def test_a_message_that_a_file_names_twice_is_as_the_last_says(store: Store) -> None:
    """By the id that it has here, and by the one under which it was imported; its calls are open once."""
    await empty(store)
    await written(store, await imported(store, item("r", None, role="assistant"), input_id="i1"))
    (name,) = own("r")
    twice = [
        item(given, None, text(f"by {given}"), call("c1"), role="assistant", status=PAUSED) for given in (name, "r")
    ]
    await written(store, await imported(store, *twice, input_id="i2"))
    tree = await store.load_tree("t")
    (only,) = tree.messages
    assert (only.message.id, only.message.parts, only.given_id) == (name, (text("by r"), call("c1")), "r")
    assert [found.call_id for found in tree.calls] == ["c1"]


async def test_a_turn_that_can_go_on_again_has_a_new_number(store: Store) -> None:
    """A snapshot from before its end was imported: what still writes for the old number is refused (sheet, case 59)."""
    await empty(store)
    await written(store, said("u"), answer("a", 1, status=RUNNING))
    await store.finish_step("t", 1, 0, 1, (call("c1"),), StepOutcome(finish="tool_calls"), [])
    await written(store, commit("a"), settle("a", PAUSED))
    await written(store, said("u2", under="a"))
    assert (await store.load_tree("t")).calls == ()
    await written(store, await imported(store, item("a", "u", call("c1"), role="assistant", status=PAUSED)))
    tail = await store.load_tail("t")
    assert tail.message is not None
    assert (tail.message.id, tail.message.turn, tail.paused, tail.thread.turn) == ("a", 2, True, 2)
    assert [(found.call_id, found.turn) for found in tail.calls] == [("c1", 2)]
    with pytest.raises(StepSealed):
        await store.begin_step("t", 1, 1, 7)
    await written(store, settle("a", RUNNING))
    await store.begin_step("t", 2, 1, 1)


async def test_a_call_is_open_in_one_message_only(store: Store) -> None:
    """Its id could not be told apart otherwise."""
    await empty(store)
    twice = await imported(
        store,
        item("q", None, call("c1"), role="assistant", status=PAUSED),
        item("r", "q", call("c1"), role="assistant", status=PAUSED),
    )
    (found,) = await refused(store, twice)
    assert found.input_id == "import"
    assert "'c1'" in (found.detail or "")


async def test_an_import_of_nothing_empties_the_thread(store: Store) -> None:
    """As what it was made from is empty."""
    await conversation(store)
    report = await written(store, await imported(store))
    assert (await path(store), report.tree) == ([], TreeReport(turn=2, untitled=True))


@pytest.mark.parametrize(
    ("items", "head_id", "names"),
    [
        ([item("q", "nobody")], None, "'nobody'"),
        ([item("q")], "nobody", "'nobody'"),
        ([item("u1", None, role="assistant")], None, "'u1'"),
        ([item("u1", "a2")], None, "'u1'"),
        ([item("p", "q"), item("q", "p")], None, "root"),
        ([item("q", created_at="yesterday")], None, "'yesterday'"),
    ],
)
async def test_what_is_no_tree_is_refused(
    store: Store, items: list[ImportedMessage], head_id: str | None, names: str
) -> None:
    """With a sentence, and nothing of it is there."""
    await conversation(store)
    (found,) = await refused(store, await imported(store, *items, head_id=head_id))
    assert (found.input_id, found.missing) == ("import", False)
    assert names in (found.detail or "")


async def test_an_import_comes_once(store: Store) -> None:
    """However often its batch is sent: the file is there until the next batch, and then it goes."""
    await empty(store)
    operation = await imported(store, item("q"))
    report = await written(store, operation)
    assert await store.get_blob("t", operation.blob) == b"the file of import"
    assert await write(store, report.number, operation) == report
    assert (await refused(store, operation)) == (Refused(input_id="import"),)
    await written(store, said("u"))
    with pytest.raises(BlobNotFound):
        await store.get_blob("t", operation.blob)


async def test_a_repeated_import_need_not_be_read_again(store: Store) -> None:
    """Whoever has lost the reply may have lost the file as well: what was done is told all the same."""
    await empty(store)
    operation = await imported(store, item("q"))
    report = await written(store, operation)
    assert await write(store, report.number, operation.with_(messages=())) == report
    assert await path(store) == own("q")


async def test_an_import_whose_file_is_not_there_is_refused(store: Store) -> None:
    """It must not be taken for one of nothing, which would empty the thread."""
    await conversation(store)
    operation = ImportMessages(blob="0" * 64, input_id="i", digest="d")
    assert await refused(store, operation) == (Refused(input_id="i", missing=True),)


async def test_a_file_that_a_message_names_stays(store: Store) -> None:
    """The import's own file goes; what its messages name does not, nor one that is imported again."""
    await empty(store)
    picture = await store.put_blob("t", b"picture", "image/png")
    part = FilePart(media_type="image/png", blob=picture, size_bytes=7)
    operation = await imported(store, item("q", None, part), item("r", "q", TextPart(text="", blob=picture)))
    await written(store, operation)
    again = await imported(store, item("q", None, part), input_id="again")
    await written(store, again.with_(blob=operation.blob))
    assert await store.get_blob("t", operation.blob)
    await written(store, said("u"))
    assert await store.get_blob("t", picture) == b"picture"
    with pytest.raises(BlobNotFound):
        await store.get_blob("t", operation.blob)


async def test_ids_are_the_threads_own(store: Store) -> None:
    """The same file in two threads is two conversations."""
    await conversation(store)
    await store.create_thread(ThreadRecord(thread_id="k", agent="demo"))
    items = (item("u1"), item("a1", "u1", role="assistant"))
    await written(store, await imported(store, *items, thread_id="k"), thread_id="k")
    assert await path(store, "k") == own("u1", "a1", thread_id="k")
    assert await path(store) == ["u1", "a1", "u2", "a2"]
    assert await by_given(store, "k") == dict(zip(("u1", "a1"), own("u1", "a1", thread_id="k"), strict=True))
