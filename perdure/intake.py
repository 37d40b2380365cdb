"""The intake: what becomes of everything that reaches a thread. Pure, synchronous and deterministic."""

from typing import Literal

from perdure import ids, subscriptions
from perdure.approval import Decision
from perdure.batch import (
    AppendMessage,
    CommitResults,
    Decide,
    ForgetDecisions,
    RememberDecision,
    ShowInterim,
    StageResult,
    StoreLateResult,
)
from perdure.branching import Branching
from perdure.builtins import SPAWN_THREAD
from perdure.errors import UsageError
from perdure.history_state import HistoryState, LiveCall, Spawn, SpawnPoint, phase_of
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
from perdure.messages import EventPart, Message, TextPart
from perdure.records import Subscription
from perdure.turn import result_part


class Intake(Branching):
    """A draft that takes inputs.

    Attributes:
        unwanted: calls that are not open by the store's word: their results are dropped.
    """

    def __init__(self, state: HistoryState, unwanted: frozenset[str] = frozenset()) -> None:
        super().__init__(state)
        self.unwanted = unwanted

    def handle(self, content: AnyInput) -> Disposition:
        """Take an input that is ready in this phase."""
        if self.state.closed:
            return self._refused_closed(content)
        match content:
            case UserMessage():
                return self._disposed(content.id, self._user_message(content))
            case Event():
                return self._disposed(content.id, self._event(content))
            case ToolResult():
                return self._tool_result(content)
            case Interrupt():
                return self._interrupt(content)
            case Control():
                return self._control(content)
            case Regenerate():
                return self._disposed(content.id, self._regenerate(content))
            case TreeChange():
                return self._disposed(content.id, self._tree_change(content))
            case Approval():
                return self._approval(content)

    def _user_message(self, message: UserMessage) -> Disposition:
        if known := self._known(message.id, message.digest):
            return known
        if self.state.closing:
            # It stops nothing: the store is not asked whether it knows words that are turned away.
            return "rejected"
        if not message.run:
            return self._append_only(message)
        disposition: Disposition = "started"
        if (turn := self.state.open) and turn.paused and self._is_elsewhere(message, turn):
            self._rest()
        elif turn:
            is_asleep = phase_of(turn) == "sleeping"
            if message.mode == "reject" and not is_asleep:
                return "rejected"
            # Words join only between steps, and wake whoever sleeps: elsewhere the inbox holds them back.
            joins = is_asleep or message.mode == "steer"
            disposition = "steered" if joins else "interrupted"
            self._leave_turn("steered" if joins else "cancelled")
        self._accept_words(message)
        return disposition

    def _event(self, event: Event) -> Disposition:
        if known := self._known(event.id, event.digest):
            return known
        if event.source != "subscription":
            return self._inline(event, None, None)
        subscription = next((one for one in self.state.subscriptions if one.call_id == event.call_id), None)
        if subscription is None:
            return self._dropped()
        if event.final:
            # Also if the event itself is not taken: there will be no other one to end the subscription.
            self.remove_subscription(event.call_id)
        if subscription.paused is not None:
            return self._dropped()
        counted = subscriptions.counted(subscription, event.at, self.state.limits)
        note = None
        if not event.final:
            self._put_subscription(counted)
            note = subscriptions.pause_note(counted)
        if event.associative:
            return self._inline(event, subscription, note)
        told = event if note is None or event.blob else event.with_(content=f"{event.content}\n\n{note}")
        # A turn that sleeps on another branch is not what people look at: the child hangs on what is shown.
        hidden = self.state.open is not None and self.state.open.hidden
        point = SpawnPoint(message_id=self.state.head_id) if hidden else self.spawn_point()
        # The store keeps no id of it. Its child's id follows from it, so one that comes again makes no second child.
        self._change(
            processed={**self.state.processed, event.id: event.digest},
            spawns=(*self.state.spawns, Spawn(event=told, origin=subscription, point=point)),
        )
        return "spawned"

    def _inline(self, event: Event, subscription: Subscription | None, note: str | None) -> Disposition:
        """The event joins the conversation; it wakes a sleeper, and comes before the next step of a turn."""
        disposition: Disposition = "started"
        if self.state.open:
            self._leave_turn("steered")
            disposition = "steered"
        part = EventPart(
            event_id=event.id,
            origin_call_id=event.call_id,
            content="" if event.blob else event.content,
            blob=event.blob,
            origin_tool=subscription.tool if subscription else SPAWN_THREAD,
            origin_arguments=subscription.arguments if subscription else None,
        )
        message = Message(
            id=ids.input_message_id(self.state.thread_id, event.id),
            thread_id=self.state.thread_id,
            role="event",
            turn=self.state.turn + 1,
            parts=(part,) if note is None else (part, TextPart(text=note)),
            input_id=event.id,
        )
        self._accept(AppendMessage(message=message, digest=event.digest), run=True)
        return disposition

    def _tool_result(self, result: ToolResult) -> Disposition:
        """Deduplicate against the tail, so that results need no durable id: only trailing calls can be answered."""
        call = self._live_call(result.call_id)
        if call and result.message_id not in (None, self._open_turn().message_id):
            raise UsageError(f"The call {result.call_id!r} is not one of the message {result.message_id!r}.")
        if call is None:
            return self._result_elsewhere(result)
        if call.settled:
            return "duplicate"
        if result.preliminary:
            self._append(ShowInterim(result=result_part(result, self._open_turn().step)))
            return "changed"
        if call.awaits_approval:
            # Its time is over; or whoever gave the result has made the question idle.
            resolution: Literal["expired", "cancelled"] = "expired" if result.outcome == "expired" else "cancelled"
            self._append(Decide(call_id=call.call_id, decision=Decision(resolution=resolution)))
        if result.subscription and result.outcome == "ok":
            result = self._subscribed(call, result)
        if result.outcome == "expired" and call.outline.kind == "rap" and not call.awaits_approval:
            # Its server may be at work on it still, and nobody waits for that any more.
            self._change(cancelled=(*self.state.cancelled, call.call_id))
        if not result.staged:
            self._append(StageResult(result=result_part(result, self._open_turn().step)))
        self._replace_call(call.with_(settled=True))
        self.commit_group_when_settled()
        return "settled"

    def _result_elsewhere(self, result: ToolResult) -> Disposition:
        """Of a call that is not among those at hand: the store knows whether it rests, or is over.

        Whoever gives it need not know on which branch the call is, nor whether that is shown.
        """
        if not self.state.resumes:
            return self._result_of_old(result)
        message_id = None if result.preliminary else result.message_id
        if result.staged or (message_id is None and self._is_unwanted(result.call_id)):
            return self._dropped()
        if opens := result.subscription and result.outcome == "ok":
            result = self._subscribing(result)
            opens = result.outcome == "ok"
        self._append(
            StoreLateResult(
                message_id=message_id,
                result=result_part(result, 0),
                named=True,
                subscribes=opens,
                interim=result.preliminary,
            )
        )
        self._change(answered=self.state.answered or not result.preliminary)
        return "changed" if result.preliminary else "settled"

    def _is_unwanted(self, call_id: str) -> bool:
        """Whether the call is closed, by the store's word or by the batch under way: the store knows it as open."""
        closing = (one.call_ids for one in self.state.pending if isinstance(one, CommitResults))
        return call_id in self.unwanted or any(call_id in call_ids for call_ids in closing)

    def _result_of_old(self, result: ToolResult) -> Disposition:
        """As in runs of older releases: one that names no message counts for what is shown alone."""
        message_id = result.message_id or (self.state.head_id if self.state.paused_head else None)
        if message_id is None:
            return self._dropped()
        if result.preliminary:
            self._append(ShowInterim(result=result_part(result, 0)))
            return "changed"
        named = result.message_id is not None
        self._append(StoreLateResult(message_id=message_id, result=result_part(result, 0), named=named))
        return "settled"

    def expire(self, result: ToolResult) -> None:
        """The deadline of a call that rests is over; `result` says so. Another one that it has stays."""
        self._append(StoreLateResult(result=result_part(result, 0)))
        self._change(deadline=None, answered=True)

    def _interrupt(self, interrupt: Interrupt) -> Disposition:
        # Words and a stop may come in one batch: then the turn that the words open is the one to stop.
        self.open_due_turn()
        if self.state.open is None:
            return "dropped"
        self._close_turn("cancelled", interrupt.reason)
        return "interrupted"

    def _control(self, control: Control) -> Disposition:
        match control.action:
            case "close":
                self.open_due_turn()
                if self.state.open:
                    self._close_turn("cancelled", "The thread was closed.")
                # Else a call of its own was closing it, and has told its parent.
                if not self.state.closed:
                    self.close_thread()
                    self._change(dismissed=True)
            case "cancel_subscription":
                self.cancel_subscription(control.call_id)
            case "resume_subscription":
                self.resume_subscription(control.call_id)
            case "compact":
                # Nothing of what is known here changes: whoever runs the thread has it done.
                pass
            case "forget_decision":
                self._forget_decision(control)
        return "settled"

    def _forget_decision(self, control: Control) -> None:
        """One decision for calls to come is withdrawn: all are forgotten, and the others remembered, in their order."""
        withdrawn = control.tool, control.arguments
        left = tuple(one for one in self.state.remembered if (one.tool, one.arguments) != withdrawn)
        if left != self.state.remembered:
            self._append(ForgetDecisions())
            for one in left:
                self._append(RememberDecision(remembered=one))
            self._change(remembered=left)

    def _subscribed(self, call: LiveCall, result: ToolResult) -> ToolResult:
        """The call's tool goes on sending events, if there is room for one more subscription."""
        answer = self._subscribing(result)
        if answer.outcome == "ok":
            self._put_subscription(subscriptions.subscription(call))
        return answer

    def _subscribing(self, result: ToolResult) -> ToolResult:
        """What a call is answered that is to become a subscription."""
        limit = self.state.limits.active
        if len(self.state.subscriptions) >= limit:
            self._change(cancelled=(*self.state.cancelled, result.call_id))
            return ToolResult(call_id=result.call_id, outcome="error", content=subscriptions.too_many(limit))
        # Of a result in a blob this is what the model reads, and the size is the blob's.
        size = result.size_bytes if result.blob else 0
        return result.with_(content=subscriptions.with_id(result.content, result.call_id), size_bytes=size)

    def _refused_closed(self, content: AnyInput) -> Disposition:
        match content:
            case UserMessage():
                return self._disposed(content.id, self._known(content.id, content.digest) or "rejected")
            case Event():
                return self._disposed(content.id, self._known(content.id, content.digest) or self._dropped())
            case ToolResult():
                return self._dropped()
            case TreeChange() if content.takes_away:
                # Whoever has a right to have words deleted has it after the conversation is over.
                return self._disposed(content.id, self._tree_change(content))
            case Regenerate() | TreeChange():
                return self._disposed(content.id, "rejected")
            case Interrupt() | Control() | Approval():
                return "dropped"

    def _dropped(self) -> Disposition:
        self._change(dropped=self.state.dropped + 1)
        return "dropped"

    def _disposed(self, input_id: str, disposition: Disposition) -> Disposition:
        # A repetition in the same batch does not hide what became of the first.
        self._change(dispositions={input_id: disposition, **self.state.dispositions})
        return disposition
