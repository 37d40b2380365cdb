"""A conversation as a reader sees it: one snapshot, and the changes folded into it.

Pure. The same fold serves the terminal, the client and every gateway, so that all of them show the same thing. What
it guarantees: whatever point a reader joins at, and however often it goes away and comes back, it ends with the same
messages as one who watched all the time. That holds because committed parts replace what streamed (the store drops
the chunks of a committed step, a reader drops them when it sees a part of it), and because a change that was folded
before is left out by its sequence number. Other branches go on unseen: what changes on them is left out, and the
snapshot that every change of the path brings has it.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field

from perdure.errors import ViewOutdated
from perdure.messages import Message, Part, TextPart, ToolCallPart, ToolResultPart
from perdure.records import Change, Choice, OpenCall, Snapshot, Summary
from perdure.records import View as Shown
from perdure.turn_buffer import TurnBuffer
from perdure.waiting import PendingApproval, pending_approvals

WatchEvent = Snapshot | Change
"""What a watcher receives: a snapshot first, then one change after the other, or another snapshot."""


@dataclass
class LiveStep:
    """The model call that streams now: what it has brought is shown, but not history yet."""

    turn: int
    step: int
    attempt: int
    buffer: TurnBuffer = field(default_factory=TurnBuffer)

    @property
    def parts(self) -> tuple[Part, ...]:
        """What has streamed so far."""
        return self.buffer.parts


class View:
    """The path of a thread, oldest first, with the step that streams and the calls that run.

    Empty until its first event, a snapshot; a later snapshot replaces all of it.

    Attributes:
        thread_id: the thread.
        messages: the committed path.
        live: the step that streams, if one of a turn on the path does.
        calls: open calls of the path that have started or returned something, or end by themselves, by call id.
        choices: what people are asked, oldest first, by the question's id.
        summary: what the model reads in place of the beginning of the path. Readers read both.
        shown: views of tools that have content, the one that changed last at the end, by type.
        seq: sequence number of the last event that is in this view; a watcher resumes after it.
    """

    def __init__(self) -> None:
        self.thread_id = ""
        self.messages: list[Message] = []
        self.live: LiveStep | None = None
        self.calls: dict[str, OpenCall] = {}
        self.choices: dict[str, Choice] = {}
        self.shown: dict[str, Shown] = {}
        self.summary: Summary | None = None
        self.seq = 0
        self._awaited: str | None = None
        # Where messages and the thread's own turns are on the path: on a long one nobody looks for them.
        self._places: dict[str, int] = {}
        self._turns: set[int] = set()

    def apply(self, event: WatchEvent) -> None:
        """Fold one event. Safe to repeat: a change that is in the view already is left out.

        Raises:
            ViewOutdated: if the path is another one, or goes on from a message that this view does not hold.
        """
        if isinstance(event, Snapshot):
            self._take_snapshot(event)
        elif event.seq <= self.seq:
            return
        elif event.tree:
            raise ViewOutdated
        elif event.message:
            self._take_message(event.seq, event.message)
        elif event.part:
            self._take_part(event, event.part)
        elif event.call:
            self._take_call(event.call)
        elif event.choice:
            self._take_choice(event.choice)
        elif event.view:
            self._take_shown(event.view)
        elif event.summary:
            self._take_summary(event.summary)
        else:
            self._take_chunk(event)
        self.seq = event.seq

    @property
    def head(self) -> Message | None:
        """The last message of the path."""
        return self.messages[-1] if self.messages else None

    @property
    def running(self) -> bool:
        """Whether the last message is being answered, or answers. Not if that waits for people, or nobody is to.

        A turn on another branch may run all the same: `ThreadStatus.state` tells.
        """
        head = self.head
        return head is not None and (head.status.state == "running" or head.id == self._awaited)

    @property
    def paused(self) -> bool:
        """Whether the last message is a turn that waits for people: for a decision, or for a result of theirs."""
        return self.head is not None and self.head.status.state == "requires_action"

    @property
    def approvals(self) -> tuple[PendingApproval, ...]:
        """The calls on the path that wait for somebody to approve them, in their order."""
        found = [(one, self.calls.get(one.call_id)) for one in pending_approvals(self.messages)]
        return tuple(one.with_(due=call.due) if call else one for one, call in found if not (call and call.result))

    @property
    def last_turn(self) -> Message | None:
        """The last turn of the path; None while words after it are about to be answered by another one."""
        turns = (message for message in reversed(self.messages) if message.role == "assistant")
        return None if self._awaited and self.running else next(turns, None)

    def message(self, message_id: str) -> Message | None:
        """A message of the path by its id."""
        place = self._places.get(message_id)
        return None if place is None else self.messages[place]

    def answer(self, message_id: str) -> Message | None:
        """The assistant message that answers a message of the path, once there is one; settled or not."""
        following = self.messages[self._places.get(message_id, len(self.messages)) + 1 :]
        return next((message for message in following if message.role == "assistant"), None)

    def turn(self, message_id: str) -> Message | None:
        """The turn whose message this is, or the one that answers it."""
        message = self.message(message_id)
        return message if message and message.role == "assistant" else self.answer(message_id)

    def parts(self, message: Message) -> tuple[Part, ...]:
        """The parts of a message, with what streams for it at the end."""
        if self.live and self._is_turn(message) and message.turn == self.live.turn:
            return message.parts + self.live.parts
        return message.parts

    def show(self, path: Sequence[Message], above: int = 0) -> None:
        """Show these messages after the first `above` of the path, in the place of those that were there."""
        for gone in self.messages[above:]:
            del self._places[gone.id]
            if self._is_turn(gone):
                self._turns.discard(gone.turn)
        self.messages[above:] = path
        for place, message in enumerate(path, above):
            self._places[message.id] = place
            if self._is_turn(message):
                self._turns.add(message.turn)

    def open_call(self, call_id: str) -> OpenCall | None:
        """How far an open call has come; None if it has not started or is settled."""
        return self.calls.get(call_id)

    def _take_snapshot(self, snapshot: Snapshot) -> None:
        self.thread_id = snapshot.thread.thread_id
        self.show(snapshot.path.messages)
        self.summary = snapshot.path.summary
        self.live = None
        # Words and the turn that answers them are stored together, so at the end of a snapshot none wait for one.
        self._awaited = None
        if (step := snapshot.live) and step.turn in self._turns:
            self.live = LiveStep(step.turn, step.step, step.attempt, TurnBuffer(snapshot.chunks))
        shown = (call for call in snapshot.calls if call.message_id in self._places and _has_news(call))
        self.calls = {call.call_id: call for call in shown}
        self.choices = {choice.id: choice for choice in snapshot.choices}
        self.shown = {view.view_type: view for view in snapshot.views}

    def _take_message(self, seq: int, message: Message) -> None:
        # Who reads from the first change on gets no snapshot; what is told of is always the thread's own.
        self.thread_id = self.thread_id or message.thread_id
        position = self._places.get(message.id)
        if position is not None:
            self.messages[position] = message.with_(parts=self.messages[position].parts)
        elif seq == message.seq:
            self._append(message)
        if self.live and message.turn == self.live.turn and message.role == "assistant" and is_settled(message):
            self.live = None

    def _append(self, message: Message) -> None:
        """A new message is the new head, so the path before it ends at its parent: usually where it ends already."""
        parent = -1 if message.parent_id is None else self._places.get(message.parent_id)
        if parent is None:
            raise ViewOutdated
        self.show([message], above=parent + 1)
        # Only of words that a turn answers is its number known: then it is the next message.
        self._awaited = message.id if message.role != "assistant" and message.turn else None

    def _take_part(self, change: Change, part: Part) -> None:
        if isinstance(part, ToolResultPart):
            self.calls.pop(part.call_id, None)
            self._drop_choices(part.call_id)
        position = self._places.get(change.message_id or "")
        if position is None:
            return
        message = self.messages[position]
        # A part that is told again takes its own place: two rows of one position would be one answer shown twice.
        start = len(message.parts) if change.position is None else change.position
        if start > len(message.parts):
            # One before it was told again meanwhile, and comes later.
            raise ViewOutdated
        self.messages[position] = message.with_(parts=(*message.parts[:start], part, *message.parts[start + 1 :]))
        place = (message.turn, part.step) if message.role == "assistant" else (0, 0)
        if self.live and not isinstance(part, ToolResultPart) and place >= (self.live.turn, self.live.step):
            self.live = None

    def _take_call(self, call: OpenCall) -> None:
        if _has_news(call) and call.message_id in self._places:
            self.calls[call.call_id] = call
        else:
            # A decision ends the time that a call has for it, and then there is nothing more to tell of it.
            self.calls.pop(call.call_id, None)
        if call.result:
            self._drop_choices(call.call_id)

    def _drop_choices(self, call_id: str) -> None:
        self.choices = {name: choice for name, choice in self.choices.items() if choice.call_id != call_id}

    def _take_choice(self, choice: Choice) -> None:
        self.choices.pop(choice.id, None)
        if not choice.answered:
            self.choices[choice.id] = choice

    def _take_shown(self, view: Shown) -> None:
        self.shown.pop(view.view_type, None)
        if not view.is_empty:
            self.shown[view.view_type] = view

    def _take_summary(self, summary: Summary) -> None:
        # The newest is the one that holds; on another branch, or a path that nobody has shown, it is none of this view.
        if summary.message_id in self._places:
            self.summary = summary

    def _take_chunk(self, change: Change) -> None:
        if change.turn not in self._turns:
            return
        live = self.live
        place = (change.turn, change.step, change.attempt)
        # The same attempt begins again if its process lost track of it: what it had streamed is void as well.
        if live is None or change.new_attempt or (live.turn, live.step, live.attempt) != place:
            live = self.live = LiveStep(change.turn, change.step, change.attempt)
        if change.chunk:
            live.buffer.add(change.chunk)

    def _is_turn(self, message: Message) -> bool:
        # An inherited message of the parent thread may carry the same turn number.
        return message.role == "assistant" and message.thread_id == self.thread_id


def _has_news(call: OpenCall) -> bool:
    return bool(call.started or call.result or call.due or call.interim)


def is_settled(message: Message) -> bool:
    """Whether an assistant message is finished, and does not wait for people; other messages never are."""
    return message.role == "assistant" and message.status.state in ("complete", "incomplete")


def call_of(message: Message, call_id: str) -> ToolCallPart | None:
    """The call of this id in a message."""
    return next((part for part in message.parts if isinstance(part, ToolCallPart) and part.call_id == call_id), None)


def answer_text(message: Message) -> str:
    """What an assistant message says after its last tool call: the answer, without what led to it."""
    last_call = max((at for at, part in enumerate(message.parts) if isinstance(part, ToolResultPart)), default=-1)
    return "".join(part.text for part in message.parts[last_call + 1 :] if isinstance(part, TextPart))
