"""Calls that go on sending events: how they begin and end, where their events go, and which of them are dropped."""

from typing import Any

import pytest

from perdure.batch import Refused, SyncReport
from perdure.history import HistoryManager
from perdure.history_state import HistoryState, SpawnPoint, SubscriptionLimits
from perdure.inputs import Control, Disposition, Event, Interrupt, ToolResult, UserMessage
from perdure.messages import EventPart, TextPart, ToolResultPart
from perdure.records import Subscription, Summary
from perdure.subscriptions import ARGUMENT_CHARS, too_many
from perdure.turn import WOKEN
from perdure.view import Result, view
from tests.perdure.driven import Thread, call, results, texts
from tests.perdure.naive_store import THREAD
from tests.perdure.view_rules import items, violations


@pytest.fixture
def thread() -> Thread:
    """A thread between two steps, in which nothing is subscribed to."""
    thread = Thread()
    thread.say("hi")
    return thread


def subscribe(thread: Thread) -> str:
    """The thread makes a call that subscribes, and is idle again; returns its id."""
    if thread.phase() == "idle":
        thread.say("watch it", f"m{thread.store.version}")
    (name,) = thread.act("watch")
    assert thread.take(ToolResult(call_id=name, content="Watching.", subscription=True)) == "settled"
    thread.answer(TextPart(text="I watch."))
    return name


def event(name: str, number: int = 1, **fields: Any) -> Event:
    """An event of a call."""
    return Event(id=f"e{number}", call_id=name, content=f"n{number}", **fields)


def tracked(thread: Thread) -> list[str]:
    """The calls that the store knows as subscriptions."""
    assert thread.store.subscriptions == [
        one.with_(minute=0, in_minute=0) for one in thread.history.state.subscriptions
    ]
    return [one.call_id for one in thread.store.subscriptions]


def events(thread: Thread) -> list[EventPart]:
    """The events that joined the conversation."""
    return [part for message in thread.store.messages for part in message.parts if isinstance(part, EventPart)]


# -- how they begin and end -------------------------------------------------------------------------------------


def test_a_result_opens_a_subscription(thread: Thread) -> None:
    """It is tracked in the batch that stores the result; the model is told the id by which it can cancel it."""
    (name,) = thread.act("watch")
    thread.history.handle_content(ToolResult(call_id=name, content="Watching.", subscription=True))
    (batch,) = thread.sync()
    assert [one.kind for one in batch.operations] == ["track_subscription", "stage_result", "commit_results"]
    assert thread.store.subscriptions == [Subscription(call_id=name, tool="watch", arguments='{"q":1}')]
    ((outcome, content),) = results(thread.last)
    assert (outcome, content.splitlines()[0]) == ("ok", "Watching.")
    assert f"tool_call_id {name}" in content


def test_the_id_is_told_with_a_large_result_too(thread: Thread) -> None:
    """The model reads its beginning; the size stays that of the whole."""
    (name,) = thread.act("watch")
    thread.take(ToolResult(call_id=name, content="begin", blob="b", size_bytes=5_000_000, subscription=True))
    result = thread.last.parts[-1]
    assert isinstance(result, ToolResultPart)
    assert (result.blob, result.size_bytes) == ("b", 5_000_000)
    assert result.content.startswith("begin")
    assert name in result.content


def test_a_result_with_an_error_opens_none(thread: Thread) -> None:
    """Some servers say so of errors too; there is nothing to watch."""
    (name,) = thread.act("watch")
    thread.take(ToolResult(call_id=name, content="No such repo.", outcome="error", subscription=True))
    assert tracked(thread) == []
    assert results(thread.last) == [("error", "No such repo.")]


def test_a_second_result_changes_nothing(thread: Thread) -> None:
    """Neither does it subscribe what has not been subscribed by the first, nor end what has."""
    first, second, other = thread.act("watch", "watch", "t")
    thread.take(ToolResult(call_id=first, content="Watching.", subscription=True))
    thread.take(ToolResult(call_id=second, content="Once.", outcome="error"))
    assert thread.take(ToolResult(call_id=first, content="Error: got a 503", outcome="error")) == "duplicate"
    assert thread.take(ToolResult(call_id=second, content="Watching.", subscription=True)) == "duplicate"
    thread.take(ToolResult(call_id=other, content="x"))
    assert tracked(thread) == [first]
    assert results(thread.last)[0][0] == "ok"


def test_a_late_result_opens_none(thread: Thread) -> None:
    """Its call was interrupted, and the server told so."""
    (name,) = thread.act("watch")
    thread.take(Interrupt())
    assert thread.history.take_cancelled() == (name,)
    assert thread.take(ToolResult(call_id=name, content="Watching.", subscription=True)) == "dropped"
    assert tracked(thread) == []
    assert thread.history.state.dropped == 1


