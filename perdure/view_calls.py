"""Calls and their results as the model reads them."""

import hashlib
import re
from dataclasses import dataclass
from typing import Final, cast

from perdure.codec import MAX_LEVELS, clip, dumps, is_json, loads_object
from perdure.messages import EventPart, FileRef, Outcome, ToolCallPart, ToolResultPart
from perdure.request_room import how_to_go_on
from perdure.view_items import Call, Result, UserFile

ARGUMENT_CHARS: Final = 500
ONLY_FILES: Final = "(no text, only files)"
UNANSWERED: Final = "The call was cancelled before a result of it was known. It may or may not have taken effect."
BLANK_RESULT: Final[dict[Outcome, str]] = {
    "ok": "(no output)",
    "error": "The tool failed without a message.",
    "denied": "The call was denied.",
    "interrupted": "The call was stopped before a result of it was known. It may or may not have taken effect.",
    "cancelled": "The call was cancelled.",
    "expired": "The call expired before a result came.",
}

_plain_id = re.compile(r"[A-Za-z0-9_-]{1,64}")
_odd_name_characters = re.compile(r"[^A-Za-z0-9_-]")


@dataclass(slots=True)
class OpenCall:
    """A call of the response that is being built, and its answer once there is one.

    `part` is None for a call that no model made.
    """

    stored_id: str
    call: Call
    part: ToolCallPart | None
    valid: bool
    result: ToolResultPart | None = None

    def answered(self) -> Result:
        """Its result, or what is said instead of one."""
        part, result = self.part, self.result
        files: tuple[FileRef, ...] = ()
        if result is not None:
            outcome, files = result.outcome, result.files
            blank = ONLY_FILES if files and outcome == "ok" else BLANK_RESULT[outcome]
            text = clean(result.content) if result.content.strip() else blank
            if result.blob is not None:
                shown = len(result.content.encode("utf-8", "surrogatepass"))
                text += cut_off("result", result.size_bytes, self.call.call_id, shown)
        elif part is not None and part.error is not None and part.error.strip():
            text, outcome = clean(part.error), "error"
        else:
            text, outcome = UNANSWERED, "cancelled"
        if part is not None and not self.valid:
            came = clip(part.arguments, ARGUMENT_CHARS)
            text += f"\n\n[The arguments as they came, which are not a JSON object: {came}]"
        shown_files = tuple(UserFile(file.blob, file.media_type, file.size_bytes, _name(file)) for file in files)
        return Result(self.call.call_id, self.call.tool, text, outcome, shown_files)


def cut_off(what: str, size_bytes: int, call_id: str, shown: int) -> str:
    """What follows the first `shown` bytes of a text that the model does not see in full."""
    return f"\n\n[Cut off here; the whole {what} has {size_bytes} bytes. {how_to_go_on(call_id, shown)}]"


def clean(text: str) -> str:
    """The text as valid Unicode: halves of a pair that belong together are joined, lone ones are replaced."""
    try:
        text.encode("utf-8")
    except UnicodeEncodeError:
        return text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
    return text


def is_plain(call_id: str) -> bool:
    """Whether every provider takes it as the id of a call."""
    return _plain_id.fullmatch(call_id) is not None


def id_of_place(message_id: str, position: int, *, event: bool = False) -> str:
    """The id on the wire of a call without a plain one of its own, or of an event: the same at every read."""
    place = f"event\x1f{message_id}\x1f{position}" if event else f"{message_id}\x1f{position}"
    return "call_" + hashlib.sha256(place.encode("utf-8", "surrogatepass")).hexdigest()[:32]


def short_id(call_id: str, length: int) -> str:
    """The id for providers that take only so many characters."""
    return hashlib.sha256(call_id.encode()).hexdigest()[:length]


def wire_name(tool: str) -> str:
    """A tool name that every provider takes, for calls to tools that a model made up."""
    return _odd_name_characters.sub("_", tool)[:64] or "unnamed_tool"


def arguments_on_wire(text: str) -> tuple[str, bool]:
    """The arguments for the wire, and whether they are what the model wrote."""
    try:
        values = loads_object(text)
    except ValueError:
        return "{}", False
    exact = dumps(values)
    # Escaped or not, half of a surrogate pair would reach the wire; any other text goes as the model wrote it.
    if "\\ud" in exact:
        return dumps(_clean_value(values)), True
    return text, True


def arguments_of_event(part: EventPart) -> str:
    """The arguments of an event's call: the call that it goes back to, as far as it was stored with the event."""
    if part.origin_tool is None:
        return dumps(_clean_value({"call_id": part.origin_call_id, "event_id": part.event_id}))
    arguments: object
    try:
        arguments = loads_object(part.origin_arguments or "{}")
    except ValueError:
        arguments = {}
    origin: dict[str, object] = {
        "original_tool_name": part.origin_tool,
        "original_tool_call_id": part.origin_call_id,
        # They stand one level deeper here, and must still be arguments that can be read.
        "original_args": arguments if is_json(arguments, MAX_LEVELS - 1) else {},
    }
    return dumps(_clean_value(origin))


def _clean_value(value: object) -> object:
    match value:
        case str():
            return clean(value)
        case dict():
            return {clean(key): _clean_value(item) for key, item in cast("dict[str, object]", value).items()}
        case list():
            return [_clean_value(item) for item in cast("list[object]", value)]
        case _:
            return value


def _name(file: FileRef) -> str | None:
    return None if file.name is None else clean(file.name)
