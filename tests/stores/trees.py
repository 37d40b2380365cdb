"""Short ways to say what the tests of branches write, and what they look at."""

from dataclasses import dataclass
from typing import Any

from perdure.batch import (
    AnnotateMessage,
    AppendMessage,
    DeleteMessage,
    ImportedMessage,
    ImportMessages,
    Operation,
    Refused,
    ResetThread,
    SwitchBranch,
    SyncReport,
)
from perdure.codec import digest
from perdure.messages import Message, Part, Role, Status, TextPart
from perdure.ports import Store
from perdure.records import StoredTree, ThreadRecord
from tests.stores.builders import RUNNING, THREAD, write

COMPLETE = Status(state="complete")
PAUSED = Status(state="requires_action")


def said(message_id: str, text: str | None = None, **placed: Any) -> AppendMessage:
    """Words of the user at the head, or where `placed` says: `beside`, `answering`, `at_root`, `under`."""
    return _appended(message_id, "user", 0, COMPLETE, (TextPart(text=text or f"words of {message_id}"),), **placed)


def answer(message_id: str, turn: int = 1, *parts: Part, status: Status = COMPLETE, **placed: Any) -> AppendMessage:
    """An answer, settled if nothing else is said. One that runs has no parts yet."""
    if status == RUNNING:
        return _appended(message_id, "assistant", turn, status, parts, **placed)
    return _appended(
        message_id, "assistant", turn, status, parts or (TextPart(text=f"words of {message_id}"),), **placed
    )


def _appended(
    message_id: str,
    role: Role,
    turn: int,
    status: Status,
    parts: tuple[Part, ...],
    *,
    under: str | None = None,
    beside: str | None = None,
    answering: str | None = None,
    at_root: bool = False,
    thread_id: str = THREAD,
) -> AppendMessage:
    message = Message(
        id=message_id, thread_id=thread_id, role=role, turn=turn, status=status, parts=parts, parent_id=under
    )
    return AppendMessage(
        message=message if role == "assistant" else message.with_(input_id=f"in-{message_id}"),
        digest=digest(message_id),
        beside=beside,
        answering=answering,
        at_root=at_root,
        input_id=f"ask-{message_id}" if role == "assistant" else None,
    )


def switch(message_id: str, input_id: str = "switch") -> SwitchBranch:
    """Another branch."""
    return SwitchBranch(message_id=message_id, input_id=input_id, digest=digest(message_id))


def delete(message_id: str, replacement_id: str | None = None, input_id: str = "delete") -> DeleteMessage:
    """A message goes."""
    said = digest(f"delete {message_id} {replacement_id}")
    return DeleteMessage(message_id=message_id, replacement_id=replacement_id, input_id=input_id, digest=said)


def reset(message_id: str | None, input_id: str = "reset") -> ResetThread:
    """All below a message goes."""
    return ResetThread(message_id=message_id, input_id=input_id, digest=digest(message_id or ""))


def annotate(message_id: str, input_id: str = "annotate", **metadata: Any) -> AnnotateMessage:
    """Values of a message's metadata."""
    return AnnotateMessage(message_id=message_id, metadata=metadata, input_id=input_id, digest=digest(message_id))


def item(
    message_id: str,
    parent_id: str | None = None,
    *parts: Part,
    role: Role = "user",
    status: Status = COMPLETE,
    created_at: str | None = None,
) -> ImportedMessage:
    """A message of a file."""
    message = Message(
        id=message_id,
        thread_id="",
        role=role,
        parent_id=parent_id,
        status=status,
        parts=parts or (TextPart(text=f"imported words of {message_id}"),),
    )
    return ImportedMessage(message=message, created_at=created_at)


async def imported(
    store: Store, *items: ImportedMessage, head_id: str | None = None, input_id: str = "import", thread_id: str = THREAD
) -> ImportMessages:
    """An import of these messages, whose file is stored."""
    blob = await store.put_blob(thread_id, f"the file of {input_id}".encode())
    return ImportMessages(blob=blob, input_id=input_id, digest=digest(blob), messages=items, head_id=head_id)


async def refused(store: Store, *operations: Operation, thread_id: str = THREAD) -> tuple[Refused, ...]:
    """Why the batch was refused; the thread is as it was."""
    before = await everything(store, thread_id)
    report = await written(store, *operations, thread_id=thread_id)
    assert await everything(store, thread_id) == before, "a refused batch has changed something"
    assert report.number == before[0].version
    return report.refused


async def everything(store: Store, thread_id: str) -> tuple[ThreadRecord, StoredTree, object]:
    """What can be read of a thread."""
    snapshot, tail = await store.snapshot(thread_id), await store.load_tail(thread_id)
    return await store.get_thread(thread_id), await store.load_tree(thread_id), (snapshot, tail)


async def written(store: Store, *operations: Operation, thread_id: str = THREAD) -> SyncReport:
    """Sync the next batch."""
    return await write(store, (await store.get_thread(thread_id)).version + 1, *operations, thread_id=thread_id)


@dataclass
class Branches:
    """The shape of a tree: the children of each message in order ("" for the root), what is open, the head."""

    children: dict[str, list[str]]
    opened: dict[str, str]
    head: str | None


async def branches(store: Store, thread_id: str = THREAD) -> Branches:
    """The shape that is stored."""
    tree = await store.load_tree(thread_id, parts=False)
    children: dict[str, list[str]] = {}
    for stored in sorted(tree.messages, key=lambda stored: stored.place):
        children.setdefault(stored.parent_id or "", []).append(stored.message.id)
    opened = {parent: names[-1] for parent, names in children.items()}
    return Branches(children, opened | {parent or "": child for parent, child in tree.remembered}, tree.head_id)


async def path(store: Store, thread_id: str = THREAD, message_id: str | None = None) -> list[str]:
    """The ids from the root to the head, or to a message."""
    found = await store.load_history_with_ancestors(thread_id, message_id=message_id)
    return [message.id for message in found.messages]


async def conversation(store: Store) -> Store:
    """u1 > a1 > u2 > a2, all settled."""
    await store.create_thread(ThreadRecord(thread_id=THREAD, agent="demo"))
    await written(store, said("u1"), answer("a1", 1), said("u2"), answer("a2", 2))
    return store


async def running(store: Store) -> Store:
    """u1 > a1 > u2 > a2, of which the last runs."""
    await store.create_thread(ThreadRecord(thread_id=THREAD, agent="demo"))
    await written(store, said("u1"), answer("a1", 1), said("u2"), answer("a2", 2, status=RUNNING))
    return store
