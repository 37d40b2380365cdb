"""A batch as the SQL function `append_messages` takes it.

Bodies are JSON text within JSON, so whatever they hold reaches PostgreSQL as printable ASCII. New messages that
follow each other are one operation: a storm of inputs is two INSERT statements, however many they are.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Any

from perdure.batch import (
    AppendMessage,
    AppendParts,
    CloseThread,
    CommitResults,
    CommitStep,
    Decide,
    ForgetDecisions,
    ImportMessages,
    Operation,
    RememberDecision,
    RemoveSubscription,
    SetDue,
    SetStatus,
    ShowInterim,
    StageResult,
    StoreLateResult,
    SyncBatch,
    TrackSubscription,
)
from perdure.codec import dumps
from perdure.errors import StoreError
from perdure.messages import EventPart, Message, Part, TextPart, ToolCallPart, Usage
from stores.rows import encoded
from stores.tree_change import input_of


@dataclass(frozen=True, slots=True)
class CoalescedStep:
    """What is left of a step that did not end by itself.

    `usage` is that of the answer that attempt `attempt` had stored by then: who stops the step does not know of it.
    """

    parts: tuple[Part, ...]
    attempt: int
    usage: Usage


CoalescedSteps = dict[tuple[int, int], CoalescedStep]
"""By (turn, step)."""


def inputs(batch: SyncBatch) -> dict[str, str | None]:
    """The digests of the inputs that the batch brings, by their ids, in order.

    Raises:
        StoreError: if no thread could take such a batch.
    """
    appended = [operation for operation in batch.operations if isinstance(operation, AppendMessage)]
    later = {operation.message.id for operation in appended}
    for operation in appended:
        message = operation.message
        if message.parent_id in later:  # PostgreSQL would take it: within one statement it allows circles
            raise StoreError(f"bug: message {message.id} has the parent {message.parent_id}, which is not stored")
        later.discard(message.id)
    found: dict[str, str | None] = {}
    for brought in filter(None, map(input_of, batch.operations)):
        if brought[0] in found:
            raise StoreError(f"bug: a batch brings the input {brought[0]} twice")
        found[brought[0]] = brought[1]
    return found


def blobs(batch: SyncBatch) -> dict[str, set[str]]:
    """The blobs that hold the words of inputs, by the ids of these; inputs without any are left out.

    That of an import is among them if nothing was read from it: it might not be there, and is not one of nothing then.
    """
    found: dict[str, set[str]] = {}
    for operation in batch.operations:
        if isinstance(operation, AppendMessage) and operation.message.input_id is not None:
            for part in operation.message.parts:
                if isinstance(part, TextPart | EventPart) and part.blob is not None:
                    found.setdefault(operation.message.input_id, set()).add(part.blob)
        elif isinstance(operation, ImportMessages) and not operation.messages:
            found.setdefault(operation.input_id, set()).add(operation.blob)
    return found


def wanted_calls(batch: SyncBatch) -> set[str]:
    """The calls that must be open for the batch to be written: those of results that name no message."""
    late = (operation for operation in batch.operations if isinstance(operation, StoreLateResult) and operation.named)
    return {operation.result.call_id for operation in late if operation.message_id is None}


def durable_steps(batch: SyncBatch) -> tuple[tuple[int, int], ...]:
    """What the batch's report says, also when it is asked for again: it follows from the batch alone."""
    return tuple(
        (operation.turn, operation.step)
        for operation in batch.operations
        if isinstance(operation, CommitStep) and not operation.discard
    )


def operations(batch: SyncBatch, coalesced: CoalescedSteps) -> list[dict[str, Any]]:
    """The operations in order."""
    encoded_operations: list[dict[str, Any]] = []
    for appending, group in groupby(batch.operations, key=lambda operation: isinstance(operation, AppendMessage)):
        if appending:
            encoded_operations.append(_messages([op for op in group if isinstance(op, AppendMessage)]))
        else:
            encoded_operations.extend(to_json(operation, coalesced) for operation in group)
    _count_with_status(batch.operations, encoded_operations)
    return encoded_operations


def _count_with_status(batch: Sequence[Operation], encoded_operations: list[dict[str, Any]]) -> None:
    """What a turn has cost is written with its status if the batch sets that: one version of its row and not two."""
    spent: dict[str, Usage] = {}
    for operation in batch:
        if isinstance(operation, CommitStep) and operation.usage != Usage():
            spent[operation.message_id] = spent.get(operation.message_id, Usage()) + operation.usage
    settling = {fields["message_id"]: fields for fields in encoded_operations if fields["kind"] == "set_status"}
    for message_id in spent.keys() & settling.keys():
        settling[message_id]["usage"] = dumps(spent[message_id])
    for fields in encoded_operations:
        if fields["kind"] == "commit_step" and fields["message_id"] in settling:
            fields["with_status"] = True


def calls(parts: Sequence[Part], at_step: tuple[int, int] | None = None) -> list[dict[str, Any]]:
    """The calls among parts: offset, index among the calls, and the result of those that were refused.

    Without `at_step`, (turn, step), the turn is that of the message and the step that of the part.
    """
    turn, step = at_step or (None, None)
    found = [(at, part) for at, part in enumerate(parts) if isinstance(part, ToolCallPart)]
    return [
        {
            "call_id": part.call_id,
            "at": at,
            "turn": turn,
            "step": part.step if step is None else step,
            "index": index,
            "result": encoded(part.refusal),
        }
        for index, (at, part) in enumerate(found)
    ]


