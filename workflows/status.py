"""The answer to the query `status`, which the current details show too."""

from typing import Literal

from temporalio import workflow

with workflow.unsafe.imports_passed_through():
    from perdure.codec import Text
    from perdure.contract import CallStatus, SubscriptionStatus, ThreadStatus
    from perdure.history_state import HistoryState, LiveCall
    from perdure.inbox import Inbox
    from perdure.inputs import Event, UserMessage
    from workflows.attributes import State
    from workflows.calls import Calls


def thread_status(
    agent: str, history: HistoryState, inbox: Inbox, calls: Calls, problems: tuple[Text, ...], *, children: bool
) -> ThreadStatus:
    """Where a thread stands."""
    turn = history.open
    waiting = inbox.waiting
    state: State = "closed" if history.closed else "idle"
    if turn is not None:
        state = "waiting" if calls.wait_only_outside(turn) else "running"
    return ThreadStatus(
        thread_id=history.thread_id,
        agent=agent,
        state=state,
        turn=history.turn,
        step=turn.step if turn else 0,
        head_id=history.head_id,
        last=history.last,
        open_calls=tuple(_call_status(call, calls) for call in turn.calls) if turn else (),
        queued=sum(isinstance(content, UserMessage) for content in waiting),
        deferred=sum(isinstance(content, Event) for content in waiting),
        usage=history.usage,
        problems=problems,
        subscriptions=tuple(map(SubscriptionStatus.of, history.subscriptions)),
        dropped=history.dropped,
        children=children,
    )


def _call_status(call: LiveCall, calls: Calls) -> CallStatus:
    running = calls.is_running(call.call_id)
    state: Literal["waiting", "running", "settled", "approval"] = "running" if running else "waiting"
    if call.settled:
        state = "settled"
    elif call.awaits_approval:
        state = "approval"
    return CallStatus(
        call_id=call.call_id,
        tool=call.outline.tool,
        preview=call.outline.preview,
        state=state,
        kind=call.outline.kind,
        due=call.due,
    )
