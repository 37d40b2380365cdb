"""A naive store of one thread, on lists: it applies batches with the promises of `perdure.batch`."""

from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Literal, NamedTuple

from perdure.approval import ApprovalRequest, Decision, RememberedDecision
from perdure.batch import (
    AnnotateMessage,
    AppendMessage,
    AppendParts,
    CloseThread,
    CommitResults,
    CommitStep,
    Decide,
    DeleteMessage,
    ForgetDecisions,
    ImportMessages,
    Operation,
    Refused,
    RememberDecision,
    RemoveSubscription,
    ResetThread,
    SetDue,
    SetStatus,
    ShowInterim,
    StageResult,
    StoreLateResult,
    SwitchBranch,
    SyncBatch,
    SyncReport,
    TrackSubscription,
)
from perdure.codec import digest
from perdure.contract import CallOutline, CompleteResult
from perdure.errors import StaleWriter
from perdure.messages import Message, Part, ToolCallPart, ToolResultPart
from perdure.records import OpenCall, Path, Subscription, Tail, ThreadKind, ThreadRecord
from perdure.tools import KEPT_ARGUMENTS, ToolKind
from perdure.turn_buffer import Chunk, TurnBuffer, sealed_parts, trim_reasoning

THREAD = "t2"
CLOSED_AT = datetime(2026, 1, 1, tzinfo=UTC)

Step = tuple[int, int]


class Declared(NamedTuple):
    """What an agent says of a tool. Stores do not know it: `load` adds it to what they read."""

    kind: ToolKind = "function"
    passive: bool = False
    operation: str | None = None
    approval: ApprovalRequest | None = None


class NaiveStore:
    """What one thread has stored, and what its agent declares."""

    def __init__(self, tools: Mapping[str, Declared] | None = None) -> None:
        self.tools = tools or {}
        self.messages: list[Message] = []
        self.digests: dict[str, str] = {}
        self.open_calls: list[OpenCall] = []
        self.subscriptions: list[Subscription] = []
        self.streaming: dict[Step, list[Chunk]] = {}
        self.finished: dict[Step, tuple[Part, ...]] = {}
        self.version = 0
        self.sync_id: str | None = None
        self.settled: list[str] = []
        self.closed = False
        self.kind: ThreadKind = "root"
        self.remembered: list[RememberedDecision] = []
        self.decisions: dict[str, Decision] = {}
        self.interims: dict[str, ToolResultPart] = {}
        self.late: list[ToolResultPart] = []
        self.refused: dict[str, tuple[Refused, ...]] = {}

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
        # Asked first, and told alone, as by the stores.
        refused = self._unwanted(batch) or refused
        if refused:
            self.refused[batch.sync_id] = refused
            return SyncReport(number=self.version, refused=refused)
        assert not self.closed, "a closed thread is not written any more"
        for operation in batch.operations:
            self._apply(operation)
        self.version, self.sync_id = batch.number, batch.sync_id
        return SyncReport(number=batch.number)

    def _unwanted(self, batch: SyncBatch) -> tuple[Refused, ...]:
        late = (one for one in batch.operations if isinstance(one, StoreLateResult) and one.named)
        wanted = {one.result.call_id for one in late if one.message_id is None}
        missing = wanted - {call.call_id for call in self.open_calls}
        return tuple(Refused(input_id=call_id, message_id="") for call_id in sorted(missing))

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
                kind=self.kind,
                version=self.version,
                turn=max((message.turn for message in self.messages), default=0),
                head_id=head.id if head else None,
                closed_at=CLOSED_AT if self.closed else None,
            ),
            message=head.with_(parts=()) if head else None,
            parts=len(head.parts) if head else 0,
            step=self.open_calls[0].step if self.open_calls else max(steps, default=-1) + 1,
            calls=tuple(self._declared(call) for call in self.open_calls),
            subscriptions=tuple(self.subscriptions),
            remembered=tuple(self.remembered),
            processed=tuple(self.digests.items())[max(0, len(self.digests) - processed) :],
        )

    def _declared(self, call: OpenCall) -> OpenCall:
        tool = self.tools.get(call.tool, Declared())
        known = call.with_(kind=tool.kind, passive=tool.passive, operation=tool.operation, approval=tool.approval)
        return known if tool.approval is None else known.with_(arguments_digest=digest(call.arguments))

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
                if status.state in ("complete", "incomplete"):
                    self.settled.append(message_id)
                self._replace(self.message(message_id).with_(status=status))
            case TrackSubscription():
                self._track(Subscription(**operation.model_dump(exclude={"kind"})))
            case RemoveSubscription(call_id=call_id):
                assert call_id in [kept.call_id for kept in self.subscriptions], "a subscription ends once"
                self.subscriptions = [kept for kept in self.subscriptions if kept.call_id != call_id]
            case SetDue():
                self._set_due(operation)
            case Decide(call_id=call_id, decision=decision):
                self._decide(call_id, decision)
            case RememberDecision(remembered=remembered):
                self.remembered.append(remembered)
            case ForgetDecisions():
                self.remembered = []
            case ShowInterim(result=result):
                self.interims[result.call_id] = result
            case StoreLateResult(result=result):
                self.late.append(result)
            case SwitchBranch() | DeleteMessage() | ResetThread() | ImportMessages() | AnnotateMessage():
                raise AssertionError("this store knows one branch")
            case CloseThread():
                self.closed = True

    def _track(self, tracked: Subscription) -> None:
        known = [kept.call_id for kept in self.subscriptions]
        if tracked.call_id not in known:
            self.subscriptions.append(tracked)
        self.subscriptions = [tracked if kept.call_id == tracked.call_id else kept for kept in self.subscriptions]

    def _decide(self, call_id: str, decision: Decision) -> None:
        (call,) = [call for call in self.open_calls if call.call_id == call_id]
        assert call.decision is None, "a call is decided about once"
        decided = call.with_(decision=decision, due=None)
        self.decisions[call_id] = decision
        self.open_calls = [decided if known.call_id == call_id else known for known in self.open_calls]

    def _set_due(self, operation: SetDue) -> None:
        (call,) = [call for call in self.open_calls if call.call_id == operation.call_id]
        assert call.due != operation.due, "the same time is written once"
        due = call.with_(due=operation.due)
        self.open_calls = [due if call.call_id == due.call_id else call for call in self.open_calls]

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
                arguments=part.arguments,
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


def outline(
    parts: tuple[Part, ...], tools: Mapping[str, Declared], finish: Literal["stop", "length", "limit"] = "stop"
) -> CompleteResult:
    """What `complete` says of a step with these parts."""
    calls = [(position, part) for position, part in enumerate(parts) if isinstance(part, ToolCallPart)]
    return CompleteResult(
        parts=len(parts),
        first_call=calls[0][0] if calls else 0,
        trailing_reasoning=len(parts) - len(trim_reasoning(parts)),
        calls=tuple(_call_outline(index, part, tools) for index, (_, part) in enumerate(calls)),
        finish=finish,
        detail=None if finish == "stop" else "why",
    )


def _call_outline(index: int, part: ToolCallPart, tools: Mapping[str, Declared]) -> CallOutline:
    tool = tools.get(part.tool, Declared())
    return CallOutline(
        index=index,
        tool=part.tool,
        error=part.error,
        kind=tool.kind,
        passive=tool.passive,
        operation=tool.operation,
        arguments=part.arguments if tool.kind in KEPT_ARGUMENTS else None,
        approval=tool.approval,
        arguments_digest=digest(part.arguments) if tool.approval else None,
    )
