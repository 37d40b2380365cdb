"""A thread's own export, imported into it: what it tells as it is stays as it is, with all that hangs on it."""

from dataclasses import dataclass
from itertools import count
from typing import Any

import pytest
from hypothesis import HealthCheck, event, given

from activities.import_file import append_with_imports
from perdure.approval import ApprovalRequest, Decision
from perdure.batch import (
    CommitResults,
    Decide,
    ImportMessages,
    Operation,
    SetDue,
    ShowInterim,
    StageResult,
    SyncBatch,
    SyncReport,
)
from perdure.codec import digest, dumps, loads
from perdure.interchange import export_tree, named_blobs
from perdure.messages import TurnOptions
from perdure.ports import Store
from perdure.records import Path, StepOutcome, StoredTree, Tail, ThreadRecord
from perdure.view import view
from tests.perdure.exported_trees import Stored, encoded, stored_trees
from tests.perdure.test_interchange_stored import can_be_asked
from tests.perdure.tree_operations import PHASES
from tests.properties import settings
from tests.stores.builders import RUNNING, call, commit, result, settle, text
from tests.stores.test_summaries import child, shown, summary
from tests.stores.trees import PAUSED, annotate, answer, branches, delete, item, path, said, switch, written

QUESTION = ApprovalRequest(prompt="May it?", expires_s=60.0)
_names = count()


async def file_of(store: Store, thread_id: str = "t") -> Any:
    """The thread's export, as the values that its file holds."""
    tree = await store.load_tree(thread_id)
    files = {blob: await store.get_blob(thread_id, blob) for blob in named_blobs(tree)}
    return loads(dumps(export_tree(tree, files)))


async def put(store: Store, file: Any, *before: Operation, thread_id: str = "t") -> SyncReport:
    """Import a file, behind other operations of the same batch."""
    number = (await store.get_thread(thread_id)).version + 1
    name = f"import {next(_names)}"
    blob = await store.put_blob(thread_id, dumps(file).encode(), "application/json")
    operation = ImportMessages(blob=blob, input_id=name, digest=digest(name))
    batch = SyncBatch(thread_id=thread_id, number=number, sync_id=name, operations=(*before, operation))
    report = await append_with_imports(store, batch, {})
    assert not report.refused, report
    return report


@dataclass
class Seen:
    """What can be seen of a thread, but for the number of its batches and its inputs."""

    tree: StoredTree
    path: Path
    tail: Tail
    changes: object


async def seen(store: Store, thread_id: str = "t") -> Seen:
    """What is seen now."""
    tail = await store.load_tail(thread_id)
    return Seen(
        await store.load_tree(thread_id),
        await store.load_history_with_ancestors(thread_id),
        tail.with_(thread=tail.thread.with_(version=0), processed=()),
        await store.read_changes(thread_id, 0),
    )


async def eventful(store: Store) -> Store:
    """Branches, edits, metadata, a tool's result, and a turn at the head that asks and shows something preliminary."""
    await store.create_thread(ThreadRecord(thread_id="t", agent="demo"))
    await written(store, said("u1"), answer("a1", 1), said("u2"), answer("a2", 2))
    edited = said("u3", beside="u2")
    options = TurnOptions(settings={"thinking": "high"})
    told = edited.message.with_(source_id="u2", options=options, metadata={"runConfig": {"b": 1}, "note": "\x00"})
    await written(store, edited.with_(message=told), annotate("u1", feedback={"value": "positive"}, other=1.0))
    await written(store, answer("a3", 3, status=RUNNING))
    await store.finish_step("t", 3, 0, 1, (text("look"), call("c1")), StepOutcome(finish="tool_calls"), [])
    await written(store, commit("a3", turn=3))
    results = CommitResults(message_id="a3", start=2, call_ids=("c1",), results=(result("c1", '{"found": 1}'),))
    await written(store, results)
    asked = [call(name, "pay").with_(step=1, approval=QUESTION) for name in ("c2", "c3", "c4")]
    await store.finish_step("t", 3, 1, 1, (*asked,), StepOutcome(finish="tool_calls"), [])
    await written(store, commit("a3", 3, turn=3, step=1))
    yes = Decide(call_id="c3", decision=Decision(approved=True, by="Ada", at=1.5))
    no = Decide(call_id="c4", decision=Decision(approved=False, reason="no", at=2.5))
    denied = StageResult(result=result("c4", "denied").with_(outcome="denied", step=1))
    interim = ShowInterim(result=result("c2", "half").with_(step=1))
    await written(store, SetDue(call_id="c2", due=9e9), yes, no, denied, interim, settle("a3", PAUSED))
    return store


