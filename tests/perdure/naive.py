"""The naive twins of the history manager's world: they keep everything in lists and take no short cuts.

`NaiveStore` applies batches with the promises of `perdure.batch`. `NaiveThread` says what a conversation should be,
knowing everything that ever happened: it has no head, no tail, no counts, and nothing is ever decided twice.
"""

from dataclasses import dataclass, field

from perdure import ids
from perdure.batch import (
    AppendMessage,
    AppendParts,
    CommitResults,
    CommitStep,
    Operation,
    Refused,
    RemoveSubscription,
    SetStatus,
    StageResult,
    SyncBatch,
    SyncReport,
    TrackSubscription,
)
from perdure.codec import digest
from perdure.errors import StaleWriter
from perdure.history_state import Phase
from perdure.inputs import AnyInput, Disposition, Event, Interrupt, ToolResult, UserMessage
from perdure.messages import EventPart, Message, Part, Role, Status, TextPart, ToolCallPart, ToolResultPart
from perdure.ports import OpenCall, Path, Subscription, Tail, ThreadRecord
from perdure.turn import INTERRUPTED
from perdure.turn_buffer import Chunk, TurnBuffer, sealed_parts, trim_reasoning

THREAD = "t2"

Step = tuple[int, int]


class NaiveStore:
    """What one thread has stored."""

    def __init__(self) -> None:
        self.messages: list[Message] = []
        self.digests: dict[str, str] = {}
        self.open_calls: list[OpenCall] = []
        self.subscriptions: list[Subscription] = []
        self.streaming: dict[Step, list[Chunk]] = {}
        self.finished: dict[Step, tuple[Part, ...]] = {}
        self.version = 0
        self.sync_id: str | None = None
        self.settled: list[str] = []

    def append_messages(self, batch: SyncBatch) -> SyncReport:
        """Apply a batch once, or refuse it whole."""
        if (batch.number, batch.sync_id) == (self.version, self.sync_id):
            return SyncReport(number=batch.number)
        if batch.number != self.version + 1:
            raise StaleWriter(f"at version {self.version}")
        refused = tuple(
            Refused(input_id=operation.message.input_id, conflict=known != operation.digest)
            for operation in batch.operations
            if isinstance(operation, AppendMessage)
            and operation.message.input_id
            and (known := self.digests.get(operation.message.input_id)) is not None
        )
        if refused:
            return SyncReport(number=self.version, refused=refused)
        for operation in batch.operations:
            self._apply(operation)
        self.version, self.sync_id = batch.number, batch.sync_id
        return SyncReport(number=batch.number)

    def stage(self, result: ToolResultPart) -> None:
        """Keep a result under its open call; the first one wins."""
        self.open_calls = [
            call.with_(result=call.result or result) if call.call_id == result.call_id else call
            for call in self.open_calls
        ]

    def message(self, message_id: str) -> Message:
        """A stored message."""
        return next(message for message in self.messages if message.id == message_id)

    @property
    def path(self) -> Path:
        """The conversation."""
        return Path(messages=tuple(self.messages))

    def tail(self, processed: int = 5) -> Tail:
        """What a new owner of the thread reads."""
        head = self.messages[-1] if self.messages else None
        steps = [part.step for part in head.parts] if head else []
        return Tail(
            thread=ThreadRecord(
                thread_id=THREAD,
                agent="a",
                version=self.version,
                turn=max((message.turn for message in self.messages), default=0),
                head_id=head.id if head else None,
            ),
            sync_id=self.sync_id,
            message=head.with_(parts=()) if head else None,
            parts=len(head.parts) if head else 0,
            step=self.open_calls[0].step if self.open_calls else max(steps, default=-1) + 1,
            calls=tuple(self.open_calls),
            subscriptions=tuple(self.subscriptions),
            processed=tuple(self.digests.items())[max(0, len(self.digests) - processed) :],
        )

    def _apply(self, operation: Operation) -> None:
        match operation:
            case AppendMessage(message=message):
                assert message.id not in [other.id for other in self.messages]
                self.messages.append(message)
                if message.input_id:
                    self.digests[message.input_id] = operation.digest or ""
            case AppendParts():
                self._place(operation.message_id, operation.start, operation.parts)
                self._open_calls(operation.message_id, operation.start, operation.parts)
            case CommitStep():
                parts = self._taken(operation)
                self._place(operation.message_id, operation.start, parts)
                self._open_calls(operation.message_id, operation.start, parts)
            case StageResult(result=result):
                assert result.call_id in [call.call_id for call in self.open_calls]
                self.stage(result)
            case CommitResults():
                self._commit_results(operation)
            case SetStatus(message_id=message_id, status=status):
                assert message_id not in self.settled, "a status settles once"
                self.settled.append(message_id)
                self._replace(self.message(message_id).with_(status=status))
            case TrackSubscription(call_id=call_id, tool=tool):
                self.subscriptions.append(Subscription(call_id=call_id, tool=tool))
            case RemoveSubscription(call_id=call_id):
                self.subscriptions = [kept for kept in self.subscriptions if kept.call_id != call_id]

    def _taken(self, operation: CommitStep) -> tuple[Part, ...]:
        step = (operation.turn, operation.step)
        chunks, finished = self.streaming.pop(step, []), self.finished.pop(step, None)
        parts = TurnBuffer(chunks).parts if finished is None else finished
        if operation.discard:
            return ()
        if operation.sealed:
            return sealed_parts(parts)
        assert finished is not None or not chunks, "a step is committed when it is done"
        return trim_reasoning(parts) if operation.trim_reasoning else parts

    def _open_calls(self, message_id: str, start: int, parts: tuple[Part, ...]) -> None:
        turn = self.message(message_id).turn
        calls = [(position, part) for position, part in enumerate(parts, start) if isinstance(part, ToolCallPart)]
        for index, (position, part) in enumerate(calls):
            refusal = None
            if part.error is not None:
                refusal = ToolResultPart(call_id=part.call_id, outcome="error", content=part.error, step=part.step)
            opened = OpenCall(
                call_id=part.call_id,
                message_id=message_id,
                turn=turn,
                step=part.step,
                index=index,
                position=position,
                tool=part.tool,
                result=refusal,
            )
            self.open_calls.append(opened)

    def _commit_results(self, operation: CommitResults) -> None:
        made = {result.call_id: result for result in operation.results}
        staged = {call.call_id: call.result for call in self.open_calls}
        assert sorted(operation.call_ids) == sorted(staged), "the whole group, and nothing else, is closed"
        results = [staged[call_id] or made[call_id] for call_id in operation.call_ids]
        self.open_calls = []
        self._place(operation.message_id, operation.start, tuple(results))

    def _place(self, message_id: str, start: int, parts: tuple[Part, ...]) -> None:
        message = self.message(message_id)
        assert len(message.parts) == start, "parts go to the end"
        self._replace(message.with_(parts=message.parts + parts))

    def _replace(self, changed: Message) -> None:
        self.messages = [changed if message.id == changed.id else message for message in self.messages]


