"""Branches: what becomes of words for another place in the tree, of another answer, and of changes of the tree itself.

At most one turn of a thread works, wherever it is in the tree. Any number may wait for people, one at the end of each
branch; of these the one that is shown is open here, the others rest in the store until their branch is shown again.
Pure, synchronous and deterministic, as all of a draft. What the tree does not allow is the store's to refuse.
"""

from typing import Final, Literal

from perdure import ids
from perdure.approval import Decision, decision_of, remembered_of
from perdure.batch import (
    AnnotateMessage,
    AppendMessage,
    DeleteMessage,
    ForgetDecisions,
    ImportMessages,
    Operation,
    RememberDecision,
    ResetThread,
    SwitchBranch,
)
from perdure.codec import clip
from perdure.draft import Draft
from perdure.errors import UsageError
from perdure.history_state import HistoryState, LiveCall, OpenTurn, Phase, rested, standing
from perdure.inputs import ROOT, Approval, Disposition, Regenerate, TreeChange, UserMessage
from perdure.messages import FilePart, Message, TextPart
from perdure.policy import REMEMBERED_DECISIONS
from perdure.turn import FOLLOWED
from perdure.waiting import no_question

_RESOLVED: Final = frozenset(Decision(resolution=one).digest for one in ("cancelled", "expired"))
"""What a call that nobody decided about is known by when it is loaded."""


class Branching(Draft):
    """A draft whose tree people change."""

    def __init__(self, state: HistoryState) -> None:
        super().__init__(state)
        self._unconfirmed: Phase | None = None

    @property
    def phase(self) -> Phase:
        """Where the thread stands, for the inbox.

        A message that closes a turn may turn out to be known to the store, and then the turn goes on. So until the
        sync the phase stays what it was, and what has to wait for the end of the turn waits for the sync.
        """
        return self._unconfirmed or standing(self.state)

    def _append_only(self, message: UserMessage) -> Disposition:
        """Words that nobody answers. Below a turn they end it: at once if it waits for people, else with its step."""
        self.open_due_turn()
        turn = self.state.open
        if turn and self._is_elsewhere(message, turn):
            if turn.paused:
                self._rest()
        elif turn and turn.paused:
            self._close_turn("cancelled", FOLLOWED)
        elif turn:
            self._change(open=turn.with_(followers=turn.followers + 1))
        self._accept_words(message)
        return "appended"

    def _accept_words(self, message: UserMessage) -> None:
        files = (
            FilePart(media_type=one.media_type, blob=one.blob, size_bytes=one.size_bytes, name=one.name)
            for one in message.files
        )
        words = TextPart(text="" if message.blob else message.text, blob=message.blob)
        # Files alone are a message too, and then there is no word to be stored.
        has_words = message.blob or message.text.strip() or not message.files
        parent_id, at_root = message.parent_id, message.parent_id == ROOT
        if self.state.paused_head and parent_id is None and message.source_id is None:
            # The store settles the turn that these words follow: it is not among what is known here.
            parent_id = self.state.head_id
        node = Message(
            id=ids.input_message_id(self.state.thread_id, message.id),
            thread_id=self.state.thread_id,
            role="user",
            parent_id=None if at_root else parent_id,
            turn=self.state.turn + 1 if message.run else 0,
            parts=(*((words,) if has_words else ()), *files),
            input_id=message.id,
            options=message.options,
            metadata=message.metadata,
            source_id=message.source_id,
        )
        beside = message.source_id if parent_id is None else None
        self._accept(AppendMessage(message=node, digest=message.digest, beside=beside, at_root=at_root), message.run)

    def _is_elsewhere(self, message: UserMessage, turn: OpenTurn) -> bool:
        """Whether words go anywhere but below the turn; the store counts those that name a place in the tree.

        A turn that waits for people has nothing below it, so there the two are the same.
        """
        if message.parent_id is None:
            return message.source_id is not None or turn.hidden
        return message.parent_id != turn.message_id

    def _rest(self) -> None:
        """The open turn waits for people, and another branch is shown: it rests in the store until its own is again."""
        self.state = rested(self.state)

    def _regenerate(self, content: Regenerate) -> Disposition:
        if known := self._known(content.id, content.digest):
            return known
        if self.state.closing:
            return "rejected"
        self.open_due_turn()
        disposition = self._make_way()
        # The message says what it was asked for by, so whoever asks again under the same id finds it.
        turn = self.next_turn().with_(input_id=content.id)
        self.open_turn(AppendMessage(message=turn, answering=content.message_id, input_id=content.id))
        self._change(processed={**self.state.processed, content.id: content.digest})
        return disposition

    def _make_way(self) -> Disposition:
        """For a turn that is to run on another branch: one turn works at a time, any number may wait for people."""
        turn = self.state.open
        if turn is None:
            return "started"
        if turn.paused:
            self._rest()
            return "started"
        self._leave_turn("cancelled")
        return "interrupted"

    def _tree_change(self, change: TreeChange) -> Disposition:
        if known := self._known(change.id, change.digest):
            return known
        self.open_due_turn()
        turn = self.state.open
        if turn and _touches(change, turn):
            self._rest() if turn.paused else self._leave_turn("cancelled")
        self._append(_operation(change))
        if (change.action, change.message_id) == ("reset", ROOT):
            # Nothing is left of what people have decided in view of.
            self._append(ForgetDecisions())
            self._change(remembered=())
        self._change(processed={**self.state.processed, change.id: change.digest})
        return "changed"

    def _approval(self, content: Approval) -> Disposition:
        """Somebody decides. Raises UsageError, and nothing is changed."""
        turn = self.state.open
        call = self._live_call(content.call_id)
        if turn and turn.hidden and self.state.paused_head:
            raise UsageError(
                f"The call {clip(content.call_id, 80)!r} cannot be decided about now: a turn on another branch is at "
                "work. Decide when it has ended, or stop it."
            )
        if turn is None or turn.hidden or call is None or call.outline.approval is None:
            raise UsageError(no_question(content.call_id))
        decision = decision_of(call.outline.approval, content, content.at)
        if call.decided == decision.digest:
            return "duplicate"
        if turn.followers:
            raise UsageError(
                f"The call {content.call_id!r} cannot be decided about: another message followed its turn."
            )
        if reason := _decided(call, content.at):
            raise UsageError(reason)
        self.decide(call, decision)
        self._remember(call, decision)
        self.commit_group_when_settled()
        return "settled"

    def _remember(self, call: LiveCall, decision: Decision) -> None:
        """A decision for all such calls is kept, and releases those that wait already."""
        assert call.outline.approval is not None
        known = remembered_of(decision, call.outline.approval, call.outline.tool, call.outline.arguments_digest)
        if known is None:
            return
        self._append(RememberDecision(remembered=known))
        others = [one for one in self.state.remembered if (one.tool, one.arguments) != (known.tool, known.arguments)]
        self._change(remembered=(*others, known)[-REMEMBERED_DECISIONS:])
        self._use_remembered()

    def _known(self, input_id: str, content_digest: str) -> Disposition | None:
        known = self.state.processed.get(input_id)
        if known is None:
            return None
        # Of what was deleted no digest is left.
        return "duplicate" if known in ("", content_digest) else "conflict"

    def _accept(self, operation: AppendMessage, run: bool) -> None:
        message = operation.message
        assert message.input_id is not None
        assert operation.digest is not None
        self._append(operation)
        self._change(
            processed={**self.state.processed, message.input_id: operation.digest},
            head_id=message.id,
            last=None,
            answer_due=run,
        )

    def _leave_turn(self, reason: Literal["cancelled", "steered"]) -> None:
        """An input closes the turn, unless the store says that it knows the input."""
        self._unconfirmed = self.phase
        self._close_turn(reason, None)


