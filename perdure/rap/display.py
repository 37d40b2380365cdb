"""What people are shown of a result in place of its text (RAP, basic/tool-result). The model never sees it.

Segments come best first; whoever shows them takes the first of a type that they know and can read, else the text.
"""

from collections.abc import Collection
from typing import Any, Final, cast

from perdure.codec import clip, dumps, is_json, loads, loads_object

TERMINAL: Final = frozenset({"text", "diff"})
"""The types that a terminal can show."""

CALL_CHARS: Final = 200


def display_json(display_as: object, words: str) -> str | None:
    """The segments that a server offered as JSON text, the result's own words as the last one.

    Types that are not known yet are kept, for readers that know them. None if there is nothing to choose from.
    """
    segments = _segments(display_as)
    if not segments:
        return None
    last = {"type": "text", "content": words}
    return dumps(segments if segments[-1] == last else [*segments, last])


def shown(display: str | None, words: str, types: Collection[str] = TERMINAL) -> str:
    """What somebody sees who can show these types: the first segment that fits, else the words of the result."""
    try:
        segments = _segments(loads(display)) if display else []
    except ValueError:
        return words
    texts = (_text(segment) for segment in segments if segment["type"] in types)
    return next((text for text in texts if text is not None), words)


def call_text(tool: str, arguments: str) -> str:
    """A call as a person reads it: `get_time(timezone="Europe/London")`."""
    try:
        pairs = loads_object(arguments).items()
    except ValueError:
        return clip(f"{tool}({arguments})", CALL_CHARS)
    return clip(f"{tool}({', '.join(f'{name}={dumps(value)}' for name, value in pairs)})", CALL_CHARS)


def _segments(display_as: object) -> list[dict[str, Any]]:
    items = cast("list[object]", display_as) if isinstance(display_as, list) else []
    return [segment for item in items if (segment := _segment(item)) is not None]


def _segment(item: object) -> dict[str, Any] | None:
    if not isinstance(item, dict) or not is_json(cast("object", item)):
        return None
    segment = cast("dict[str, Any]", item)
    return segment if isinstance(segment.get("type"), str) and "content" in segment else None


def _text(segment: dict[str, Any]) -> str | None:
    """A segment in characters; None if it lacks what its type has."""
    match segment:
        case {"type": "text", "content": str(text)}:
            return text
        case {"type": "diff", "content": {"path": str(path), "patch": str(patch)}}:
            return f"{path}\n{patch}"
        case {"type": "image", "content": {"data": str(), "mediaType": str(media_type)}}:
            return f"[image: {media_type}]"
        case _:
            return None
