"""Whether a message is as an import tells it: then the import leaves it alone, and all that hangs on it."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from operator import attrgetter
from typing import Any

from perdure.batch import (
    AnnotateMessage,
    AppendMessage,
    AppendParts,
    CommitResults,
    CommitStep,
    Decide,
    Operation,
    SetStatus,
    ShowInterim,
    StageResult,
    StoreLateResult,
)
from perdure.codec import Wire, dumps, loads
from perdure.messages import Message, Status, ToolResultPart, TurnOptions
from perdure.records import OpenCall
from stores.left_turn import unanswered
from stores.rows import Columns, decoded, to_part, to_status


@dataclass(frozen=True, slots=True)
class StoredContent:
    """What an import may replace of a message that is there, which does not run.

    `parts` are JSON texts. `calls` are its open calls: what is staged of them is a result in an export already.
    """

    status: Status
    parts: Sequence[str]
    metadata: Mapping[str, Any] | None
    source_id: str | None
    options: Wire | None
    calls: Sequence[OpenCall] = ()

    def equals(self, told: Message, interim: Iterable[ToolResultPart]) -> bool:
        """Whether the import says the same; its ids are those of the thread.

        What was spent, when it was and what opened it is no content: an import does not touch these.
        """
        return (
            self.status == told.status
            and self.source_id == told.source_id
            and _text(self.options) == _text(told.options)
            and _fields(self.metadata) == _fields(told.metadata)
            and self._has_parts(told)
            and self._shows(told, interim)
        )

    def _has_parts(self, told: Message) -> bool:
        calls = sorted(self.calls, key=attrgetter("position"))
        stored = [*self.parts, *(dumps(call.result) for call in calls if call.result is not None)]
        return len(stored) == len(told.parts) and all(map(_same, stored, map(dumps, told.parts)))

    def _shows(self, told: Message, interim: Iterable[ToolResultPart]) -> bool:
        is_open = {call.part.call_id for call in unanswered(told.parts)}
        shown = {result.call_id: dumps(result) for result in interim if result.call_id in is_open}
        return shown == {call.call_id: dumps(call.interim) for call in self.calls if call.interim and not call.result}


def to_content(row: Columns, calls: Sequence[OpenCall]) -> StoredContent:
    """A row of the statement `message_content`, with the open calls of the message."""
    options = row["options"]
    return StoredContent(
        status=to_status(row),
        parts=row["parts"],
        metadata=decoded(row["metadata"]),
        source_id=row["source_id"],
        options=None if options is None else TurnOptions.model_validate(loads(options)),
        calls=calls,
    )


def touched(operation: Operation, owners: Mapping[str, str]) -> frozenset[str]:
    """The messages whose content an operation may change; `owners` are those of the open calls.

    An import that follows in the same batch takes them for changed: nobody can read yet what they will be.
    """
    named: list[str | None]
    match operation:
        case AppendMessage(message=message):
            named = [message.id]
        case CommitStep() | AppendParts() | CommitResults() | SetStatus() | AnnotateMessage():
            named = [operation.message_id]
        case StoreLateResult(message_id=message_id, result=result):
            named = [message_id, owners.get(result.call_id)]
        case StageResult(result=result) | ShowInterim(result=result):
            named = [owners.get(result.call_id)]
        case Decide(call_id=call_id):
            named = [owners.get(call_id)]
        case _:
            named = []
    return frozenset(name for name in named if name is not None)


def _same(stored: str, told: str) -> bool:
    # Most are the same text. A row may also hold its fields in another order, or some that are their default by now.
    return stored == told or dumps(to_part(stored)) == told


def _text(value: Wire | None) -> str | None:
    return None if value is None else dumps(value)


def _fields(metadata: Mapping[str, Any] | None) -> Mapping[str, str]:
    # In any order: an export has a place of its own for some of them. As texts, since 1 and 1.0 are not the same.
    return {key: dumps(value) for key, value in (metadata or {}).items()}
