"""Files on their way to the model: which of them a request has room for, and what is said instead of the others."""

from collections.abc import Iterator

from perdure.codec import clip
from perdure.messages import FilePart, ToolResultPart
from perdure.records import Path

FILE_BYTES = 12 * 1024 * 1024
"""Files of one request, before base64 makes them a third larger: the tightest common limit of a request is 20 MB."""

LEFT_OUT = "left out to keep the request within its size limit"

Place = tuple[str, int, int]
"""Where a file stands: the id of its message, the position of its part, and its index in that part."""


def dropped_files(path: Path, limit: int) -> frozenset[Place]:
    """The files that give way to a note, the oldest first, whether people sent them or tools.

    When the limit is crossed files go until half of it is free, so that the start of the request changes rarely and
    not with every new file. A file that is larger than the limit by itself goes at once.
    """
    shown: list[tuple[Place, int]] = []
    dropped: set[Place] = set()
    total = 0
    for place, size_bytes in _files(path):
        if size_bytes > limit:
            dropped.add(place)
            continue
        shown.append((place, size_bytes))
        total += size_bytes
        if total > limit:
            while len(shown) > 1 and total > limit // 2:
                oldest, size = shown.pop(0)
                dropped.add(oldest)
                total -= size
    return frozenset(dropped)


def file_note(media_type: str, size_bytes: int, why: str, name: str | None = None) -> str:
    """What stands in a file's place; the same at every read."""
    named = f"{clip(name, 100)}, " if name else ""
    kind = clip(media_type, 100) or "unknown type"
    return f"[file: {named}{kind}, {size_bytes} bytes; {why}]"


def _files(path: Path) -> Iterator[tuple[Place, int]]:
    for message in path.messages:
        for position, part in enumerate(message.parts):
            match part:
                case FilePart():
                    yield (message.id, position, 0), part.size_bytes
                case ToolResultPart():
                    for index, file in enumerate(part.files):
                        yield (message.id, position, index), file.size_bytes
                case _:
                    pass
