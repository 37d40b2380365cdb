"""Subscriptions: calls that were answered and go on sending events. Pure: what one becomes with each event."""

from perdure.batch import TrackSubscription
from perdure.codec import clip
from perdure.history_state import LiveCall, SubscriptionLimits
from perdure.quantity import quantity
from perdure.records import Subscription

ARGUMENT_CHARS = 2_000
"""Arguments of the call that subscribed, shown with each of its events; longer ones are left out."""


def subscription(call: LiveCall) -> Subscription:
    """What a call becomes whose tool goes on sending events."""
    arguments = call.outline.arguments or "{}"
    return Subscription(
        call_id=call.call_id, tool=call.outline.tool, arguments=arguments if len(arguments) <= ARGUMENT_CHARS else "{}"
    )


def counted(subscription: Subscription, at: float, limits: SubscriptionLimits) -> Subscription:
    """The subscription with one more event; paused if that was the last one within its limits.

    The event that reaches a limit is still taken in, so that the pause can be told with it.
    """
    minute = int(at // 60)
    in_minute = subscription.in_minute + 1 if minute == subscription.minute else 1
    received = subscription.received + 1
    paused = None
    if in_minute >= limits.events_per_minute:
        paused = f"{quantity(in_minute, 'event')} came within a minute"
    elif limits.events is not None and received >= limits.events:
        paused = f"it has sent {quantity(received, 'event')}, as many as one subscription may"
    return subscription.with_(minute=minute, in_minute=in_minute, received=received, paused=paused)


def pause_note(subscription: Subscription) -> str | None:
    """What is told together with the event that paused a subscription."""
    if subscription.paused is None:
        return None
    return (
        f"(The subscription {subscription.call_id} of {clip(subscription.tool, 64)} is paused: {subscription.paused}. "
        "What else it sends is dropped until a person resumes it.)"
    )


def too_many(limit: int) -> str:
    """The answer to a call that would have opened one subscription too many."""
    active = quantity(limit, "active subscription")
    return f"This thread has {active}, as many as it may. Cancel one first, then try again."


def with_id(content: str, call_id: str) -> str:
    """The confirmation of a subscription, with the id by which the model can cancel it."""
    return f"{content}\n\n(The subscription is active. To end it, cancel_subscription with tool_call_id {call_id}.)"


def track(subscription: Subscription) -> TrackSubscription:
    """What the store keeps."""
    return TrackSubscription(
        call_id=subscription.call_id,
        tool=subscription.tool,
        arguments=subscription.arguments,
        received=subscription.received,
        paused=subscription.paused,
    )
