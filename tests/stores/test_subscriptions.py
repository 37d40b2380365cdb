"""Subscriptions: tracked by their call, written again as they go on, removed at their end."""

from perdure.batch import RemoveSubscription, TrackSubscription
from perdure.ports import Store
from perdure.records import Subscription
from stores.postgres import PostgresStore
from tests.stores.builders import started, user, write
from tests.stores.postgres_eye import connected, run

ODD = '{"b": 1.0, "n": 2512292042121000001, "a": "\x00\ud800\'; --"}'


async def tracked(store: Store) -> tuple[Subscription, ...]:
    """What is tracked, which the tail says as well."""
    subscriptions = await store.get_active_subscriptions("t")
    assert (await store.load_tail("t")).subscriptions == subscriptions
    return subscriptions


async def test_subscriptions_are_tracked_in_order(store: Store) -> None:
    """A subscription is there from its batch on, once, until it is removed."""
    await started(store)
    await write(store, 2, *(TrackSubscription(call_id=name, tool="feed") for name in ("b", "a", "b", "c")))
    await write(store, 3, RemoveSubscription(call_id="a"), RemoveSubscription(call_id="unknown"))
    assert await tracked(store) == (Subscription(call_id="b", tool="feed"), Subscription(call_id="c", tool="feed"))


async def test_a_subscription_that_is_written_again_keeps_its_place(store: Store) -> None:
    """Counters, words and the reason of a pause are those of the last time; nothing is left of the time before."""
    await started(store)
    first, second = (TrackSubscription(call_id=name, tool="feed", arguments=ODD) for name in ("z", "a"))
    await write(store, 2, first, second)
    await write(store, 3, first.with_(received=2**40, paused="too many\x00\ud800", tool="feed2"))
    again, other = await tracked(store)
    assert again == Subscription(call_id="z", tool="feed2", arguments=ODD, received=2**40, paused="too many\x00\ud800")
    assert other == Subscription(call_id="a", tool="feed", arguments=ODD)
    await write(store, 4, first.with_(received=3), second.with_(received=1))
    assert [(item.call_id, item.received, item.paused) for item in await tracked(store)] == [
        ("z", 3, None),
        ("a", 1, None),
    ]


async def test_a_subscription_that_comes_back_is_the_newest(store: Store) -> None:
    """Removed and tracked again, also by one batch, it is another one."""
    await started(store)
    await write(store, 2, *(TrackSubscription(call_id=name, tool="feed", received=7) for name in ("a", "b")))
    await write(store, 3, RemoveSubscription(call_id="a"), TrackSubscription(call_id="a", tool="feed"))
    assert [(item.call_id, item.received) for item in await tracked(store)] == [("b", 7), ("a", 0)]


async def test_a_refused_batch_counts_nothing(store: Store) -> None:
    """The counters go with the events of their batch: an event that was known before is not counted twice."""
    await started(store)
    await write(store, 2, user("e1"), TrackSubscription(call_id="a", tool="feed", received=1))
    again = TrackSubscription(call_id="a", tool="feed", received=2)
    assert (await write(store, 3, user("e2", input_id="in-e1"), again)).refused
    assert [(item.call_id, item.received) for item in await tracked(store)] == [("a", 1)]
    await write(store, 3, again)
    assert [(item.call_id, item.received) for item in await tracked(store)] == [("a", 2)]


async def test_a_writer_of_the_release_before_is_understood(postgres: PostgresStore, database_url: str) -> None:
    """While workers are replaced one by one, the older ones say nothing of what they do not know."""
    await started(postgres)
    async with connected(database_url) as older:
        operations = '[{"kind":"track_subscription","call_id":"a","tool":"feed"}]'
        await run(older, "append_messages", "t", 2, "s", "{}", operations)
    assert await tracked(postgres) == (Subscription(call_id="a", tool="feed"),)
