"""The view: the conversation as the model reads it. Pure: a path goes in, requests and responses come out.

It owns the rules that every provider enforces in its own words, and repairs at read time whatever breaks them, so
that no stored row is ever rewritten and no odd row can make a thread refuse every later request:

V1 each call is answered once, directly after its response, in call order; V2 there is no other result; V3 call ids
are distinct and plain; V4 no text is blank; V5 arguments are JSON objects; V6 results come before text; V7 a thought
is as the model wrote it or absent, and never last; V8 every string is valid Unicode.

A call without a result, in a turn that was left while it waited or that came from outside, is shown as cancelled, which
is what it was to whoever went on from there. What people decide about a call, and what they note beside a message, is
not looked at: a decision comes later than a request that shows its call may, and notes are none of a model's business.

Prefix stability (for prompt caches): an item is decided by what precedes it on the path, and by what follows only as
long as the step it belongs to is open. Requests are made between steps, so each one begins with the one before it.
Three things break the prefix, and have to: a new summary, files that give way to the size limit, and a late result
that took the place of the one that was made up for it.
"""

import hashlib
import re
from dataclasses import dataclass, field
from typing import cast

from perdure.codec import MAX_LEVELS, clip, dumps, is_json, loads_object
from perdure.messages import (
    EventPart,
    FilePart,
    FileRef,
    Message,
    Outcome,
    Part,
    ProviderData,
    ReasoningPart,
    TextPart,
    ToolCallPart,
    ToolResultPart,
)
from perdure.records import Path
from perdure.view_files import FILE_BYTES, LEFT_OUT, Place, dropped_files, file_note

EVENT_TOOL = "receive_event__injected"
EVENT_CHARS = 32 * 1024
ARGUMENT_CHARS = 500
SUMMARY_HEADING = "Summary of the conversation so far:"
OPENING = "(The conversation opens here.)"
NO_WORDS = "(empty message)"
ONLY_FILES = "(no text, only files)"
UNANSWERED = "The call was cancelled before a result of it was known. It may or may not have taken effect."
BLANK_RESULT: dict[Outcome, str] = {
    "ok": "(no output)",
    "error": "The tool failed without a message.",
    "denied": "The call was denied.",
    "interrupted": "The call was stopped before a result of it was known. It may or may not have taken effect.",
    "cancelled": "The call was cancelled.",
    "expired": "The call expired before a result came.",
}

_plain_id = re.compile(r"[A-Za-z0-9_-]{1,64}")
_odd_name_characters = re.compile(r"[^A-Za-z0-9_-]")


@dataclass(frozen=True, slots=True)
class UserText:
    """Words of the user's side."""

    text: str


@dataclass(frozen=True, slots=True)
class UserFile:
    """A file of the user's side, alone or in a result; its bytes are in the blob."""

    blob: str
    media_type: str
    size_bytes: int = 0
    name: str | None = None


@dataclass(frozen=True, slots=True)
class Result:
    """The answer to a call of the response before it; files follow the text."""

    call_id: str
    tool: str
    text: str
    outcome: Outcome = "ok"
    files: tuple[UserFile, ...] = ()


@dataclass(frozen=True, slots=True)
class ModelText:
    """Words of the model."""

    text: str
    provider: ProviderData | None = None


@dataclass(frozen=True, slots=True)
class Reasoning:
    """A thought, byte for byte."""

    text: str
    signature: str | None = None
    provider: ProviderData | None = None


@dataclass(frozen=True, slots=True)
class Call:
    """A tool call; `arguments` is the JSON text of an object."""

    call_id: str
    tool: str
    arguments: str
    provider: ProviderData | None = None


@dataclass(frozen=True, slots=True)
class Request:
    """What the model is told at once: results first, then the rest."""

    items: tuple[Result | UserText | UserFile, ...]


@dataclass(frozen=True, slots=True)
class Response:
    """What the model answered in one step."""

    items: tuple[ModelText | Reasoning | Call, ...]


def view(path: Path, file_bytes: int = FILE_BYTES) -> tuple[Request | Response, ...]:
    """The path as requests and responses, oldest first. Texts in blobs must have been resolved.

    Args:
        path: the conversation, oldest message first.
        file_bytes: how many bytes of files may go along; the oldest give way to a note.
    """
    builder = _Builder(dropped_files(path, file_bytes))
    if path.summary is not None:
        builder.say(f"{SUMMARY_HEADING}\n\n{path.summary.text}")
    for message in path.messages:
        for position, part in enumerate(message.parts):
            builder.add(message, position, part)
        builder.end(message)
    return builder.finish()


