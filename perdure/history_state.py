"""The state of a history manager: one frozen, bounded value, whatever the length of the conversation."""

from typing import Literal

from pydantic import Field

from perdure.approval import RememberedDecision
from perdure.batch import Operation, TreeReport
from perdure.builtins import CLOSE_THREAD
from perdure.codec import Wire, clip, loads_object
from perdure.contract import PREVIEW_CHARS, CallOutline, CompleteResult
from perdure.inputs import Disposition, Event
from perdure.messages import Status, ToolResultPart, Usage
from perdure.policy import COMPLETE_ATTEMPTS, REMEMBERED_DECISIONS
from perdure.records import Deadline, OpenCall, Subscription, Tail
from perdure.tools import KEPT_ARGUMENTS

Phase = Literal["busy", "calling", "sleeping", "boundary", "hidden", "resting", "idle"]
"""Where a thread stands.

busy: a model call runs; calling: its tool calls are open; sleeping: so are only passive ones, which anything may cut
short; boundary: between two steps; hidden: so is a turn that is not shown; resting: what is shown is a turn that waits
for people, and it is not loaded yet; idle: no turn is open.
"""


class LiveCall(Wire):
    """A call of the open step. `settled` when its result is staged in the store or made here (`result`).

    `due` is when it ends by itself, in seconds since 1970. `approved`: somebody said that it may run; `decided` is the
    digest of the decision, whatever it was. `expired`: it was settled by its time, before it was loaded.
    """

    call_id: str
    outline: CallOutline
    dispatched: bool = False
    due: float | None = None
    settled: bool = False
    result: ToolResultPart | None = None
    approved: bool = False
    decided: str | None = None
    expired: bool = False

    @property
    def awaits_approval(self) -> bool:
        """Whether it may not run before somebody says so."""
        return self.outline.approval is not None and not self.approved and not self.settled

    @property
    def awaits_person(self) -> bool:
        """Whether only people can bring it on: by a decision, or by its result."""
        return not self.settled and (self.awaits_approval or self.outline.kind == "client")

    @property
    def lacks_deadline(self) -> bool:
        """Whether it asks for a time only, and nobody has said yet when that is over."""
        asked = self.outline.approval
        return self.awaits_approval and asked is not None and asked.expires_s is not None and self.due is None

    def argument(self, name: str) -> str:
        """A text among the arguments that the outline has kept; empty if there is none."""
        value = loads_object(self.outline.arguments or "{}").get(name)
        return value if isinstance(value, str) else ""


class OpenTurn(Wire):
    """The turn under way, running or waiting for people: `parts` are committed, `step` is the one under way or next.

    `attempts` is how many attempts of that step an owner before may have made. `followers` counts the messages below
    it: a turn that others follow does not go on after its step. `hidden`: another branch is shown. `paused`: all that
    its calls lack is people, and its status says so.
    """

    message_id: str
    turn: int
    step: int = 0
    attempts: int = 0
    parts: int = 0
    spawn_parts: int = 0
    running: bool = False
    outline: CompleteResult | None = None
    calls: tuple[LiveCall, ...] = ()
    followers: int = 0
    hidden: bool = False
    paused: bool = False


class SpawnPoint(Wire):
    """Where a child thread's inheritance ends: after the first `parts` parts of the message, all if None."""

    message_id: str | None
    parts: int | None = None


class Spawn(Wire):
    """A child thread to be made for an event: what happened, to which subscription, and what the child inherits."""

    event: Event
    origin: Subscription
    point: SpawnPoint


class EndedTurn(Wire):
    """A turn that has settled, for whoever wants to be told."""

    turn: int
    message_id: str


class SubscriptionLimits(Wire):
    """Bounds of a thread's subscriptions: how many there are at once, and what each may send.

    A subscription that reaches a bound is paused: the thread says so, and what else it sends is dropped and counted.
    """

    active: int = 100
    events_per_minute: int = 600
    events: int | None = None


