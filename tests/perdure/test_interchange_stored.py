"""An export that a store has taken in is the same export again, whatever ids its messages have there."""

import json
from typing import Any

from hypothesis import assume, given

from activities.import_file import append_with_imports
from perdure.approval import check_request
from perdure.batch import ImportMessages, SyncBatch
from perdure.errors import UsageError
from perdure.interchange import export_tree, named_blobs
from perdure.records import ThreadRecord
from stores.memory import MemoryStore
from tests.perdure.exported_trees import Stored, encoded, stored_trees
from tests.perdure.tree_operations import PHASES
from tests.properties import settings


async def carried(store: MemoryStore, thread_id: str, file: bytes) -> bytes:
    """The export of a thread after an import of the file."""
    thread = await store.create_thread(ThreadRecord(thread_id=thread_id, agent="a"))
    number = thread.version + 1
    blob = await store.put_blob(thread_id, file, "application/json")
    operation = ImportMessages(blob=blob, input_id=f"i{number}", digest="d")
    batch = SyncBatch(thread_id=thread_id, number=number, sync_id=f"s{number}", operations=(operation,))
    assert not (await append_with_imports(store, batch, {})).refused
    tree = await store.load_tree(thread_id)
    return encoded(export_tree(tree, {blob: await store.get_blob(thread_id, blob) for blob in named_blobs(tree)}))


def timeless(file: bytes, like: bytes) -> Any:
    """The file without the times that a store has given to messages that had none in the other one."""
    value, other = json.loads(file), json.loads(like)
    for item, model in zip(value["messages"], other["messages"], strict=True):
        if "createdAt" not in model["message"]:
            item["message"].pop("createdAt", None)
    return value


def can_be_asked(stored: Stored) -> bool:
    """Whether the questions of open calls are ones that an import lets people be asked.

    A call without one gets one, which the export that it came from does not have.
    """
    try:
        for call in stored.tree.calls:
            if call.approval is None:
                return False
            check_request(call.approval)
    except UsageError:
        return False
    return True


@settings(phases=PHASES)
@given(stored=stored_trees(at_rest=True))
async def test_an_import_is_exported_as_it_came(stored: Stored) -> None:
    """By the thread that it was imported into, by another one of the same store, and by the first one once more."""
    assume(can_be_asked(stored))
    store = MemoryStore()
    file = encoded(stored.export())
    first = await carried(store, "first", file)
    assert timeless(first, file) == json.loads(file)
    assert await carried(store, "second", first) == first
    assert await carried(store, "first", first) == first