def clean(text: str) -> str:
    """The text as valid Unicode: halves of a pair that belong together are joined, lone ones are replaced."""
    try:
        text.encode("utf-8")
    except UnicodeEncodeError:
        return text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
    return text


@dataclass(slots=True)
class _OpenCall:
    """A call of the response that is being built, and its answer once there is one."""

    stored_id: str
    call: Call
    part: ToolCallPart | None
    valid: bool
    result: ToolResultPart | None = None
    files: tuple[FileRef, ...] = ()
    dropped: tuple[FileRef, ...] = ()


@dataclass(slots=True)
class _Builder:
    """Takes parts in path order. At most one response is open; its results collect beside it until it is closed."""

    dropped: frozenset[Place]
    built: list[Request | Response] = field(default_factory=list["Request | Response"])
    request: list[Result | UserText | UserFile] = field(default_factory=list["Result | UserText | UserFile"])
    response: list[ModelText | Reasoning | Call] = field(default_factory=list["ModelText | Reasoning | Call"])
    calls: list[_OpenCall] = field(default_factory=list[_OpenCall])
    step: tuple[str, int] | None = None
    answering: bool = False
    spoken: bool = False
    ids: set[str] = field(default_factory=set[str])

    def add(self, message: Message, position: int, part: Part) -> None:
        """Take the next part of the path."""
        match part:
            case ToolResultPart():
                self._answer(message, position, part)
            case EventPart():
                self._event(message, position, part)
            case _ if message.role == "assistant":
                self._respond(message, position, part)
            case ToolCallPart() if message.role == "event":
                # The beginning of a child thread: the call that made it, which its parent's path does not show it.
                self._respond(message, position, part)
            case TextPart():
                self.say(_resolved(part.text, part.blob))
            case FilePart():
                self._file(message, position, part)
            case _:
                # A call or a thought in a message of the user's side is nobody's: it has no response to stand in.
                pass

    def say(self, text: str) -> None:
        """Words of the user's side."""
        if text.strip():
            self._close()
            self.request.append(UserText(clean(text)))
            self.spoken = True

    def end(self, message: Message) -> None:
        """The message is over. A message of the user is never lost, even one without a visible word."""
        silent = not any(isinstance(part, ToolResultPart) for part in message.parts)
        if message.role == "user" and not self.spoken and silent:
            self.say(NO_WORDS)
        self.spoken = False

    def finish(self) -> tuple[Request | Response, ...]:
        """Close what is open and return everything."""
        self._close()
        self._flush_request()
        if self.built and isinstance(self.built[0], Response):
            self.built.insert(0, Request((UserText(OPENING),)))
        return tuple(self.built)

    def _respond(self, message: Message, position: int, part: Part) -> None:
        step = (message.id, part.step)
        if self.answering or self.step != step:
            self._close()
        self.step = step
        match part:
            case TextPart():
                if (text := _resolved(part.text, part.blob)).strip():
                    self.response.append(ModelText(clean(text), part.provider))
            case ReasoningPart():
                # With a character that cannot be sent it could not be byte-equal, so it stays out.
                if clean(part.text) == part.text and clean(part.signature or "") == (part.signature or ""):
                    self.response.append(Reasoning(part.text, part.signature, part.provider))
            case ToolCallPart():
                self._call(message, position, part)
            case FilePart():
                note = file_note(part.media_type, part.size_bytes, "made by the model", part.name)
                self.response.append(ModelText(note))
            case _:
                pass

    def _call(self, message: Message, position: int, part: ToolCallPart) -> None:
        arguments, valid = _arguments(part.arguments)
        wire_id = self._wire_id(part.call_id, f"{message.id}\x1f{position}")
        call = Call(wire_id, wire_name(part.tool), arguments, part.provider)
        self.response.append(call)
        self.calls.append(_OpenCall(part.call_id, call, part, valid))

    def _answer(self, message: Message, position: int, part: ToolResultPart) -> None:
        """Give the result to the first call it fits. One that fits none is an orphan or a repetition: it is left out.

        Only the response before it is looked at, and only until something else follows. A result that comes later
        was replaced by "cancelled" in an earlier request; to take it now would change that request's beginning.
        """
        for call in self.calls:
            if call.result is None and call.stored_id == part.call_id:
                call.result = part
                gone = {index for index in range(len(part.files)) if (message.id, position, index) in self.dropped}
                call.files = tuple(file for index, file in enumerate(part.files) if index not in gone)
                call.dropped = tuple(file for index, file in enumerate(part.files) if index in gone)
                self.answering = True
                return

    def _event(self, message: Message, position: int, part: EventPart) -> None:
        self._close()
        call_id = self._wire_id("", f"event\x1f{message.id}\x1f{position}")
        call = Call(call_id, EVENT_TOOL, dumps(_clean_value(_origin(part))))
        self.response.append(call)
        content = _resolved(part.content, part.blob)
        if len(content) > EVENT_CHARS:
            size = len(clean(content).encode("utf-8"))
            content = f"{content[:EVENT_CHARS]}\n\n[Cut off here; the whole event has {size} bytes.]"
        result = ToolResultPart(call_id=call_id, content=content if content.strip() else "(empty event)")
        self.calls.append(_OpenCall(call_id, call, None, True, result))
        self._close()

    def _file(self, message: Message, position: int, part: FilePart) -> None:
        if (message.id, position, 0) in self.dropped:
            self.say(file_note(part.media_type, part.size_bytes, LEFT_OUT, part.name))
            return
        self._close()
        name = None if part.name is None else clean(part.name)
        self.request.append(UserFile(part.blob, part.media_type, part.size_bytes, name))
        self.spoken = True

    def _close(self) -> None:
        """End the response: trim a trailing thought, and answer every call, in call order, before anything else."""
        self.step = None
        self.answering = False
        if not self.response:
            return
        while self.response and isinstance(self.response[-1], Reasoning):
            self.response.pop()
        if self.response:
            self._flush_request()
            self.built.append(Response(tuple(self.response)))
            self.request.extend(_answered(call) for call in self.calls)
            self.response.clear()
        self.calls.clear()

    def _flush_request(self) -> None:
        if self.request:
            self.built.append(Request(tuple(self.request)))
            self.request.clear()

    def _wire_id(self, stored: str, place: str) -> str:
        """The stored id if it is plain and new on this path; else one made from its place, the same at every read."""
        wire_id = stored
        if not _plain_id.fullmatch(stored) or stored in self.ids:
            wire_id = "call_" + hashlib.sha256(place.encode("utf-8", "surrogatepass")).hexdigest()[:32]
        self.ids.add(wire_id)
        return wire_id


