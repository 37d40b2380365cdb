"""What a message's content becomes on its way in: the entries that assistant-ui has, checked, as parts.

A field that nobody here knows is left aside. What an export of ours tells in `perdure` counts as long as it agrees
with what stands beside it, so whoever changes an export changes what everybody can see.
"""

import base64
import binascii
import hashlib
import re
from typing import Any, Final, cast, get_args
from urllib.parse import unquote_to_bytes

from pydantic import TypeAdapter, ValidationError

from perdure import ids
from perdure.codec import clip, digest, dumps
from perdure.exported_approval import exact_approval
from perdure.exported_part import CARRIED, OURS, outcome_of, result_words, shown_result, size_of
from perdure.import_fields import (
    NAME_CHARS,
    Fault,
    Json,
    LeftOut,
    each,
    flag,
    is_name,
    mapping,
    name,
    optional,
    plain,
    text,
)
from perdure.message_content import Entry, Steps
from perdure.messages import FileRef, Outcome, Part, Role, TextPart, ToolCallPart, ToolResultPart

PARTS: Final = 10_000
MAX_STEP: Final = 1_000_000
UNKNOWN: Final = "Parts that cannot be shown to a model were left out, of these messages and kinds"
ADDRESSES: Final = "Files that are not in the import stay as an address in the text of these messages"
REPEATED: Final = "Calls that are there twice without a result were taken once, of these messages"
BESIDE_NOTHING: Final = (
    "What is kept beside results (`artifact`, `modelContent`) was left out where there is none, of these messages"
)
_ADDRESS_CHARS: Final = 2_000
_OUTCOMES: Final = frozenset(get_args(Outcome))
_data_url = re.compile(r"data:([^;,]*)((?:;[^;,]*)*),(.*)", re.DOTALL | re.IGNORECASE)
_link = re.compile(r"https?://", re.IGNORECASE)
_part: TypeAdapter[Part] = TypeAdapter(Part)


class ContentReader:
    """Reads the content of messages, and collects the files in it and what is left out."""

    def __init__(self) -> None:
        self.files: dict[str, tuple[str, bytes]] = {}
        self.left_out = LeftOut()

    def content(self, message_id: str, role: Role, fields: Json) -> list[Entry]:
        """The entries of a message. Raises Fault."""
        content = fields.get("content")
        if isinstance(content, str):
            fields = {**fields, "content": [{"type": "text", "text": content}]}
        reader = _MessageReader(self, message_id, role)
        each(fields, "content", reader.take, PARTS)
        if role == "user":
            each(fields, "attachments", reader.take_attachment, PARTS)
        return reader.found

    def whole(self, fields: Json) -> Part:
        """A part by its own fields. Raises Fault."""
        own = dict(plain(fields))
        kind = own.get("kind")
        if own.get("blob") is not None:
            own["blob"] = self.stored(own["blob"], text(own, "media_type", "text/plain"))
        if kind == "tool_result":
            own["files"] = self._attached(own)
        if kind in ("tool_call", "tool_result"):
            name(own, "call_id")
        own["step"] = _step(own, 0)
        return _valid(own)

    def result(self, call: ToolCallPart, fields: Json, own: Json) -> ToolResultPart:
        """The result in a call's entry. Raises Fault."""
        value = _under(".result", lambda: plain(fields["result"]))
        content = own.get("content")
        if not isinstance(content, str) or dumps(shown_result(content)) != dumps(value):
            content = result_words(value)
        is_error = flag(fields, "isError")
        outcome = own.get("outcome")
        if outcome not in _OUTCOMES or (outcome != "ok") != is_error:
            outcome = outcome_of(call, is_error=is_error)
        rest = {
            **own,
            "kind": "tool_result",
            "call_id": call.call_id,
            "content": content,
            "outcome": outcome,
            "size_bytes": own.get("size_bytes", size_of(content)),
            "blob": None if own.get("blob") is None else self.stored(own["blob"]),
            "files": self._attached(own),
            "step": _step(own, call.step),
            **{ours: _carried(fields, theirs) for ours, theirs in CARRIED.items()},
        }
        return cast("ToolResultPart", _valid(rest))

    def stored(self, value: object, media_type: str = "text/plain") -> str:
        """Keep what is inlined: the id of its blob. Raises Fault."""
        fields = mapping(value)
        data = fields.get("data")
        return self.keep(media_type, _bytes(fields, "data") if data is not None else _encode(text(fields, "text")))

    def keep(self, media_type: str, data: bytes) -> str:
        """Keep bytes: the id of their blob."""
        blob = hashlib.sha256(data).hexdigest()
        self.files[blob] = media_type if is_name(media_type) else "application/octet-stream", data
        return blob

    def _attached(self, own: Json) -> list[FileRef]:
        return each(own, "files", self._file_ref, PARTS)

    def _file_ref(self, fields: Json) -> FileRef:
        media_type = text(fields, "media_type")
        return FileRef.model_validate({**fields, "blob": self.stored(fields.get("blob"), media_type)})


