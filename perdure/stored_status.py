"""The status of a thread whose workflow does not run, from what the store knows of it."""

from typing import Literal

from perdure.codec import clip
from perdure.contract import PREVIEW_CHARS, CallStatus, SubscriptionStatus, ThreadStatus
from perdure.messages import Message
from perdure.records import OpenCall, Tail
from perdure.watch import is_settled

_MIDWAY = "Its workflow ended in the middle of a turn; the next message takes it up."


def open_turn(tail: Tail) -> Message | None:
    """The assistant message of the turn that is open, without its parts; None if none is."""
    message = tail.message
    return message if message and message.role == "assistant" and not is_settled(message) else None


def stored_status(tail: Tail) -> ThreadStatus:
    """What the thread is doing: a turn that waits for people or results from outside sleeps with its calls open."""
    thread, message = tail.thread, tail.message
    turn = open_turn(tail)
    rests = turn is not None and any(call.result is None for call in tail.calls)
    is_head = message is not None and message.id == thread.head_id
    last = message.status if message and is_head else tail.last
    return ThreadStatus(
        thread_id=thread.thread_id,
        agent=thread.agent,
        state="closed" if thread.closed_at else "waiting" if rests or tail.paused else "idle",
        turn=thread.turn,
        step=tail.step,
        head_id=thread.head_id,
        last=last,
        open_calls=tuple(
            CallStatus(
                call_id=call.call_id,
                tool=call.tool,
                preview=clip(call.arguments, PREVIEW_CHARS),
                state=_state(call),
                due=call.due,
            )
            for call in tail.calls
        ),
        usage=thread.usage,
        problems=(_MIDWAY,) if turn and not rests and not thread.closed_at else (),
        subscriptions=tuple(map(SubscriptionStatus.of, tail.subscriptions)),
        children=tail.children > 0,
    )


def _state(call: OpenCall) -> Literal["settled", "approval", "waiting"]:
    if call.result:
        return "settled"
    return "approval" if call.approval and not call.decision else "waiting"
