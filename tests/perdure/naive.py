"""The naive twin of the history manager: it keeps everything in lists and takes no short cuts.

`NaiveThread` says what a conversation should be, knowing everything that ever happened: it has no head, no tail, no
counts, and nothing is ever decided twice.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field

from perdure import ids
from perdure.codec import digest
from perdure.history_state import Phase, SubscriptionLimits
from perdure.inputs import (
    AnyInput,
    Approval,
    Control,
    Disposition,
    Event,
    Interrupt,
    Regenerate,
    ToolResult,
    TreeChange,
    UserMessage,
)
from perdure.messages import EventPart, Outcome, Part, Role, Status, TextPart, ToolCallPart, ToolResultPart
from perdure.subscriptions import too_many, with_id
from perdure.tools import KEPT_ARGUMENTS
from perdure.turn import INTERRUPTED, WOKEN
from perdure.turn_buffer import Chunk, TurnBuffer, sealed_parts
from tests.perdure.naive_store import THREAD, Declared

LIMITS = SubscriptionLimits(active=3, events_per_minute=2, events=3)


@dataclass
class NaiveCall:
    """A call of the open step; `told` when the thread knows that it has its result."""

    call_id: str
    tool: str
    declared: Declared
    arguments: str = "{}"
    result: ToolResultPart | None = None
    told: bool = False
    due: float | None = None

    @property
    def closes(self) -> bool:
        """Whether this call, when it went well, closes the thread."""
        return self.declared.operation == "close_thread"


@dataclass
class NaiveMessage:
    """A message as it should be."""

    role: Role
    parts: list[Part] = field(default_factory=list[Part])
    input_id: str | None = None
    status: Status = field(default_factory=Status)


@dataclass
class NaiveSubscription:
    """A subscription, with the times of its events since it was loaded or resumed."""

    tool: str
    arguments: str
    received: int = 0
    times: list[float] = field(default_factory=list[float])
    paused: str | None = None


@dataclass
class NaiveSpawn:
    """A child thread that should be made: it inherits so many parts of so many messages."""

    event_id: str
    content: str
    call_id: str
    messages: int
    parts: int | None


@dataclass
class NaiveThread:
    """A conversation as it should be."""

    tools: Mapping[str, Declared] = field(default_factory=dict[str, Declared])
    messages: list[NaiveMessage] = field(default_factory=list[NaiveMessage])
    accepted: dict[str, str] = field(default_factory=dict[str, str])
    spawned: dict[str, str] = field(default_factory=dict[str, str])
    subscriptions: dict[str, NaiveSubscription] = field(default_factory=dict[str, NaiveSubscription])
    interrupted: list[str] = field(default_factory=list[str])
    cancelled: list[str] = field(default_factory=list[str])
    spawns: list[NaiveSpawn] = field(default_factory=list[NaiveSpawn])
    calls: list[NaiveCall] = field(default_factory=list[NaiveCall])
    all_calls: list[str] = field(default_factory=list[str])
    streamed: list[Chunk] = field(default_factory=list[Chunk])
    open: NaiveMessage | None = None
    running: bool = False
    due: bool = False
    turn: int = 0
    step: int = 0
    dropped: int = 0
    closing: bool = False
    closed: bool = False

    @property
    def phase(self) -> Phase:
        """Where it stands."""
        if self.open is None:
            return "idle"
        if self.running:
            return "busy"
        if not self.calls:
            return "boundary"
        return "sleeping" if self._only_sleeps else "calling"

    @property
    def _only_sleeps(self) -> bool:
        return all(call.declared.passive for call in self.calls if not call.told)

    # -- inputs ------------------------------------------------------------------------------------------------

    def handle(self, content: AnyInput) -> Disposition:
        """What becomes of an input."""
        match content:
            case UserMessage(id=input_id, text=text):
                return self._known(input_id, text) or self._user_message(content)
            case Event(id=input_id, content=text):
                return self._known(input_id, text) or self._event(content)
            case ToolResult():
                return self._tool_result(content)
            case Interrupt():
                self.open_due_turn()
                if self.open is None:
                    return "dropped"
                self.close("cancelled")
                return "interrupted"
            case Control():
                return self._control(content)
            case Regenerate() | TreeChange() | Approval():
                raise AssertionError("this twin knows one branch")

    def open_due_turn(self) -> None:
        """New words are answered by a turn."""
        if self.due and self.open is None:
            self.open = NaiveMessage("assistant", status=Status(state="running"))
            self.messages.append(self.open)
            self.turn, self.step, self.due = self.turn + 1, 0, False

    def _known(self, input_id: str, text: str) -> Disposition | None:
        known = {**self.accepted, **self.spawned}.get(input_id)
        if known is None:
            return None
        return "duplicate" if known == digest(text) else "conflict"

    def _user_message(self, message: UserMessage) -> Disposition:
        if self.closed or self.closing:
            return "rejected"
        disposition: Disposition = "started"
        if self.open is not None:
            sleeps = self.phase == "sleeping"
            if message.mode == "reject" and not sleeps:
                return "rejected"
            steers = sleeps or (message.mode == "steer" and self.phase == "boundary")
            disposition = "steered" if steers else "interrupted"
            self.close("steered" if steers else "cancelled")
        self._append("user", message.id, message.text, [TextPart(text=message.text)])
        return disposition

    def _event(self, event: Event) -> Disposition:
        if event.source != "subscription" and not self.closed:
            return self._joins(event, "spawn_thread", None, None)
        subscription = self.subscriptions.get(event.call_id)
        if event.final:
            self.subscriptions.pop(event.call_id, None)
        if subscription is None or subscription.paused:
            return self._drop()
        subscription.received += 1
        subscription.times.append(event.at)
        subscription.paused = _reason_to_pause(subscription)
        note = None
        if subscription.paused and not event.final:
            note = (
                f"(The subscription {event.call_id} of {subscription.tool} is paused: {subscription.paused}. "
                "What else it sends is dropped until a person resumes it.)"
            )
        if event.associative:
            return self._joins(event, subscription.tool, subscription.arguments, note)
        told = event.content if note is None else f"{event.content}\n\n{note}"
        self.spawns.append(NaiveSpawn(event.id, told, event.call_id, len(self.messages), self._settled_parts()))
        self.spawned[event.id] = digest(event.content)
        return "spawned"

    def _joins(self, event: Event, tool: str, arguments: str | None, note: str | None) -> Disposition:
        disposition: Disposition = "started"
        if self.open is not None:
            self.close("steered")
            disposition = "steered"
        parts: list[Part] = [
            EventPart(
                event_id=event.id,
                origin_call_id=event.call_id,
                content=event.content,
                origin_tool=tool,
                origin_arguments=arguments,
            )
        ]
        self._append("event", event.id, event.content, parts + ([TextPart(text=note)] if note else []))
        return disposition

    def _append(self, role: Role, input_id: str, text: str, parts: list[Part]) -> None:
        self.messages.append(NaiveMessage(role, parts, input_id))
        self.accepted[input_id] = digest(text)
        self.due = True

    def _drop(self) -> Disposition:
        self.dropped += 1
        return "dropped"

    def _tool_result(self, result: ToolResult) -> Disposition:
        for call in self.calls:
            if call.call_id == result.call_id:
                if call.told:
                    return "duplicate"
                if not result.staged:
                    self._answer_from_outside(call, result)
                call.told = True
                self._close_group_when_told()
                return "settled"
        return self._drop()

    def _answer_from_outside(self, call: NaiveCall, result: ToolResult) -> None:
        content, outcome = result.content, result.outcome
        if outcome == "expired" and call.declared.kind == "rap":
            self.cancelled.append(call.call_id)
        if result.subscription and outcome == "ok":
            if len(self.subscriptions) >= LIMITS.active:
                content, outcome = too_many(LIMITS.active), "error"
                self.cancelled.append(call.call_id)
            else:
                content = with_id(content, call.call_id)
                self.subscriptions[call.call_id] = NaiveSubscription(call.tool, call.arguments)
        self.stage(self.result(call.call_id, content, outcome))

    def result(self, call_id: str, content: str, outcome: Outcome = "ok") -> ToolResultPart:
        """The result of a call of this step."""
        size = len(content.encode("utf-8", "surrogatepass"))
        return ToolResultPart(call_id=call_id, content=content, outcome=outcome, size_bytes=size, step=self.step)

    def _control(self, control: Control) -> Disposition:
        if self.closed:
            return "dropped"
        match control.action:
            case "close":
                self.open_due_turn()
                if self.open is not None:
                    self.close("cancelled", "The thread was closed.")
                self._close_thread()
            case "cancel_subscription":
                if self.subscriptions.pop(control.call_id, None):
                    self.cancelled.append(control.call_id)
            case "resume_subscription":
                known = self.subscriptions.get(control.call_id)
                if known and known.paused:
                    self.subscriptions[control.call_id] = NaiveSubscription(known.tool, known.arguments)
            case "compact" | "forget_decision":
                # Neither is thrown at the machine: nothing that it compares changes by them.
                pass
        return "settled"

    # -- the turn ----------------------------------------------------------------------------------------------

    def flush(self, parts: tuple[Part, ...], status: Status) -> None:
        """The running step is committed; without calls in it the turn settles."""
        assert self.open is not None
        self.running = False
        self.streamed = []
        own = self.stamped(parts)
        self.open.parts.extend(own)
        for part in own:
            if isinstance(part, ToolCallPart):
                self.calls.append(self._new_call(part))
                self.all_calls.append(part.call_id)
        if self.calls:
            self._close_group_when_told()
        else:
            self._settle(status)

    def _new_call(self, part: ToolCallPart) -> NaiveCall:
        declared = self.tools.get(part.tool, Declared())
        arguments = part.arguments if declared.kind in KEPT_ARGUMENTS else "{}"
        refusal = None
        if part.error is not None:
            refusal = ToolResultPart(call_id=part.call_id, outcome="error", content=part.error, step=self.step)
        return NaiveCall(part.call_id, part.tool, declared, arguments, refusal, told=refusal is not None)

    def fail(self, detail: str) -> None:
        """The open turn ends with an error; what streamed is dropped."""
        self.streamed = []
        self._close_calls()
        self._settle(Status(state="incomplete", reason="error", detail=detail))

    def close(self, reason: str, detail: str | None = None) -> None:
        """The open turn is stopped where it stands."""
        assert self.open is not None
        if self.calls:
            self._close_calls()
        else:
            self.open.parts.extend(self.stamped(sealed_parts(TurnBuffer(self.streamed).parts)))
        self.streamed = []
        self._settle(Status.model_validate({"state": "incomplete", "reason": reason, "detail": detail}))

    def stage(self, result: ToolResultPart) -> None:
        """A result is there; the first one stays."""
        for call in self.calls:
            if call.call_id == result.call_id and call.result is None:
                call.result = result

    def close_thread(self) -> None:
        """The thread takes nothing more, when the calls that are open have their results."""
        if self.calls:
            self.closing = True
            self._close_group_when_told()
        elif not self.closed:
            if self.running:
                self.close("cancelled")
            self._settle(Status())
            self._close_thread()

    def crash(self, *, keeps_stream: bool) -> None:
        """Its owner is gone: nothing runs, and the next one is told all that is stored."""
        self.running = False
        if not keeps_stream:
            self.streamed = []
        self.interrupted, self.cancelled, self.spawns, self.spawned = [], [], [], {}
        self.dropped = 0
        for subscription in self.subscriptions.values():
            subscription.times = []
        for call in self.calls:
            call.told = call.result is not None
        self.closing = any(call.closes and call.result and call.result.outcome == "ok" for call in self.calls)
        if self.calls:
            self._close_group_when_told()

    def stamped(self, parts: tuple[Part, ...]) -> list[Part]:
        """The parts as those of the step, with the ids of its calls."""
        stamped: list[Part] = []
        for part in parts:
            if isinstance(part, ToolCallPart):
                index = sum(isinstance(other, ToolCallPart) for other in stamped)
                part = part.with_(call_id=ids.call_id(THREAD, self.turn, self.step, index))
            stamped.append(part.with_(step=self.step))
        return stamped

    def _close_calls(self) -> None:
        for call in self.calls:
            if not call.told:
                self.interrupted.append(call.call_id)
                if call.declared.kind == "rap":
                    self.cancelled.append(call.call_id)
            call.told = True
            call.result = call.result or ToolResultPart(
                call_id=call.call_id,
                outcome="interrupted",
                content=WOKEN if call.declared.passive else INTERRUPTED,
                step=self.step,
            )
        if self.calls:
            self._close_group_when_told()

    def _close_group_when_told(self) -> None:
        assert self.open is not None
        if self.closing and self._only_sleeps and not all(call.told for call in self.calls):
            self._close_calls()
        elif all(call.told for call in self.calls):
            self.open.parts.extend(call.result for call in self.calls if call.result)
            self.calls = []
            self.step += 1
            if self.closing:
                self._settle(Status())
                self._close_thread()

    def _close_thread(self) -> None:
        if not self.closed:
            self.cancelled.extend(self.subscriptions)
            self.subscriptions = {}
            self.closing, self.closed = False, True

    def _settle(self, status: Status) -> None:
        if self.open is not None:
            self.open.status = status
            self.open, self.running = None, False

    def _settled_parts(self) -> int | None:
        """How many parts of the open message a child may inherit: none of a call without a result, nor behind it."""
        if self.open is None:
            return None
        waiting = {call.call_id for call in self.calls}
        for position, part in enumerate(self.open.parts):
            if isinstance(part, ToolCallPart) and part.call_id in waiting:
                return position
        return len(self.open.parts)


def _reason_to_pause(subscription: NaiveSubscription) -> str | None:
    newest = subscription.times[-1]
    same_minute = [time for time in subscription.times if time // 60 == newest // 60]
    if len(same_minute) >= LIMITS.events_per_minute:
        return f"{len(same_minute)} events came within a minute"
    if LIMITS.events is not None and subscription.received >= LIMITS.events:
        return f"it has sent {subscription.received} events, as many as one subscription may"
    return None
