"""Where the events of a subscription go, and which of them are dropped."""

from typing import Any

import pytest

from perdure.batch import Refused, SyncReport
from perdure.history import HistoryManager
from perdure.history_state import HistoryState, SpawnPoint
from perdure.inputs import Control, Disposition, Interrupt, ToolResult, UserMessage
from perdure.messages import EventPart, TextPart
from perdure.records import Summary
from perdure.subscriptions import ARGUMENT_CHARS
from perdure.turn import WOKEN
from perdure.view import Result, view
from tests.perdure.driven import Thread, call, results
from tests.perdure.naive_store import THREAD
from tests.perdure.subscribed import event, events, subscribe, tracked
from tests.perdure.view_rules import items, violations


@pytest.fixture
def thread() -> Thread:
    """A thread between two steps, in which nothing is subscribed to."""
    thread = Thread()
    thread.say("hi")
    return thread


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
