"""One thread in memory, and what the operations of a batch do to it."""

from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from typing import Any, TypeVar

from perdure.batch import (
    AppendMessage,
    AppendParts,
    CloseThread,
    CommitResults,
    CommitStep,
    Operation,
    RemoveSubscription,
    SetDue,
    SetStatus,
    StageResult,
    TrackSubscription,
)
from perdure.codec import Wire, dumps, loads
from perdure.errors import CallNotOpen, StepSealed, StoreError, TooManyViews
from perdure.messages import Message, Part, Status, ToolCallPart, ToolResultPart
from perdure.ports import MAX_VIEWS, Change, Choice, OpenCall, Step, StepOutcome, Subscription, ThreadRecord, View
from perdure.turn_buffer import Chunk, TurnBuffer, sealed_parts, trim_reasoning

Value = TypeVar("Value", bound=Wire)


def kept(value: Value) -> Value:
    """The value as a database gives it back. Raises ValueError for what JSON cannot hold."""
    return type(value).model_validate(loads(dumps(value)))


@dataclass(frozen=True)
class StoredMessage:
    """A message without its parts, and the parts with their sequence numbers."""

    message: Message
    changed: int
    digest: str | None = None
    parts: tuple[tuple[int, Part], ...] = ()


@dataclass(frozen=True)
class StoredStep:
    """A step of the turn buffer: `began` and the chunks carry their sequence numbers."""

    attempt: int
    began: int
    chunks: tuple[tuple[int, Chunk], ...] = ()
    parts: tuple[Part, ...] = ()
    outcome: StepOutcome | None = None

    def as_step(self, turn: int, step: int) -> Step:
        """The step as the port gives it; while it streams its parts are what the chunks give."""
        parts = self.parts if self.outcome else TurnBuffer(chunk for _, chunk in self.chunks).parts
        return Step(
            turn=turn,
            step=step,
            attempt=self.attempt,
            state="done" if self.outcome else "open",
            parts=parts,
            outcome=self.outcome,
        )


