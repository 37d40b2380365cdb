"""One thread in memory, and what the operations of a batch do to it; what they do to its tree is in `memory_batch`."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from typing import Any

from perdure.approval import RememberedDecision
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
    RememberDecision,
    RemoveSubscription,
    ResetThread,
    SetDue,
    SetStatus,
    ShowInterim,
    StageResult,
    StoreLateResult,
    SwitchBranch,
    TrackSubscription,
)
from perdure.codec import dumps
from perdure.errors import StepSealed, StoreError, UnknownMessage
from perdure.messages import Message, Part, Status, ToolCallPart, ToolResultPart, Usage
from perdure.records import Change, OpenCall, Subscription
from perdure.turn_buffer import Chunk, sealed_parts, trim_reasoning
from stores.late_result import NoSuchCall, has_call, opened, replaced
from stores.memory_providers import MemoryProviders
from stores.memory_records import StoredMessage, StoredStep, kept

NEVER = 2**31 - 1
"""Above all steps: a turn whose newest step this is takes no writer any more."""


@dataclass
class MemoryThread(MemoryProviders):
    """Everything that belongs to one thread. The operations raise before or after they change it; see `copy`.

    `done` is the newest step of each turn that was committed, sealed or discarded. `shape` and `tree_seq` are the
    numbers of the newest changes in the middle and of the tree, `remembered` the child of the root that is open.
    `spent_blob` is the file of an import, which the next batch removes: until then this one may be sent again.
    """

    sync_id: str | None = None
    done: dict[int, int] = field(default_factory=dict[int, int])
    messages: dict[str, StoredMessage] = field(default_factory=dict[str, StoredMessage])
    inputs: dict[str, str | None] = field(default_factory=dict[str, str | None])
    steps: dict[tuple[int, int], StoredStep] = field(default_factory=dict[tuple[int, int], StoredStep])
    subscriptions: dict[str, Subscription] = field(default_factory=dict[str, Subscription])
    metadata: dict[str, Any] = field(default_factory=dict[str, Any])
    blobs: dict[str, bytes] = field(default_factory=dict[str, bytes])
    decisions: tuple[RememberedDecision, ...] = ()
    remembered: str | None = None
    tree_seq: int = 0
    shape: int = 0
    summed: int = 0
    spent_blob: str | None = None

    def copy(self) -> "MemoryThread":
        """A draft for a batch. What it holds is frozen, so the containers are enough."""
        return replace(
            self,
            done=dict(self.done),
            messages=dict(self.messages),
            inputs=dict(self.inputs),
            steps=dict(self.steps),
            calls=dict(self.calls),
            choices=dict(self.choices),
            subscriptions=dict(self.subscriptions),
        )

    # -- operations --------------------------------------------------------------------------------------------

    def apply(self, operation: Operation) -> None:
        """Apply one operation of a batch that does nothing to the tree but to go on at the head."""
        match operation:
            case AppendMessage(message=message):
                self._append_at_head(message)
            case AppendParts():
                self.add_parts(operation.message_id, operation.start, operation.parts)
                self._open_calls(operation.message_id, operation.start, operation.parts)
            case CommitStep():
                self._commit_step(operation)
            case StageResult(result=result):
                self.stage_result(result)
            case CommitResults():
                self._commit_results(operation)
            case SetStatus(message_id=message_id, status=status):
                self.set_status(message_id, status)
            case TrackSubscription():
                self._track_subscription(operation)
            case RemoveSubscription(call_id=call_id):
                self.subscriptions.pop(call_id, None)
            case SetDue(call_id=call_id, due=due):
                if call_id in self.calls:
                    self.change_call(self.open_call(call_id).with_(due=due))
            case CloseThread():
                self.close()
            case Decide():
                self.decide(operation)
            case RememberDecision(remembered=remembered):
                self._remember_decision(kept(remembered))
            case ForgetDecisions():
                self.decisions = ()
            case ShowInterim(result=result):
                if result.call_id in self.calls:
                    self.change_call(self.open_call(result.call_id).with_(interim=kept(result)))
            case StoreLateResult():
                self._store_late_result(operation)
            case AnnotateMessage():
                self._annotate(operation)
            case SwitchBranch() | DeleteMessage() | ResetThread() | ImportMessages():
                raise StoreError(f"bug: {operation.kind} needs the tree")

    def _append_at_head(self, message: Message) -> None:
        record = self.record
        parent_id = record.head_id or record.spawn_message_id
        parent_parts = message.parent_parts if record.head_id else record.spawn_parts
        above = self.messages.get(parent_id or "")
        if above is not None and above.remembered is not None:
            self.messages[above.message.id] = replace(above, remembered=None)
        self.add_message(message.with_(parent_id=parent_id, parent_parts=parent_parts))

    def add_message(self, message: Message, place: int | None = None) -> None:
        """Store a message with its parent, as the head; its place is its number if none is given."""
        seq = self.next_seq()
        stored = kept(message.with_(thread_id=self.record.thread_id, parts=(), seq=seq))
        self.messages[message.id] = StoredMessage(
            stored, changed=seq, place=seq if place is None else place, created_at=datetime.now(UTC)
        )
        self.add_parts(message.id, 0, message.parts)
        self.record = self.record.with_(head_id=message.id, turn=max(self.record.turn, message.turn))

    def add_parts(self, message_id: str, start: int, parts: tuple[Part, ...]) -> None:
        """Add parts to the end of a message, which is `start`."""
        stored = self.messages.get(message_id)
        if stored is None or len(stored.parts) != start:
            raise StoreError(f"bug: position {start} is not the end of message {message_id} in this thread")
        numbered = tuple((self.next_seq(), kept(part)) for part in parts)
        self.messages[message_id] = replace(stored, parts=stored.parts + numbered)

    def _open_calls(
        self, message_id: str, start: int, parts: tuple[Part, ...], at_step: tuple[int, int] | None = None
    ) -> None:
        turn, step = at_step or (self.messages[message_id].message.turn, None)
        calls = [(position, part) for position, part in enumerate(parts, start) if isinstance(part, ToolCallPart)]
        for index, (position, call) in enumerate(calls):
            self.open(message_id, turn, call.step if step is None else step, index, position, call)

    def open(self, message_id: str, turn: int, step: int, index: int, position: int, call: ToolCallPart) -> None:
        """The call of a part is open; one that must not be executed has its result."""
        opened = OpenCall(
            call_id=call.call_id,
            message_id=message_id,
            turn=turn,
            step=step,
            index=index,
            position=position,
            tool=call.tool,
            arguments=call.arguments,
            result=call.refusal,
            approval=call.approval,
            decision=call.decision,
        )
        self.calls[call.call_id] = (self.next_seq() if opened.result else 0, opened)

    def _commit_step(self, operation: CommitStep) -> None:
        at = (operation.turn, operation.step)
        stored = self.steps.get(at)
        parts: tuple[Part, ...] = ()
        if stored and not operation.discard:
            parts = stored.as_step(*at).parts
            if operation.sealed or stored.outcome is None:
                parts = sealed_parts(parts)
            elif operation.trim_reasoning:
                parts = trim_reasoning(parts)
        self.add_parts(operation.message_id, operation.start, parts)
        self._open_calls(operation.message_id, operation.start, parts, at)
        self.steps = {other: step for other, step in self.steps.items() if other > at}
        self.done[operation.turn] = max(self.done.get(operation.turn, -1), operation.step)
        usage = self.usage_of(operation, stored)
        self.spend(usage)
        self.spend_on(operation.message_id, usage)

    def _commit_results(self, operation: CommitResults) -> None:
        made = {result.call_id: result for result in operation.results}
        results: list[ToolResultPart] = []
        for call_id in operation.call_ids:
            _, call = self.calls.pop(call_id, (0, None))
            result = (call.result if call else None) or made.get(call_id)
            if result is None:
                raise StoreError(f"bug: call {call_id} is closed without a result")
            results.append(result)
        self.drop_choices()
        self.add_parts(operation.message_id, operation.start, tuple(results))

    def set_status(self, message_id: str, status: Status) -> None:
        """The message stands like this now, unless it has settled."""
        stored = self.messages.get(message_id)
        if stored is None:
            raise StoreError(f"bug: status of message {message_id}, not here")
        if stored.state in ("running", "requires_action"):
            message = stored.message.with_(status=kept(status))
            self.messages[message_id] = replace(stored, message=message, changed=self.next_seq())

    def decide(self, operation: Decide) -> None:
        """The first decision about an open call stays with its part; nobody has to wait for one any more."""
        _, call = self.calls.get(operation.call_id, (0, None))
        if call is None or call.decision is not None:
            return
        decision = kept(operation.decision)
        stored = self.messages[call.message_id]
        seq, part = stored.parts[call.position]
        parts = (
            *stored.parts[: call.position],
            (seq, part.with_(decision=decision)),
            *stored.parts[call.position + 1 :],
        )
        decided = (*stored.decided, (self.next_seq(), call.position))
        self.messages[call.message_id] = replace(stored, parts=parts, decided=decided)
        self.change_call(call.with_(decision=decision, due=None))

    def _remember_decision(self, new: RememberedDecision) -> None:
        others = [known for known in self.decisions if (known.tool, known.arguments) != (new.tool, new.arguments)]
        self.decisions = (*others, new)

    def _store_late_result(self, operation: StoreLateResult) -> None:
        message_id, result = operation.message_id, kept(operation.result)
        _, call = self.calls.get(result.call_id, (0, None))
        if call is not None and message_id in (None, call.message_id):
            if operation.subscribes and call.result is None:
                self._track_subscription(opened(call))
            self.answer_call(call, result, interim=operation.interim)
            return
        if message_id is None:
            return
        stored = self.messages.get(message_id)
        parts = replaced(stored.parts, result) if stored else None
        if stored and parts:
            self.messages[message_id] = replace(stored, parts=parts)
            self.redraw(reshape=True)
        elif operation.named and not (stored and has_call(stored.parts, result.call_id)):
            raise NoSuchCall(message_id, result.call_id)

    def _annotate(self, operation: AnnotateMessage) -> None:
        stored = self.messages.get(operation.message_id)
        if stored is None:
            raise UnknownMessage(f"There is no message {operation.message_id!r} in this thread.")
        merged = {**(stored.message.metadata or {}), **operation.metadata}
        values = {key: value for key, value in merged.items() if value is not None}
        message = kept(stored.message.with_(metadata=values or None))
        self.messages[operation.message_id] = replace(stored, message=message, changed=self.next_seq())

    def _track_subscription(self, operation: TrackSubscription) -> None:
        subscription = Subscription(
            call_id=operation.call_id,
            tool=operation.tool,
            arguments=operation.arguments,
            received=operation.received,
            paused=operation.paused,
        )
        self.subscriptions[operation.call_id] = kept(subscription)  # written again it keeps its place

    def spend(self, usage: Usage) -> None:
        """Count what a model call has cost the thread."""
        self.record = self.record.with_(usage=self.record.usage + usage)

    def spend_on(self, message_id: str, usage: Usage, changed: int | None = None) -> None:
        """Count what a model call has cost with its turn. Readers see it with the next change of the message."""
        stored = self.messages[message_id]
        if usage != Usage():
            message = stored.message.with_(usage=(stored.message.usage or Usage()) + usage)
            self.messages[message_id] = replace(stored, message=message, changed=changed or stored.changed)

    def redraw(self, *, reshape: bool) -> None:
        """Readers need a new snapshot, and with `reshape` what is kept of paths is void."""
        self.tree_seq = self.next_seq()
        if reshape:
            self.shape = self.tree_seq

    def follow(self, heirs: Mapping[str | None, tuple[str | None, int | None]]) -> None:
        """Of messages of another thread that are gone, the path goes on to these, with so many of their parts."""
        record = self.record
        if record.spawn_message_id in heirs:
            spawn_message_id, spawn_parts = heirs[record.spawn_message_id]
            self.record = record.with_(spawn_message_id=spawn_message_id, spawn_parts=spawn_parts)
        if record.head_id in heirs:
            self.record = self.record.with_(head_id=heirs[record.head_id][0])
        for name, stored in self.messages.items():
            if stored.message.parent_id in heirs:
                parent_id, parent_parts = heirs[stored.message.parent_id]
                message = stored.message.with_(parent_id=parent_id, parent_parts=parent_parts)
                self.messages[name] = replace(stored, message=message)

    def names(self, blob: str) -> bool:
        """Whether anything that is kept names this blob."""
        kept_here: list[object] = [
            [[part for _, part in stored.parts] for stored in self.messages.values()],
            [call for _, call in self.calls.values()],
            [(step.parts, step.chunks) for step in self.steps.values()],
            list(self.views.values()),
        ]
        return blob in dumps(kept_here)

    def close(self) -> None:
        """Mark the thread closed; the first time stays."""
        self.record = self.record.with_(closed_at=self.record.closed_at or datetime.now(UTC))

    # -- the turn buffer ---------------------------------------------------------------------------------------

    def claim_step(self, at: tuple[int, int], attempt: int) -> StoredStep | None:
        """The step if it is done or this attempt's, None if this attempt is to open it. Raises StepSealed."""
        stored = self.steps.get(at)
        if self._is_done(*at):
            raise StepSealed("This step was stopped or committed; its late writes are refused.")
        if stored is None or stored.outcome or stored.attempt == attempt:
            return stored
        if stored.attempt > attempt:
            raise StepSealed(f"This step was taken over by attempt {stored.attempt}; its late writes are refused.")
        return None

    def _is_done(self, turn: int, step: int) -> bool:
        if step <= self.done.get(turn, -1):
            return True
        # Of turns before the newest only the one that works takes writers: it has waited for people meanwhile.
        running = self.running()
        return turn < max(self.done, default=-1) and (running is None or running.message.turn != turn)

    def end_turn(self, turn: int) -> None:
        """Drop the turn's buffer, and refuse whoever still writes to it."""
        self.steps = {at: step for at, step in self.steps.items() if at[0] != turn}
        self.done[turn] = NEVER

    def add_chunks(
        self, at: tuple[int, int], attempt: int, chunks: list[Chunk], first: int | None = None
    ) -> StoredStep:
        """Open the step for the attempt if need be, and add the chunks that a repeated call does not bring again."""
        stored = self.claim_step(at, attempt)
        end = len(stored.chunks) if stored else 0
        if first is not None and first > end:
            raise StoreError(f"bug: chunks from {first} after {end}")
        fresh = [kept(chunk) for chunk in (chunks if first is None else chunks[end - first :])]
        stored = stored or StoredStep(attempt, began=self.next_seq())
        self.steps[at] = replace(stored, chunks=stored.chunks + tuple((self.next_seq(), chunk) for chunk in fresh))
        return self.steps[at]

    # -- reading -----------------------------------------------------------------------------------------------

    def running(self) -> StoredMessage | None:
        """The turn that runs, wherever it is in the tree."""
        running = (stored for stored in self.messages.values() if stored.state == "running")
        return max(running, key=lambda stored: stored.message.seq, default=None)

    def message_of(self, turn: int) -> StoredMessage | None:
        """The message of a turn."""
        of_turn = (one for one in self.messages.values() if (one.message.role, one.message.turn) == ("assistant", turn))
        return max(of_turn, key=lambda stored: stored.changed, default=None)

    def changes(self) -> Iterator[Change]:
        """Everything that happened and is still there, in no order."""
        for stored in self.messages.values():
            added = stored.message.seq
            if added < stored.changed:
                # Words are whole when they come; it is turns that are told before their end.
                began = Status(state="running") if stored.message.role == "assistant" else stored.message.status
                yield Change(seq=added, message=stored.message.with_(status=began))
            yield Change(seq=stored.changed, message=stored.message)
            for position, (seq, part) in enumerate(stored.parts):
                yield Change(seq=seq, message_id=stored.message.id, position=position, part=part)
            for seq, position in stored.decided:
                yield Change(seq=seq, message_id=stored.message.id, position=position, part=stored.parts[position][1])
        for seq, call in self.calls.values():
            yield Change(seq=seq, call=call)
        for choice in self.choices.values():
            yield Change(seq=choice.seq, choice=choice)
        for view in self.views.values():
            yield Change(seq=view.seq, view=view)
        for (turn, step), stored_step in self.steps.items():
            attempt = stored_step.attempt
            yield Change(seq=stored_step.began, turn=turn, step=step, attempt=attempt, new_attempt=True)
            for seq, chunk in stored_step.chunks:
                yield Change(seq=seq, turn=turn, step=step, attempt=attempt, chunk=chunk)
        if self.tree_seq:
            yield Change(seq=self.tree_seq, tree=True)
