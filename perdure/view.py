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
long as the turn it belongs to is open. Requests are made between steps, so each one begins with the one before it.
Four things break the prefix, and have to: a new summary, what gives way to the size limit, a late result that took the
place of the one that was made up for it, and what a context provider says for one turn only.

What providers say stands before the first words of the turn, after the results of the step before; what they say before
a later call of the turn stands before the answer of that call. It is there whether it is only said (`TurnContext`) or
stored with the turn (`ContextPart`), so that what is stored is read in the same place ever after.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Final, Literal

from perdure.messages import (
    ContextPart,
    EventPart,
    FilePart,
    Message,
    Part,
    ReasoningPart,
    TextPart,
    ToolCallPart,
    ToolResultPart,
)
from perdure.records import Path, Summary
from perdure.request_room import REQUEST_BYTES, fitted
from perdure.turn_context import ContextMessage, TurnContext
from perdure.view_calls import (
    ONLY_FILES,
    UNANSWERED,
    OpenCall,
    arguments_of_event,
    arguments_on_wire,
    clean,
    cut_off,
    id_of_place,
    is_plain,
    wire_name,
)
from perdure.view_files import file_note
from perdure.view_items import (
    Call,
    ModelText,
    Reasoning,
    Request,
    RequestItem,
    Response,
    ResponseItem,
    Result,
    UserFile,
    UserText,
    Viewed,
)

__all__ = [
    "ONLY_FILES",
    "UNANSWERED",
    "Call",
    "ModelText",
    "Reasoning",
    "Request",
    "Response",
    "Result",
    "UserFile",
    "UserText",
    "ViewBuilder",
    "Viewed",
    "clean",
    "last_turn",
    "view",
    "wire_name",
]

EVENT_TOOL: Final = "receive_event__injected"
EVENT_CHARS: Final = 32 * 1024
SUMMARY_HEADING: Final = "Summary of the conversation so far:"
SHORTENED_HEADING: Final = "The conversation so far, shortened:"
OPENING: Final = "(The conversation opens here.)"
NO_WORDS: Final = "(empty message)"

_NOTHING_SAID: Final = TurnContext()


def view(path: Path, said: TurnContext = _NOTHING_SAID, limit: int = REQUEST_BYTES) -> tuple[Viewed, ...]:
    """The path as requests and responses, oldest first. Texts in blobs must have been resolved.

    Args:
        path: the conversation, oldest message first.
        said: what context providers say for the model call that is to continue the path's last message.
        limit: how many bytes all of it may have; what has no room gives way to a note (`perdure.request_room`).
    """
    start = last_turn(path.messages)
    if said.replace is None:
        builder = ViewBuilder.begin(path.summary)
        builder.add_turns(path.messages[:start])
    else:
        builder = ViewBuilder()
    builder.add_last_turn(path.messages[start:], said)
    return fitted(tuple(builder.built), limit)


def last_turn(messages: Sequence[Message]) -> int:
    """Where the last turn begins: with the words that it answers, all since the answer before it."""
    start = len(messages)
    if start and messages[start - 1].role == "assistant":
        start -= 1
    while start and messages[start - 1].role != "assistant":
        start -= 1
    return start


