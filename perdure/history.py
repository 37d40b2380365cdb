"""HistoryManager: decides what becomes of everything that reaches a thread. Pure, synchronous and deterministic.

It never awaits and knows neither Temporal nor a database: it takes contents and completions, and gives batches for
its caller to `sync`. What it holds is bounded, however long the conversation is: the open turn with its calls, the
head, live subscriptions, and the ids of the newest accepted inputs. Older ids are the store's to judge, which it does
in the transaction of the sync: a batch that brings a known input is refused whole, and `synced` builds it again
without that input, as if it had never come. So a duplicate neither interrupts a turn nor costs a model call.

Two layers, as ever in streaming: what is committed (and pending for the next sync), and the turn buffer of the step
that streams. The buffer is here (`handle_completion`) for callers that stream through the manager, or in the store
(`handle_step`) for those that keep words out of their state, as the workflow does.

The state is one frozen value. Remembering what to go back to, carrying a run over continue-as-new and comparing two
managers in a test are therefore all the same thing: holding on to it.
"""

from collections.abc import Callable
from typing import Any, Literal, Self

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
from perdure.codec import Text, clip, digest
from perdure.contract import PREVIEW_CHARS, CallOutline, CompleteResult
from perdure.errors import UnflushedTurn
from perdure.history_state import HistoryState, LiveCall, OpenTurn, Phase, SpawnPoint, restored
from perdure.inputs import AnyInput, Disposition, Event, Interrupt, ToolResult, UserMessage
from perdure.messages import EventPart, Message, Part, Role, Status, TextPart, ToolCallPart, ToolResultPart, Usage
from perdure.policy import REMEMBERED_INPUTS
from perdure.ports import Subscription, Summary, Tail
from perdure.turn_buffer import Chunk, TurnBuffer, sealed_parts, trim_reasoning

INTERRUPTED = "The call was interrupted before it returned; whether it took effect is not known."


