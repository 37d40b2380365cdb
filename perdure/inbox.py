"""The inbox: inputs in the order in which they came, and which of them may be handled now.

Signal handlers only put; one loop takes. An input that must wait (mode `queue` or `steer` in a turn, an event while
the thread is busy) keeps its place, so whatever is released together keeps its order. Pure and deterministic.
"""

from typing import Any, Literal

from pydantic import TypeAdapter, ValidationError

from perdure.codec import digest
from perdure.errors import UsageError
from perdure.history_state import Phase
from perdure.inputs import AnyInput, Disposition, Event, Input, Interrupt, ToolResult, UserMessage
from perdure.policy import WAITING_INPUTS


class Inbox:
    """Inputs that wait, oldest first."""

    def __init__(self, waiting: tuple[AnyInput, ...] = ()) -> None:
        self._waiting = list(waiting)

    def __len__(self) -> int:
        return len(self._waiting)

    @property
    def waiting(self) -> tuple[AnyInput, ...]:
        """What waits, to carry over continue-as-new and to show."""
        return tuple(self._waiting)

    def put(self, content: AnyInput) -> Disposition | None:
        """Take an input. Returns its disposition if that is known at once: a duplicate or conflict of a waiting one.

        Raises:
            UsageError: if too many inputs wait already.
        """
        if len(self._waiting) >= WAITING_INPUTS:
            raise UsageError(f"{WAITING_INPUTS} inputs wait in this thread; send it again when it has caught up.")
        same = next((other for other in self._waiting if _identity(other) == _identity(content)), None)
        if same is not None and isinstance(content, UserMessage | Event):
            return "duplicate" if _digest(same) == _digest(content) else "conflict"
        self._waiting.append(content)
        return None

    def take(self, phase: Phase) -> AnyInput | None:
        """The oldest input that may be handled in this phase; None if all must wait."""
        for position, content in enumerate(self._waiting):
            if _is_ready(content, phase):
                return self._waiting.pop(position)
        return None

    def has_ready(self, phase: Phase) -> bool:
        """Whether `take` would give one."""
        return any(_is_ready(content, phase) for content in self._waiting)

    def disposition(self, input_id: str) -> Disposition | None:
        """How an input waits, if it does."""
        for content in self._waiting:
            if isinstance(content, UserMessage) and content.id == input_id:
                return "steered" if content.mode == "steer" else "queued"
            if isinstance(content, Event) and content.id == input_id:
                return "deferred"
        return None


def _is_ready(content: AnyInput, phase: Phase) -> bool:
    match content:
        case Interrupt() | ToolResult():
            return True
        case UserMessage(mode="queue"):
            return phase == "idle"
        case UserMessage(mode="steer"):
            return phase != "busy"
        case UserMessage():
            return True
        case Event():
            return phase == "idle"


def _identity(content: AnyInput) -> tuple[str, str] | None:
    return (content.kind, content.id) if isinstance(content, UserMessage | Event) else None


def _digest(content: AnyInput) -> str | None:
    if isinstance(content, UserMessage):
        return content.sha256 or digest(content.text)
    return (content.sha256 or digest(content.content)) if isinstance(content, Event) else None


InputKind = Literal["user_message", "interrupt", "tool_result", "event"]

_adapters: dict[InputKind, TypeAdapter[Any]] = {
    "user_message": TypeAdapter(UserMessage),
    "interrupt": TypeAdapter(Interrupt),
    "tool_result": TypeAdapter(ToolResult),
    "event": TypeAdapter(Event),
}


def read_input(kind: InputKind, value: object, fallback_id: str) -> AnyInput:
    """An input out of what a signal or update brought: an object, or for words just the text.

    A message that comes without an id gets `fallback_id`, so a person can type `{"text":"hi"}`.

    Raises:
        UsageError: with a sentence that says what is wrong, for the status and the Temporal UI.
    """
    if isinstance(value, Input):
        value = value.model_dump()
    if value is None and kind == "interrupt":
        value = {}
    if isinstance(value, str) and kind == "user_message":
        value = {"text": value}
    if isinstance(value, dict) and kind == "user_message" and "id" not in value:
        value = {"id": fallback_id, **value}
    try:
        content: AnyInput = _adapters[kind].validate_python(value)
    except ValidationError as error:
        reasons = "; ".join(f"{'.'.join(map(str, item['loc'])) or 'input'}: {item['msg']}" for item in error.errors())
        raise UsageError(f"The {kind} was refused ({reasons}). It changed nothing; send it again corrected.") from error
    if isinstance(content, UserMessage) and not content.text.strip() and content.blob is None:
        raise UsageError("The user_message was refused: its text is empty. It changed nothing.")
    if isinstance(content, ToolResult) and content.staged:
        raise UsageError("The tool_result was refused: `staged` is not for callers. It changed nothing.")
    return content