@dataclass(slots=True)
class ViewBuilder:
    """Takes messages in path order. At most one response is open; its results collect beside it until it is closed.

    Whole turns are taken once; for the last one, which still grows, a fork of the builder is made each time.

    Attributes:
        built: what is finished, oldest first; of a fork, what it has added.
    """

    built: list[Viewed] = field(default_factory=list[Viewed])
    _begun: bool = False
    _request: list[RequestItem] = field(default_factory=list[RequestItem])
    _response: list[ResponseItem] = field(default_factory=list[ResponseItem])
    _calls: list[OpenCall] = field(default_factory=list[OpenCall])
    _step: tuple[str, int] | None = None
    _answering: bool = False
    _spoken: bool = False
    _ids: set[str] = field(default_factory=set[str])
    _said: dict[int, tuple[ContextMessage, ...]] = field(default_factory=dict[int, tuple[ContextMessage, ...]])

    @classmethod
    def begin(cls, summary: Summary | None) -> "ViewBuilder":
        """One for a path that begins with this summary."""
        builder = cls()
        if summary is not None and summary.items:
            builder._say(SHORTENED_HEADING)
            for item in summary.items:
                builder._tell(item.role, item.text)
        elif summary is not None:
            builder._say(f"{SUMMARY_HEADING}\n\n{summary.text}")
        return builder

    def fork(self) -> "ViewBuilder":
        """A builder that goes on from here, without what is built so far; this one stays as it is."""
        return replace(
            self,
            built=[],
            _request=self._request.copy(),
            _response=self._response.copy(),
            _calls=[replace(call) for call in self._calls],
            _ids=self._ids.copy(),
        )

    def add_turns(self, messages: Sequence[Message]) -> None:
        """Take whole turns: the last message is an answer."""
        for turn in _turns(messages):
            self._add_turn(turn, _NOTHING_SAID)

    def add_last_turn(self, messages: Sequence[Message], said: TurnContext = _NOTHING_SAID) -> None:
        """Take the turn that is to be continued, and close what is open. Nothing can be added after that.

        What is read instead of the conversation before comes first, so nothing may have been added before either then.
        """
        for one in said.replace or ():
            self._tell(one.role, one.text)
        self._add_turn(messages, said)
        self._close()
        self._flush_request()

    def _add_turn(self, messages: Sequence[Message], said: TurnContext) -> None:
        self._said = _said(messages[-1] if messages else None, said)
        for message in messages:
            for position, part in enumerate(message.parts):
                self._add(message, position, part)
            self._end(message)
        # The newest call has no part yet.
        self._tell_up_to(None)

    def _add(self, message: Message, position: int, part: Part) -> None:
        if self._said and message.role == "assistant" and not isinstance(part, ToolResultPart):
            self._tell_up_to(part.step)
        match part:
            case ToolResultPart():
                self._answer(part)
            case EventPart():
                self._event(message, position, part)
            case ContextPart():
                # It was told in its place, which is before the words if it belongs to the first call.
                pass
            case _ if message.role == "assistant":
                self._respond(message, position, part)
            case ToolCallPart() if message.role == "event":
                # The beginning of a child thread: the call that made it, which its parent's path does not show it.
                self._respond(message, position, part)
            case TextPart():
                self._say(_resolved(part.text, part.blob))
            case FilePart():
                self._open_words()
                name = None if part.name is None else clean(part.name)
                self._request.append(UserFile(part.blob, part.media_type, part.size_bytes, name))
            case _:
                # A call or a thought in a message of the user's side is nobody's: it has no response to stand in.
                pass

    def _end(self, message: Message) -> None:
        """The message is over. A message of the user is never lost, even one without a visible word."""
        silent = not any(isinstance(part, ToolResultPart) for part in message.parts)
        if message.role == "user" and not self._spoken and silent:
            self._say(NO_WORDS)
        self._spoken = False

    def _say(self, text: str) -> None:
        """Words of the user's side."""
        if text.strip():
            self._open_words()
            self._request.append(UserText(clean(text)))

    def _open_words(self) -> None:
        """The user's side speaks: what was said before the turn's first words stands before them."""
        self._close()
        for one in self._said.pop(0, ()):
            self._tell(one.role, one.text)
        self._spoken = True

    def _tell(self, role: Literal["user", "assistant"], text: str) -> None:
        """Words that nobody has spoken in the conversation."""
        if not text.strip():
            return
        self._close()
        if role == "user":
            self._request.append(UserText(clean(text)))
        else:
            self._respond_with((ModelText(clean(text)),))

    def _tell_up_to(self, step: int | None) -> None:
        """Tell what was said before this model call and earlier ones, None being the newest.

        Nothing of the user's side follows, so it speaks for it, whatever its role: no request may end with the model.
        """
        for at in sorted(self._said):
            if step is None or at <= step:
                for one in self._said.pop(at):
                    self._tell("user", one.text)

    def _respond(self, message: Message, position: int, part: Part) -> None:
        step = (message.id, part.step)
        if self._answering or self._step != step:
            if message.role == "assistant":
                self._close()
            else:
                self._open_words()
        self._step = step
        match part:
            case TextPart():
                if (text := _resolved(part.text, part.blob)).strip():
                    self._response.append(ModelText(clean(text), part.provider))
            case ReasoningPart():
                # With a character that cannot be sent it could not be byte-equal, so it stays out.
                if clean(part.text) == part.text and clean(part.signature or "") == (part.signature or ""):
                    self._response.append(Reasoning(part.text, part.signature, part.provider))
            case ToolCallPart():
                self._call(message, position, part)
            case FilePart():
                note = file_note(part.media_type, part.size_bytes, "made by the model", part.name)
                self._response.append(ModelText(note))
            case _:
                pass

    def _call(self, message: Message, position: int, part: ToolCallPart) -> None:
        arguments, valid = arguments_on_wire(part.arguments)
        wire_id = part.call_id
        if not is_plain(wire_id) or wire_id in self._ids:
            wire_id = id_of_place(message.id, position)
        self._ids.add(wire_id)
        call = Call(wire_id, wire_name(part.tool), arguments, part.provider)
        self._response.append(call)
        self._calls.append(OpenCall(part.call_id, call, part, valid))

    def _answer(self, part: ToolResultPart) -> None:
        """Give the result to the first call it fits. One that fits none is an orphan or a repetition: it is left out.

        Only the response before it is looked at, and only until something else follows. A result that comes later
        was replaced by "cancelled" in an earlier request; to take it now would change that request's beginning.
        """
        for call in self._calls:
            if call.result is None and call.stored_id == part.call_id:
                call.result = part
                self._answering = True
                return

    def _event(self, message: Message, position: int, part: EventPart) -> None:
        self._open_words()
        call_id = id_of_place(message.id, position, event=True)
        self._ids.add(call_id)
        call = Call(call_id, EVENT_TOOL, arguments_of_event(part))
        self._response.append(call)
        content = _resolved(part.content, part.blob)
        if len(content) > EVENT_CHARS:
            size = len(clean(content).encode("utf-8"))
            shown = content[:EVENT_CHARS]
            content = shown + cut_off("event", size, call_id, len(shown.encode("utf-8", "surrogatepass")))
        result = ToolResultPart(call_id=call_id, content=content if content.strip() else "(empty event)")
        self._calls.append(OpenCall(call_id, call, None, True, result))
        self._close()

    def _close(self) -> None:
        """End the response: trim a trailing thought, and answer every call, in call order, before anything else."""
        self._step = None
        self._answering = False
        if not self._response:
            return
        while self._response and isinstance(self._response[-1], Reasoning):
            self._response.pop()
        if self._response:
            self._respond_with(tuple(self._response))
            self._request.extend(call.answered() for call in self._calls)
            self._response.clear()
        self._calls.clear()

    def _respond_with(self, items: tuple[ResponseItem, ...]) -> None:
        self._flush_request()
        if not self._begun:
            self._build(Request((UserText(OPENING),)))
        self._build(Response(items))

    def _flush_request(self) -> None:
        if self._request:
            self._build(Request(tuple(self._request)))
            self._request.clear()

    def _build(self, message: Viewed) -> None:
        self._begun = True
        self.built.append(message)


