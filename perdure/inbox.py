"""The inbox: inputs in the order in which they came, and which of them may be handled now.

Signal handlers only put; one loop takes. An input that must wait (mode `queue` or `steer` in a turn, an event while
the thread is busy) keeps its place, so whatever is released together keeps its order. Pure and deterministic.
"""

from collections import Counter
from collections.abc import Callable
from typing import Any, Literal, cast

from pydantic import TypeAdapter, ValidationError

from perdure.codec import clip, dumps, is_json
from perdure.errors import UsageError
from perdure.history_state import Phase
from perdure.inputs import (
    ROOT,
    AnyInput,
    Approval,
    Control,
    Disposition,
    Event,
    Input,
    Interrupt,
    Regenerate,
    ToolResult,
    TreeChange,
    UserMessage,
)
from perdure.policy import WAITING_EVENT_BYTES, WAITING_INPUTS

MAX_INPUT_BYTES = 256 * 1024
"""What one input may weigh as JSON. Temporal refuses payloads above 2 MB, and inputs travel together."""

_Wait = Literal["never", "durable", "awake", "shown", "ended"]
"""What an input waits for: nothing; the step to be durable, and what is shown to be loaded; the work to pause; the
same, where it is shown; the turn to end."""

_READY: dict[Phase, tuple[_Wait, ...]] = {
    "busy": ("never",),
    "calling": ("never", "durable"),
    # A thread that only sleeps is not busy: whatever comes wakes it.
    "sleeping": ("never", "durable", "awake", "shown", "ended"),
    "boundary": ("never", "durable", "awake", "shown"),
    "hidden": ("never", "durable", "awake"),
    "resting": ("never",),
    "idle": ("never", "durable", "awake", "shown", "ended"),
}


class Inbox:
    """Inputs that wait, oldest first."""

    def __init__(self, waiting: tuple[AnyInput, ...] = ()) -> None:
        self._waiting: list[AnyInput] = []
        self._digests: dict[tuple[str, str], str] = {}
        # How many wait for what: conditions ask `has_ready` over and over while thousands wait.
        self._counts: Counter[_Wait] = Counter()
        self._event_bytes = 0
        for content in waiting:
            self._add(content)

    def __len__(self) -> int:
        return len(self._waiting)

    @property
    def waiting(self) -> tuple[AnyInput, ...]:
        """What waits, to carry over continue-as-new and to show."""
        return tuple(self._waiting)

    def put(self, content: AnyInput) -> Disposition | None:
        """Take an input. Returns its disposition if that is known at once: a duplicate or conflict of a waiting one.

        Raises:
            UsageError: if too much waits already. Never for an interrupt or a result: they help the queue along.
        """
        if isinstance(content, UserMessage | Event):
            known = self._digests.get((content.kind, content.id))
            if known is not None:
                return "duplicate" if known == content.digest else "conflict"
            if len(self._waiting) >= WAITING_INPUTS:
                raise UsageError(f"{WAITING_INPUTS} inputs wait in this thread; send it again when it has caught up.")
        if isinstance(content, Event) and self._event_bytes >= WAITING_EVENT_BYTES:
            raise UsageError(
                f"The event {content.id} was lost: above {WAITING_EVENT_BYTES:,} bytes of events wait in this thread "
                "already, for an open call to end."
            )
        self._add(content)
        return None

    def take(self, phase: Phase) -> AnyInput | None:
        """The oldest input that may be handled in this phase; None if all must wait."""
        if not self.has_ready(phase):
            return None
        position = next(at for at, content in enumerate(self._waiting) if is_ready(content, phase))
        content = self._waiting.pop(position)
        self._counts[_waits_for(content)] -= 1
        self._event_bytes -= _event_bytes(content)
        if isinstance(content, UserMessage | Event):
            self._digests.pop((content.kind, content.id), None)
        return content

    def has_ready(self, phase: Phase) -> bool:
        """Whether `take` would give one."""
        return any(self._counts[wait] for wait in _READY[phase])

    def disposition(self, input_id: str) -> Disposition | None:
        """How an input waits, if it does."""
        for content in self._waiting:
            if isinstance(content, UserMessage) and content.id == input_id:
                return "steered" if content.mode == "steer" else "queued"
            if isinstance(content, Event) and content.id == input_id:
                return "deferred"
        return None

    def _add(self, content: AnyInput) -> None:
        self._waiting.append(content)
        self._counts[_waits_for(content)] += 1
        self._event_bytes += _event_bytes(content)
        if isinstance(content, UserMessage | Event):
            self._digests.setdefault((content.kind, content.id), content.digest)


def is_ready(content: AnyInput, phase: Phase) -> bool:
    """Whether an input may be handled in this phase."""
    return _waits_for(content) in _READY[phase]


def _event_bytes(content: AnyInput) -> int:
    return len(dumps(content)) if isinstance(content, Event) else 0


