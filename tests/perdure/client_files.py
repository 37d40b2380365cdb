"""Files as clients write them: nothing in them is ours."""

from typing import Any

from perdure.codec import dumps
from perdure.interchange import ImportResult, read_import
from perdure.messages import Message, ToolCallPart, ToolResultPart

Json = dict[str, Any]

PAUSED: Json = {"type": "requires-action", "reason": "tool-calls"}
INTERRUPTED: Json = {"type": "requires-action", "reason": "interrupt"}
RUNNING: Json = {"type": "running"}
STOPPED: Json = {"type": "complete", "reason": "stop"}
DONE: Json = {"type": "complete", "reason": "unknown"}
CANCELLED: Json = {"type": "incomplete", "reason": "cancelled"}


def user(id: str, parent: str | None = None, content: object = "hi", **fields: object) -> Json:
    """An item with words of the user."""
    return {"parentId": parent, "message": {"id": id, "role": "user", "content": content, **fields}}


def assistant(id: str, parent: str | None, *content: Json, **fields: object) -> Json:
    """An item with an answer; without `status` none is given."""
    return {"parentId": parent, "message": {"id": id, "role": "assistant", "content": content, **fields}}


def text(words: str) -> Json:
    """A text entry."""
    return {"type": "text", "text": words}


def call(id: str = "c1", **fields: object) -> Json:
    """A tool call's entry."""
    return {"type": "tool-call", "toolCallId": id, "toolName": "buy", "args": {"n": 1}, "argsText": '{"n":1}', **fields}


def read(*items: Json, head: str | None = None) -> ImportResult:
    """What is read of a file."""
    return read_import(dumps({"headId": head, "messages": items}).encode("ascii"))


def message_of(result: ImportResult, id: str) -> Message:
    """The message of an id."""
    return next(one.message for one in result.messages if one.message.id == id)


def call_of(message: Message, id: str = "c1") -> ToolCallPart:
    """The call of an id."""
    return next(part for part in message.parts if isinstance(part, ToolCallPart) and part.call_id == id)


def results_of(message: Message) -> dict[str, tuple[str, str]]:
    """Outcome and content of the result of each call."""
    return {part.call_id: (part.outcome, part.content) for part in message.parts if isinstance(part, ToolResultPart)}
