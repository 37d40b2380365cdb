"""A draft: a thread's state, and what its turns and calls make of it. Pure, synchronous and deterministic.

A draft is changed in place and thrown away whole: when the store refuses an input, `HistoryManager` begins another
one from the state of the last sync and decides again what is left. What inputs make of it is in `perdure.intake`.
"""

from typing import Any, Literal

from perdure import ids, subscriptions
from perdure.approval import Decision, matches
from perdure.batch import (
    AppendMessage,
    AppendParts,
    CloseThread,
    Decide,
    Operation,
    RemoveSubscription,
    SetDue,
    SetStatus,
    StageResult,
)
from perdure.codec import Text, clip
from perdure.contract import CompleteResult
from perdure.history_state import EndedTurn, HistoryState, LiveCall, OpenTurn, SpawnPoint, phase_of, rested
from perdure.messages import Message, Part, Status
from perdure.policy import COMPLETE_ATTEMPTS
from perdure.records import Subscription
from perdure.turn import (
    FOLLOWED,
    commit_results,
    commit_step,
    denied,
    final_status,
    interrupted,
    live_calls,
    outline_of,
    stamped,
    waits_for_people,
)
from perdure.turn_buffer import Chunk, TurnBuffer, sealed_parts, trim_reasoning

DETAIL_CHARS = 500
"""A status says what happened in a sentence; more than that is not kept, whatever was given as a reason."""