class HistoryManager:
    """One thread's view of its conversation. See the module's docstring."""

    def __init__(self, state: HistoryState) -> None:
        self._state = state
        self._buffer = TurnBuffer()
        self._base = state
        self._journal: list[tuple[Callable[[Any], None], Any]] = []

    @classmethod
    def from_tail(cls, tail: Tail) -> Self:
        """Restore a thread from what `StateStore.load_tail` read.

        A turn that was open when its last owner vanished is open again, with its calls as they were: it goes on
        where it stopped, since steps and calls are idempotent by their keys.
        """
        manager = cls(restored(tail))
        if manager.open_turn and manager.open_turn.calls:
            manager._recorded(manager._commit_group_when_settled, None)
        return manager

    @property
    def state(self) -> HistoryState:
        """The whole state, to carry over continue-as-new; what the buffer holds is not in it."""
        return self._state

    @property
    def phase(self) -> Phase:
        """Where the thread stands."""
        turn = self._state.open
        if turn is None:
            return "idle"
        return "busy" if turn.running or turn.calls else "boundary"

    @property
    def open_turn(self) -> OpenTurn | None:
        """The turn under way."""
        return self._state.open

    # -- inputs ------------------------------------------------------------------------------------------------

    def handle_content(self, content: AnyInput) -> Disposition:
        """The single entry for everything that reaches the thread. Returns what becomes of it, if the store agrees.

        What the store says of a message or event is known after `synced`; `disposition` reads it then.
        """
        before = self._state
        self._recorded(self._handle, content)
        match content:
            case UserMessage() | Event():
                return self._state.dispositions[content.id]
            case Interrupt():
                return "interrupted" if before.open else "dropped"
            case ToolResult():
                return _result_disposition(before, self._state, content.call_id)

    def disposition(self, input_id: str) -> Disposition | None:
        """What became of a message or event of the last batch."""
        return self._state.dispositions.get(input_id)

    def _handle(self, content: AnyInput) -> None:
        match content:
            case UserMessage():
                self._dispose(content.id, self._handle_user_message(content))
            case Event():
                self._dispose(content.id, self._handle_event(content))
            case ToolResult():
                self._handle_tool_result(content)
            case Interrupt():
                if self._state.open:
                    self._settle_interrupted("cancelled", content.reason)

    def _handle_user_message(self, message: UserMessage) -> Disposition:
        content_digest = message.sha256 or digest(message.text)
        known = self._known(message.id, content_digest)
        if known:
            return known
        disposition: Disposition = "started"
        if self._state.open:
            if message.mode == "reject":
                return "rejected"
            joins = message.mode == "steer" and self.phase == "boundary"
            self._settle_interrupted("steered" if joins else "cancelled", None)
            disposition = "steered" if joins else "interrupted"
        part = TextPart(text="" if message.blob else message.text, blob=message.blob)
        self._accept(message.id, content_digest, "user", part, message.metadata)
        return disposition

    def _handle_event(self, event: Event) -> Disposition:
        content_digest = event.sha256 or digest(event.content)
        known = self._known(event.id, content_digest)
        if known:
            return known
        if not any(subscription.call_id == event.call_id for subscription in self._state.subscriptions):
            self._change(dropped=self._state.dropped + 1)
            return "dropped"
        content = "" if event.blob else event.content
        part = EventPart(event_id=event.id, origin_call_id=event.call_id, content=content, blob=event.blob)
        self._accept(event.id, content_digest, "event", part, None)
        if event.final:
            self._remove_subscription(event.call_id)
        return "started"

    def _handle_tool_result(self, result: ToolResult) -> None:
        call = self._live_call(result.call_id)
        if call is None or call.settled:
            self._change(dropped=self._state.dropped + 1)
            return
        if not result.staged:
            self._append(StageResult(result=_result_part(result, self._open_turn().step)))
        self._replace_call(call.with_(settled=True))
        self._commit_group_when_settled(None)

    def _known(self, input_id: str, content_digest: str) -> Disposition | None:
        known = self._state.processed.get(input_id)
        if known is None:
            return None
        return "duplicate" if known == content_digest else "conflict"

    def _accept(
        self, input_id: str, content_digest: str, role: Role, part: Part, metadata: dict[str, Any] | None
    ) -> None:
        message = Message(
            id=ids.input_message_id(self._state.thread_id, input_id),
            thread_id=self._state.thread_id,
            role=role,
            parts=(part,),
            input_id=input_id,
            metadata=metadata,
        )
        self._append(AppendMessage(message=message, digest=content_digest))
        self._change(
            processed={**self._state.processed, input_id: content_digest},
            head_id=message.id,
            last=message.status,
            answer_due=True,
        )

    def _dispose(self, input_id: str, disposition: Disposition) -> None:
        self._change(dispositions={**self._state.dispositions, input_id: disposition})

    # -- the turn ----------------------------------------------------------------------------------------------

    def begin_step(self) -> tuple[int, int]:
        """The next model call starts; returns its (turn, step). Only at a boundary."""
        self._recorded(self._begin_step, None)
        turn = self._open_turn()
        return turn.turn, turn.step

    def _begin_step(self, _: None) -> None:
        self._change(open=self._open_turn().with_(running=True))

    def handle_completion(self, chunk: Chunk) -> None:
        """Take a streamed chunk into the turn buffer; consecutive text is joined. Nothing of it is history yet."""
        self._buffer.add(chunk)

    def handle_step(self, outline: CompleteResult) -> None:
        """Take the outline of a step whose content waits in the store's turn buffer."""
        self._recorded(self._take_outline, outline)

    def _take_outline(self, outline: CompleteResult) -> None:
        self._change(open=self._open_turn().with_(outline=outline))

    def flush_turn(self) -> None:
        """Commit the turn buffer. Without calls in it the turn is complete; with calls it waits for their results."""
        self._flush(trim=False)

    def flush_turn_trimming_reasoning(self) -> None:
        """Commit the turn buffer without trailing reasoning: no committed step ends on a thought (rule V7)."""
        self._flush(trim=True)

    def _flush(self, *, trim: bool) -> None:
        parts = self._buffer.parts
        self._buffer.clear()
        self._recorded(self._commit_step, (trim_reasoning(parts) if trim else parts, trim))

    def _commit_step(self, flushed: tuple[tuple[Part, ...], bool]) -> None:
        parts, trim = flushed
        turn = self._open_turn()
        if turn.outline is None:
            outline, count = _outline(parts), len(parts)
            if parts:
                self._append(AppendParts(message_id=turn.message_id, start=turn.parts, parts=parts))
        else:
            outline, count = turn.outline, turn.outline.parts - (turn.outline.trailing_reasoning if trim else 0)
            self._append(_commit_stored(turn).with_(trim_reasoning=trim))
        calls = tuple(self._new_call(turn, call, parts) for call in outline.calls)
        spawn_parts = turn.parts + (outline.first_call if calls else count)
        self._change(
            open=turn.with_(
                running=False,
                outline=None,
                parts=turn.parts + count,
                spawn_parts=spawn_parts,
                calls=calls,
                usage=turn.usage + outline.usage,
            ),
            usage=self._state.usage + outline.usage,
        )
        if calls:
            self._commit_group_when_settled(None)
        else:
            self._settle(_final_status(outline))

    def discard_turn(self) -> None:
        """Drop the turn buffer, so that the step can be tried again from clean committed history."""
        self._buffer.clear()
        self._recorded(self._discard_turn, None)

    def _discard_turn(self, _: None) -> None:
        if self._state.open:
            self._change(open=self._state.open.with_(running=False, outline=None))

    def fail_turn(self, detail: Text) -> None:
        """The step failed for good: drop its buffer and settle the turn with the error. The thread goes on."""
        self.discard_turn()
        self._recorded(self._fail_turn, detail)

    def _fail_turn(self, detail: Text) -> None:
        self._append(_commit_stored(self._open_turn()).with_(discard=True))
        self._settle(Status(state="incomplete", reason="error", detail=detail))

    def _settle_interrupted(self, reason: Literal["cancelled", "steered"], detail: Text | None) -> None:
        """Close the open turn where it stands: seal what streams, answer open calls, settle the message."""
        turn = self._open_turn()
        if turn.calls:
            unanswered = tuple(call for call in turn.calls if not call.settled)
            self._change(interrupted=self._state.interrupted + unanswered)
            for call in unanswered:
                self._replace_call(call.with_(settled=True, result=_interrupted(call, turn.step)))
            self._commit_group()
        elif turn.running:
            self._seal(turn)
        self._settle(Status(state="incomplete", reason=reason, detail=detail))

    def _seal(self, turn: OpenTurn) -> None:
        kept = sealed_parts(self._buffer.parts)
        self._buffer.clear()
        if kept:
            self._append(AppendParts(message_id=turn.message_id, start=turn.parts, parts=kept))
        self._append(_commit_stored(turn.with_(parts=turn.parts + len(kept))).with_(sealed=True))

    def _settle(self, status: Status) -> None:
        turn = self._open_turn()
        usage = turn.usage if turn.usage != Usage() else None
        self._append(SetStatus(message_id=turn.message_id, status=status, usage=usage))
        self._change(open=None, last=status)

    # -- calls -------------------------------------------------------------------------------------------------

    def mark_dispatched(self, call_id: str) -> None:
        """Remember that a call is on its way, so that this run does not dispatch it again."""
        self._recorded(self._mark_dispatched, call_id)

    def _mark_dispatched(self, call_id: str) -> None:
        call = self._live_call(call_id)
        if call:
            self._replace_call(call.with_(dispatched=True))

    def take_interrupted_tool_calls(self) -> tuple[LiveCall, ...]:
        """Calls that were interrupted since the last time: whoever runs them is to be told, best effort."""
        interrupted = self._state.interrupted
        self._change(interrupted=())
        return interrupted

    def _new_call(self, turn: OpenTurn, outline: CallOutline, parts: tuple[Part, ...]) -> LiveCall:
        written = [part for part in parts if isinstance(part, ToolCallPart)]
        thread_id = self._state.thread_id
        call_id = (
            written[outline.index].call_id if written else ids.call_id(thread_id, turn.turn, turn.step, outline.index)
        )
        if outline.error is None:
            return LiveCall(call_id=call_id, outline=outline)
        refusal = ToolResultPart(call_id=call_id, outcome="error", content=outline.error, step=turn.step)
        return LiveCall(call_id=call_id, outline=outline, settled=True, result=refusal)

    def _live_call(self, call_id: str) -> LiveCall | None:
        """Walk back over the trailing calls: only those of the open step can still get a result."""
        calls = self._state.open.calls if self._state.open else ()
        return next((call for call in reversed(calls) if call.call_id == call_id), None)

    def _replace_call(self, changed: LiveCall) -> None:
        turn = self._open_turn()
        calls = tuple(changed if call.call_id == changed.call_id else call for call in turn.calls)
        self._change(open=turn.with_(calls=calls))

    def _commit_group_when_settled(self, _: None) -> None:
        if all(call.settled for call in self._open_turn().calls):
            self._commit_group()

    def _commit_group(self) -> None:
        turn = self._open_turn()
        self._append(
            CommitResults(
                message_id=turn.message_id,
                start=turn.parts,
                call_ids=tuple(call.call_id for call in turn.calls),
                results=tuple(call.result for call in turn.calls if call.result),
            )
        )
        parts = turn.parts + len(turn.calls)
        self._change(open=turn.with_(calls=(), step=turn.step + 1, parts=parts, spawn_parts=parts))

    # -- sync --------------------------------------------------------------------------------------------------

    def take_pending(self, sync_id: str) -> SyncBatch | None:
        """What the next sync writes, None if there is nothing. Opens the turn that answers new inputs.

        The turn's message is in the batch of its inputs, so a crash cannot leave words that nobody answers.

        Raises:
            UnflushedTurn: if the turn buffer holds content, which this sync would lose.
        """
        if self._buffer or (self._state.open and self._state.open.outline):
            raise UnflushedTurn("bug: sync with an unflushed turn; call flush_turn or discard_turn first")
        self._recorded(self._open_due_turn, None)
        if not self._state.pending:
            return None
        return SyncBatch(
            thread_id=self._state.thread_id,
            number=self._state.version + 1,
            sync_id=sync_id,
            operations=self._state.pending,
        )

    def synced(self, report: SyncReport) -> tuple[Refused, ...]:
        """Take the store's answer. If it refused inputs, nothing was written: sync again without them.

        Returns the refused inputs; with any, `take_pending` gives the batch that is left.
        """
        if report.refused:
            self._rebuild(report.refused)
            return report.refused
        newest = list(self._state.processed.items())[-REMEMBERED_INPUTS:]
        self._change(version=report.number, pending=(), processed=dict(newest))
        self._base, self._journal = self._state, []
        return ()

    def take_dispositions(self) -> dict[str, Disposition]:
        """What became of the messages and events since the last time, final once they are synced."""
        dispositions = self._state.dispositions
        self._change(dispositions={})
        if not self._journal:
            self._base = self._state
        return dispositions

    def _rebuild(self, refused: tuple[Refused, ...]) -> None:
        # The batch was refused whole, so the state before it still holds, and the journal is all that came after.
        known = {item.input_id: item for item in refused}
        journal, self._journal, self._state = self._journal, [], self._base
        for item in refused:
            self._dispose(item.input_id, "conflict" if item.conflict else "duplicate")
        for method, argument in journal:
            if not (isinstance(argument, UserMessage | Event) and argument.id in known):
                self._recorded(method, argument)

    def _open_due_turn(self, _: None) -> None:
        state = self._state
        if not state.answer_due or state.open:
            return
        number = state.turn + 1
        message = Message(
            id=ids.turn_message_id(state.thread_id, number),
            thread_id=state.thread_id,
            role="assistant",
            turn=number,
            status=Status(state="running"),
        )
        self._append(AppendMessage(message=message))
        self._change(
            turn=number,
            answer_due=False,
            head_id=message.id,
            last=message.status,
            open=OpenTurn(message_id=message.id, turn=number),
        )

    @property
    def unsynced_inputs(self) -> tuple[AnyInput, ...]:
        """Inputs handled since the last sync, to be handled again if it fails for good."""
        inputs = (UserMessage, Event, ToolResult, Interrupt)
        return tuple(argument for _, argument in self._journal if isinstance(argument, inputs))

    # -- threads and subscriptions -----------------------------------------------------------------------------

    def safe_spawn_point(self) -> SpawnPoint:
        """Where a child may inherit up to: trailing calls without a result, and their whole group, are excluded."""
        turn = self._state.open
        if turn is None:
            return SpawnPoint(message_id=self._state.head_id)
        return SpawnPoint(message_id=turn.message_id, parts=turn.spawn_parts)

    def track_subscription(self, call_id: str, tool: str) -> None:
        """A settled call goes on sending events. Safe to repeat."""
        self._recorded(self._track_subscription, Subscription(call_id=call_id, tool=tool))

    def _track_subscription(self, subscription: Subscription) -> None:
        if subscription not in self._state.subscriptions:
            self._append(TrackSubscription(call_id=subscription.call_id, tool=subscription.tool))
            self._change(subscriptions=(*self._state.subscriptions, subscription))

    def remove_subscription(self, call_id: str) -> None:
        """A subscription has ended; its later events are dropped. Safe to repeat."""
        self._recorded(self._remove_subscription, call_id)

    def _remove_subscription(self, call_id: str) -> None:
        kept = tuple(item for item in self._state.subscriptions if item.call_id != call_id)
        if kept != self._state.subscriptions:
            self._append(RemoveSubscription(call_id=call_id))
            self._change(subscriptions=kept)

    def apply_compaction(self, summary: Summary) -> None:
        """A summary landed on a point of the tree. Nothing here is counted from the start, so nothing shifts.

        Only the newest summary's point is kept; the store stops at it when it loads the path.
        """
        self._recorded(self._apply_compaction, SpawnPoint(message_id=summary.message_id, parts=summary.parts))

    def _apply_compaction(self, point: SpawnPoint) -> None:
        self._change(summary=point)

    def current_turn_view(self, committed: tuple[Message, ...]) -> tuple[Message, ...]:
        """The committed path, then what is pending, then the buffer of the step that streams.

        `committed` is the path as the store has it. What the store's own turn buffer holds is in its snapshot.
        """
        messages = {message.id: message for message in committed}
        for operation in self._state.pending:
            if isinstance(operation, AppendMessage):
                messages.setdefault(operation.message.id, operation.message)
            elif isinstance(operation, AppendParts):
                message = messages[operation.message_id]
                messages[message.id] = message.with_(parts=message.parts[: operation.start] + operation.parts)
        if self._state.open and self._buffer:
            message = messages[self._state.open.message_id]
            messages[message.id] = message.with_(parts=message.parts + self._buffer.parts)
        return tuple(messages.values())

    # -- state -------------------------------------------------------------------------------------------------

    def _recorded(self, method: Callable[[Any], None], argument: Any) -> None:
        self._journal.append((method, argument))
        method(argument)

    def _change(self, **changes: Any) -> None:
        self._state = self._state.with_(**changes)

    def _append(self, operation: Operation) -> None:
        self._change(pending=(*self._state.pending, operation))

    def _open_turn(self) -> OpenTurn:
        if self._state.open is None:
            raise AssertionError("bug: no turn is open")
        return self._state.open


