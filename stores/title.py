"""The title of a thread that was named after its first words: it goes when these do."""

from collections.abc import Iterable

from perdure.codec import clip
from perdure.contract import NAME_CHARS, PREVIEW_CHARS
from perdure.messages import EventPart, Part, TextPart

BEGINNING_BYTES = 4096
"""Of a text in a blob this is enough: a title is made of the first 800 characters at most."""


def words_of(parts: Iterable[Part]) -> list[TextPart | EventPart]:
    """The parts that a thread may be named after, if they are of a message that is no answer."""
    return [part for part in parts if isinstance(part, TextPart | EventPart)]


def is_named_after(title: str | None, part: TextPart | EventPart, blobs: dict[str, bytes]) -> bool:
    """Whether a title is the beginning of these words, as clients and child threads make it.

    `blobs` are the beginnings of those that large words are in; of one that is gone nobody can tell.
    """
    if part.blob is not None:
        words = _decoded(blobs.get(part.blob, b""))
    else:
        words = part.text if isinstance(part, TextPart) else part.content
    return bool(title) and title in {clip(words, PREVIEW_CHARS), clip(words, NAME_CHARS)}


def _decoded(beginning: bytes) -> str:
    end = len(beginning)
    if end >= BEGINNING_BYTES:
        # Its last character may be cut.
        end = max(at for at in range(end) if beginning[at] & 0xC0 != 0x80)
    return beginning[:end].decode("utf-8", "surrogatepass")