def _waits_for(content: AnyInput) -> _Wait:
    match content:
        case Interrupt() | Control() | Regenerate() | TreeChange():
            return "never"
        case ToolResult() | Approval():
            # A call is shown while it streams, and whoever is quick answers it before its step is durable. People may
            # even know of a durable step, or of a branch that is shown, before the thread does: its worker died, or the
            # turn that waits there is about to be loaded.
            return "durable"
        case UserMessage(mode="queue"):
            return "ended"
        case UserMessage(mode="steer"):
            return "awake"
        case Event():
            # An event waits for the calls that are open: it may be of a subscription that one of them is opening.
            return "shown"
        case UserMessage():
            return "never"


InputKind = Literal[
    "user_message", "interrupt", "tool_result", "event", "control", "regenerate", "tree_change", "approval"
]

_adapters: dict[InputKind, TypeAdapter[Any]] = {
    "user_message": TypeAdapter(UserMessage),
    "interrupt": TypeAdapter(Interrupt),
    "tool_result": TypeAdapter(ToolResult),
    "event": TypeAdapter(Event),
    "control": TypeAdapter(Control),
    "regenerate": TypeAdapter(Regenerate),
    "tree_change": TypeAdapter(TreeChange),
    "approval": TypeAdapter(Approval),
}


def read_input(kind: InputKind, value: object, fallback_id: str) -> AnyInput:
    """An input out of what a signal or update brought: an object, or for words just the text.

    A message that comes without an id gets `fallback_id`, so a person can type `{"text":"hi"}`.

    Raises:
        UsageError: with a sentence that says what is wrong, for the status and the Temporal UI.
    """
    try:
        content: AnyInput = _adapters[kind].validate_python(_as_object(kind, value, fallback_id))
    except ValidationError as error:
        raise _refused(kind, "; ".join(_reason(dict(item)) for item in error.errors())) from error
    if isinstance(content, UserMessage) and not (content.text.strip() or content.blob or content.files):
        raise _refused(kind, "its text is empty")
    if isinstance(content, TreeChange) and (lacking := _LACKING[content.action](content)):
        raise _refused(kind, f"to {content.action} it needs {lacking}")
    # What JSON cannot hold would fail when the batch is written, and there it would take the thread along.
    for name in ("metadata", "answers", "options.settings"):
        if not is_json(_value(content, name)):
            raise _refused(kind, f"`{name}` holds what JSON cannot, or is nested too deeply")
    if isinstance(content, ToolResult) and content.staged:
        raise _refused(kind, "`staged` is not for callers")
    if isinstance(content, ToolResult) and "\0" in content.call_id:
        # PostgreSQL refuses it in the batch, and with the batch the turn that is under way would be given up.
        raise _refused(kind, "`call_id` has a NUL in it, which no call has")
    if len(dumps(content)) > MAX_INPUT_BYTES:
        raise _refused(kind, f"it is above {MAX_INPUT_BYTES:,} bytes; the Python client stores large texts first")
    return content


def _value(content: AnyInput, name: str) -> object:
    value: object = content
    for field in name.split("."):
        value = getattr(value, field, None)
    return value


_LACKING: dict[str, Callable[[TreeChange], str | None]] = {
    "switch": lambda change: None if change.message_id else "a `message_id`",
    "delete": lambda change: None if change.message_id else "a `message_id`",
    "reset": lambda change: None if change.message_id else f'a `message_id`, "{ROOT}" for all there is',
    "import": lambda change: None if change.blob else "a `blob`, which the Python client stores first",
    "annotate": lambda change: None if change.message_id and change.metadata else "a `message_id` and `metadata`",
}


def _as_object(kind: InputKind, value: object, fallback_id: str) -> object:
    if isinstance(value, Input):
        return value.model_dump()
    if value is None and kind == "interrupt":
        return {}
    if isinstance(value, str) and kind == "user_message":
        return {"id": fallback_id, "text": value}
    if isinstance(value, dict):
        fields = cast("dict[str, Any]", value)
        return {"id": fallback_id, **fields} if kind in ("user_message", "regenerate", "tree_change") else fields
    return value


def _reason(error: dict[str, Any]) -> str:
    place = clip(".".join(str(step) for step in error["loc"]), 80)
    match error["type"]:
        case "extra_forbidden":
            return f"there is no field `{place}`"
        case "missing":
            return f"`{place}` is missing"
        case "string_pattern_mismatch" | "string_too_long" | "string_too_short":
            return f"`{place}` must be 1 to 200 characters without control characters"
        case "model_type" | "model_attributes_type":
            return "it must be an object"
        case "bool_type":
            return f"`{place}` must be true or false"
        case _:
            return f"`{place}`: {error['msg'].removeprefix('Value error, ')}"


_NAMES: dict[str, str] = {"tree_change": "change of the conversation"}
"""How people are told of inputs whose names say little."""


def _refused(kind: InputKind, why: str) -> UsageError:
    name = _NAMES.get(kind, kind)
    return UsageError(f"The {name} was refused: {clip(why, 400)}. It changed nothing; send it again corrected.")
