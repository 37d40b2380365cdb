"""HistoryManager: decides what becomes of everything that reaches a thread. Pure, synchronous and deterministic.

It never awaits and knows neither Temporal nor a database: it takes contents and completions, and gives batches for
its caller to `sync`. What it holds is bounded, however long the conversation is: the open turn with its calls, the
head, live subscriptions, and the ids of the newest accepted inputs. Older ids are the store's to judge, which it does
in the transaction of the sync: a batch that brings a known input is refused whole, and `synced` decides everything
since the last sync again without that input, as if it had never come. So a duplicate neither interrupts a turn nor
costs a model call.

Two layers, as ever in streaming: what is committed (and pending for the next sync), and the turn buffer of the step
that streams. The buffer is here (`handle_completion`) for callers that stream through the manager, or in the store
(`handle_step`) for those that keep words out of their state, as the workflow does.

The state is one frozen value. Remembering what to go back to, carrying a run over continue-as-new and comparing two
managers in a test are therefore all the same thing: holding on to it.
"""

from collections.abc import Callable
from typing import Any, Self

from perdure.batch import (
    AppendMessage,
    AppendParts,
    Decide,
    Operation,
    Refused,
    SetDue,
    SyncBatch,
    SyncReport,
    changes_tree,
)
from perdure.codec import Text, digest, dumps
from perdure.contract import CompleteResult
from perdure.errors import UnflushedTurn
from perdure.history_state import (
    EndedTurn,
    HistoryState,
    LiveCall,
    OpenTurn,
    Phase,
    Spawn,
    SpawnPoint,
    SubscriptionLimits,
    restored,
    with_tree,
)
from perdure.inbox import is_ready
from perdure.inputs import AnyInput, Disposition, Identified, ToolResult
from perdure.intake import Intake
from perdure.messages import Message
from perdure.pending_view import with_pending
from perdure.policy import REMEMBERED_INPUTS
from perdure.records import Subscription, Summary, Tail
from perdure.turn import stamped
from perdure.turn_buffer import Chunk

Decision = tuple[Callable[..., Any], tuple[Any, ...]]
"""A method of `Intake` and its arguments."""


