"""The conversation as it will be when the pending operations are written. Pure; for readers in the same process."""

from collections.abc import Iterable

from perdure.batch import AppendMessage, AppendParts, CommitResults, Operation, SetStatus
from perdure.messages import Message, Part


def with_pending(committed: Iterable[Message], operations: Iterable[Operation]) -> tuple[Message, ...]:
    """The committed path, then what the operations bring.

    Left out is what only the store can fill in: the turn buffer that a `CommitStep` takes its parts from, and results
    that are staged there.
    """
    messages = {message.id: message for message in committed}
    for operation in operations:
        match operation:
            case AppendMessage(message=message):
                messages.setdefault(message.id, message)
            case AppendParts(message_id=message_id, start=start, parts=parts):
                messages[message_id] = _placed(messages[message_id], start, parts)
            case CommitResults(message_id=message_id, start=start, results=results):
                messages[message_id] = _placed(messages[message_id], start, results)
            case SetStatus(message_id=message_id, status=status):
                messages[message_id] = messages[message_id].with_(status=status)
            case _:
                pass
    return tuple(messages.values())


def _placed(message: Message, start: int, parts: tuple[Part, ...]) -> Message:
    # A position rather than the end, so that a path which has the parts already does not get them twice.
    return message.with_(parts=message.parts[:start] + parts + message.parts[start + len(parts) :])
