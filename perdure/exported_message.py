"""A message as assistant-ui has it, there and back."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Final, cast

from pydantic import ValidationError

from perdure.codec import Text
from perdure.exported_part import OURS, ContentWriter, Files, plain_fields
from perdure.exported_status import exact_status, read_status, shown_status
from perdure.exported_usage import read_options, read_usage, shown_steps
from perdure.import_fields import Fault, Json, each, mapping, name, optional, text
from perdure.imported_part import PARTS, ContentReader
from perdure.message_content import Entry, Placed, Steps, entries, without_context
from perdure.messages import (
    ContextPart,
    EventPart,
    Message,
    Role,
    Status,
    TextPart,
    ToolResultPart,
    TurnOptions,
    Usage,
)
from perdure.records import OpenCall, TreeMessage

RUN_CONFIG: Final = "runConfig"
FEEDBACK: Final = "feedback"
"""Keys of a message's metadata that have a place of their own there; the second holds what a person thinks of it."""

_THEIR_FEEDBACK: Final = "submittedFeedback"


@dataclass(slots=True)
class ListedMessage:
    """A message of a file: its content, and its status if one is given. `left_out` says why it is none of ours.

    `context` is what stands among the parts of the content and is no word of the conversation.
    """

    id: str
    parent_id: str | None
    role: Role
    content: list[Entry]
    status: Status | None = None
    order: list[int] | None = None
    created_at: str | None = None
    metadata: Json | None = None
    source_id: str | None = None
    context: list[Placed] | None = None
    options: TurnOptions | None = None
    usage: Usage | None = None
    left_out: str | None = None


def exported(
    stored: TreeMessage, parent_id: str | None, ids: Mapping[str, str], calls: Sequence[OpenCall], files: Files
) -> Json:
    """An item of an export.

    Args:
        stored: the message.
        parent_id: its parent in the tree.
        ids: the ids to use for those of the thread's messages.
        calls: its open calls.
        files: what the blobs in it hold.
    """
    message = stored.message
    metadata = dict(message.metadata or {})
    item: Json = {"parentId": None if parent_id is None else ids[parent_id]}
    shown: Json = {"id": ids[message.id]}
    if stored.created_at is not None:
        shown["createdAt"] = iso(stored.created_at)
    shown["role"] = "system" if message.role == "event" else message.role
    own = _own(message, ids)
    shown["content"] = _content(message, calls, files, own)
    if isinstance(metadata.get(RUN_CONFIG), dict):
        item[RUN_CONFIG] = metadata.pop(RUN_CONFIG)
    if message.role == "assistant":
        shown["status"] = shown_status(message.status)
        if read_status(shown["status"]) != message.status:
            own["status"] = _status(message.status)
        known: Json = {"unstable_state": None, "unstable_annotations": [], "unstable_data": []}
        known["steps"] = shown_steps(message.usage)
        if (feedback := _feedback(metadata.get(FEEDBACK), "value", "type")) is not None:
            known[_THEIR_FEEDBACK] = feedback
            del metadata[FEEDBACK]
        shown["metadata"] = {**known, "custom": metadata}
    else:
        shown["metadata"] = {"custom": metadata}
        if message.role == "user":
            shown["attachments"] = []
    if own:
        shown[OURS] = own
    return {**item, "message": shown}


def read_message(item: Json, reader: ContentReader) -> ListedMessage:
    """An item of an export as a message. Raises Fault."""
    parent_id = name(item, "parentId") if item.get("parentId") is not None else None
    run_config = optional(item, RUN_CONFIG)
    try:
        fields = mapping(item.get("message"))
        given = fields.get("metadata")
        metadata = {} if given is None else mapping(given, ".metadata")
        listed = _read(fields, metadata, parent_id, reader)
        listed.metadata = _metadata(metadata, run_config)
    except Fault as fault:
        raise fault.under(".message") from None
    return listed


def iso(at: datetime) -> str:
    """A time as text, in UTC; to the millisecond as JavaScript has it, or further if it is."""
    precision = "microseconds" if at.microsecond % 1_000 else "milliseconds"
    return at.astimezone(UTC).isoformat(timespec=precision).removesuffix("+00:00") + "Z"


def _own(message: Message, ids: Mapping[str, str]) -> Json:
    # What opened it is not told: an input is known to the thread that took it, and to no other.
    own: Json = {}
    if message.source_id is not None:
        own["source_id"] = ids.get(message.source_id, message.source_id)
    if message.options is not None:
        own["options"] = plain_fields(message.options)
    if message.usage is not None:
        own["usage"] = plain_fields(message.usage)
    return own