@dataclass
class MemoryThread:
    """Everything that belongs to one thread. The operations raise before or after they change it; see `copy`."""

    record: ThreadRecord
    sync_id: str | None = None
    done: tuple[int, int] = (-1, -1)
    messages: dict[str, StoredMessage] = field(default_factory=dict[str, StoredMessage])
    steps: dict[tuple[int, int], StoredStep] = field(default_factory=dict[tuple[int, int], StoredStep])
    calls: dict[str, tuple[int, OpenCall]] = field(default_factory=dict[str, tuple[int, OpenCall]])
    owners: dict[str, str | None] = field(default_factory=dict[str, str | None])
    subscriptions: dict[str, Subscription] = field(default_factory=dict[str, Subscription])
    metadata: dict[str, Any] = field(default_factory=dict[str, Any])
    choices: dict[str, Choice] = field(default_factory=dict[str, Choice])
    views: dict[str, View] = field(default_factory=dict[str, View])
    blobs: dict[str, bytes] = field(default_factory=dict[str, bytes])

    def copy(self) -> "MemoryThread":
        """A draft for a batch. What it holds is frozen, so the containers are enough."""
        return replace(
            self,
            messages=dict(self.messages),
            steps=dict(self.steps),
            calls=dict(self.calls),
            subscriptions=dict(self.subscriptions),
        )

    def next_seq(self) -> int:
        """Number one more change."""
        self.record = self.record.with_(seq=self.record.seq + 1)
        return self.record.seq

    # -- operations --------------------------------------------------------------------------------------------

    def apply(self, operation: Operation) -> None:
        """Apply one operation of a batch."""
        match operation:
            case AppendMessage():
                self._append_message(operation.message, operation.digest)
            case AppendParts():
                self._add_parts(operation.message_id, operation.start, operation.parts)
                self._open_calls(operation.message_id, operation.start, operation.parts)
            case CommitStep():
                self._commit_step(operation)
            case StageResult(result=result):
                self.stage_result(result)
            case CommitResults():
                self._commit_results(operation)
            case SetStatus():
                self._set_status(operation)
            case TrackSubscription():
                self._track_subscription(operation)
            case RemoveSubscription(call_id=call_id):
                self.subscriptions.pop(call_id, None)
            case SetDue(call_id=call_id, due=due):
                if call_id in self.calls:
                    self.calls[call_id] = (self.next_seq(), self.open_call(call_id).with_(due=due))
            case CloseThread():
                self.close()

    def _append_message(self, message: Message, digest: str | None) -> None:
        record = self.record
        parent_id, parent_parts = message.parent_id, message.parent_parts
        if parent_id is None:
            parent_id = record.head_id or record.spawn_message_id
            parent_parts = parent_parts if record.head_id else record.spawn_parts
        seq = self.next_seq()
        stored = message.with_(
            thread_id=record.thread_id, parent_id=parent_id, parent_parts=parent_parts, parts=(), seq=seq
        )
        self.messages[message.id] = StoredMessage(kept(stored), changed=seq, digest=digest)
        self._add_parts(message.id, 0, message.parts)
        self.record = self.record.with_(head_id=message.id, turn=max(record.turn, message.turn))

    def _add_parts(self, message_id: str, start: int, parts: tuple[Part, ...]) -> None:
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
            opened = OpenCall(
                call_id=call.call_id,
                message_id=message_id,
                turn=turn,
                step=call.step if step is None else step,
                index=index,
                position=position,
                tool=call.tool,
                arguments=call.arguments,
                result=call.refusal,
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
        self._add_parts(operation.message_id, operation.start, parts)
        self._open_calls(operation.message_id, operation.start, parts, at)
        self.steps = {other: step for other, step in self.steps.items() if other > at}
        self.done = max(self.done, at)
        self.record = self.record.with_(usage=self.record.usage + operation.usage)

    def _commit_results(self, operation: CommitResults) -> None:
        made = {result.call_id: result for result in operation.results}
        results: list[ToolResultPart] = []
        for call_id in operation.call_ids:
            _, call = self.calls.pop(call_id, (0, None))
            result = (call.result if call else None) or made.get(call_id)
            if result is None:
                raise StoreError(f"bug: call {call_id} is closed without a result")
            results.append(result)
        self.choices = {name: choice for name, choice in self.choices.items() if choice.call_id in self.calls}
        self._add_parts(operation.message_id, operation.start, tuple(results))

    def _set_status(self, operation: SetStatus) -> None:
        stored = self.messages.get(operation.message_id)
        if stored is None:
            raise StoreError(f"bug: status of message {operation.message_id}, not here")
        if stored.message.status.state in ("running", "requires_action"):
            message = stored.message.with_(status=kept(operation.status))
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

    def close(self) -> None:
        """Mark the thread closed; the first time stays."""
        self.record = self.record.with_(closed_at=self.record.closed_at or datetime.now(UTC))

    # -- what people are asked and shown -----------------------------------------------------------------------

    def put_choice(self, choice: Choice) -> None:
        """Ask, unless just this is asked already. Raises CallNotOpen, also for a call that has its result."""
        if self.open_call(choice.call_id).result is not None:
            raise CallNotOpen(choice.call_id)
        before = self.choices.get(choice.id)
        choice = kept(choice.with_(answered=False, seq=before.seq if before else 0))
        if choice != before:
            self.choices[choice.id] = choice.with_(seq=self.next_seq())

    def remove_choice(self, choice_id: str) -> None:
        """The question is answered; its words and links are gone."""
        choice = self.choices.get(choice_id)
        if choice and not choice.answered:
            self.choices[choice_id] = Choice(
                id=choice.id, call_id=choice.call_id, kind=choice.kind, answered=True, seq=self.next_seq()
            )

    def waiting_choices(self) -> tuple[Choice, ...]:
        """Questions of calls that have no result yet, oldest first."""
        waiting = [
            choice
            for choice in self.choices.values()
            if not choice.answered and self.open_call(choice.call_id).result is None
        ]
        return tuple(sorted(waiting, key=lambda choice: choice.seq))

    def put_view(self, view: View) -> None:
        """Show this from now on, unless it is shown already. Raises TooManyViews."""
        others = sum(not other.is_empty for other in self.views.values() if other.view_type != view.view_type)
        if not view.is_empty and others >= MAX_VIEWS:
            raise TooManyViews(MAX_VIEWS)
        before = self.views.get(view.view_type)
        if before is None or before.content != view.content:
            self.views[view.view_type] = kept(view.with_(seq=self.next_seq()))

    def shown_views(self) -> tuple[View, ...]:
        """Views with content, the one that changed last at the end."""
        shown = [view for view in self.views.values() if not view.is_empty]
        return tuple(sorted(shown, key=lambda view: view.seq))

    # -- calls -------------------------------------------------------------------------------------------------

    def open_call(self, call_id: str) -> OpenCall:
        """Raises StoreError if the call is not open."""
        if call_id not in self.calls:
            raise CallNotOpen(call_id)
        return self.calls[call_id][1]

    def start_call(self, call_id: str, owner: str | None) -> OpenCall:
        """Count one more start, unless the call has its result or this owner has started it last."""
        call = self.open_call(call_id)
        if call.result is None and (owner is None or self.owners.get(call_id) != owner):
            call = call.with_(started=call.started + 1)
            self.calls[call_id] = (self.next_seq(), call)
            self.owners[call_id] = owner
        return call

    def stage_result(self, result: ToolResultPart) -> ToolResultPart:
        """Keep the first result of an open call; returns it."""
        call = self.open_call(result.call_id)
        if call.result is not None:
            return call.result
        result = kept(result)
        self.calls[result.call_id] = (self.next_seq(), call.with_(result=result))
        return result

    # -- the turn buffer ---------------------------------------------------------------------------------------

    def claim_step(self, at: tuple[int, int], attempt: int) -> StoredStep | None:
        """The step if it is done or this attempt's, None if this attempt is to open it. Raises StepSealed."""
        stored = self.steps.get(at)
        if at <= self.done:
            raise StepSealed("This step was stopped or committed; its late writes are refused.")
        if stored is None or stored.outcome or stored.attempt == attempt:
            return stored
        if stored.attempt > attempt:
            raise StepSealed(f"This step was taken over by attempt {stored.attempt}; its late writes are refused.")
        return None

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

    def ordered_calls(self) -> tuple[OpenCall, ...]:
        """Open calls in call order."""
        calls = (call for _, call in self.calls.values())
        return tuple(sorted(calls, key=lambda call: (call.turn, call.step, call.index)))

    def changes(self) -> Iterator[Change]:
        """Everything that happened and is still there, in no order."""
        for stored in self.messages.values():
            added = stored.message.seq
            if added < stored.changed:
                yield Change(seq=added, message=stored.message.with_(status=Status(state="running")))
            yield Change(seq=stored.changed, message=stored.message)
            for position, (seq, part) in enumerate(stored.parts):
                yield Change(seq=seq, message_id=stored.message.id, position=position, part=part)
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