def test_a_call_for_a_subscription_too_many_is_an_error() -> None:
    """The model is told what to do, the server that nobody listens, and the others go on."""
    thread = Thread(SubscriptionLimits(active=2))
    names = [subscribe(thread) for _ in range(2)]
    thread.say("more", "m9")
    (third,) = thread.act("watch")
    thread.take(ToolResult(call_id=third, content="Watching.", blob="b", size_bytes=9_000, subscription=True))
    result = thread.last.parts[-1]
    assert isinstance(result, ToolResultPart)
    assert (result.outcome, result.blob) == ("error", None)
    assert "This thread has 2 active subscriptions, as many as it may." in result.content
    assert result.size_bytes == len(result.content)
    assert thread.history.take_cancelled() == (third,)
    assert tracked(thread) == names
    thread.take(Control(action="cancel_subscription", call_id=names[0]))
    (fourth,) = thread.act("watch")
    thread.take(ToolResult(call_id=fourth, content="Watching.", subscription=True))
    assert tracked(thread) == [names[1], fourth]


@pytest.mark.parametrize("by_hand", [False, True])
def test_a_cancelled_subscription_ends_once(thread: Thread, by_hand: bool) -> None:
    """In the store too; its server is told once, when that is durable, and its later events are dropped."""
    name = subscribe(thread)
    for _ in range(2):
        if by_hand:
            thread.history.handle_content(Control(action="cancel_subscription", call_id=name))
        else:
            thread.history.cancel_subscription(name)
        assert thread.history.take_cancelled() == ()
    thread.sync()
    assert thread.history.take_cancelled() == (name,)
    assert thread.history.take_cancelled() == ()
    assert tracked(thread) == []
    assert thread.take(event(name)) == "dropped"


def test_what_ends_by_itself_is_not_cancelled(thread: Thread) -> None:
    """Its server knows already."""
    name = subscribe(thread)
    assert thread.take(event(name, final=True)) == "started"
    assert tracked(thread) == []
    assert thread.history.take_cancelled() == ()


def test_subscriptions_outlive_the_turn_that_opened_them(thread: Thread) -> None:
    """A stop ends the turn; what was subscribed before in its group goes on."""
    name, _ = thread.act("watch", "t")
    thread.take(ToolResult(call_id=name, content="Watching.", subscription=True))
    thread.take(Interrupt())
    assert [outcome for outcome, _ in results(thread.last)] == ["ok", "interrupted"]
    assert tracked(thread) == [name]
    assert thread.history.take_cancelled() == ()
    assert thread.take(event(name)) == "started"


# -- where events go --------------------------------------------------------------------------------------------


def test_an_associative_event_joins_the_conversation(thread: Thread) -> None:
    """With the call that it goes back to, which may be behind a summary by then; a turn answers it."""
    name = subscribe(thread)
    head = thread.last
    thread.history.apply_compaction(Summary(id="s", thread_id=THREAD, message_id=head.id, parts=1, text="so far"))
    assert thread.take(event(name)) == "started"
    (told,) = events(thread)
    assert told == EventPart(
        event_id="e1", origin_call_id=name, content="n1", origin_tool="watch", origin_arguments='{"q":1}'
    )
    assert thread.roles()[-2:] == ["event", "assistant"]
    assert thread.phase() == "boundary"
    seen = view(thread.store.path)
    assert violations(seen) == []
    assert [one.text for one in items(seen) if isinstance(one, Result)][-1] == "n1"


def test_long_arguments_of_the_call_are_left_out(thread: Thread) -> None:
    """They would come with every event."""
    (name,) = thread.act("watch")
    turn = thread.history.open_turn
    assert turn is not None
    for size, kept in ((ARGUMENT_CHARS, True), (ARGUMENT_CHARS + 1, False)):
        arguments = '"' + "x" * (size - 2) + '"'
        outline = turn.calls[0].outline.with_(arguments=arguments)
        long = turn.with_(calls=(turn.calls[0].with_(outline=outline),))
        history = HistoryManager(thread.history.state.with_(open=long))
        history.handle_content(ToolResult(call_id=name, content="Watching.", subscription=True))
        assert history.state.subscriptions[0].arguments == (arguments if kept else "{}")


def test_an_event_between_two_steps_comes_before_the_next(thread: Thread) -> None:
    """It closes the turn, whose answer would not know of it, and another one goes on."""
    name = subscribe(thread)
    thread.say("go", "m2")
    thread.answer(call("t"))
    thread.take(ToolResult(call_id=thread.calls[0], content="x"))
    assert thread.take(event(name)) == "steered"
    assert thread.store.messages[-3].status.reason == "steered"
    assert thread.roles()[-3:] == ["assistant", "event", "assistant"]


