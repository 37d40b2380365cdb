"""Paths written out by hand, and what a cut of them must keep."""

from perdure.contract import CompactRequest
from perdure.messages import Message, Part, ReasoningPart, Role, Status, TextPart, ToolCallPart, ToolResultPart
from perdure.path_size import message_chars
from perdure.records import Path, Summary
from perdure.summary_cut import Cut, Place, cut, places
from perdure.view import Request, Response, view

THREAD = "t"
RUNNING = Status(state="running")


def path(*messages: Message, summary: Summary | None = None) -> Path:
    """A path of these messages."""
    return Path(messages=messages, summary=summary)


def user(id: str, *parts: Part | str, thread: str = THREAD) -> Message:
    """A message of the user."""
    return message(id, "user", parts, thread=thread)


def answer(id: str, *parts: Part | str, status: Status | None = None, thread: str = THREAD) -> Message:
    """A message of the model."""
    return message(id, "assistant", parts, status or Status(), thread)


def message(
    id: str, role: Role, parts: tuple[Part | str, ...], status: Status | None = None, thread: str = THREAD
) -> Message:
    """Any message; text stands for its part."""
    given = tuple(TextPart(text=part) if isinstance(part, str) else part for part in parts)
    return Message(id=id, thread_id=thread, role=role, parts=given, status=status or Status())


def text(words: str, step: int = 0) -> TextPart:
    """Words in a step."""
    return TextPart(text=words, step=step)


def call(call_id: str, step: int = 0) -> ToolCallPart:
    """A call in a step."""
    return ToolCallPart(call_id=call_id, tool="look_up", arguments='{"key":1}', step=step)


def result(call_id: str, content: str = "found", step: int = 0) -> ToolResultPart:
    """Its result."""
    return ToolResultPart(call_id=call_id, content=content, step=step)


def thought(words: str, step: int = 0) -> ReasoningPart:
    """A signed thought in a step."""
    return ReasoningPart(text=words, signature=f"sign {words}", step=step)


def request(given: Path, *, forced: bool = True, number: int = 1) -> CompactRequest:
    """A compaction up to the end of the path."""
    return CompactRequest(thread_id=THREAD, agent="a", message_id=given.messages[-1].id, number=number, forced=forced)


def summarised(made: Cut, words: str = "SUMMARY") -> Path:
    """What the store loads once a summary hangs on the cut."""
    summary = Summary(id="s", thread_id=THREAD, message_id=made.message_id, parts=made.parts, text=words)
    return Path(messages=made.kept, summary=summary)


def all_cuts(given: Path) -> list[tuple[Place, Cut]]:
    """The path cut at every place where it may be."""
    return [(place, cut(given, place)) for place in places(given, THREAD)]


def positions(messages: tuple[Message, ...]) -> list[tuple[str, Part]]:
    """Every part with its message, in order."""
    return [(message.id, part) for message in messages for part in message.parts]


def chars_after(given: Path, place: Place) -> int:
    """How many characters stay, counted anew."""
    return sum(map(message_chars, cut(given, place).kept))


def seen(given: Path) -> tuple[Request | Response, ...]:
    """What the model reads."""
    return view(given)