class HistoryState(Wire):
    """All that a manager knows. `version` is the thread's, counting applied batches.

    `cancelled` are calls and subscriptions that nobody waits for any more, which tool servers are to be told; `dropped`
    counts events and results that belonged to nothing; `closing` is set by a call that closes the thread when its group
    is settled. `last` is the status of the head, if that is a turn; `paused_head` says that the head is a turn that
    waits for people, and not `open`. `remembered` are decisions for calls to come. Of turns that rest, `answered` says
    that one may have got all its results, and `deadline` is the first time at which a call of one ends by itself. With
    `pauses` a turn that waits for people says so in its status: runs of older releases did not. `dismissed` says that a
    person has closed the thread, and no call of its own. With `hooks` turns that have settled are kept in `ended` until
    they are handed out. With `resumes` turns that rest go on when nothing is lacking: in runs of older releases they
    waited to be shown.
    """

    thread_id: str
    version: int = 0
    turn: int = 0
    head_id: str | None = None
    last: Status | None = None
    open: OpenTurn | None = None
    answer_due: bool = False
    subscriptions: tuple[Subscription, ...] = ()
    processed: dict[str, str] = Field(default_factory=dict)
    pending: tuple[Operation, ...] = ()
    interrupted: tuple[LiveCall, ...] = ()
    cancelled: tuple[str, ...] = ()
    dispositions: dict[str, Disposition] = Field(default_factory=dict)
    summary: SpawnPoint | None = None
    usage: Usage = Usage()
    limits: SubscriptionLimits = SubscriptionLimits()
    spawns: tuple[Spawn, ...] = ()
    dropped: int = 0
    closing: bool = False
    closed: bool = False
    paused_head: bool = False
    remembered: tuple[RememberedDecision, ...] = ()
    pauses: bool = False
    dismissed: bool = False
    hooks: bool = False
    ended: tuple[EndedTurn, ...] = ()
    resumes: bool = False
    answered: bool = False
    deadline: Deadline | None = None


def phase_of(turn: OpenTurn | None) -> Phase:
    """The phase of a thread with this open turn."""
    if turn is None:
        return "idle"
    if turn.running:
        return "busy"
    if not turn.calls:
        return "boundary"
    return "sleeping" if all(call.settled or call.outline.passive for call in turn.calls) else "calling"


def standing(state: HistoryState) -> Phase:
    """The phase of a thread, for what comes in.

    What is told goes on where people look. So it cuts no turn short that is at work elsewhere, and it stands below no
    turn that waits for people, whether that is the open one or has to wait itself until a hidden one is over.
    """
    turn, phase = state.open, phase_of(state.open)
    if turn is None:
        return "resting" if state.paused_head and not state.closed else "idle"
    if not turn.hidden or phase == "busy":
        return phase
    if state.paused_head:
        return "calling"
    return "hidden" if phase == "boundary" else phase


def restored(
    tail: Tail,
    limits: SubscriptionLimits,
    *,
    pauses: bool,
    hooks: bool = False,
    resumes: bool = True,
    dropped: int = 0,
) -> HistoryState:
    """The state of a thread from what `StateStore.load_tail` read."""
    thread = tail.thread
    unsettled = tail.message is not None and tail.message.status.state in ("running", "requires_action")
    is_head = tail.message is not None and tail.message.id == thread.head_id
    return HistoryState(
        thread_id=thread.thread_id,
        version=thread.version,
        turn=thread.turn,
        head_id=thread.head_id,
        last=_last(tail),
        open=_open_turn(tail) if unsettled else None,
        # A child begins: it was made with the words that it answers. All other words come with their turn, and where
        # they have none, nobody is to answer them.
        answer_due=thread.kind != "root" and thread.turn == 0 and tail.message is not None and not unsettled,
        subscriptions=tail.subscriptions,
        processed=dict(tail.processed),
        usage=thread.usage,
        limits=limits,
        closing=any(_has_closed(call) for call in tail.calls),
        closed=thread.closed_at is not None,
        paused_head=tail.paused and not is_head,
        remembered=tail.remembered[-REMEMBERED_DECISIONS:],
        pauses=pauses,
        hooks=hooks,
        resumes=resumes,
        dropped=dropped,
        answered=resumes and tail.answered,
        deadline=tail.deadline if resumes else None,
    )