@dataclass
class NaiveCall:
    """A call of the open step; `told` when the thread knows that it has its result."""

    call_id: str
    result: ToolResultPart | None = None
    told: bool = False


@dataclass
class NaiveMessage:
    """A message as it should be."""

    role: Role
    parts: list[Part] = field(default_factory=list[Part])
    input_id: str | None = None
    status: Status = field(default_factory=Status)


@dataclass
class NaiveThread:
    """A conversation as it should be."""

    messages: list[NaiveMessage] = field(default_factory=list[NaiveMessage])
    accepted: dict[str, str] = field(default_factory=dict[str, str])
    subscriptions: list[str] = field(default_factory=list[str])
    interrupted: list[str] = field(default_factory=list[str])
    calls: list[NaiveCall] = field(default_factory=list[NaiveCall])
    all_calls: list[str] = field(default_factory=list[str])
    streamed: list[Chunk] = field(default_factory=list[Chunk])
    open: NaiveMessage | None = None
    running: bool = False
    due: bool = False
    turn: int = 0
    step: int = 0

    @property
    def phase(self) -> Phase:
        """Where it stands."""
        if self.open is None:
            return "idle"
        if self.running:
            return "busy"
        return "calling" if self.calls else "boundary"

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
                if self.due and self.open is None:
                    self.open_due_turn()
                if self.open is None:
                    return "dropped"
                self.close("cancelled")
                return "interrupted"

    def open_due_turn(self) -> None:
        """New words are answered by a turn."""
        if self.due and self.open is None:
            self.open = NaiveMessage("assistant", status=Status(state="running"))
            self.messages.append(self.open)
            self.turn, self.step, self.due = self.turn + 1, 0, False

    def _known(self, input_id: str, text: str) -> Disposition | None:
        if input_id not in self.accepted:
            return None
        return "duplicate" if self.accepted[input_id] == digest(text) else "conflict"

    def _user_message(self, message: UserMessage) -> Disposition:
        disposition: Disposition = "started"
        if self.open is not None:
            if message.mode == "reject":
                return "rejected"
            steers = message.mode == "steer" and self.phase == "boundary"
            disposition = "steered" if steers else "interrupted"
            self.close("steered" if steers else "cancelled")
        self._append("user", message.id, message.text, TextPart(text=message.text))
        return disposition

    def _event(self, event: Event) -> Disposition:
        if event.call_id not in self.subscriptions:
            return "dropped"
        part = EventPart(event_id=event.id, origin_call_id=event.call_id, content=event.content)
        self._append("event", event.id, event.content, part)
        if event.final:
            self.subscriptions.remove(event.call_id)
        return "started"

    def _append(self, role: Role, input_id: str, text: str, part: Part) -> None:
        self.messages.append(NaiveMessage(role, [part], input_id))
        self.accepted[input_id] = digest(text)
        self.due = True

    def _tool_result(self, result: ToolResult) -> Disposition:
        for call in self.calls:
            if call.call_id == result.call_id:
                if call.told:
                    return "duplicate"
                if not result.staged:
                    size = len(result.content.encode("utf-8", "surrogatepass"))
                    part = ToolResultPart(call_id=call.call_id, content=result.content, size_bytes=size, step=self.step)
                    self.stage(part)
                call.told = True
                self._close_group_when_told()
                return "settled"
        return "dropped"

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
                refusal = part.error is not None and ToolResultPart(
                    call_id=part.call_id, outcome="error", content=part.error, step=self.step
                )
                self.calls.append(NaiveCall(part.call_id, refusal or None, told=bool(refusal)))
                self.all_calls.append(part.call_id)
        if self.calls:
            self._close_group_when_told()
        else:
            self._settle(status)

    def fail(self, detail: str) -> None:
        """The open turn ends with an error; what streamed is dropped."""
        self.streamed = []
        self._close_calls()
        self._settle(Status(state="incomplete", reason="error", detail=detail))

    def close(self, reason: str) -> None:
        """The open turn is stopped where it stands."""
        assert self.open is not None
        if self.calls:
            self._close_calls()
        else:
            self.open.parts.extend(self.stamped(sealed_parts(TurnBuffer(self.streamed).parts)))
        self.streamed = []
        self._settle(Status.model_validate({"state": "incomplete", "reason": reason}))

    def stage(self, result: ToolResultPart) -> None:
        """A result is there; the first one stays."""
        for call in self.calls:
            if call.call_id == result.call_id and call.result is None:
                call.result = result

    def crash(self, *, keeps_stream: bool) -> None:
        """Its owner is gone: nothing runs, and the next one is told all that is stored."""
        self.running = False
        if not keeps_stream:
            self.streamed = []
        self.interrupted = []
        for call in self.calls:
            call.told = call.result is not None
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
            call.told = True
            call.result = call.result or ToolResultPart(
                call_id=call.call_id, outcome="interrupted", content=INTERRUPTED, step=self.step
            )
        if self.calls:
            self._close_group_when_told()

    def _close_group_when_told(self) -> None:
        assert self.open is not None
        if all(call.told for call in self.calls):
            self.open.parts.extend(call.result for call in self.calls if call.result)
            self.calls = []
            self.step += 1

    def _settle(self, status: Status) -> None:
        assert self.open is not None
        self.open.status = status
        self.open, self.running = None, False
