"""Texts that are too large to travel in a signal: stored first, sent as a reference, and whole again for readers."""

from typing import Final

from perdure.codec import clip, digest
from perdure.contract import PREVIEW_CHARS
from perdure.errors import BlobNotFound, UsageError
from perdure.inputs import INLINE_BYTES
from perdure.messages import EventPart, Message, Part, TextPart
from perdure.ports import ConversationStore
from perdure.records import Change, Snapshot

TEXT_BYTES: Final = 10 * 1024 * 1024
"""The largest text that a thread takes; no model reads a larger one."""

MISSING: Final = "[The content of this message is missing.]"


class LargeTexts:
    """Moves texts into the blobs of a thread and back."""

    def __init__(self, store: ConversationStore) -> None:
        self._store = store

    async def put(
        self, thread_id: str, text: str, inline_bytes: int = INLINE_BYTES
    ) -> tuple[str, str | None, str | None]:
        """What travels: the text itself, or its beginning, the id of its blob and its digest. Safe to repeat."""
        if not is_large(text, inline_bytes):
            return text, None, None
        blob = await self._store.put_blob(thread_id, _encode(text))
        return clip(text, PREVIEW_CHARS), blob, digest(text)

    async def part(self, thread_id: str, part: Part) -> Part:
        """A part with its words in full; a tool result stays clipped, as the model reads it."""
        if isinstance(part, TextPart) and part.blob:
            return part.with_(text=await self._get(thread_id, part.blob))
        if isinstance(part, EventPart) and part.blob:
            return part.with_(content=await self._get(thread_id, part.blob))
        return part

    async def message(self, thread_id: str, message: Message) -> Message:
        """A message with its words in full."""
        if not any(isinstance(part, TextPart | EventPart) and part.blob for part in message.parts):
            return message
        return message.with_(parts=tuple([await self.part(thread_id, part) for part in message.parts]))

    async def snapshot(self, snapshot: Snapshot) -> Snapshot:
        """A snapshot with its words in full."""
        thread_id = snapshot.thread.thread_id
        messages = tuple([await self.message(thread_id, message) for message in snapshot.path.messages])
        return snapshot.with_(path=snapshot.path.with_(messages=messages))

    async def change(self, thread_id: str, change: Change) -> Change:
        """A change with its words in full."""
        return change.with_(part=await self.part(thread_id, change.part)) if change.part else change

    async def _get(self, thread_id: str, blob: str) -> str:
        # One part that cannot be read must not take the whole conversation along, so the gap is told in its place.
        try:
            return (await self._store.get_blob(thread_id, blob)).decode("utf-8", "surrogatepass")
        except (BlobNotFound, UnicodeDecodeError):
            return MISSING


def is_large(text: str, inline_bytes: int = INLINE_BYTES) -> bool:
    """Whether a text is stored first, since it has more bytes than may travel.

    Raises:
        UsageError: if it is too large even for that.
    """
    size = len(_encode(text))
    if size > TEXT_BYTES:
        raise UsageError(f"The text has {size:,} bytes, and at most {TEXT_BYTES:,} can be sent; shorten it.")
    return size > inline_bytes


def _encode(text: str) -> bytes:
    return text.encode("utf-8", "surrogatepass")
