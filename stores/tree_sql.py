"""What was done to the message tree, as the SQL function `append_messages` takes it."""

from collections.abc import Collection
from typing import Any

from perdure.batch import AppendMessage, ImportMessages
from perdure.codec import dumps
from perdure.messages import Part, ToolCallPart
from stores.batch_sql import row
from stores.left_turn import unanswered
from stores.rows import encoded
from stores.tree_change import Applied
from stores.tree_import import ImportedRow

OPEN_STATES = ("running", "requires_action")


def append(operation: AppendMessage, applied: Applied) -> dict[str, Any]:
    """A new message at its place."""
    message = operation.message
    place = next(node.place for node in applied.delta.nodes if node.id == message.id)
    parent = {"at_root": applied.parent_id is None, "parent_id": applied.parent_id}
    return {
        "kind": "append_messages",
        "messages": [
            {
                **row(message),
                **parent,
                "at": 1,
                "on_head": False,
                "turn": message.turn,
                "input_id": message.input_id,
                "place": place,
            }
        ],
        "parts": _parts(message.id, message.parts, 1),
        "count": 1 + len(message.parts),
        "head_id": message.id,
        "turn": message.turn,
    }


def change_tree(applied: Applied, new: Collection[str] = (), input_id: str | None = None) -> dict[str, Any]:
    """The rest of what an operation did, besides the `new` messages. The input is one that no message carries."""
    delta = applied.delta
    root = dict(delta.remembered)
    return {
        "kind": "change_tree",
        "moved": [
            {"id": node.id, "parent_id": node.parent_id, "place": node.place}
            for node in delta.nodes
            if node.id not in new
        ],
        "remembered": [{"id": name, "child_id": child} for name, child in delta.remembered if name is not None],
        **({"root": root[None]} if None in root else {}),
        "head_id": delta.head_id,
        "removed": delta.removed,
        "heir_id": applied.heir_id,
        "place": max((node.place for node in delta.nodes), default=0),
        "redraws": applied.redraws,
        "reshapes": applied.reshapes,
        **({"inputs": [input_id]} if input_id is not None else {}),
    }


def import_messages(operation: ImportMessages, applied: Applied) -> dict[str, Any]:
    """The content of an import: the messages that it adds or changes."""
    places = {node.id: node.place for node in applied.delta.nodes}
    messages: list[dict[str, Any]] = []
    parts: list[dict[str, Any]] = []
    calls: list[dict[str, Any]] = []
    at = 0
    for imported in applied.imported:
        message = imported.message
        at += 1
        messages.append(
            {
                **row(message),
                "at": at,
                "known": imported.known,
                "parent_id": message.parent_id,
                "turn": message.turn,
                "place": places.get(message.id),
                "given_id": imported.given_id,
                "created_at": imported.created_at,
            }
        )
        parts += _parts(message.id, message.parts, at)
        at += len(message.parts)
        interim = {result.call_id: result for result in imported.interim}
        for call in _calls(imported):
            at += call["result"] is not None
            preliminary = encoded(interim.get(call["call_id"]))
            calls.append({**call, "interim": preliminary, "at": None if call["result"] is None else at})
    return {
        "kind": operation.kind,
        "blob": operation.blob,
        "messages": messages,
        "parts": parts,
        "calls": calls,
        "count": at,
        "turn": max((imported.message.turn for imported in applied.imported), default=0),
    }


def opened(imported: ImportedRow) -> tuple[str, ...]:
    """The ids of the calls that are open when the message has been imported."""
    return tuple(call["call_id"] for call in _calls(imported))


def _parts(message_id: str, parts: tuple[Part, ...], at: int) -> list[dict[str, Any]]:
    return [
        {"message_id": message_id, "position": position, "at": at + 1 + position, **_body(part)}
        for position, part in enumerate(parts)
    ]


def _body(part: Part) -> dict[str, Any]:
    # What was decided has a column of its own: it is set once and nowhere else.
    if isinstance(part, ToolCallPart) and part.decision is not None:
        return {"body": dumps(part.with_(decision=None)), "decision": dumps(part.decision)}
    return {"body": dumps(part)}


def _calls(imported: ImportedRow) -> list[dict[str, Any]]:
    message = imported.message
    if message.role != "assistant" or message.status.state not in OPEN_STATES:
        return []
    return [
        {
            "call_id": call.part.call_id,
            "message_id": message.id,
            "position": call.position,
            "turn": message.turn,
            "step": call.part.step,
            "index": call.index,
            "result": encoded(call.part.refusal),
        }
        for call in unanswered(message.parts)
    ]
