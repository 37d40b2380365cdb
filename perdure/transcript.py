"""A conversation as plain text, whole: for mails, files and logs. Pure."""

from collections.abc import Iterable, Mapping

from perdure.approval import Decision
from perdure.codec import loads_object
from perdure.messages import EventPart, FilePart, Message, Part, TextPart, ToolCallPart, ToolResultPart
from perdure.waiting import ended_early, pending_approvals

_WHO = {"user": "User", "assistant": "Assistant", "event": "Event"}


def transcript(messages: Iterable[Message]) -> str:
    """One paragraph for each message, oldest first; calls and results are indented.

    Thoughts are left out, and so is what context providers told the model: they are no words of the conversation.
    """
    return "\n\n".join(_paragraph(message) for message in messages)


def _paragraph(message: Message) -> str:
    waiting = {call.call_id: call.request.prompt for call in pending_approvals([message])}
    lines = [line for part in message.parts for line in _lines(part, waiting)]
    status = message.status
    if status.state == "incomplete":
        why = ended_early(status)
        lines.append(f"({why}: {status.detail})" if status.detail else f"({why})")
    return f"{_WHO[message.role]}: " + "\n".join(lines)


def _lines(part: Part, waiting: Mapping[str, str]) -> list[str]:
    match part:
        case TextPart(text=text):
            return [text]
        case EventPart(content=content):
            return [content]
        case ToolCallPart(call_id=call_id, tool=tool, arguments=arguments, decision=decision):
            call = [f"  {tool}({arguments})"]
            if call_id in waiting:
                return [
                    *call,
                    f"  waits for approval: {waiting[call_id]}" if waiting[call_id] else "  waits for approval",
                ]
            return [*call, f"  {_decided(decision)}"] if decision else call
        case ToolResultPart(content=content, outcome=outcome, files=files):
            words = content if outcome == "ok" else _reason(content)
            return [f"  {outcome}: {words}", *(f"  [file, {file.media_type}]" for file in files)]
        case FilePart(name=name, media_type=media_type):
            return [f"  [{name or 'file'}, {media_type}]"]
        case _:
            return []


def _decided(decision: Decision) -> str:
    """What became of a question, and through whom."""
    what = decision.resolution or ("approved" if decision.approved else "denied")
    by = f" by {decision.by}" if decision.by else ""
    return f"{what}{by}{' as all such calls' if decision.remembered else ''}"


def _reason(content: str) -> str:
    """The words of a refusal, which models read as `{"error": "..."}`."""
    try:
        error = loads_object(content).get("error")
    except ValueError:  # words, as most tools give them
        return content
    return error if isinstance(error, str) else content
