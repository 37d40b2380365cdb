"""What the model reads in the place of a file that it does not get."""

from typing import Final

from perdure.codec import clip

LEFT_OUT: Final = "left out to keep the request within its size limit"


def file_note(media_type: str, size_bytes: int, why: str, name: str | None = None) -> str:
    """What stands in a file's place; the same at every read."""
    named = f"{clip(name, 100)}, " if name else ""
    kind = clip(media_type, 100) or "unknown type"
    return f"[file: {named}{kind}, {size_bytes} bytes; {why}]"
