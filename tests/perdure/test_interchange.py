"""Threads as files: what is written is read as it was, whatever it holds."""

import time

from hypothesis import given

from perdure.interchange import named_blobs, read_import
from perdure.messages import Message, TextPart
from perdure.records import StoredTree, TreeMessage
from tests.perdure.exported_trees import Stored, again, encoded, imported, stored_trees
from tests.perdure.tree_operations import PHASES
from tests.properties import settings


@settings(phases=PHASES)
@given(stored=stored_trees(at_rest=True))
def test_an_export_is_imported_as_it_was(stored: Stored) -> None:
    """Export, import, export: the same file byte for byte, without a warning."""
    export = stored.export()
    result = read_import(encoded(export))
    assert result.warnings == ()
    assert encoded(imported(result).export()) == encoded(export)


@settings(phases=PHASES)
@given(stored=stored_trees(at_rest=True))
def test_messages_come_back_one_by_one(stored: Stored) -> None:
    """Each message has its parts, status, metadata and places again, and each blob its bytes."""
    result = read_import(encoded(stored.export()))
    read = {one.message.id: one.message for one in result.messages}
    resting = {call.message_id for call in stored.tree.calls if call.result is not None}
    for one in stored.tree.messages:
        if one.message.id not in resting:
            assert read[one.message.id] == one.message.with_(thread_id="", input_id=None)
    assert {blob: data for blob, (_, data) in result.files.items()} == {
        blob: stored.files[blob] for blob in named_blobs(stored.tree)
    }
    assert result.head_id == stored.tree.head_id


@settings(phases=PHASES)
@given(stored=stored_trees())
def test_rules_leave_alone_what_they_made(stored: Stored) -> None:
    """Turns that were under way are paused or settled by the first import, and the second changes nothing."""
    once = again(stored.export())
    assert encoded(again(once)) == encoded(once)


def test_case_18_a_thread_of_30_000_is_carried_over() -> None:
    """Without recursion, and in a time that grows no faster than the thread."""
    count = 30_000
    names = [f"m{number}" for number in range(count)]
    messages = [
        TreeMessage(
            message=Message(id=name, thread_id="t", role="user", parent_id=parent, parts=(TextPart(text=name),)),
            parent_id=parent,
            place=place,
        )
        for place, (name, parent) in enumerate(zip(names, [None, *names], strict=False))
    ]
    stored = Stored(StoredTree(head_id=names[-1], messages=tuple(messages)), {})
    began = time.process_time()
    result = read_import(encoded(stored.export()))
    # About two seconds; it would be minutes if each message looked at all others.
    assert time.process_time() - began < 20
    assert [one.message.id for one in result.messages] == names
    assert result.head_id == names[-1]