async def test_what_is_as_the_file_tells_it_stays(store: Store) -> None:
    """No summary is void, no branch, place, turn or open call another, and no reader or cache has to read anew."""
    await eventful(store)
    await child(store, "a1")
    assert await store.add_summary(summary("a1"))
    assert await store.add_summary(summary("k-seed", "below", "k"))
    before, below = await seen(store), await seen(store, "k")
    report = await put(store, await file_of(store))
    assert (await seen(store), await seen(store, "k")) == (before, below)
    assert (await shown(store), await shown(store, "k")) == ("s", "below")
    assert report.tree is not None
    assert (report.tree.head_id, report.tree.paused, report.tree.turn) == ("a3", True, 3)


async def test_the_next_request_begins_as_the_last(store: Store) -> None:
    """Providers find what they have cached, byte for byte."""
    await eventful(store)
    await written(store, delete("a3"))
    assert await store.add_summary(summary("a1"))
    before = repr(view(await store.load_history_with_ancestors("t")))
    assert "so far: s" in before
    await put(store, await file_of(store))
    assert repr(view(await store.load_history_with_ancestors("t"))) == before
    await written(store, said("u4"))
    assert repr(view(await store.load_history_with_ancestors("t"))).startswith(before.rstrip(",)"))


async def test_a_paused_turn_is_answered_as_before(store: Store) -> None:
    """Under its number, by the decision about the same call: the first one stays, and the turn goes on once."""
    await eventful(store)
    (before,) = [one for one in (await store.load_tail("t")).calls if one.call_id == "c2"]
    await put(store, await file_of(store))
    (found,) = [one for one in (await store.load_tail("t")).calls if one.call_id == "c2"]
    assert found == before
    assert (found.turn, found.due, found.approval, found.decision) == (3, 9e9, QUESTION, None)
    yes, no = (Decide(call_id="c2", decision=Decision(approved=said_so, at=3.5)) for said_so in (True, False))
    await written(store, yes, no, settle("a3", RUNNING))
    tail = await store.load_tail("t")
    assert [one.decision for one in tail.calls if one.call_id == "c2"] == [yes.decision]
    await store.begin_step("t", 3, 2, 1)


async def test_a_turn_that_runs_keeps_what_hangs_on_it(store: Store) -> None:
    """Nothing of its content is replaced, so nothing above or below it is void, whatever the file tells of it."""
    await eventful(store)
    await written(store, settle("a3", RUNNING))
    assert await store.add_summary(summary("a3"))
    before = await seen(store)
    file = await file_of(store)
    file["messages"][-1]["message"]["content"] = [{"type": "text", "text": "else"}]
    await put(store, file)
    assert (await seen(store), await shown(store)) == (before, "s")


async def test_a_change_voids_what_is_at_and_below_it(store: Store) -> None:
    """And no more: neither what is above it nor what is on another branch."""
    await eventful(store)
    assert await store.add_summary(summary("a2", "other"))
    for place in ("u1", "u3"):
        assert await store.add_summary(summary(place, place))
    seq = (await store.get_thread("t")).seq
    before = {one.message.id: one for one in (await store.load_tree("t")).messages}
    file = await file_of(store)
    (changed,) = [one["message"] for one in file["messages"] if one["message"]["id"] == "u3"]
    changed["content"][0]["text"] = "something else"
    await put(store, file)
    after = {one.message.id: one for one in (await store.load_tree("t")).messages}
    assert [name for name in after if after[name] != before[name]] == ["u3"]
    assert await shown(store) == "u1"
    assert any(change.tree for change in await store.read_changes("t", seq))
    await written(store, switch("a2"))
    assert await shown(store) == "other"


ABSENT = object()


def told_otherwise(value: Any, place: str, new: object) -> None:
    """Put another value at a place in a file, such as `content.0.text`; or nothing."""
    *above, last = [int(name) if name.isdecimal() else name for name in place.split(".")]
    for name in above:
        value = value[name]
    if new is ABSENT:
        del value[last]
    else:
        value[last] = new


