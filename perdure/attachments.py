"""Files that go along with words: given as paths, bytes or references, stored first, sent as references."""

import asyncio
import mimetypes
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final, cast

from perdure.codec import clip
from perdure.contract import NAME_CHARS, PREVIEW_CHARS
from perdure.errors import UsageError
from perdure.messages import FileRef
from perdure.ports import ConversationStore

FILES: Final = 20
"""How many files one message takes."""

FILE_BYTES: Final = 20 * 1024 * 1024
"""The largest file that a thread takes; no provider takes a larger one within a request."""

ANY_BYTES: Final = "application/octet-stream"

_TYPE_CHARS: Final = 100
_BEGINNINGS: Final = (
    (b"\x89PNG\r\n\x1a\n", "image/png"),
    (b"\xff\xd8\xff", "image/jpeg"),
    (b"GIF87a", "image/gif"),
    (b"GIF89a", "image/gif"),
    (b"%PDF-", "application/pdf"),
)


@dataclass(frozen=True)
class Attachment:
    """Bytes that go along with words. Without a media type it is found out from the bytes, or else from the name."""

    data: bytes
    media_type: str | None = None
    name: str | None = None


File = str | Path | Attachment | FileRef
"""A file as callers give it: where it is, what is in it, or a reference to what the thread holds already."""


async def read_files(files: Sequence[File]) -> tuple[Attachment | FileRef, ...]:
    """The files, read and checked.

    Raises:
        UsageError: if it is no list, there are too many, or one is no file, too large, empty, or cannot be read.
    """
    given = cast("object", files)
    if isinstance(given, str | bytes) or not isinstance(given, Sequence):
        # A text is a sequence too, of letters.
        raise UsageError(f"What is given as `files` is of the type {type(given).__name__}; give a list of files.")
    if len(files) > FILES:
        raise UsageError(f"{len(files)} files were given, and a message takes at most {FILES}; send the others later.")
    read = [await asyncio.to_thread(_read, one) if isinstance(one, str | Path) else one for one in files]
    for one in read:
        _check(one)
    return tuple(read)


async def put_files(
    store: ConversationStore, thread_id: str, files: Sequence[Attachment | FileRef]
) -> tuple[FileRef, ...]:
    """Store files in a thread; returns what travels. Safe to repeat: the same bytes are stored once.

    Raises:
        ThreadNotFound: if there is no such thread.
        BlobNotFound: if a reference names what neither the thread nor one above it holds.
    """
    return tuple([await _put(store, thread_id, one) for one in files])


def media_type_of(data: bytes, name: str | None = None) -> str:
    """The media type of bytes: what they begin with tells more than a name, which anybody may give."""
    for beginning, media_type in _BEGINNINGS:
        if data.startswith(beginning):
            return media_type
    if data[:4] == b"RIFF" and data[8:12] == b"WEBP":
        return "image/webp"
    if name and (guessed := mimetypes.guess_type(name)[0]):
        return guessed
    try:
        data.decode()
    except UnicodeDecodeError:
        return ANY_BYTES
    return ANY_BYTES if b"\x00" in data else "text/plain"


async def _put(store: ConversationStore, thread_id: str, file: Attachment | FileRef) -> FileRef:
    if isinstance(file, FileRef):
        # What is not there would be found missing by the model only.
        size = len(await store.get_blob(thread_id, file.blob))
        return file.with_(size_bytes=size)
    media_type = file.media_type or media_type_of(file.data, file.name)
    blob = await store.put_blob(thread_id, file.data, media_type)
    name = None if file.name is None else clip(file.name, NAME_CHARS)
    return FileRef(media_type=media_type, blob=blob, size_bytes=len(file.data), name=name)


def _read(path: str | Path) -> Attachment:
    path = Path(path)
    try:
        with path.open("rb") as opened:
            # One byte more tells a file that is too large from one that just fits, and a device never ends.
            data = opened.read(FILE_BYTES + 1)
    except (OSError, ValueError) as error:  # a path with a NUL in it is a ValueError
        why = getattr(error, "strerror", None) or str(error)
        raise UsageError(f"The file {clip(str(path), PREVIEW_CHARS)} cannot be read: {why}.") from error
    return Attachment(data, name=path.name)


def _check(file: object) -> None:
    if isinstance(file, bytes | bytearray | memoryview):
        raise UsageError("A file is given as bare bytes; give Attachment(bytes, ...).")
    if isinstance(file, FileRef):
        return
    if not isinstance(file, Attachment):
        raise UsageError(f"A file cannot be of the type {type(file).__name__}; give a path or Attachment(bytes, ...).")
    name = clip(file.name or "given as bytes", PREVIEW_CHARS)
    if len(file.data) > FILE_BYTES:
        raise UsageError(f"The file {name} is too large: at most {FILE_BYTES:,} bytes can be sent.")
    if not file.data:
        raise UsageError(f"The file {name} is empty.")
    media_type = file.media_type
    if media_type is None:
        return
    kind, _, rest = media_type.partition("/")
    if not (kind and rest and media_type.isprintable() and len(media_type) <= _TYPE_CHARS):
        shown = clip(media_type, PREVIEW_CHARS)
        raise UsageError(f"The media type of the file {name} is {shown!r}; give one such as `image/png`.")
