"""The status of a thread whose workflow does not run, from what the store knows of it."""

from perdure.codec import clip
from perdure.contract import PREVIEW_CHARS, CallStatus, SubscriptionStatus, ThreadStatus
from perdure.messages import Message
from perdure.ports import Tail
from perdure.watch import is_settled

_MIDWAY = "Its workflow ended in the middle of a turn; the next message takes it up."


def open_turn(tail: Tail) -> Message | None:
    """The assistant message of the turn that is open, without its parts; None if none is."""
    message = tail.message
    return message if message and message.role == "assistant" and not is_settled(message) else None


def stored_status(tail: Tail) -> ThreadStatus:
    """What the thread is doing: a turn that waits for results from outside sleeps with its calls open."""
    thread, message = tail.thread, tail.message
    waits = open_turn(tail) is not None and any(call.result is None for call in tail.calls)
    is_midway = message is not None and not is_settled(message) and not waits and not thread.closed_at
    return ThreadStatus(
        thread_id=thread.thread_id,
        agent=thread.agent,
        state="closed" if thread.closed_at else "waiting" if waits else "idle",
        turn=thread.turn,
        step=tail.step,
        head_id=thread.head_id,
        last=message.status if message else None,
        open_calls=tuple(
            CallStatus(
                call_id=call.call_id,
                tool=call.tool,
                preview=clip(call.arguments, PREVIEW_CHARS),
                state="settled" if call.result else "waiting",
                due=call.due,
            )
            for call in tail.calls
        ),
        usage=thread.usage,
        problems=(_MIDWAY,) if is_midway else (),
        subscriptions=tuple(map(SubscriptionStatus.of, tail.subscriptions)),
        children=tail.children > 0,
    )