def _decided(call: LiveCall, at: float) -> str | None:
    """Why nothing is left to decide about a call at a time; None if it waits for that."""
    if call.decided is not None and call.decided not in _RESOLVED:
        return f"The call {call.call_id!r} was decided about before; that stays."
    if call.expired or (call.due is not None and at >= call.due):
        # Its timer may say so in a moment: it went off while no worker was up, or its branch was not shown.
        return f"The time in which the call {call.call_id!r} could be decided about is over."
    return f"The call {call.call_id!r} has its result, so nobody decides about it any more." if call.settled else None


def _touches(change: TreeChange, turn: OpenTurn) -> bool:
    """Whether the open turn itself may be deleted or replaced, and then has nothing to go on with."""
    if change.action == "delete":
        return change.message_id == turn.message_id
    return change.action in ("reset", "import")


def _operation(change: TreeChange) -> Operation:
    message_id, input_id, content = change.message_id or "", change.id, change.digest
    match change.action:
        case "switch":
            return SwitchBranch(message_id=message_id, input_id=input_id, digest=content)
        case "delete":
            replacement_id = change.replacement_id
            return DeleteMessage(
                message_id=message_id, replacement_id=replacement_id, input_id=input_id, digest=content
            )
        case "reset":
            below = None if message_id == ROOT else message_id
            return ResetThread(message_id=below, input_id=input_id, digest=content)
        case "import":
            return ImportMessages(blob=change.blob or "", input_id=input_id, digest=content)
        case "annotate":
            metadata = change.metadata or {}
            return AnnotateMessage(message_id=message_id, metadata=metadata, input_id=input_id, digest=content)