def _turns(messages: Sequence[Message]) -> Iterator[Sequence[Message]]:
    start = 0
    for end, message in enumerate(messages, 1):
        if message.role == "assistant":
            yield messages[start:end]
            start = end
    if start < len(messages):
        yield messages[start:]


def _said(answer: Message | None, said: TurnContext) -> dict[int, tuple[ContextMessage, ...]]:
    """What was said before each model call of a turn: what providers say now, and what is stored with the turn."""
    stored: dict[tuple[int, str], list[ContextMessage]] = {}
    for part in answer.parts if answer is not None and answer.role == "assistant" else ():
        if isinstance(part, ContextPart):
            stored.setdefault((part.step, part.source), []).append(ContextMessage(text=part.text, role=part.role))
    for one in said.providers:
        if one.messages:
            # In the agent's order, whether stored or not.
            stored[one.step, one.source] = list(one.messages)
        elif (one.step, one.source) in stored:
            stored[one.step, one.source] = stored.pop((one.step, one.source))
    steps: dict[int, tuple[ContextMessage, ...]] = {}
    for (step, _), messages in stored.items():
        steps[step] = (*steps.get(step, ()), *messages)
    return steps


def _resolved(text: str, blob: str | None) -> str:
    if blob is not None and not text:
        raise ValueError(f"bug: the text in blob {blob} was not loaded before the view was built")
    return text