def test_an_event_wakes_a_sleeper(thread: Thread) -> None:
    """The sleep is answered as interrupted, then the event is told."""
    name = subscribe(thread)
    thread.say("wait for it", "m2")
    (sleep,) = thread.act("sleep")
    assert thread.take(event(name)) == "steered"
    assert results(thread.store.messages[-3]) == [("interrupted", WOKEN)]
    assert [one.call_id for one in thread.history.take_interrupted_tool_calls()] == [sleep]
    assert thread.history.take_cancelled() == (), "no server knows of it"
    assert thread.phase() == "boundary"


def test_an_event_that_only_the_store_knows_wakes_nobody(thread: Thread) -> None:
    """It seemed new, and the sleeper sleeps on."""
    name = subscribe(thread)
    thread.take(event(name))
    (sleep,) = thread.act("sleep")
    thread.history = HistoryManager.from_tail(thread.store.tail(processed=0))
    assert thread.history.handle_content(event(name)) == "steered", "as far as is known here"
    thread.sync()
    assert thread.history.take_dispositions() == {"e1": "duplicate"}
    assert thread.history.take_interrupted_tool_calls() == ()
    assert thread.phase() == "sleeping"
    assert thread.store.subscriptions[0].received == 1
    assert thread.take(ToolResult(call_id=sleep, content="slept")) == "settled"


@pytest.mark.parametrize("place", ["idle", "boundary", "sleeping"])
def test_another_event_gets_a_child_thread(thread: Thread, place: str) -> None:
    """Nothing is told here, nobody is woken; the child inherits what has no open call at its end."""
    name = subscribe(thread)
    point = SpawnPoint(message_id=thread.last.id)
    if place != "idle":
        thread.say("go", "m2")
        point = SpawnPoint(message_id=thread.last.id, parts=0)
    if place == "sleeping":
        thread.act("sleep")
    before = list(thread.store.messages)
    one = event(name, associative=False)
    assert thread.history.handle_content(one) == "spawned"
    assert thread.history.take_spawns() == (), "not before it is durable"
    thread.sync()
    assert thread.history.take_dispositions()["e1"] == "spawned"
    (spawn,) = thread.history.take_spawns()
    assert (spawn.event, spawn.origin.call_id, spawn.point) == (one, name, point)
    assert thread.history.take_spawns() == ()
    assert thread.store.messages == before
    assert thread.phase() == place
    assert thread.store.subscriptions[0].received == 1


def test_children_for_events_are_neither_lost_nor_doubled(thread: Thread) -> None:
    """The store refuses a batch and all of it is decided again; a run ends and another one goes on."""
    name = subscribe(thread)
    thread.say("old", "m0")
    thread.answer(TextPart(text="hello"))
    thread.take(event(name, 1, associative=False))
    thread.history = HistoryManager(thread.history.state.with_(processed={}))
    for content in (
        UserMessage(id="m0", text="old"),
        event(name, 2, associative=False),
        UserMessage(id="m9", text="x"),
    ):
        thread.history.handle_content(content)
    refused, _ = thread.sync()
    assert len(refused.operations) > 3
    thread.history = HistoryManager(HistoryState.model_validate(thread.history.state.model_dump()))
    spawns = thread.history.take_spawns()
    assert [spawn.event.id for spawn in spawns] == ["e1", "e2"]
    assert spawns[1].point.message_id == thread.store.messages[-3].id, "m0 was not there after all"
    assert thread.history.take_spawns() == ()
    assert thread.store.subscriptions[0].received == 2


@pytest.mark.parametrize("is_refused", [True, False])
def test_what_is_taken_while_a_batch_is_under_way_does_not_come_again(thread: Thread, is_refused: bool) -> None:
    """The batch was built when it was still there; whatever the store says of it, it was handed out."""
    name = subscribe(thread)
    thread.take(event(name, 1, associative=False))
    thread.say("go", "m2")
    thread.act("watch")
    thread.history.handle_content(UserMessage(id="m3", text="stop"))
    thread.sync()
    thread.history.handle_content(UserMessage(id="m4", text="and more"))
    thread.history.handle_content(event(name, 2, associative=False))
    batch = thread.history.take_pending("run")
    assert batch is not None
    handed_out = (
        [spawn.event.id for spawn in thread.history.take_spawns()],
        len(thread.history.take_cancelled()),
        len(thread.history.take_interrupted_tool_calls()),
        "m3" in thread.history.take_dispositions(),
    )
    assert handed_out == (["e1"], 1, 1, True)
    refused = (Refused(input_id="m4"),) if is_refused else ()
    thread.history.synced(SyncReport(number=batch.number - bool(refused), refused=refused))
    if is_refused:
        thread.sync()
    assert [spawn.event.id for spawn in thread.history.take_spawns()] == ["e2"]
    assert thread.history.take_cancelled() == ()
    assert thread.history.take_interrupted_tool_calls() == ()
    assert "m3" not in thread.history.take_dispositions()


