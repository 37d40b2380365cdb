"""A conversation cut down to its words: what people and the model said, and one line for each tool call. Pure.

The lines stand on the user's side. As words of the model they would teach it to write such lines instead of calling
tools. Thoughts, files and what context providers said are left out.
"""

from typing import Final

from perdure.codec import clip
from perdure.messages import EventPart, FilePart, Message, Part, TextPart, ToolCallPart, ToolResultPart
from perdure.records import Path, Summary, SummaryItem
from perdure.summary_text import body, clipped
from perdure.view import clean
from perdure.view_files import file_note

ARGUMENT_CHARS: Final = 150
RESULT_CHARS: Final = 200
OLDER: Final = "[Older words of this conversation are left out here.]"
EARLIER: Final = "Summary of what came before:"


def trace(covered: Path, limit: int) -> tuple[SummaryItem, ...]:
    """What is left of a path, after what an earlier compaction has left of what came before it.

    Args:
        covered: what is left out for the model.
        limit: how many characters there may be; older ones give way to a note, and long ones are cut off.
    """
    each = max(limit // 4, RESULT_CHARS)
    new = [item.with_(text=clipped(item.text, each)) for message in covered.messages for item in _items(message)]
    return tuple(_newest([*_earlier(covered.summary), *new], limit))


def _earlier(summary: Summary | None) -> list[SummaryItem]:
    if summary is None:
        return []
    if summary.items:
        # The last one holds the facts, which are made anew.
        return [item for item in summary.items[:-1] if item.text != OLDER]
    words = body(summary.text)
    return [SummaryItem(role="user", text=f"{EARLIER}\n\n{words}")] if words else []


def _items(message: Message) -> list[SummaryItem]:
    results = {part.call_id: part for part in message.parts if isinstance(part, ToolResultPart)}
    called = {part.call_id for part in message.parts if isinstance(part, ToolCallPart)}
    found: list[SummaryItem] = []
    for part in message.parts:
        text = _text(part, message, results, called)
        if text.strip():
            spoken = isinstance(part, TextPart) and message.role == "assistant"
            found.append(SummaryItem(role="assistant" if spoken else "user", text=text))
    return found


def _text(part: Part, message: Message, results: dict[str, ToolResultPart], called: set[str]) -> str:
    match part:
        case TextPart():
            return clean(part.text)
        case ToolCallPart():
            return call_line(part, results.get(part.call_id))
        case ToolResultPart() if part.call_id not in called:
            return f"[tool result, {part.outcome}: {clip(part.content, RESULT_CHARS)}]"
        case EventPart():
            return f"[event of {part.origin_tool or 'a subscription'}: {clip(part.content, RESULT_CHARS)}]"
        case FilePart() if message.role != "assistant":
            return file_note(part.media_type, part.size_bytes, "sent earlier", part.name)
        case _:
            return ""


def call_line(call: ToolCallPart, result: ToolResultPart | None) -> str:
    """A call and what came of it, on one line."""
    came = "no result" if result is None else f"{result.outcome}: {clip(result.content, RESULT_CHARS)}"
    return f"[tool call {clip(call.tool, 64)}({clip(call.arguments, ARGUMENT_CHARS)}), {came}]"


def _newest(items: list[SummaryItem], limit: int) -> list[SummaryItem]:
    """As many of the newest as there is room for."""
    left = limit
    for at in range(len(items) - 1, -1, -1):
        left -= len(items[at].text)
        if left < 0:
            return [SummaryItem(role="user", text=OLDER), *items[at + 1 :]]
    return items
