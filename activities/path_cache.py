"""The conversation as `complete` reads it, with what was read before kept in memory.

Kept is a path without its last message, since only the last message of a path still grows: whatever is appended goes to
its end or after it. So the next read asks only for what follows. Nothing is taken on trust. The store says whether the
kept end is still on the path (`Path.extends`); if it is not (another branch is read, or a summary came in after it), it
returns the whole path, and that replaces what was kept. And it says whether anything may have changed in the middle of
the thread or above it (`Path.shape`): a message was deleted or moved, a late result came in. As long as nothing has,
the way from a message up to the root is fixed, each message having one parent, so if the end is on the path, all before
it is too, whichever branch that was read from. When something has, everything is read again.
One thing the store does not say: that a summary was hung on a message before the kept end. Until the thread is read
whole again, its path is longer than it need be, but not wrong.
"""

import asyncio
from collections import OrderedDict
from dataclasses import dataclass, replace
from typing import Protocol

from perdure.contract import PREVIEW_CHARS
from perdure.errors import BlobNotFound
from perdure.inputs import INLINE_BYTES
from perdure.large_text import MISSING, LargeTexts
from perdure.messages import (
    ContextPart,
    EventPart,
    FilePart,
    Message,
    Part,
    ReasoningPart,
    TextPart,
    ToolCallPart,
    ToolResultPart,
)
from perdure.ports import ConversationStore
from perdure.records import Path, Summary

MAX_CHARS = 64 * 1024 * 1024
MAX_THREADS = 2_000


class Built(Protocol):
    """What was made of a path, to be kept as long as that is."""

    @property
    def chars(self) -> int:
        """What it weighs, like the texts of the path."""
        ...


@dataclass(frozen=True)
class _Kept:
    """A path without its end, and what was built of it. `chars` is what both weigh."""

    messages: tuple[Message, ...]
    summary: Summary | None
    chars: int
    shape: int
    built: Built | None = None


class PathCache:
    """Paths of the threads that this worker serves, the least recently used dropped first.

    Args:
        store: where conversations are.
        max_threads: of how many threads a path may be kept; a worker passes how many it keeps in memory at all.
        max_chars: how much text may be kept over all threads, roughly.
    """

    def __init__(self, store: ConversationStore, max_threads: int = MAX_THREADS, max_chars: int = MAX_CHARS) -> None:
        self._store = store
        self._texts = LargeTexts(store)
        self._max_threads = max_threads
        self._max_chars = max_chars
        self._kept: OrderedDict[str, _Kept] = OrderedDict()
        self._chars = 0

    async def load(self, thread_id: str, message_id: str | None = None) -> Path:
        """The whole path to a message as it is now, texts in blobs included; to the head if none is named."""
        kept = self._kept.get(thread_id)
        path = None if kept is None else await self._extend(thread_id, message_id, kept)
        if path is None:
            kept = None
            whole = await self._store.load_history_with_ancestors(thread_id, message_id=message_id)
            path = await self._resolve(thread_id, whole)
        self._keep(thread_id, path, kept)
        return path

    def built(self, thread_id: str) -> Built | None:
        """What was built of the thread's path; its maker says whether it fits the path that there is now."""
        kept = self._kept.get(thread_id)
        return None if kept is None else kept.built

    def keep_built(self, thread_id: str, built: Built) -> None:
        """Keep it for as long as the path that was read last."""
        kept = self._kept.get(thread_id)
        if kept is not None:
            before = kept.built.chars if kept.built else 0
            self._put(thread_id, replace(kept, built=built, chars=kept.chars - before + built.chars))

    async def _extend(self, thread_id: str, message_id: str | None, kept: _Kept) -> Path | None:
        """What is kept and what follows it; None if the whole path has to be read."""
        path = await self._store.load_history_with_ancestors(thread_id, kept.messages[-1].id, message_id)
        if path.extends is None or path.shape != kept.shape:
            return None
        if not path.messages:
            # The kept end is the end of this path, where messages grow.
            return None
        if path.messages[0].parent_parts is not None:
            # A branch that cuts the kept message short shares its id but not its parts.
            return None
        rest = await self._resolve(thread_id, path)
        return rest.with_(messages=kept.messages + rest.messages, summary=kept.summary, extends=None)

    async def _resolve(self, thread_id: str, path: Path) -> Path:
        """Put the texts that are kept in blobs into their parts."""
        messages = await asyncio.gather(*(self._with_texts(thread_id, message) for message in path.messages))
        return path.with_(messages=tuple(messages))

    async def _with_texts(self, thread_id: str, message: Message) -> Message:
        message = await self._texts.message(thread_id, message)
        if not any(_is_preview(part) for part in message.parts):
            return message
        parts = [await self._with_beginning(thread_id, part) for part in message.parts]
        return message.with_(parts=tuple(parts))

    async def _with_beginning(self, thread_id: str, part: Part) -> Part:
        """A large result from outside comes as a preview; the model reads as much of it as of any other result."""
        if not isinstance(part, ToolResultPart) or not part.blob or not _is_preview(part):
            return part
        try:
            data = await self._store.get_blob(thread_id, part.blob)
        except BlobNotFound:
            # Whoever sent the result named a blob that is not here: its preview is all there is.
            return part.with_(content=f"{part.content}\n\n{MISSING}", blob=None)
        return part.with_(content=data[:INLINE_BYTES].decode("utf-8", "ignore"), size_bytes=len(data))

    def _keep(self, thread_id: str, path: Path, before: _Kept | None) -> None:
        messages = path.messages[:-1]
        for after in reversed(path.messages):
            # The end must be whole: one that its successor cuts short would serve a path through all of it wrongly.
            if not messages or after.parent_parts is None:
                break
            messages = messages[:-1]
        if not messages:
            self._drop(thread_id)
            return
        if before is None or len(messages) < len(before.messages):
            before = _Kept((), None, 0, path.shape)
        new = messages[len(before.messages) :]
        chars = before.chars + sum(_chars(message) for message in new)
        self._put(thread_id, _Kept(messages, path.summary, chars, path.shape, before.built))

    def _put(self, thread_id: str, kept: _Kept) -> None:
        self._drop(thread_id)
        self._kept[thread_id] = kept
        self._chars += kept.chars
        while len(self._kept) > self._max_threads or self._chars > self._max_chars:
            self._drop(next(iter(self._kept)))

    def _drop(self, thread_id: str) -> None:
        kept = self._kept.pop(thread_id, None)
        if kept is not None:
            self._chars -= kept.chars


def _is_preview(part: Part) -> bool:
    return isinstance(part, ToolResultPart) and part.blob is not None and len(part.content) <= PREVIEW_CHARS


def _chars(message: Message) -> int:
    # 400 is about what a message and a part weigh without their text.
    return 400 + sum(400 + _text_chars(part) for part in message.parts)


def _text_chars(part: Part) -> int:
    match part:
        case TextPart() | ReasoningPart() | ContextPart():
            return len(part.text)
        case ToolResultPart() | EventPart():
            return len(part.content)
        case ToolCallPart():
            return len(part.arguments)
        case FilePart():
            return 0