@pytest.mark.parametrize(
    ("place", "new"),
    [
        ("metadata.custom.other", 1),
        ("metadata.custom.feedback", ABSENT),
        ("content", []),
        ("content.0.text", "Words of u1"),
        ("perdure", {"options": {"model": "openai:gpt-5"}}),
        ("perdure", {"source_id": "u2"}),
    ],
)
async def test_every_change_counts(store: Store, place: str, new: object) -> None:
    """Also of a number that is equal and written in another way; metadata and options as well as words."""
    await eventful(store)
    shape = (await store.load_history_with_ancestors("t")).shape
    file = await file_of(store)
    first = file["messages"][0]["message"]
    assert first["id"] == "u1"
    told_otherwise(first, place, new)
    await put(store, file)
    assert (await store.load_history_with_ancestors("t")).shape > shape
    assert dumps((await file_of(store))["messages"][0]["message"]) == dumps(first)


@pytest.mark.parametrize(
    ("place", "new"),
    [
        ("isPreliminary", False),
        ("result", "most of it"),
        ("approval.prompt", "Really?"),
        ("argsText", '{"amount": 2}'),
    ],
)
async def test_a_paused_turn_that_is_told_otherwise_is_another(store: Store, place: str, new: object) -> None:
    """It has a new number, which nobody who writes for the old one can reach."""
    await eventful(store)
    file = await file_of(store)
    content = file["messages"][-1]["message"]["content"]
    told_otherwise(next(part for part in content if part.get("toolCallId") == "c2"), place, new)
    await put(store, file)
    tail = await store.load_tail("t")
    assert tail.message is not None
    assert (tail.message.id, tail.message.turn) == ("a3", 4)


async def test_what_moves_is_changed_and_keeps_its_content(store: Store) -> None:
    """A paused turn among it stays paused, under its number; summaries below its old place hold no more."""
    await eventful(store)
    for place in ("u1", "u3"):
        assert await store.add_summary(summary(place, place))
    calls = (await store.load_tail("t")).calls
    file = await file_of(store)
    (moved,) = [one for one in file["messages"] if one["message"]["id"] == "u3"]
    moved["parentId"] = "u1"
    await put(store, file)
    found = await branches(store)
    assert (found.children["u1"], found.children["u3"], found.head) == (["a1", "u3"], ["a3"], "a3")
    assert await shown(store) == "u1"
    tail = await store.load_tail("t")
    assert (tail.paused, tail.calls) == (True, calls)


async def test_only_the_last_of_two_entries_counts(store: Store) -> None:
    """By the id that it has here, or by the one that it came with: if that is as it is stored nothing changes."""
    await store.create_thread(ThreadRecord(thread_id="t", agent="demo"))
    asked = item("r", None, call("c1").with_(approval=QUESTION), role="assistant", status=PAUSED)
    await put(store, {"messages": []})
    operation = ImportMessages(blob=await store.put_blob("t", b"f"), input_id="i", digest="d", messages=(asked,))
    await written(store, operation)
    before = await seen(store)
    (own,) = await path(store)
    twice = (asked.with_(message=asked.message.with_(id=own, parts=(text("else"),))), asked)
    await written(store, operation.with_(input_id="i2", messages=twice))
    assert await seen(store) == before
    await written(store, operation.with_(input_id="i3", messages=twice[::-1]))
    assert (await store.load_tree("t")).messages[0].message.parts == (text("else"),)


async def test_what_the_batch_has_changed_before_is_as_the_file_says(store: Store) -> None:
    """What an operation in front of the import has made of a message is not kept because of what was there."""
    await eventful(store)
    file = await file_of(store)
    await put(store, file, annotate("u1", "again", other=2), settle("a3"))
    found = {one.message.id: one.message for one in (await store.load_tree("t")).messages}
    assert (found["u1"].metadata or {})["other"] == 1.0
    assert (found["a3"].status, found["a3"].turn) == (PAUSED, 4)


@settings(
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
    phases=PHASES,
)
@given(stored=stored_trees(at_rest=True, max_size=8))
async def test_any_tree_stays_as_it_is(store: Store, stored: Stored) -> None:
    """Of content of every kind, paused turns at the ends of its branches included."""
    if not can_be_asked(stored) or not stored.tree.messages:
        return
    thread_id = f"thread-{next(_names)}"
    await store.create_thread(ThreadRecord(thread_id=thread_id, agent="demo"))
    await put(store, loads(encoded(stored.export())), thread_id=thread_id)
    before = await seen(store, thread_id)
    event(f"paused: {bool(before.tree.calls)}")
    await put(store, await file_of(store, thread_id), thread_id=thread_id)
    assert await seen(store, thread_id) == before