def _last(tail: Tail) -> Status | None:
    head = tail.message
    if head is None or head.id != tail.thread.head_id:
        return tail.last
    return head.status if head.role == "assistant" else None


def _has_closed(call: OpenCall) -> bool:
    """Whether the call has closed the thread, which waits for the rest of its group."""
    is_close = (call.kind, call.operation) == ("thread", CLOSE_THREAD)
    return is_close and call.result is not None and call.result.outcome == "ok"


def _open_turn(tail: Tail) -> OpenTurn:
    assert tail.message is not None
    return OpenTurn(
        message_id=tail.message.id,
        turn=tail.message.turn,
        step=tail.step,
        # The newest attempt that has written, and those of its owner that may still be about to.
        attempts=0 if tail.calls else tail.attempt + COMPLETE_ATTEMPTS,
        parts=tail.parts,
        spawn_parts=min((call.position for call in tail.calls), default=tail.parts),
        calls=tuple(map(_live_call, tail.calls)),
        followers=tail.followers,
        hidden=tail.hidden,
        paused=tail.message.status.state == "requires_action",
    )


def _live_call(call: OpenCall) -> LiveCall:
    return LiveCall(
        call_id=call.call_id,
        outline=_outline(call),
        # A tool server was asked, and may answer long after whoever asked it is gone: it is not asked again.
        dispatched=call.kind == "rap" and call.started > 0,
        due=call.due,
        settled=call.result is not None,
        approved=call.decision is not None and call.decision.approved is True,
        # Loaded for a workflow it comes without its words, and with the digest of the whole.
        decided=call.decision_digest or (call.decision.digest if call.decision else None),
        expired=call.result is not None and call.result.outcome == "expired",
    )


def _outline(call: OpenCall) -> CallOutline:
    return CallOutline(
        index=call.index,
        tool=call.tool,
        preview=clip(call.arguments, PREVIEW_CHARS),
        kind=call.kind,
        passive=call.passive,
        timeout_s=call.timeout_s,
        # Whole where the workflow carries the call out; elsewhere a preview that nothing is decided by.
        arguments=call.arguments if call.kind in KEPT_ARGUMENTS else None,
        operation=call.operation,
        task_queue=call.task_queue,
        timer=call.timer,
        retry_safe=call.retry_safe,
        approval=call.approval,
        arguments_digest=call.arguments_digest,
    )


def rested(state: HistoryState) -> HistoryState:
    """The state when the open turn, which waits for people, is left to the store.

    A call of it may have begun to close the thread. That is read from the store again when the turn is shown again:
    until then the thread takes in what is said on other branches. Its questions expire there all the same.
    """
    calls = state.open.calls if state.open and state.resumes else ()
    due = [Deadline(call_id=one.call_id, due=one.due) for one in calls if one.due is not None and not one.settled]
    known = [state.deadline] if state.deadline else []
    return state.with_(open=None, closing=False, deadline=min((*known, *due), key=lambda one: one.due, default=None))


def with_tree(state: HistoryState, report: TreeReport) -> HistoryState:
    """The state after a batch that changed the tree.

    A turn that works goes on wherever it is. One that waits for people rests in the store while another branch is
    shown, and is loaded when its own is shown again.
    """
    if state.open and state.open.paused and state.open.message_id != report.head_id:
        state = rested(state)
    turn = state.open
    if turn and not turn.paused:
        turn = turn.with_(followers=report.followers, hidden=report.hidden)
    return state.with_(
        open=turn,
        head_id=report.head_id,
        last=report.last,
        turn=max(state.turn, report.turn),
        paused_head=report.paused and (turn is None or turn.message_id != report.head_id),
    )
