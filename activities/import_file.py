"""Imports: a batch names a file, and the store is given the messages that are in it.

A file is read where the batch is written, so its words never travel through Temporal. Reading it again gives the same
messages, so the batch may be sent any number of times, as any other. People are asked about the calls that it leaves
open, since no policy of this agent has seen them; a file that would leave too many open is refused.
"""

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final, TypeVar

from activities.approval_policy import plain_request
from perdure.approval import check_request
from perdure.batch import ImportedMessage, ImportMessages, Operation, Refused, SyncBatch, SyncReport
from perdure.codec import clip, head
from perdure.errors import BlobNotFound, UsageError
from perdure.inputs import INLINE_BYTES
from perdure.interchange import ImportResult, read_import
from perdure.messages import Message, Part, ToolCallPart, ToolResultPart
from perdure.ports import Store
from perdure.tools import Tool

OPEN_CALLS: Final = 100
"""How many calls of a message may be open. A thread is loaded with them, and Temporal takes only so much at once."""

WARNING_CHARS: Final = 4_000
_PUT_AT_ONCE: Final = 8

AnyPart = TypeVar("AnyPart", bound=Part)


@dataclass(frozen=True)
class _Expanded:
    """An import with its messages, and what is to be said of it."""

    operation: ImportMessages
    warnings: tuple[str, ...]


async def append_with_imports(store: Store, batch: SyncBatch, tools: Mapping[str, Tool]) -> SyncReport:
    """Write a batch that imports files. What was left out of them stands in the report's `detail`.

    A file that cannot be read, or is not there, has the whole batch refused, as the store does it.
    """
    operations: list[Operation] = []
    warnings: list[str] = []
    refused: list[Refused] = []
    for operation in batch.operations:
        if not isinstance(operation, ImportMessages):
            operations.append(operation)
            continue
        try:
            expanded = await _expanded(store, batch.thread_id, operation, tools)
        except BlobNotFound:
            refused.append(Refused(input_id=operation.input_id, missing=True))
        except UsageError as error:
            refused.append(Refused(input_id=operation.input_id, detail=str(error)))
        else:
            operations.append(expanded.operation)
            warnings += expanded.warnings
    if refused:
        return await _refusal(store, batch, tuple(refused))
    report = await store.append_messages(batch.with_(operations=tuple(operations)))
    return report.with_(detail=clip(" ".join(warnings), WARNING_CHARS)) if warnings and not report.refused else report


async def _refusal(store: Store, batch: SyncBatch, refused: tuple[Refused, ...]) -> SyncReport:
    """What the store would say of a batch whose files cannot be read. It must not get that: it would import nothing."""
    if (await store.get_thread(batch.thread_id)).version >= batch.number:
        # It is written, by this batch or by somebody else. The store knows which, and applies nothing any more.
        return await store.append_messages(batch)
    digests = {one.input_id: one.digest for one in batch.operations if isinstance(one, ImportMessages)}
    known = await store.get_processed_ids(batch.thread_id, tuple(one.input_id for one in refused))
    # Of an import that was through long ago the file may be gone: it is known all the same.
    told = tuple(
        Refused(input_id=one.input_id, conflict=known[one.input_id] != digests[one.input_id])
        if one.input_id in known
        else one
        for one in refused
    )
    return SyncReport(number=batch.number - 1, refused=told)


async def _expanded(store: Store, thread_id: str, operation: ImportMessages, tools: Mapping[str, Tool]) -> _Expanded:
    # Beside the event loop: a large file takes seconds, and whatever else runs here has to go on meanwhile.
    found = await asyncio.to_thread(read_import, await store.get_blob(thread_id, operation.blob))
    for imported in found.messages:
        _check_calls(imported.message)
    await _put_files(store, thread_id, found)
    messages = tuple([await _fitting(store, thread_id, _asking(imported, tools)) for imported in found.messages])
    return _Expanded(operation.with_(messages=messages, head_id=found.head_id), found.warnings)


def _open_calls(message: Message) -> list[ToolCallPart]:
    """The calls of a turn that can go on, that have no result."""
    if message.status.state not in ("running", "requires_action"):
        return []
    answered = {part.call_id for part in message.parts if isinstance(part, ToolResultPart)}
    return [part for part in message.parts if isinstance(part, ToolCallPart) and part.call_id not in answered]


def _asking(imported: ImportedMessage, tools: Mapping[str, Tool]) -> ImportedMessage:
    """The message with a question about each call that would run unasked: no policy has seen it."""
    asked = {id(part): _asked(part, tools.get(part.tool)) for part in _open_calls(imported.message)}
    if not asked:
        return imported
    parts = tuple(asked.get(id(part), part) for part in imported.message.parts)
    return imported.with_(message=imported.message.with_(parts=parts))


def _asked(call: ToolCallPart, tool: Tool | None) -> ToolCallPart:
    if call.approval is not None or (tool is not None and tool.kind == "client"):
        return call
    return call.with_(approval=plain_request(call))


def _check_calls(message: Message) -> None:
    """Whether a turn that can be resumed can be loaded. Raises UsageError."""
    open_ = _open_calls(message)
    if len(open_) > OPEN_CALLS:
        raise UsageError(f"Message {message.id!r} has {len(open_)} open calls, and at most {OPEN_CALLS} can be.")
    for call in open_:
        if len(call.arguments) > INLINE_BYTES:
            raise UsageError(f"The arguments of the open call {call.call_id!r} are above {INLINE_BYTES:,} characters.")
        if call.approval is not None:
            try:
                check_request(call.approval)
            except UsageError as error:
                raise UsageError(f"The approval of call {call.call_id!r} cannot be imported: {error}") from error


async def _put_files(store: Store, thread_id: str, found: ImportResult) -> None:
    turns = asyncio.Semaphore(_PUT_AT_ONCE)

    async def put(media_type: str, data: bytes) -> None:
        async with turns:
            await store.put_blob(thread_id, data, media_type)

    await asyncio.gather(*(put(media_type, data) for media_type, data in found.files.values()))


async def _fitting(store: Store, thread_id: str, imported: ImportedMessage) -> ImportedMessage:
    """The message with its results as they are kept: a model reads the beginning of what is large."""
    message = imported.message
    if not any(map(_is_large, (*message.parts, *imported.interim))):
        return imported
    parts = tuple([await _fitting_part(store, thread_id, part) for part in message.parts])
    interim = tuple([await _fitting_part(store, thread_id, part) for part in imported.interim])
    return imported.with_(message=message.with_(parts=parts), interim=interim)


async def _fitting_part(store: Store, thread_id: str, part: AnyPart) -> AnyPart:
    if not isinstance(part, ToolResultPart) or not _is_large(part):
        return part
    encoded = _encoded(part)
    blob = await store.put_blob(thread_id, encoded)
    return part.with_(content=head(encoded, INLINE_BYTES), size_bytes=len(encoded), blob=blob)


def _is_large(part: Part) -> bool:
    if not isinstance(part, ToolResultPart) or part.blob is not None:
        return False
    # Four bytes are the most that a character takes.
    return len(part.content) * 4 > INLINE_BYTES and len(_encoded(part)) > INLINE_BYTES


def _encoded(result: ToolResultPart) -> bytes:
    return result.content.encode("utf-8", "surrogatepass")
