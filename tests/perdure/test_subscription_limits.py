"""Subscriptions that send too much are paused, and the model and people are told."""

from perdure.history_state import SubscriptionLimits
from perdure.inputs import Control
from perdure.records import Subscription
from perdure.subscriptions import too_many
from perdure.view import view
from tests.perdure.driven import Thread, texts
from tests.perdure.subscribed import event, subscribe, tracked
from tests.perdure.view_rules import violations


def paused_by(thread: Thread, name: str, number: int, at: float) -> None:
    """One more event, which is the one that pauses its subscription."""
    assert thread.take(event(name, number, at=at)) == "steered"
    (subscription,) = thread.store.subscriptions
    assert subscription.paused is not None
    assert texts(thread.store.messages[-2].parts) == [
        f"(The subscription {name} of watch is paused: {subscription.paused}. "
        "What else it sends is dropped until a person resumes it.)"
    ]


def test_too_many_events_within_a_minute_pause_a_subscription() -> None:
    """The model reads so with the last one that is taken in; a minute that is over does not count."""
    thread = Thread(SubscriptionLimits(events_per_minute=3))
    name = subscribe(thread)
    for number, at in enumerate((10.0, 59.0, 61.0, 62.0)):
        assert thread.take(event(name, number, at=at)) == ("started" if number == 0 else "steered")
        assert texts(thread.store.messages[-2].parts) == []
    assert thread.store.subscriptions[0].paused is None
    paused_by(thread, name, 4, 119.0)
    assert thread.store.subscriptions[0].paused == "3 events came within a minute"
    assert violations(view(thread.store.path)) == []


def test_too_many_events_in_all_pause_a_subscription() -> None:
    """Over restarts: what was counted is in the store."""
    thread = Thread(SubscriptionLimits(events=3))
    name = subscribe(thread)
    thread.take(event(name, 1, at=0.0))
    thread.reload()
    thread.take(event(name, 2, at=1000.0))
    thread.reload()
    paused_by(thread, name, 3, 2000.0)
    assert thread.store.subscriptions[0].paused == "it has sent 3 events, as many as one subscription may"


def test_one_event_is_told_as_one() -> None:
    """Whichever limit it reaches, and of a thread with one subscription too."""
    for limits, reason in (
        (SubscriptionLimits(events=1), "it has sent 1 event, as many as one subscription may"),
        (SubscriptionLimits(events_per_minute=1), "1 event came within a minute"),
    ):
        thread = Thread(limits)
        name = subscribe(thread)
        thread.take(event(name, 1, at=0.0))
        assert thread.store.subscriptions[0].paused == reason
    assert "has 1 active subscription, as many" in too_many(1)


def test_events_of_a_paused_subscription_are_dropped_and_counted_until_it_is_resumed() -> None:
    """They cost nothing and change nothing, not even in the next minute; then it counts from nothing."""
    thread = Thread(SubscriptionLimits(events=1))
    name = subscribe(thread)
    thread.take(event(name, 1))
    version = thread.store.version
    assert [thread.take(event(name, number, at=1000.0)) for number in (2, 3)] == ["dropped", "dropped"]
    assert (thread.store.version, thread.history.state.dropped) == (version, 2)
    assert tracked(thread) == [name], "it goes on, and can be cancelled"
    thread.take(Control(action="resume_subscription", call_id=name))
    assert thread.store.subscriptions == [Subscription(call_id=name, tool="watch", arguments='{"q":1}')]
    thread.history.resume_subscription(name)
    assert thread.sync() == [], "it is not paused"
    paused_by(thread, name, 4, 2000.0)
    assert thread.store.subscriptions[0].received == 1


def test_a_final_event_ends_a_paused_subscription() -> None:
    """It is not told, but there will be no other one."""
    thread = Thread(SubscriptionLimits(events=1))
    name = subscribe(thread)
    thread.take(event(name, 1))
    assert thread.take(event(name, 2, final=True)) == "dropped"
    assert tracked(thread) == []


def test_a_final_event_pauses_nothing() -> None:
    """It is the one that reaches the limit, and a note of a pause would be untrue."""
    thread = Thread(SubscriptionLimits(events=1))
    name = subscribe(thread)
    thread.take(event(name, 1, final=True))
    assert texts(thread.store.messages[-2].parts) == []
    assert tracked(thread) == []


def test_the_child_that_handles_the_last_event_reads_of_the_pause() -> None:
    """And its parent's status names the reason."""
    thread = Thread(SubscriptionLimits(events=1))
    name = subscribe(thread)
    thread.take(event(name, 1, associative=False))
    (spawn,) = thread.history.take_spawns()
    assert spawn.event.content.startswith("n1\n\n(The subscription")
    assert thread.store.subscriptions[0].paused is not None
    assert thread.take(event(name, 2, associative=False)) == "dropped"
    assert thread.history.take_spawns() == ()
