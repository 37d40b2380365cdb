"""The state of a history manager: one frozen, bounded value, whatever the length of the conversation."""

from typing import Literal

from pydantic import Field

from perdure.batch import Operation
from perdure.builtins import CLOSE_THREAD
from perdure.codec import Wire, clip, loads_object
from perdure.contract import PREVIEW_CHARS, CallOutline, CompleteResult
from perdure.inputs import Disposition, Event
from perdure.messages import Status, ToolResultPart, Usage
from perdure.policy import COMPLETE_ATTEMPTS
from perdure.ports import OpenCall, Subscription, Tail
from perdure.tools import KEPT_ARGUMENTS

Phase = Literal["busy", "calling", "sleeping", "boundary", "idle"]
"""Where a thread stands.

busy: a model call runs; calling: its tool calls are open; sleeping: so are only passive ones, which anything may cut
short; boundary: between two steps; idle: no turn is open.
"""


class LiveCall(Wire):
    """A call of the open step. `settled` when its result is staged in the store or made here (`result`).

    `due` is when it ends by itself, in seconds since 1970.
    """

    call_id: str
    outline: CallOutline
    dispatched: bool = False
    due: float | None = None
    settled: bool = False
    result: ToolResultPart | None = None

    def argument(self, name: str) -> str:
        """A text among the arguments that the outline has kept; empty if there is none."""
        value = loads_object(self.outline.arguments or "{}").get(name)
        return value if isinstance(value, str) else ""


class OpenTurn(Wire):
    """The running assistant message: `parts` are committed, `step` is the one under way or next.

    `attempts` is how many attempts of that step an owner before may have made.
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


class SpawnPoint(Wire):
    """Where a child thread's inheritance ends: after the first `parts` parts of the message, all if None."""

    message_id: str | None
    parts: int | None = None


class Spawn(Wire):
    """A child thread to be made for an event: what happened, to which subscription, and what the child inherits."""

    event: Event
    origin: Subscription
    point: SpawnPoint


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
    is settled.
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


def phase_of(turn: OpenTurn | None) -> Phase:
    """The phase of a thread with this open turn."""
    if turn is None:
        return "idle"
    if turn.running:
        return "busy"
    if not turn.calls:
        return "boundary"
    return "sleeping" if all(call.settled or call.outline.passive for call in turn.calls) else "calling"


def restored(tail: Tail, limits: SubscriptionLimits) -> HistoryState:
    """The state of a thread from what `StateStore.load_tail` read."""
    thread = tail.thread
    unsettled = tail.message is not None and tail.message.status.state in ("running", "requires_action")
    return HistoryState(
        thread_id=thread.thread_id,
        version=thread.version,
        turn=thread.turn,
        head_id=thread.head_id,
        last=tail.message.status if tail.message else None,
        open=_open_turn(tail) if unsettled else None,
        # Words at the head that no turn answers: the owner vanished between accepting and opening, or a child begins.
        answer_due=tail.message is not None and tail.message.role != "assistant",
        subscriptions=tail.subscriptions,
        processed=dict(tail.processed),
        usage=thread.usage,
        limits=limits,
        closing=any(_has_closed(call) for call in tail.calls),
        closed=thread.closed_at is not None,
    )


def _has_closed(call: OpenCall) -> bool:
    """Whether the call has closed the thread, which waits for the rest of its group."""
    is_close = (call.kind, call.operation) == ("thread", CLOSE_THREAD)
    return is_close and call.result is not None and call.result.outcome == "ok"


def _open_turn(tail: Tail) -> OpenTurn:
    assert tail.message is not None
    calls = tuple(
        LiveCall(
            call_id=call.call_id,
            outline=CallOutline(
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
            ),
            # A tool server was asked, and may answer long after whoever asked it is gone: it is not asked again.
            dispatched=call.kind == "rap" and call.started > 0,
            due=call.due,
            settled=call.result is not None,
        )
        for call in tail.calls
    )
    return OpenTurn(
        message_id=tail.message.id,
        turn=tail.message.turn,
        step=tail.step,
        # The newest attempt that has written, and those of its owner that may still be about to.
        attempts=0 if calls else tail.attempt + COMPLETE_ATTEMPTS,
        parts=tail.parts,
        spawn_parts=min((call.position for call in tail.calls), default=tail.parts),
        calls=calls,
    )