def _messages(appended: list[AppendMessage]) -> dict[str, Any]:
    messages: list[dict[str, Any]] = []
    parts: list[dict[str, Any]] = []
    at = 0
    previous: str | None = None
    for operation in appended:
        message = operation.message
        at += 1
        messages.append(
            {
                "at": at,
                # Only the database knows the head that the first of them follows.
                "on_head": message.parent_id is None and previous is None,
                "parent_id": message.parent_id or previous,
                "parent_parts": message.parent_parts,
                "turn": message.turn,
                "input_id": message.input_id,
                **row(message),
            }
        )
        for position, part in enumerate(message.parts):
            at += 1
            parts.append({"message_id": message.id, "position": position, "at": at, "body": dumps(part)})
        previous = message.id
    turn = max(operation.message.turn for operation in appended)
    apart = [op.input_id for op in appended if op.input_id not in (None, op.message.input_id)]
    return {
        "kind": "append_messages",
        "messages": messages,
        "parts": parts,
        "count": at,
        "head_id": previous,
        "turn": turn,
        **({"inputs": apart} if apart else {}),
    }


def row(message: Message) -> dict[str, Any]:
    """The columns of a message that are the same however it comes into the tree."""
    return {
        "id": message.id,
        "role": message.role,
        "state": message.status.state,
        "reason": message.status.reason,
        "detail": encoded(message.status.detail),
        "metadata": encoded(message.metadata),
        "source_id": message.source_id,
        **({"options": dumps(message.options)} if message.options is not None else {}),
        **({"usage": dumps(message.usage)} if message.usage is not None else {}),
    }


def to_json(operation: Operation, coalesced: CoalescedSteps) -> dict[str, Any]:
    """An operation that does nothing to the tree but to go on at the head."""
    match operation:
        case AppendParts():
            return {
                **_place(operation),
                "parts": [dumps(part) for part in operation.parts],
                "calls": calls(operation.parts),
            }
        case CommitStep():
            return _commit_step(operation, coalesced.get((operation.turn, operation.step)))
        case StageResult(result=result):
            return {"kind": operation.kind, "call_id": result.call_id, "result": dumps(result)}
        case CommitResults():
            results = {result.call_id: dumps(result) for result in operation.results}
            return {**_place(operation), "call_ids": operation.call_ids, "results": results}
        case SetStatus():
            return _set_status(operation)
        case TrackSubscription():
            return {
                "kind": operation.kind,
                "call_id": operation.call_id,
                "tool": operation.tool,
                "arguments": dumps(operation.arguments),
                "received": operation.received,
                "paused": encoded(operation.paused),
            }
        case RemoveSubscription():
            return {"kind": operation.kind, "call_id": operation.call_id}
        case SetDue():
            return {"kind": operation.kind, "call_id": operation.call_id, "due": operation.due}
        case CloseThread() | ForgetDecisions():
            return {"kind": operation.kind}
        case Decide():
            return {"kind": operation.kind, "call_id": operation.call_id, "decision": dumps(operation.decision)}
        case RememberDecision(remembered=known):
            return {
                "kind": operation.kind,
                "tool": dumps(known.tool),
                "arguments": known.arguments,
                "approved": known.approved,
                "by": encoded(known.by),
            }
        case ShowInterim(result=result):
            return {"kind": operation.kind, "call_id": result.call_id, "result": dumps(result)}
        case StoreLateResult():
            return _late_result(operation)
        case AppendMessage():
            return _messages([operation])
        case _:
            raise StoreError(f"bug: {operation.kind} needs the tree")


def _place(operation: AppendParts | CommitStep | CommitResults) -> dict[str, Any]:
    return {"kind": operation.kind, "message_id": operation.message_id, "start": operation.start}


def _commit_step(operation: CommitStep, coalesced: CoalescedStep | None) -> dict[str, Any]:
    fields: dict[str, Any] = {
        **_place(operation),
        "turn": operation.turn,
        "step": operation.step,
        "discard": operation.discard,
        "trim_reasoning": operation.trim_reasoning,
        **({"usage": dumps(operation.usage)} if operation.usage != Usage() else {}),
    }
    if coalesced is None:
        return fields
    call = {"attempt": coalesced.attempt, "usage": dumps(coalesced.usage)}
    unknown = coalesced.usage != Usage() and operation.usage == Usage()
    return {**fields, "parts": [dumps(part) for part in coalesced.parts], **({"call": call} if unknown else {})}


def _late_result(operation: StoreLateResult) -> dict[str, Any]:
    result = operation.result
    return {
        "kind": operation.kind,
        "message_id": operation.message_id,
        "call_id": result.call_id,
        "result": dumps(result),
        # The step is that of the part whose place this takes, and `named` what that part must say of its call.
        "placed": dumps(result.with_(step=0)),
        "named": f'"call_id":{dumps(result.call_id)}',
        "refuses": operation.named,
        "subscribes": operation.subscribes,
        "interim": operation.interim,
    }


def _set_status(operation: SetStatus) -> dict[str, Any]:
    return {
        "kind": operation.kind,
        "message_id": operation.message_id,
        "state": operation.status.state,
        "reason": operation.status.reason,
        "detail": encoded(operation.status.detail),
    }
