"""How long a conversation is for a model, estimated: characters of its parts, and how many of them make a token."""

from typing import Final

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
from perdure.records import Path, Summary

PART_CHARS: Final = 20
"""What a provider's format adds to each part, roughly."""

FILE_CHARS: Final = 6_000
"""A file counts as so many characters: providers take one to two thousand tokens for an image, whatever its bytes."""

DEFAULT_CHARS_PER_TOKEN: Final = 4.0
_LEAST, _MOST = 1.0, 8.0
_TURNS_LOOKED_AT: Final = 8


def part_chars(part: Part) -> int:
    """The characters that a part puts before the model. Texts in blobs must have been resolved."""
    match part:
        case TextPart() | ReasoningPart() | ContextPart():
            return PART_CHARS + len(part.text)
        case ToolCallPart():
            return PART_CHARS + len(part.tool) + len(part.arguments)
        case ToolResultPart():
            return PART_CHARS + len(part.content) + FILE_CHARS * len(part.files)
        case EventPart():
            return PART_CHARS + len(part.content) + len(part.origin_arguments or "")
        case FilePart():
            return FILE_CHARS


def message_chars(message: Message) -> int:
    """The characters of all its parts."""
    return sum(map(part_chars, message.parts))


def summary_chars(summary: Summary | None) -> int:
    """The characters of what a summary puts before the model."""
    if summary is None:
        return 0
    return sum(PART_CHARS + len(item.text) for item in summary.items) or len(summary.text)


def path_chars(path: Path) -> int:
    """The characters of a conversation as the model reads it, its summary included."""
    return summary_chars(path.summary) + sum(map(message_chars, path.messages))


def chars_per_token(path: Path) -> float:
    """How many characters of this conversation make a token, by what the provider counted in its last turns.

    Each step of a turn has read all that precedes it, so the characters before its steps and the input tokens of the
    turn tell the ratio, for this language and this model. Instructions and tools are counted by the provider and are
    not on the path, which makes the ratio smaller and the estimate of tokens larger: never too small. Turns that were
    answered before a summary came in have read more than the path shows; so the largest ratio of the last few counts.
    """
    found: list[float] = []
    before = summary_chars(path.summary)
    for message in path.messages:
        usage = message.usage
        starts = _step_starts(message, before)
        if usage is not None and usage.requests > 0 and usage.input_tokens > 0 and starts:
            found.append((sum(starts) / len(starts)) / (usage.input_tokens / usage.requests))
        before += message_chars(message)
    if not found:
        return DEFAULT_CHARS_PER_TOKEN
    return min(max(_LEAST, *found[-_TURNS_LOOKED_AT:]), _MOST)


def _step_starts(message: Message, before: int) -> list[int]:
    """How many characters precede each step of a turn."""
    starts: dict[int, int] = {}
    for part in message.parts:
        starts.setdefault(part.step, before)
        before += part_chars(part)
    return list(starts.values())