class _MessageReader:
    """Reads the entries of one message, in order."""

    def __init__(self, outer: ContentReader, message_id: str, role: Role) -> None:
        self.found: list[Entry] = []
        self._outer = outer
        self._message_id = message_id
        self._role: Role = role
        self._steps = Steps()
        self._open: dict[str, Entry] = {}

    def take(self, fields: Json, file_name: str | None = None) -> None:
        kind = text(fields, "type")
        own = optional(fields, OURS) or {}
        match kind:
            case "text":
                self._text(fields, own)
            case "image" | "file" | "audio":
                self._file(kind, fields, own, file_name)
            case "data" if fields.get("name") == OURS:
                part = _under(".data", lambda: self._outer.whole(mapping(fields.get("data"))))
                self._add(part, isinstance(part, ToolCallPart))
            case "reasoning" if self._role == "assistant":
                self._take({**own, "kind": "reasoning", "text": text(fields, "text", "")})
            case "tool-call" if self._role == "assistant":
                self._call(fields, own)
            case _:
                self._outer.left_out.add(UNKNOWN, f"{clip(kind, 40)} in {self._message_id}")

    def take_attachment(self, fields: Json) -> None:
        attached = fields.get("name")
        file_name = attached if isinstance(attached, str) else None
        each(fields, "content", lambda item: self.take(item, file_name), PARTS)

    def _take(self, own: Json, is_call: bool = False) -> None:
        own["step"] = _step(own, self._steps.expected(is_call))
        self._add(_valid(own), is_call)

    def _add(self, part: Part, is_call: bool) -> None:
        self._steps.take(part.step, is_call)
        self.found.append(Entry(part))

    def _text(self, fields: Json, own: Json) -> None:
        words = text(fields, "text")
        if not own:
            # Most parts are this, and it takes half the time.
            self._add(TextPart(text=words, step=self._steps.expected(False)), False)
            return
        preview = own.pop("preview", "")
        blob = None
        if own.pop("blob", None) is True:
            blob = self._outer.keep("text/plain", _encode(words))
            words = preview
        self._take({**own, "kind": "text", "text": words, "blob": blob})

    def _file(self, kind: str, fields: Json, own: Json, file_name: str | None) -> None:
        file_name = fields.get("filename", file_name)
        media_type, data = _file_data(kind, fields)
        if isinstance(data, str):
            # Whoever imports would have to fetch it, now and from where they are; so it stays what it is, an address.
            self._outer.left_out.add(ADDRESSES, self._message_id)
            named = f"{file_name}, " if isinstance(file_name, str) else ""
            self._take({"kind": "text", "text": f"[{kind}: {named}{data[:_ADDRESS_CHARS]}]"})
            return
        own.setdefault("size_bytes", len(data))
        blob = self._outer.keep(media_type, data)
        self._take({**own, "kind": "file", "media_type": media_type, "blob": blob, "name": file_name})

    def _call(self, fields: Json, own: Json) -> None:
        call_id = name(fields, "toolCallId") if fields.get("toolCallId") else self._made_id()
        own_result = own.pop("result", None)
        approval = optional(fields, "approval")
        asked = exact_approval(call_id, approval, own)
        call = {
            **own,
            "kind": "tool_call",
            "call_id": call_id,
            "tool": text(fields, "toolName"),
            "arguments": _arguments(fields),
            "approval": asked[0],
            "decision": asked[1],
            "interrupt": optional(fields, "interrupt"),
        }
        self._take(call, is_call=True)
        entry = self.found[-1]
        earlier = self._open.pop(call_id, None)
        if earlier is not None:
            # Told again, as clients do once a call has its result: it keeps what it is and takes that.
            self.found.pop()
            entry = earlier
        part = cast("ToolCallPart", entry.part)
        if "result" in fields:
            result = self._outer.result(part, fields, {} if own_result is None else dict(mapping(own_result)))
            entry.interim, entry.result = (result, None) if flag(fields, "isPreliminary") else (None, result)
        else:
            if earlier is not None:
                self._outer.left_out.add(REPEATED, self._message_id)
            if any(fields.get(theirs) is not None for theirs in CARRIED.values()):
                self._outer.left_out.add(BESIDE_NOTHING, self._message_id)
        if entry.result is None:
            self._open[call_id] = entry

    def _made_id(self) -> str:
        return ids.CALL_PREFIX + digest(f"{self._message_id}\x1f{len(self.found)}")[:32]