def wire_name(tool: str) -> str:
    """A tool name that every provider takes, for calls to tools that a model made up."""
    return _odd_name_characters.sub("_", tool)[:64] or "unnamed_tool"


def _arguments(text: str) -> tuple[str, bool]:
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


def _origin(part: EventPart) -> dict[str, object]:
    """The arguments of an event's call: the call that it goes back to, as far as it was stored with the event."""
    if part.origin_tool is None:
        return {"call_id": part.origin_call_id, "event_id": part.event_id}
    arguments: object
    try:
        arguments = loads_object(part.origin_arguments or "{}")
    except ValueError:
        arguments = {}
    return {
        "original_tool_name": part.origin_tool,
        "original_tool_call_id": part.origin_call_id,
        # They stand one level deeper here, and must still be arguments that can be read.
        "original_args": arguments if is_json(arguments, MAX_LEVELS - 1) else {},
    }


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


def _answered(call: _OpenCall) -> Result:
    part, result = call.part, call.result
    if result is not None:
        outcome = result.outcome
        blank = ONLY_FILES if result.files and outcome == "ok" else BLANK_RESULT[outcome]
        text = clean(result.content) if result.content.strip() else blank
        if result.blob is not None:
            text += f"\n\n[Cut off here; the whole result has {result.size_bytes} bytes.]"
    elif part is not None and part.error is not None and part.error.strip():
        text, outcome = clean(part.error), "error"
    else:
        text, outcome = UNANSWERED, "cancelled"
    if part is not None and not call.valid:
        text += f"\n\n[The arguments as they came, which are not a JSON object: {clip(part.arguments, ARGUMENT_CHARS)}]"
    for file in call.dropped:
        text += f"\n\n{file_note(file.media_type, file.size_bytes, LEFT_OUT)}"
    files = tuple(UserFile(file.blob, file.media_type, file.size_bytes) for file in call.files)
    return Result(call.call.call_id, call.call.tool, text, outcome, files)


def _resolved(text: str, blob: str | None) -> str:
    if blob is not None and not text:
        raise ValueError(f"bug: the text in blob {blob} was not loaded before the view was built")
    return text
