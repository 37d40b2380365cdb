"""What a message's content is on its way out: each entry as assistant-ui has it, `perdure` in it for the rest.

Files and large texts are inlined, so that the export stands for itself.
"""

import base64
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from perdure.codec import Wire, dumps, is_json, loads, loads_object
from perdure.errors import BlobNotFound, StoreError
from perdure.exported_approval import read_approval, shown_approval
from perdure.import_fields import Fault, Json
from perdure.message_content import Entry, Steps
from perdure.messages import (
    EventPart,
    FilePart,
    Outcome,
    Part,
    ReasoningPart,
    Role,
    TextPart,
    ToolCallPart,
    ToolResultPart,
)

OURS: Final = "perdure"
"""The field of ours in an object of theirs, and the name of a `data` entry that holds a part as it is."""

Files = Mapping[str, bytes]
"""What blobs hold, by their ids."""

CARRIED: Final = {"artifact": "artifact", "model_content": "modelContent"}
"""What is handed on with a result as it came: the fields of ours and theirs."""

_image = re.compile(r"image/[A-Za-z0-9.+-]+")
# The fields that entries show in their own way, or that are added where they need to be.
_OF_ALL: Final = frozenset({"kind", "step"})
_WORDS: Final = _OF_ALL | {"text"}
_LARGE_WORDS: Final = _WORDS | {"blob"}
_OF_FILE: Final = _OF_ALL | {"media_type", "blob", "name", "size_bytes"}
_OF_CALL: Final = _OF_ALL | {"call_id", "tool", "arguments", "approval", "decision", "interrupt"}
_OF_RESULT: Final = _OF_ALL | {"call_id", "content", "outcome", "size_bytes", "blob", "files", *CARRIED}
_BEGINS: Final = frozenset("{[-0123456789tfn")


def shown_result(content: str) -> Any:
    """A result's words as the value that clients draw: what is JSON as that, other words as they are."""
    if content[:1] in _BEGINS:
        try:
            value: object = loads(content)
        except ValueError:
            return content
        if is_json(value):
            return value
    return content


def result_words(value: object) -> str:
    """The words of a result that is told as a value; what `shown_result` makes of them is that value again."""
    return value if isinstance(value, str) else dumps(value)


def blobs_of(part: Part) -> tuple[str, ...]:
    """The blobs that an export of the part takes."""
    match part:
        case FilePart(blob=blob):
            return (blob,)
        case ToolResultPart(blob=blob, files=files):
            return (*(() if blob is None else (blob,)), *(file.blob for file in files))
        case TextPart(blob=blob) | EventPart(blob=blob):
            return () if blob is None else (blob,)
        case _:
            return ()