def _carried(fields: Json, key: str) -> Any:
    value = fields.get(key)
    return value if value is None else _under(f".{key}", lambda: plain(value))


def _file_data(kind: str, fields: Json) -> tuple[str, bytes | str]:
    """Media type and bytes of a file; or its address, if that is all there is."""
    if kind == "audio":
        audio = _under(".audio", lambda: mapping(fields.get("audio")))
        return f"audio/{name(audio, 'format')}", _bytes(audio, "data")
    key = "image" if kind == "image" else "data"
    value = text(fields, key)
    if found := _data_url.fullmatch(value):
        media_type, options, data = found.groups()
        is_base64 = options.lower().endswith(";base64")
        return media_type or "text/plain", _bytes({key: data}, key) if is_base64 else unquote_to_bytes(data)
    is_address = kind == "image" or fields.get("sourceType") in ("url", "id") or _link.match(value) is not None
    return ("", value) if is_address else (text(fields, "mimeType"), _bytes(fields, key))


def _bytes(fields: Json, key: str) -> bytes:
    try:
        return base64.b64decode(text(fields, key), validate=True)
    except (binascii.Error, ValueError):
        raise Fault("must hold bytes in base64", f".{key}") from None


def _encode(words: str) -> bytes:
    return words.encode("utf-8", "surrogatepass")


def _arguments(fields: Json) -> str:
    written = fields.get("argsText")
    values = optional(fields, "args")
    return written if isinstance(written, str) and (written or not values) else dumps(values or {})


def _step(own: Json, default: int) -> int:
    step = own.get("step", default)
    if isinstance(step, bool) or not isinstance(step, int) or not 0 <= step <= MAX_STEP:
        raise Fault(f"must be a number from 0 to {MAX_STEP:,}", f".{OURS}.step")
    return step


def _valid(own: Json) -> Part:
    try:
        return _part.validate_python(own)
    except ValidationError as error:
        first = error.errors()[0]
        place = ".".join(str(step) for step in first["loc"])
        raise Fault(f"is not a part of ours: `{clip(place, NAME_CHARS)}`: {clip(first['msg'], 200)}") from None


def _under(place: str, read: Any) -> Any:
    try:
        return read()
    except Fault as fault:
        raise fault.under(place) from None