def _content(message: Message, calls: Sequence[OpenCall], files: Files, own: Json) -> list[Json]:
    writer = ContentWriter(message.thread_id, files, Steps())
    if message.role == "event":
        # A message of this role holds one text there. Clients draw none by themselves, so events do not pass for words
        # of the user.
        own["role"] = message.role
        own["parts"] = [writer.whole(part) for part in message.parts]
        return [{"type": "text", "text": _words(message)}]
    parts, context = without_context(message.parts)
    if context:
        # Clients would take it for something that was said, so it stands beside the content.
        own["context"] = [{"position": position, **writer.whole(part)} for position, part in context]
    if message.role != "assistant":
        return [writer.entry(Entry(part), message.role) for part in parts]
    staged = [call.result for call in sorted(calls, key=lambda call: call.position) if call.result is not None]
    found, order = entries((*parts, *staged))
    if order is not None:
        own["order"] = order
    interim: dict[str, ToolResultPart] = {call.call_id: call.interim for call in calls if call.interim is not None}
    for entry in found:
        if entry.is_open:
            entry.interim = interim.get(getattr(entry.part, "call_id", ""))
    return [writer.entry(entry, message.role) for entry in found]


def _words(message: Message) -> str:
    words: list[Text] = []
    for part in message.parts:
        if isinstance(part, EventPart):
            words.append(part.content)
        elif isinstance(part, TextPart):
            words.append(part.text)
    return "\n\n".join(words)


def _status(status: Status) -> Json:
    return {key: value for key, value in status.stated().items() if isinstance(value, str)}


def _feedback(value: object, key: str, name: str) -> Json | None:
    """Feedback that both sides know, under the other side's name; None for any other value."""
    said = cast("Json", value) if isinstance(value, dict) else {}
    if said.get(key) not in ("positive", "negative") or not said.keys() <= {key, "comment"}:
        return None
    if not isinstance(said.get("comment", ""), str):
        return None
    return {name if field == key else field: content for field, content in said.items()}


def _read(fields: Json, metadata: Json, parent_id: str | None, reader: ContentReader) -> ListedMessage:
    message_id = name(fields, "id")
    own = optional(fields, OURS) or {}
    role = fields.get("role")
    if role == "system" and own.get("role") == "event":
        return _with_own(ListedMessage(message_id, parent_id, "event", _events(own, reader)), fields, own)
    if role == "system":
        left_out = "System messages were left out, since agents have instructions of their own"
        return ListedMessage(message_id, parent_id, "user", [], left_out=left_out)
    if role != "user" and role != "assistant":
        raise Fault("must be user, assistant or system", ".role")
    if metadata.get("isOptimistic") is True:
        left_out = "Placeholders that a client shows until the real message comes were left out"
        return ListedMessage(message_id, parent_id, role, [], left_out=left_out)
    listed = ListedMessage(message_id, parent_id, cast("Role", role), reader.content(message_id, role, fields))
    try:
        listed.context = each(own, "context", lambda part: _context(part, reader), PARTS) or None
        listed.options = read_options(own)
        listed.usage = read_usage(metadata, own) if role == "assistant" else None
    except Fault as fault:
        raise fault.under(f".{OURS}") from None
    if role == "assistant":
        listed.status = _read_status(fields, own)
    return _with_own(listed, fields, own)


def _events(own: Json, reader: ContentReader) -> list[Entry]:
    try:
        return each(own, "parts", lambda part: Entry(reader.whole(part)), PARTS)
    except Fault as fault:
        raise fault.under(f".{OURS}") from None


def _context(fields: Json, reader: ContentReader) -> Placed:
    position = fields.get("position")
    if isinstance(position, bool) or not isinstance(position, int) or position < 0:
        raise Fault("must be a number from 0", ".position")
    part = reader.whole({key: value for key, value in fields.items() if key != "position"})
    if not isinstance(part, ContextPart):
        raise Fault("must be `context`", ".kind")
    return position, part


def _read_status(fields: Json, own: Json) -> Status | None:
    status = fields.get("status")
    if status is None:
        return None
    try:
        return exact_status(mapping(status), own.get("status"))
    except Fault as fault:
        raise fault.under(".status") from None
    except ValidationError:
        raise Fault("is no status of ours", f".{OURS}.status") from None


def _with_own(listed: ListedMessage, fields: Json, own: Json) -> ListedMessage:
    listed.created_at = _created_at(fields)
    if own.get("source_id") is not None:
        try:
            listed.source_id = name(own, "source_id")
        except Fault as fault:
            raise fault.under(f".{OURS}") from None
    order: Any = own.get("order")
    if isinstance(order, list) and all(type(index) is int for index in cast("list[object]", order)):
        listed.order = order
    return listed


def _created_at(fields: Json) -> str | None:
    if fields.get("createdAt") is None:
        return None
    try:
        at = datetime.fromisoformat(text(fields, "createdAt"))
        return iso(at if at.tzinfo else at.replace(tzinfo=UTC))
    except (ValueError, OverflowError):
        raise Fault("must be a time such as 2026-03-01T12:00:00.000Z", ".createdAt") from None


def _metadata(metadata: Json, run_config: Json | None) -> Json | None:
    try:
        custom = dict(optional(metadata, "custom") or {})
        if (feedback := _feedback(metadata.get(_THEIR_FEEDBACK), "type", "value")) is not None:
            custom.setdefault(FEEDBACK, feedback)
    except Fault as fault:
        raise fault.under(".metadata") from None
    if run_config is not None:
        custom.setdefault(RUN_CONFIG, run_config)
    return custom or None