@dataclass(slots=True)
class ContentWriter:
    """Writes the entries of one message, in order."""

    thread_id: str
    files: Files
    steps: Steps

    def entry(self, entry: Entry, role: Role) -> Json:
        """An entry of the message's `content`."""
        part = entry.part
        is_call = isinstance(part, ToolCallPart)
        shown: Json
        match part:
            case TextPart():
                shown = self._text(part)
            case FilePart():
                shown = self._file(part)
            case ReasoningPart() if role == "assistant":
                shown = {"type": "reasoning", "text": part.text, OURS: _rest(part, _WORDS)}
            case ToolCallPart() if role == "assistant":
                shown = self._call(part, entry)
            case _:
                # Nothing there could stand for it, so clients get it as data that they have no picture of.
                shown = {"type": "data", "name": OURS, "data": self.whole(part)}
        own = shown.get(OURS)
        if own is not None:
            if part.step != self.steps.expected(is_call):
                own["step"] = part.step
            if not own:
                del shown[OURS]
        self.steps.take(part.step, is_call)
        return shown

    def whole(self, part: Part) -> Json:
        """A part by its own fields, with what is in its blobs."""
        own = _rest(part, _OF_ALL)
        own["kind"] = part.kind
        if part.step:
            own["step"] = part.step
        match part:
            case FilePart():
                own["blob"] = self._inlined(part.blob)
            case ToolResultPart():
                own.update(self._attached(part))
            case TextPart(blob=str(blob)) | EventPart(blob=str(blob)):
                own["blob"] = self._inlined(blob)
            case _:
                pass
        return own

    def _text(self, part: TextPart) -> Json:
        own = _rest(part, _LARGE_WORDS)
        if part.blob is None:
            return {"type": "text", "text": part.text, OURS: own}
        own["blob"] = True
        if part.text:
            own["preview"] = part.text
        data = self._get(part.blob)
        try:
            return {"type": "text", "text": data.decode("utf-8", "surrogatepass"), OURS: own}
        except UnicodeDecodeError as error:
            raise StoreError(f"The blob {part.blob!r} should hold words, and does not.") from error

    def _file(self, part: FilePart) -> Json:
        data = self._get(part.blob)
        own = _rest(part, _OF_FILE)
        if part.size_bytes != len(data):
            own["size_bytes"] = part.size_bytes
        encoded = base64.b64encode(data).decode("ascii")
        shown: Json = {"type": "file", "data": encoded, "mimeType": part.media_type}
        if _image.fullmatch(part.media_type):
            shown = {"type": "image", "image": f"data:{part.media_type};base64,{encoded}"}
        if part.name is not None:
            shown["filename"] = part.name
        return {**shown, OURS: own}

    def _call(self, part: ToolCallPart, entry: Entry) -> Json:
        shown: Json = {
            "type": "tool-call",
            "toolCallId": part.call_id,
            "toolName": part.tool,
            "args": _arguments(part.arguments),
            "argsText": part.arguments,
        }
        own = _rest(part, _OF_CALL)
        asked = part.approval, part.decision
        if (approval := shown_approval(part.call_id, asked)) is not None:
            shown["approval"] = approval
        if asked != (None, None) and not _tells(approval, asked):
            own |= {"approval": _plain(part.approval), "decision": _plain(part.decision)}
        if part.interrupt is not None:
            shown["interrupt"] = part.interrupt
        result = entry.result or entry.interim
        if result is not None:
            shown["result"] = shown_result(result.content)
            shown["isError"] = result.outcome != "ok"
            if entry.result is None:
                shown["isPreliminary"] = True
            shown |= {theirs: value for ours, theirs in CARRIED.items() if (value := getattr(result, ours)) is not None}
            if rest := self._result(part, result):
                own["result"] = rest
        return {**shown, OURS: own}

    def _result(self, call: ToolCallPart, result: ToolResultPart) -> Json:
        """What the call's entry does not say of its result."""
        own = _rest(result, _OF_RESULT)
        own.update(self._attached(result))
        content = result.content
        if result_words(shown_result(content)) != content:
            own["content"] = content
        if result.outcome != outcome_of(call, is_error=result.outcome != "ok"):
            own["outcome"] = result.outcome
        if result.size_bytes != size_of(content):
            own["size_bytes"] = result.size_bytes
        if result.step != call.step:
            own["step"] = result.step
        return own

    def _attached(self, result: ToolResultPart) -> Json:
        attached: Json = {}
        if result.blob is not None:
            attached["blob"] = self._inlined(result.blob)
        if result.files:
            attached["files"] = [{**_plain(file), "blob": self._inlined(file.blob)} for file in result.files]
        return attached

    def _inlined(self, blob: str) -> Json:
        data = self._get(blob)
        try:
            return {"text": data.decode("utf-8")}
        except UnicodeDecodeError:
            return {"data": base64.b64encode(data).decode("ascii")}

    def _get(self, blob: str) -> bytes:
        try:
            return self.files[blob]
        except KeyError:
            raise BlobNotFound(self.thread_id, blob) from None


def outcome_of(call: ToolCallPart, *, is_error: bool) -> Outcome:
    """What became of a call, as far as its entry tells."""
    if not is_error:
        return "ok"
    decision = call.decision
    if decision is None or decision.approved:
        return "error"
    return decision.resolution or "denied"


def size_of(content: str) -> int:
    """The bytes of a text."""
    return len(content.encode("utf-8", "surrogatepass"))


def _tells(approval: Json | None, asked: object) -> bool:
    try:
        return approval is not None and read_approval(approval) == asked
    except (Fault, ValueError):
        return False


def _arguments(text: str) -> Json:
    try:
        return loads_object(text)
    except ValueError:
        return {}


def _rest(part: Part, shown: frozenset[str]) -> Json:
    """The fields that are not shown and do not hold their default."""
    if part.model_fields_set <= shown:
        return {}
    return {key: value for key, value in plain_fields(part).items() if key not in shown}


def plain_fields(value: Wire) -> Json:
    """The fields that do not hold their default, as JSON."""
    return {key: _plain(field) for key, field in value.stated().items()}


def _plain(value: object) -> Any:
    # By way of its text: what comes out is JSON and nothing else, and what could not be encoded is refused here.
    return value if value is None or isinstance(value, str | int) else loads(dumps(value))
