"""A conversation as plain text, whole: for mails, files and logs. Pure."""

from collections.abc import Iterable

from perdure.messages import EventPart, FilePart, Message, Part, TextPart, ToolCallPart, ToolResultPart

_WHO = {"user": "User", "assistant": "Assistant", "event": "Event"}


def transcript(messages: Iterable[Message]) -> str:
    """One paragraph for each message, oldest first; calls and results are indented. Thoughts are left out."""
    return "\n\n".join(_paragraph(message) for message in messages)


def _paragraph(message: Message) -> str:
    lines = [line for part in message.parts for line in _lines(part)]
    status = message.status
    if status.state == "incomplete":
        lines.append(f"({status.reason}: {status.detail})" if status.detail else f"({status.reason})")
    return f"{_WHO[message.role]}: " + "\n".join(lines)


def _lines(part: Part) -> list[str]:
    match part:
        case TextPart(text=text):
            return [text]
        case EventPart(content=content):
            return [content]
        case ToolCallPart(tool=tool, arguments=arguments):
            return [f"  {tool}({arguments})"]
        case ToolResultPart(content=content, outcome=outcome, files=files):
            return [f"  {outcome}: {content}", *(f"  [file, {file.media_type}]" for file in files)]
        case FilePart(name=name, media_type=media_type):
            return [f"  [{name or 'file'}, {media_type}]"]
        case _:
            return []