class Draft:
    """The state of a thread with what was decided since it was durable, and the turn buffer.

    Attributes:
        state: its `pending` is what the next sync writes.
        buffer: what has come of the step that streams through the manager.
    """

    def __init__(self, state: HistoryState) -> None:
        self.state = state
        self.buffer = TurnBuffer()

    @property
    def is_unflushed(self) -> bool:
        """Whether a step has streamed, here or in the store, and is neither committed nor discarded."""
        return bool(self.buffer) or (self.state.open is not None and self.state.open.outline is not None)

    # -- the turn ----------------------------------------------------------------------------------------------

    def open_due_turn(self) -> None:
        """Open the turn that answers the new inputs, if there are any and no turn is open."""
        if self.state.answer_due and not self.state.open and not self.state.closed:
            self.open_turn(AppendMessage(message=self.next_turn()))

    def next_turn(self) -> Message:
        """The message of the thread's next turn."""
        number = self.state.turn + 1
        return Message(
            id=ids.turn_message_id(self.state.thread_id, number),
            thread_id=self.state.thread_id,
            role="assistant",
            turn=number,
            status=Status(state="running"),
        )

    def open_turn(self, operation: AppendMessage) -> None:
        """Open the turn whose message this is."""
        message = operation.message
        self._append(operation)
        self._change(
            turn=message.turn,
            answer_due=False,
            head_id=message.id,
            last=message.status,
            paused_head=False,
            open=OpenTurn(message_id=message.id, turn=message.turn),
        )

    def begin_step(self) -> None:
        """The next model call starts."""
        if phase_of(self.state.open) != "boundary":
            raise AssertionError(f"bug: a step begins while the thread is {phase_of(self.state.open)}")
        self._change(open=self._open_turn().with_(running=True))

    def add_chunk(self, chunk: Chunk) -> None:
        """A piece of the running step goes into the buffer."""
        self._running_turn()
        self.buffer.add(chunk)

    def take_outline(self, outline: CompleteResult) -> None:
        """The running step is finished; its content is in the store's buffer."""
        self._change(open=self._running_turn().with_(outline=outline))

    def flush(self, trim: bool) -> None:
        """Commit the running step; `trim` leaves trailing reasoning out."""
        turn = self._running_turn()
        if turn.outline is None:
            parts = self._drained(turn)
            parts = trim_reasoning(parts) if trim else parts
            outline, count = outline_of(parts), len(parts)
            self._append_parts(turn, parts)
        else:
            outline = turn.outline
            count = outline.parts - (outline.trailing_reasoning if trim else 0)
            self._append(commit_step(turn).with_(trim_reasoning=trim, usage=outline.usage))
        calls = live_calls(self.state.thread_id, turn, outline)
        self._change(
            open=turn.with_(
                running=False,
                outline=None,
                parts=turn.parts + count,
                spawn_parts=turn.parts + (outline.first_call if calls else count),
                calls=calls,
            ),
            usage=self.state.usage + outline.usage,
        )
        if calls:
            self._use_remembered()
            self.commit_group_when_settled()
        else:
            self._settle(final_status(outline))

    def discard(self) -> None:
        """Drop what the running step has brought."""
        self.buffer.clear()
        if self.state.open:
            self._change(open=self.state.open.with_(running=False, outline=None))

    def retry_step(self) -> None:
        """Drop what the running step has brought, and go on counting its attempts after those that were made."""
        self.discard()
        turn = self._open_turn()
        self._change(open=turn.with_(attempts=turn.attempts + COMPLETE_ATTEMPTS))

    def fail(self, detail: Text) -> None:
        """Settle the turn with the error, wherever it stands: a step that streams is dropped, open calls are closed."""
        turn = self._open_turn()
        if turn.calls:
            self._interrupt_calls(turn)
        else:
            self._append(commit_step(turn).with_(discard=True))
            self.discard()
        if self.state.open:
            self._settle(Status(state="incomplete", reason="error", detail=detail))

    def _close_turn(self, reason: Literal["cancelled", "steered"], detail: Text | None) -> None:
        """Close the open turn where it stands: seal what streams, answer open calls, settle the message."""
        turn = self._open_turn()
        if turn.calls:
            self._interrupt_calls(turn)
        else:
            # Also if no step was begun here: the owner before may have left one that streams on.
            kept = sealed_parts(self._drained(turn))
            self._append_parts(turn, kept)
            self._append(commit_step(turn.with_(parts=turn.parts + len(kept))).with_(sealed=True))
        if self.state.open:
            self._settle(Status(state="incomplete", reason=reason, detail=detail))

    def _interrupt_calls(self, turn: OpenTurn) -> None:
        unanswered = tuple(call for call in turn.calls if not call.settled)
        answered = tuple(interrupted(call, turn.step) for call in turn.calls)
        # Also one that was not dispatched here: whoever owned the thread before may have. Servers take unknown ids.
        told = tuple(call.call_id for call in unanswered if call.outline.kind == "rap" and not call.awaits_approval)
        for call in unanswered:
            if call.awaits_approval:
                self._append(Decide(call_id=call.call_id, decision=Decision(resolution="cancelled")))
        self._change(
            open=turn.with_(calls=answered),
            interrupted=self.state.interrupted + unanswered,
            cancelled=self.state.cancelled + told,
        )
        self._commit_group(goes_on=False)

    def _drained(self, turn: OpenTurn) -> tuple[Part, ...]:
        parts = stamped(self.state.thread_id, turn, self.buffer.parts)
        self.buffer.clear()
        return parts

    def _append_parts(self, turn: OpenTurn, parts: tuple[Part, ...]) -> None:
        if parts:
            self._append(AppendParts(message_id=turn.message_id, start=turn.parts, parts=parts))

    def _settle(self, status: Status) -> None:
        turn = self._open_turn()
        if status.detail is not None:
            status = status.with_(detail=clip(status.detail, DETAIL_CHARS))
        self._set_status(turn, status)
        self._change(open=None)
        if self.state.hooks:
            self._change(ended=(*self.state.ended, EndedTurn(turn=turn.turn, message_id=turn.message_id)))

    def _set_status(self, turn: OpenTurn, status: Status) -> None:
        self._append(SetStatus(message_id=turn.message_id, status=status))
        if self.state.head_id == turn.message_id:
            self._change(last=status)

    def _note_pause(self) -> None:
        """Say in the turn's status whether it waits for people.

        One that others follow ends instead: nobody who reads on below it would see that it asks.
        """
        turn = self._open_turn()
        paused = waits_for_people(turn)
        if paused and turn.followers:
            self._close_turn("cancelled", FOLLOWED)
        elif paused and self.state.resumes and any(call.lacks_deadline for call in turn.calls):
            # It works until its questions have their times (`ask`): one that rests has nobody to set them.
            return
        elif paused != turn.paused and self.state.pauses:
            self._set_status(turn, Status(state="requires_action" if paused else "running"))
            # On a branch that is not shown nobody can be asked.
            hides = paused and turn.hidden
            self.state = rested(self.state) if hides else self.state.with_(open=turn.with_(paused=paused))

    # -- calls -------------------------------------------------------------------------------------------------

    def mark_dispatched(self, call_id: str, due: float | None) -> None:
        """A call is on its way; with `due` it ends by itself then."""
        call = self._live_call(call_id)
        if call is None:
            return
        if due is not None and due != call.due:
            self._append(SetDue(call_id=call_id, due=due))
        self._replace_call(call.with_(dispatched=True, due=call.due if due is None else due))

    def take_up(self) -> None:
        """Go on with a turn that was loaded. Questions whose calls were given results meanwhile are over."""
        for call in self._open_turn().calls:
            if call.settled and call.outline.approval is not None and call.decided is None:
                resolution: Literal["expired", "cancelled"] = "expired" if call.expired else "cancelled"
                self._append(Decide(call_id=call.call_id, decision=Decision(resolution=resolution)))
        self.commit_group_when_settled()

    def commit_group_when_settled(self) -> None:
        """Results wait for their whole group, so that they stand in call order."""
        turn = self._open_turn()
        if self.state.closing and phase_of(turn) == "sleeping":
            # What would wake the sleeper is turned away by now, so the thread would never close.
            self._interrupt_calls(turn)
        elif all(call.settled for call in turn.calls):
            self._commit_group()
        else:
            self._note_pause()

    def _commit_group(self, *, goes_on: bool = True) -> None:
        turn = self._open_turn()
        self._append(commit_results(turn))
        parts = turn.parts + len(turn.calls)
        self._change(open=turn.with_(calls=(), step=turn.step + 1, attempts=0, parts=parts, spawn_parts=parts))
        if self.state.closing:
            self._settle(Status())
            self._close()
        elif goes_on and turn.followers:
            self._settle(Status(state="incomplete", reason="cancelled", detail=FOLLOWED))
        elif goes_on:
            self._note_pause()

    def decide(self, call: LiveCall, decision: Decision) -> None:
        """What became of the question whether a call may run: it runs, or it is answered with the no."""
        self._append(Decide(call_id=call.call_id, decision=decision))
        decided = call.with_(approved=decision.approved is True, decided=decision.digest, due=None)
        if decision.approved is False:
            result = denied(call, decision, self._open_turn().step)
            self._append(StageResult(result=result))
            decided = decided.with_(settled=True)
        self._replace_call(decided)

    def _use_remembered(self) -> None:
        """Decisions that hold for such calls are made again for those that have just come."""
        for call in self._open_turn().calls:
            outline = call.outline
            for known in self.state.remembered:
                if call.awaits_approval and matches(known, outline.tool, outline.arguments_digest):
                    self.decide(call, Decision(approved=known.approved, by=known.by, remembered=True))
                    break

    def ask(self, call_id: str, due: float) -> None:
        """A call waits for a decision until `due`, whoever owns the thread."""
        call = self._live_call(call_id)
        if call is not None and call.due != due:
            self._append(SetDue(call_id=call_id, due=due))
            self._replace_call(call.with_(due=due))
            if self.state.resumes:
                self._note_pause()

    def _live_call(self, call_id: str) -> LiveCall | None:
        calls = self.state.open.calls if self.state.open else ()
        return next((call for call in calls if call.call_id == call_id), None)

    def _replace_call(self, changed: LiveCall) -> None:
        turn = self._open_turn()
        calls = tuple(changed if call.call_id == changed.call_id else call for call in turn.calls)
        self._change(open=turn.with_(calls=calls))

    # -- threads, subscriptions and summaries ------------------------------------------------------------------

    def close_thread(self) -> None:
        """The thread takes nothing more, from the moment in which the open calls are settled."""
        turn = self.state.open
        if turn and turn.calls:
            self._change(closing=True)
            self.commit_group_when_settled()
        elif not self.state.closed:
            if turn and turn.running:
                self._close_turn("cancelled", None)
            elif turn:
                # Its last group is settled, with the call that closes the thread in it.
                self._settle(Status())
            self._close()

    def end(self) -> None:
        """The thread was closed elsewhere, and nobody takes in results any more: close the turn that is left."""
        if self.state.open:
            self._close_turn("cancelled", "The thread was closed.")

    def _close(self) -> None:
        for subscription in self.state.subscriptions:
            self.cancel_subscription(subscription.call_id)
        self._append(CloseThread())
        self._change(closing=False, closed=True)

    def spawn_point(self) -> SpawnPoint:
        """Where a child thread may inherit up to."""
        turn = self.state.open
        if turn is None:
            return SpawnPoint(message_id=self.state.head_id)
        return SpawnPoint(message_id=turn.message_id, parts=turn.spawn_parts)

    def track_subscription(self, subscription: Subscription) -> None:
        """A settled call goes on sending events."""
        if not any(known.call_id == subscription.call_id for known in self.state.subscriptions):
            self._put_subscription(subscription)

    def resume_subscription(self, call_id: str) -> None:
        """A paused subscription may send again; it counts from nothing."""
        for known in self.state.subscriptions:
            if known.call_id == call_id and known.paused is not None:
                self._put_subscription(Subscription(call_id=call_id, tool=known.tool, arguments=known.arguments))

    def cancel_subscription(self, call_id: str) -> None:
        """Nobody wants its events any more: its tool's server is to be told."""
        if any(known.call_id == call_id for known in self.state.subscriptions):
            self.remove_subscription(call_id)
            self._change(cancelled=(*self.state.cancelled, call_id))

    def _put_subscription(self, subscription: Subscription) -> None:
        others = {known.call_id: known for known in self.state.subscriptions}
        self._append(subscriptions.track(subscription))
        self._change(subscriptions=tuple({**others, subscription.call_id: subscription}.values()))

    def remove_subscription(self, call_id: str) -> None:
        """A subscription has ended."""
        kept = tuple(item for item in self.state.subscriptions if item.call_id != call_id)
        if kept != self.state.subscriptions:
            self._append(RemoveSubscription(call_id=call_id))
            self._change(subscriptions=kept)

    def apply_compaction(self, point: SpawnPoint) -> None:
        """The newest summary hangs here."""
        self._change(summary=point)

    # -- state -------------------------------------------------------------------------------------------------

    def _change(self, **changes: Any) -> None:
        self.state = self.state.with_(**changes)

    def _append(self, operation: Operation) -> None:
        self._change(pending=(*self.state.pending, operation))

    def _open_turn(self) -> OpenTurn:
        if self.state.open is None:
            raise AssertionError("bug: no turn is open")
        return self.state.open

    def _running_turn(self) -> OpenTurn:
        turn = self._open_turn()
        if not turn.running:
            raise AssertionError("bug: no step is running; call begin_step first")
        return turn