@pytest.mark.parametrize("source", ["child", "parent"])
def test_reports_and_messages_join_without_a_subscription(thread: Thread, source: Any) -> None:
    """They come from threads that the runtime itself started, and go back to the call that did."""
    thread.answer(TextPart(text="hello"))
    assert thread.take(event("call_spawn", source=source)) == "started"
    assert events(thread) == [
        EventPart(event_id="e1", origin_call_id="call_spawn", content="n1", origin_tool="spawn_thread")
    ]
    assert violations(view(thread.store.path)) == []


# -- limits -----------------------------------------------------------------------------------------------------


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


# -- what is dropped --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("associative", [True, False])
@pytest.mark.parametrize("final", [True, False])
@pytest.mark.parametrize("what", ["unknown", "plain", "open", "cancelled", "final", "inherited"])
def test_an_event_of_what_is_not_subscribed_to_changes_nothing(
    thread: Thread, what: str, associative: bool, final: bool
) -> None:
    """It is counted and gone, whatever it says of itself; a subscription that there is goes on."""
    other = subscribe(thread)
    name = "call_unknown"
    if what in ("cancelled", "final"):
        name = subscribe(thread)
        if what == "cancelled":
            thread.take(Control(action="cancel_subscription", call_id=name))
        else:
            thread.take(event(name, 9, final=True))
            thread.answer(TextPart(text="noted"))
    elif what in ("plain", "open"):
        thread.say("go", "m2")
        name, asleep = thread.act("t", "sleep")
        thread.take(ToolResult(call_id=name, content="x"))
        if what == "plain":
            thread.take(ToolResult(call_id=asleep, content="slept"))
    elif what == "inherited":
        name = other
        thread = Thread()
        thread.say("I am a child", "m1")
    before, dropped = vars(thread.store).copy(), thread.history.state.dropped
    assert thread.take(event(name, 3, associative=associative, final=final)) == "dropped"
    assert vars(thread.store) == before
    assert thread.history.state.dropped == dropped + 1
    assert thread.history.take_spawns() == ()
    if what != "inherited":
        assert tracked(thread) == [other]


@pytest.mark.parametrize(("again", "expected"), [({}, "duplicate"), ({"content": "other words"}, "conflict")])
@pytest.mark.parametrize("associative", [True, False])
def test_a_redelivered_event_is_taken_once(
    thread: Thread, associative: bool, again: dict[str, str], expected: Disposition
) -> None:
    """It is neither told nor counted again, and makes no second child."""
    name = subscribe(thread)
    one = event(name, associative=associative)
    thread.take(one)
    version = thread.store.version
    assert thread.take(one.with_(**again)) == expected
    assert thread.store.version == version
    assert thread.store.subscriptions[0].received == 1
    assert len(thread.history.take_spawns()) == (0 if associative else 1)
    assert len(events(thread)) == (1 if associative else 0)


def test_late_results_are_dropped_and_counted(thread: Thread) -> None:
    """Of a call that was answered, one that was interrupted, one that never was."""
    (answered,) = thread.act("t")
    thread.take(ToolResult(call_id=answered, content="x"))
    (stopped,) = thread.act("t")
    thread.take(Interrupt())
    before = list(thread.store.messages)
    for name in (answered, stopped, "call_unknown"):
        assert thread.take(ToolResult(call_id=name, content="late")) == "dropped"
    assert thread.store.messages == before
    assert thread.history.state.dropped == 3


# -- whom servers are told of -----------------------------------------------------------------------------------


@pytest.mark.parametrize("changes_hands", [False, True])
def test_servers_are_told_of_their_calls_that_were_interrupted(thread: Thread, changes_hands: bool) -> None:
    """Of those alone that a server may still carry out, whoever has sent them there."""
    waits, answered, _ = thread.act("watch", "watch", "t")
    thread.take(ToolResult(call_id=answered, content="x"))
    thread.history.mark_dispatched(waits)
    if changes_hands:
        thread.reload()
    thread.history.handle_content(Interrupt())
    assert thread.history.take_cancelled() == ()
    thread.sync()
    assert thread.history.take_cancelled() == (waits,)
    assert thread.history.take_cancelled() == ()


@pytest.mark.parametrize(("tool", "told"), [("watch", True), ("t", False)])
def test_a_server_is_told_of_a_call_that_has_expired(thread: Thread, tool: str, told: bool) -> None:
    """It may be at work still; a call that it has answered itself, with whatever outcome, is its own affair."""
    name, answered = thread.act(tool, "watch")
    thread.take(ToolResult(call_id=answered, content="no", outcome="error"))
    thread.take(ToolResult(call_id=name, content="It took too long.", outcome="expired"))
    assert results(thread.last) == [("expired", "It took too long."), ("error", "no")]
    assert thread.history.take_cancelled() == ((name,) if told else ())