class HistoryManager:
    """One thread's view of its conversation. See the module's docstring."""

    def __init__(self, state: HistoryState) -> None:
        if any(isinstance(operation, AppendMessage) for operation in state.pending):
            # To leave a refused input out, what was decided since the last sync is needed, and that is not in here.
            raise AssertionError("bug: a state was carried over before its inputs were synced")
        self._base = state
        self._journal: list[Decision] = []
        self._draft = Intake(state)
        self._sent = (state, 0)
        self._resumed = False
        self._unwanted = frozenset[str]()

    @classmethod
    def from_tail(
        cls,
        tail: Tail,
        limits: SubscriptionLimits | None = None,
        *,
        pauses: bool = True,
        hooks: bool = False,
        resumes: bool = True,
        dropped: int = 0,
    ) -> Self:
        """Restore a thread from what `StateStore.load_tail` read. For the flags, and `dropped`, see `HistoryState`.

        A turn that was open when its last owner vanished is open again, with its calls as they were: it goes on
        where it stopped, since steps and calls are idempotent by their keys.
        """
        flags = {"pauses": pauses, "hooks": hooks, "resumes": resumes}
        manager = cls(restored(tail, limits or SubscriptionLimits(), **flags, dropped=dropped))
        if manager.state.closed:
            manager._decide(Intake.end)
        elif manager.open_turn and manager.open_turn.calls:
            manager._decide(Intake.take_up)
        return manager

    @property
    def state(self) -> HistoryState:
        """The whole state, to carry over continue-as-new; what the buffer holds is not in it."""
        return self._draft.state

    @property
    def phase(self) -> Phase:
        """Where the thread stands, for the inbox."""
        return self._draft.phase

    @property
    def open_turn(self) -> OpenTurn | None:
        """The turn under way."""
        return self._draft.state.open

    @property
    def changes_tree(self) -> bool:
        """Whether the next sync changes the tree.

        More contents are for the state in which it leaves the thread, so a caller syncs before it gives them.
        """
        return any(changes_tree(operation) for operation in self.state.pending)

    @property
    def rests(self) -> bool:
        """Whether a turn that rests in the store may go on, or is what is shown: then load the thread again.

        One that may go on waits for the end of the one that works.
        """
        state = self.state
        if state.closed or (state.open and not state.open.paused):
            return False
        return state.answered or (state.open is None and state.paused_head)

    # -- inputs ------------------------------------------------------------------------------------------------

    def handle_content(self, content: AnyInput) -> Disposition:
        """The single entry for everything that reaches the thread. Returns what becomes of it, if the store agrees.

        What the store says of a message or event is known after `synced`; `disposition` reads it then. What has to
        wait in this phase is not to be given here: the inbox holds it back.

        Raises:
            UsageError: if somebody decides about a call that no decision is wanted for. Nothing is changed.
        """
        if not is_ready(content, self.phase):
            raise AssertionError(f"bug: {content.kind} was taken while the thread is {self.phase}")
        disposition: Disposition = self._decide(Intake.handle, content)
        return disposition

    def disposition(self, input_id: str) -> Disposition | None:
        """What became of a message or event since `take_dispositions`; final once it is synced."""
        return self.state.dispositions.get(input_id)

    def take_dispositions(self) -> dict[str, Disposition]:
        """What became of the messages and events whose sync is through, since the last time."""
        taken = self._base.dispositions

        def left(state: HistoryState) -> HistoryState:
            others = {input_id: what for input_id, what in state.dispositions.items() if input_id not in taken}
            return state.with_(dispositions=others)

        self._hand_out(left)
        return taken

    def take_interrupted_tool_calls(self) -> tuple[LiveCall, ...]:
        """Calls whose interruption was synced since the last time: tell whoever runs them, best effort."""
        taken = self._base.interrupted
        self._hand_out(lambda state: state.with_(interrupted=state.interrupted[len(taken) :]))
        return taken

    # -- the turn ----------------------------------------------------------------------------------------------

    def begin_step(self) -> tuple[int, int]:
        """The next model call starts; returns its (turn, step). Only at a boundary."""
        self._decide(Intake.begin_step)
        assert self.open_turn is not None
        return self.open_turn.turn, self.open_turn.step

    def handle_completion(self, chunk: Chunk) -> None:
        """Take a streamed chunk into the turn buffer; consecutive text is joined. Nothing of it is history yet."""
        self._decide(Intake.add_chunk, chunk)

    def handle_step(self, outline: CompleteResult) -> None:
        """Take the outline of a step whose content waits in the store's turn buffer."""
        self._decide(Intake.take_outline, outline)

    def flush_turn(self) -> None:
        """Commit the turn buffer. Without calls in it the turn is complete; with calls it waits for their results."""
        self._decide(Intake.flush, False)

    def flush_turn_trimming_reasoning(self) -> None:
        """Commit the turn buffer without trailing reasoning: no committed step ends on a thought (rule V7)."""
        self._decide(Intake.flush, True)

    def discard_turn(self) -> None:
        """Drop the turn buffer, so that the step can be tried again from clean committed history."""
        self._decide(Intake.discard)

    def retry_step(self) -> None:
        """Drop the turn buffer; the model call is made anew, by attempts that come after all that were made."""
        self._decide(Intake.retry_step)

    def fail_turn(self, detail: Text) -> None:
        """The step failed for good: drop its buffer and settle the turn with the error. The thread goes on."""
        self._decide(Intake.fail, detail)

    def ask(self, call_id: str, due: float) -> None:
        """A call waits for a decision until `due` (seconds since 1970), whoever owns the thread. Safe to repeat."""
        self._decide(Intake.ask, call_id, due)

    def mark_dispatched(self, call_id: str, due: float | None = None) -> None:
        """Remember that a call is on its way, so that this run does not dispatch it again.

        With `due` (seconds since 1970) it ends by itself then, whoever owns the thread.
        """
        self._decide(Intake.mark_dispatched, call_id, due)

    def expire(self, result: ToolResult) -> None:
        """The deadline of a call that rests (`HistoryState.deadline`) is over; `result` says so."""
        self._decide(Intake.expire, result)

    def current_turn_view(self, committed: tuple[Message, ...]) -> tuple[Message, ...]:
        """The committed path, then what is pending, then the buffer of the step that streams.

        `committed` is the path as the store has it. What the store's own turn buffer holds is in its snapshot.
        """
        operations = list[Operation](self.state.pending)
        if (turn := self.open_turn) and self._draft.buffer:
            parts = stamped(self.state.thread_id, turn, self._draft.buffer.parts)
            operations.append(AppendParts(message_id=turn.message_id, start=turn.parts, parts=parts))
        return with_pending(committed, operations)

    # -- sync --------------------------------------------------------------------------------------------------

    def take_pending(self, sync_id: str) -> SyncBatch | None:
        """What the next sync writes, None if there is nothing. Opens the turn that answers new inputs.

        The turn's message is in the batch of its inputs, so a crash cannot leave words that nobody answers. Until
        `synced` the same batch is given again, for a retry after a lost reply. Its id names the content as well: if
        more has come in before the retry, the store must not take the larger batch for the one that it has applied.

        Raises:
            UnflushedTurn: if the turn buffer holds content, which this sync would lose. Not if the turn streams on
                because the store refused the message that had stopped it: then the rest waits for the flush.
        """
        if self._draft.is_unflushed:
            if self._resumed:
                return None
            raise UnflushedTurn("bug: sync with an unflushed turn; call flush_turn or discard_turn first")
        self._resumed = False
        self._decide(Intake.open_due_turn)
        if not self.state.pending:
            self._base, self._journal = self.state, []
            return None
        self._sent = self.state, len(self._journal)
        return SyncBatch(
            thread_id=self.state.thread_id,
            number=self.state.version + 1,
            sync_id=f"{sync_id}:{digest(dumps([_content(one) for one in self.state.pending]))[:16]}",
            operations=self.state.pending,
        )

    def synced(self, report: SyncReport) -> tuple[Refused, ...]:
        """Take the store's answer. If it refused inputs, nothing was written: sync again without them.

        Returns the refused inputs; with any, `take_pending` gives the batch that is left.
        """
        if report.refused:
            self._leave_out(report.refused)
            return report.refused
        self._unwanted = frozenset[str]()
        written, decisions = self._sent
        processed = dict(list(written.processed.items())[-REMEMBERED_INPUTS:])
        durable = written.with_(version=report.number, pending=(), processed=processed)
        if report.tree is not None:
            durable = with_tree(durable, report.tree)
        self._decide_again(durable, self._journal[decisions:])
        return ()

    def _leave_out(self, refused: tuple[Refused, ...]) -> None:
        # A result that named no message is decided about again: before its call was closed another may have come.
        self._unwanted |= {item.input_id for item in refused if item.message_id == ""}
        known = {item.input_id: _disposition(item) for item in refused if item.message_id is None}
        late = {(item.input_id, item.message_id) for item in refused if item.message_id is not None}

        def is_refused(content: object) -> bool:
            if isinstance(content, ToolResult):
                return (content.call_id, content.message_id) in late
            return isinstance(content, Identified) and content.id in known

        kept = [
            (method, arguments) for method, arguments in self._journal if not (arguments and is_refused(arguments[0]))
        ]
        self._decide_again(self._base.with_(dispositions={**self._base.dispositions, **known}), kept)
        self._resumed = self._draft.is_unflushed

    def _decide_again(self, base: HistoryState, journal: list[Decision]) -> None:
        """From a durable state, decide what the store has not seen."""
        self._base, self._journal, self._draft = base, [], Intake(base, self._unwanted)
        for method, arguments in journal:
            self._decide(method, *arguments)

    def _hand_out(self, left: Callable[[HistoryState], HistoryState]) -> None:
        """Take what is durable out of every state that begins with it, a batch that is under way included."""
        written, decisions = self._sent
        self._base, self._sent, self._draft.state = left(self._base), (left(written), decisions), left(self.state)

    def _decide(self, method: Callable[..., Any], *arguments: Any) -> Any:
        decided = method(self._draft, *arguments)
        self._journal.append((method, arguments))
        return decided

    # -- threads and subscriptions -----------------------------------------------------------------------------

    def safe_spawn_point(self) -> SpawnPoint:
        """Where a child may inherit up to: trailing calls without a result, and their whole group, are excluded."""
        return self._draft.spawn_point()

    def take_spawns(self) -> tuple[Spawn, ...]:
        """Events that are to be handled in child threads, whose sync is through, since the last time."""
        taken = self._base.spawns
        self._hand_out(lambda state: state.with_(spawns=state.spawns[len(taken) :]))
        return taken

    def take_ended(self) -> tuple[EndedTurn, ...]:
        """Turns that have settled, whose sync is through, since the last time; none without `HistoryState.hooks`."""
        taken = self._base.ended
        self._hand_out(lambda state: state.with_(ended=state.ended[len(taken) :]))
        return taken

    def ended_since(self, before: "HistoryManager") -> tuple[EndedTurn, ...]:
        """Turns that have settled though the manager before this one never heard that its sync was through.

        This one was made from the store, since the store knew more than `before`. What rests there has not ended, and
        neither has a turn that is open here.
        """
        known = before._base.open
        is_open = known is not None and self.state.open is not None and self.state.open.turn == known.turn
        if not self.state.hooks or known is None or known.paused or is_open:
            return before._base.ended
        return (*before._base.ended, EndedTurn(turn=known.turn, message_id=known.message_id))

    def take_cancelled(self) -> tuple[str, ...]:
        """Calls and subscriptions that nobody waits for, whose sync is through: tell tool servers, best effort."""
        taken = self._base.cancelled
        self._hand_out(lambda state: state.with_(cancelled=state.cancelled[len(taken) :]))
        return taken

    def close_thread(self) -> None:
        """The thread takes nothing more, as soon as the open calls are settled. Safe to repeat."""
        self._decide(Intake.close_thread)

    def track_subscription(self, call_id: str, tool: str) -> None:
        """A settled call goes on sending events. Safe to repeat."""
        self._decide(Intake.track_subscription, Subscription(call_id=call_id, tool=tool))

    def resume_subscription(self, call_id: str) -> None:
        """A subscription that was paused may send events again. Safe to repeat."""
        self._decide(Intake.resume_subscription, call_id)

    def cancel_subscription(self, call_id: str) -> None:
        """Nobody wants a subscription's events any more: later ones are dropped. Safe to repeat."""
        self._decide(Intake.cancel_subscription, call_id)

    def remove_subscription(self, call_id: str) -> None:
        """A subscription has ended by itself; its later events are dropped. Safe to repeat."""
        self._decide(Intake.remove_subscription, call_id)

    def apply_compaction(self, summary: Summary) -> None:
        """A summary landed on a point of the tree. Nothing here is counted from the start, so nothing shifts.

        Only the newest summary's point is kept; the store stops at it when it loads the path.
        """
        self._decide(Intake.apply_compaction, SpawnPoint(message_id=summary.message_id, parts=summary.parts))


def _disposition(refused: Refused) -> Disposition:
    if refused.detail is not None:
        return "refused"
    return "dropped" if refused.missing else "conflict" if refused.conflict else "duplicate"


def _content(operation: Operation) -> object:
    """What tells an operation from another one; of a message its id and digest do, without all its words.

    When a call ends, and when somebody decided, is read off a clock, and a task that was lost and runs again reads
    another time off it.
    """
    if isinstance(operation, AppendMessage):
        return operation.message.id, operation.digest
    if isinstance(operation, SetDue):
        return operation.kind, operation.call_id
    if isinstance(operation, Decide):
        return operation.kind, operation.call_id, operation.decision.digest
    return operation
