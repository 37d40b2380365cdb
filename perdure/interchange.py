"""Threads as files: the format of assistant-ui's histories, written and read. Pure.

A file is `{"headId", "messages": [{"parentId", "message", "runConfig"?}], "perdure"?: {"agent"}}`, a whole tree with
parents before their children. Such a client can load what `export_tree` writes; what only ours hold is in fields named
`perdure`, so that `read_import` gives the same messages again. It also reads what such clients write. The format is
described in docs/reference/export-format.md.
"""

import gc
from collections import defaultdict
from collections.abc import Generator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Final

from perdure.batch import ImportedMessage
from perdure.codec import clip, loads
from perdure.errors import UsageError
from perdure.exported_message import ListedMessage, exported, read_message
from perdure.exported_part import OURS, Files, blobs_of
from perdure.import_fields import Fault, Json, each, mapping, name, optional
from perdure.import_rules import distinct_calls, head_of, kept, settled
from perdure.imported_part import ContentReader
from perdure.message_content import parts_of, with_context
from perdure.messages import Message, Status
from perdure.records import OpenCall, StoredTree, TreeMessage
from perdure.tree import MessageTree, TreeNode

FILE_BYTES: Final = 64 * 1024 * 1024
"""The largest file that is read."""

MESSAGES: Final = 100_000
"""The most messages that are read."""


@dataclass(frozen=True, slots=True)
class ImportResult:
    """What a file holds.

    Attributes:
        messages: parents before children, with the ids of the file. The thread, its turns and inputs are not set.
        head_id: the message that the conversation ends with; None if there are no messages.
        warnings: a sentence for each kind of thing that was left out or put right.
        files: media type and bytes of the blobs that the messages name, by their ids. They are to be stored first.
        agent: whose conversation it was; None if the file does not say it. Whether it is served here is not known.
    """

    messages: tuple[ImportedMessage, ...]
    head_id: str | None
    warnings: tuple[str, ...]
    files: Mapping[str, tuple[str, bytes]]
    agent: str | None = None


def export_tree(tree: StoredTree, files: Files, agent: str | None = None) -> Json:
    """The file of a thread, as JSON-able values. A running turn is in it with what is stored of it so far.

    Args:
        tree: the thread's messages, with their parts.
        files: what the blobs hold that they name (`named_blobs`).
        agent: the thread's agent, which a new thread gets from the file.

    Raises:
        BlobNotFound: a blob is not among them.
        StoreError: the messages are no tree, or a blob of words holds none.
    """
    ids = _exported_ids(tree)
    calls: defaultdict[str, list[OpenCall]] = defaultdict(list)
    for call in tree.calls:
        calls[call.message_id].append(call)
    with _uncollected():
        nodes = (TreeNode(one.message.id, one.parent_id, one, one.place) for one in tree.messages)
        export = MessageTree[TreeMessage].from_nodes(nodes, dict(tree.remembered), tree.head_id).export_messages()
        messages = [
            exported(item.content, item.parent_id, ids, calls.get(item.id, ()), files) for item in export.messages
        ]
    file: Json = {"headId": None if export.head_id is None else ids[export.head_id], "messages": messages}
    return file if agent is None else {**file, OURS: {"agent": agent}}


def named_blobs(tree: StoredTree) -> frozenset[str]:
    """The blobs whose content an export takes."""
    parts = [part for one in tree.messages for part in one.message.parts]
    results = [result for call in tree.calls for result in (call.result, call.interim) if result is not None]
    return frozenset(blob for part in (*parts, *results) for blob in blobs_of(part))


def read_import(data: bytes) -> ImportResult:
    """The messages of a file, checked, and none of their turns under way (`perdure.import_rules`).

    Raises:
        UsageError: what is wrong with the file, and where. Nothing of it can be used then.
    """
    with _uncollected():
        return _read(data)


def _read(data: bytes) -> ImportResult:
    reader = ContentReader()
    try:
        file = _decoded(data)
        listed = each(file, "messages", lambda item: read_message(item, reader), MESSAGES)
        given_head = name(file, "headId") if file.get("headId") is not None else None
        agent = _agent(file)
    except Fault as fault:
        place = fault.place.removeprefix(".") or "what it holds"
        raise UsageError(f"The file cannot be imported: {place} {fault.reason}.") from None
    staying = kept(listed, reader.left_out)
    head_id = head_of(given_head, listed, staying)
    if given_head is not None and head_id != given_head:
        reader.left_out.add("The head of the file is not among its messages, so another branch is open", given_head)
    followed = {message.parent_id for message in staying}
    for message in staying:
        if message.role == "assistant":
            message.content, message.status = settled(message.content, message.status, followed=message.id in followed)
    distinct_calls([message for message in staying if message.role == "assistant"])
    messages = tuple(_imported(message) for message in staying)
    return ImportResult(messages, head_id, reader.left_out.sentences, _used(messages, reader.files), agent)


def _agent(file: Json) -> str | None:
    own = optional(file, OURS) or {}
    try:
        return name(own, "agent") if own.get("agent") is not None else None
    except Fault as fault:
        raise fault.under(f".{OURS}") from None


def _decoded(data: bytes) -> Json:
    if len(data) > FILE_BYTES:
        raise UsageError(f"The file has {len(data):,} bytes, and at most {FILE_BYTES:,} can be imported.")
    try:
        file: object = loads(data.removeprefix(b"\xef\xbb\xbf"))
    except UnicodeDecodeError:
        raise UsageError("The file cannot be imported: it is not text in UTF-8.") from None
    except ValueError as error:
        raise UsageError(f"The file cannot be imported: it is not JSON ({clip(str(error), 200)}).") from None
    fields = mapping(file)
    if "messages" not in fields:
        raise Fault("is missing: an export has the fields headId and messages", ".messages")
    return fields


def _exported_ids(tree: StoredTree) -> Mapping[str, str]:
    """The ids that the messages came with, for those that came from a file; never one that is taken."""
    own = {one.message.id for one in tree.messages}
    given: set[str] = set()
    ids: dict[str, str] = {}
    for one in tree.messages:
        exported_id = one.given_id if one.given_id is not None else one.message.id
        if exported_id in given or (exported_id != one.message.id and exported_id in own):
            exported_id = one.message.id
        given.add(exported_id)
        ids[one.message.id] = exported_id
    return ids


def _imported(listed: ListedMessage) -> ImportedMessage:
    message = Message(
        id=listed.id,
        thread_id="",
        role=listed.role,
        parent_id=listed.parent_id,
        status=listed.status or Status(),
        parts=with_context(parts_of(listed.content, listed.order), listed.context or ()),
        metadata=listed.metadata,
        source_id=listed.source_id,
        options=listed.options,
        usage=listed.usage,
    )
    interim = tuple(entry.interim for entry in listed.content if entry.is_open and entry.interim is not None)
    return ImportedMessage(message=message, created_at=listed.created_at, interim=interim)


def _used(
    messages: tuple[ImportedMessage, ...], files: Mapping[str, tuple[str, bytes]]
) -> Mapping[str, tuple[str, bytes]]:
    """The files of the messages that stay."""
    parts = [part for one in messages for part in (*one.message.parts, *one.interim)]
    return {blob: files[blob] for part in parts for blob in blobs_of(part)}


@contextmanager
def _uncollected() -> Generator[None]:
    """Without collection of cycles, which looks at the same values again and again as they become more.

    None of those that are made here is in a cycle. Where threads overlap, whoever has stopped it lets it go on, so it
    never stays off.
    """
    was_on = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_on:
            gc.enable()
