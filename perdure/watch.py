"""A conversation as a reader sees it: one snapshot, and the changes folded into it.

Pure. The same fold serves the terminal, the client and every gateway, so that all of them show the same thing. What
it guarantees: whatever point a reader joins at, and however often it goes away and comes back, it ends with the same
messages as one who watched all the time. That holds because committed parts replace what streamed (the store drops
the chunks of a committed step, a reader drops them when it sees a part of it), and because a change that was folded
before is left out by its sequence number.
"""

from dataclasses import dataclass, field

from perdure.errors import ViewOutdated
from perdure.messages import Message, Part, TextPart, ToolCallPart, ToolResultPart
from perdure.ports import Change, Choice, OpenCall, Snapshot
from perdure.ports import View as Shown
from perdure.turn_buffer import TurnBuffer

WatchEvent = Snapshot | Change
"""What a watcher receives: a snapshot first, then one change after the other."""


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
        live: the step that streams, if one does.
        calls: open calls that have started or returned, or end by themselves, by call id.
        choices: what people are asked, oldest first, by the question's id.
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
        self.seq = 0

    def apply(self, event: WatchEvent) -> None:
        """Fold one event. Safe to repeat: a change that is in the view already is left out.

        Raises:
            ViewOutdated: if the path goes on from a message that this view does not hold.
        """
        if isinstance(event, Snapshot):
            self._take_snapshot(event)
        elif event.seq <= self.seq:
            return
        elif event.message:
            self._take_message(event.message)
        elif event.part:
            self._take_part(event, event.part)
        elif event.call:
            self._take_call(event.call)
        elif event.choice:
            self._take_choice(event.choice)
        elif event.view:
            self._take_shown(event.view)
        else:
            self._take_chunk(event)
        self.seq = event.seq

    @property
    def head(self) -> Message | None:
        """The last message of the path."""
        return self.messages[-1] if self.messages else None

    @property
    def running(self) -> bool:
        """Whether the thread is answering, or has words that wait for an answer."""
        return self.head is not None and not is_settled(self.head)

    def message(self, message_id: str) -> Message | None:
        """A message of the path by its id."""
        return next((message for message in reversed(self.messages) if message.id == message_id), None)

    def answer(self, message_id: str) -> Message | None:
        """The assistant message that answers a message of the path, once there is one; settled or not."""
        following = False
        for message in self.messages:
            if following and message.role == "assistant":
                return message
            following = following or message.id == message_id
        return None

    def parts(self, message: Message) -> tuple[Part, ...]:
        """The parts of a message, with what streams for it at the end."""
        if self.live and _is_turn(message, self.thread_id, self.live.turn):
            return message.parts + self.live.parts
        return message.parts

    def open_call(self, call_id: str) -> OpenCall | None:
        """How far an open call has come; None if it has not started or is settled."""
        return self.calls.get(call_id)

    def _take_snapshot(self, snapshot: Snapshot) -> None:
        self.thread_id = snapshot.thread.thread_id
        self.messages = list(snapshot.path.messages)
        self.live = None
        if snapshot.live:
            step = snapshot.live
            self.live = LiveStep(step.turn, step.step, step.attempt, TurnBuffer(snapshot.chunks))
        self.calls = {call.call_id: call for call in snapshot.calls if call.started or call.result or call.due}
        self.choices = {choice.id: choice for choice in snapshot.choices}
        self.shown = {view.view_type: view for view in snapshot.views}

    def _take_message(self, message: Message) -> None:
        for position, known in enumerate(self.messages):
            if known.id == message.id:
                self.messages[position] = message.with_(parts=known.parts)
                break
        else:
            self._cut_after(message.parent_id)
            self.messages.append(message)
        if self.live and message.turn == self.live.turn and message.role == "assistant" and is_settled(message):
            self.live = None

    def _cut_after(self, message_id: str | None) -> None:
        """A new message is the new head, so the path before it ends at its parent: usually where it ends already."""
        while self.messages and self.messages[-1].id != message_id:
            self.messages.pop()
        if message_id is not None and not self.messages:
            raise ViewOutdated

    def _take_part(self, change: Change, part: Part) -> None:
        position = next(index for index, known in enumerate(self.messages) if known.id == change.message_id)
        message = self.messages[position]
        # A part that is told again takes its own place: two rows of one position would be one answer shown twice.
        start = len(message.parts) if change.position is None else change.position
        self.messages[position] = message.with_(parts=(*message.parts[:start], part, *message.parts[start + 1 :]))
        if isinstance(part, ToolResultPart):
            self.calls.pop(part.call_id, None)
            self._drop_choices(part.call_id)
        elif self.live and (message.turn, part.step) >= (self.live.turn, self.live.step):
            self.live = None

    def _take_call(self, call: OpenCall) -> None:
        self.calls[call.call_id] = call
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

    def _take_chunk(self, change: Change) -> None:
        live = self.live
        place = (change.turn, change.step, change.attempt)
        # The same attempt begins again if its process lost track of it: what it had streamed is void as well.
        if live is None or change.new_attempt or (live.turn, live.step, live.attempt) != place:
            live = self.live = LiveStep(change.turn, change.step, change.attempt)
        if change.chunk:
            live.buffer.add(change.chunk)


def is_settled(message: Message) -> bool:
    """Whether an assistant message is finished; other messages never are: they wait for an answer."""
    return message.role == "assistant" and message.status.state in ("complete", "incomplete")


def call_of(message: Message, call_id: str) -> ToolCallPart | None:
    """The call of this id in a message."""
    return next((part for part in message.parts if isinstance(part, ToolCallPart) and part.call_id == call_id), None)


def answer_text(message: Message) -> str:
    """What an assistant message says after its last tool call: the answer, without what led to it."""
    last_call = max((at for at, part in enumerate(message.parts) if isinstance(part, ToolResultPart)), default=-1)
    return "".join(part.text for part in message.parts[last_call + 1 :] if isinstance(part, TextPart))


def _is_turn(message: Message, thread_id: str, turn: int) -> bool:
    # An inherited message of the parent thread may carry the same turn number.
    return message.role == "assistant" and message.turn == turn and message.thread_id == thread_id