def _commit_stored(turn: OpenTurn) -> CommitStep:
    return CommitStep(message_id=turn.message_id, start=turn.parts, turn=turn.turn, step=turn.step)


def _outline(parts: tuple[Part, ...]) -> CompleteResult:
    calls = [(position, part) for position, part in enumerate(parts) if isinstance(part, ToolCallPart)]
    return CompleteResult(
        parts=len(parts),
        first_call=calls[0][0] if calls else 0,
        calls=tuple(
            CallOutline(index=index, tool=part.tool, preview=clip(part.arguments, PREVIEW_CHARS), error=part.error)
            for index, (_, part) in enumerate(calls)
        ),
    )


def _final_status(outline: CompleteResult) -> Status:
    match outline.finish:
        case "length" | "content_filter" | "limit":
            return Status(state="incomplete", reason=outline.finish, detail=outline.detail)
        case "stop" | "tool_calls":
            return Status()


def _result_part(result: ToolResult, step: int) -> ToolResultPart:
    size_bytes = result.size_bytes or len(result.content.encode("utf-8", "surrogatepass"))
    return ToolResultPart(
        call_id=result.call_id,
        outcome=result.outcome,
        content=result.content,
        blob=result.blob,
        size_bytes=size_bytes,
        step=step,
    )


def _result_disposition(before: HistoryState, after: HistoryState, call_id: str) -> Disposition:
    if after.dropped == before.dropped:
        return "settled"
    calls = before.open.calls if before.open else ()
    return "duplicate" if any(call.call_id == call_id for call in calls) else "dropped"


def _interrupted(call: LiveCall, step: int) -> ToolResultPart:
    return ToolResultPart(call_id=call.call_id, outcome="interrupted", content=INTERRUPTED, step=step)
