"""Events, reports and messages of the parent while calls are open: the inbox and the history together.

While a call is pending that is not passive they wait, in order. A batch that settles the call releases them after
itself.
"""

from typing import Any, Literal

import pytest

from perdure.history import HistoryManager
from perdure.inbox import Inbox
from perdure.inputs import AnyInput, Event, EventSource, Interrupt, ToolResult, UserMessage
from perdure.messages import EventPart, TextPart
from perdure.turn import INTERRUPTED, WOKEN
from perdure.view import view
from tests.perdure.driven import Thread, results, texts
from tests.perdure.view_rules import violations


class Deferring(Thread):
    """A thread with its inbox, from which it takes as the workflow does: what is ready, then a sync, and again."""

    def __init__(self) -> None:
        super().__init__()
        self.inbox = Inbox()
        self.history.track_subscription("s", "watch")
        self.sync()
        self.say("hi")

    def receive(self, *contents: AnyInput) -> list[str]:
        """They come in at once. Returns what was taken in, by id or kind."""
        for content in contents:
            self.inbox.put(content)
        taken: list[str] = []
        while self.inbox.has_ready(self.history.phase):
            while (ready := self.inbox.take(self.history.phase)) is not None:
                self.history.handle_content(ready)
                taken.append(ready.id if isinstance(ready, UserMessage | Event) else ready.kind)
            self.sync()
        return taken

    @property
    def told(self) -> list[str]:
        """What the conversation says after its first words, in order."""
        parts = [part for message in self.store.messages[1:] for part in message.parts]
        return [
            part.text if isinstance(part, TextPart) else part.event_id
            for part in parts
            if isinstance(part, TextPart | EventPart)
        ]


@pytest.fixture
def thread() -> Deferring:
    """A thread between two steps, which is subscribed to `s`."""
    return Deferring()


def event(name: str, call_id: str = "s", source: EventSource = "subscription", **fields: Any) -> Event:
    """An event, a report or a message."""
    return Event(id=name, call_id=call_id, content=name, source=source, **fields)


MIXED = (event("e1"), event("r1", source="child"), event("p1", source="parent"), event("e2", final=True))
NAMES = ["e1", "r1", "p1", "e2"]


def test_what_comes_while_a_call_is_pending_waits_for_its_result(thread: Deferring) -> None:
    """In the order in which it came, and behind the result that settles the call; one turn answers all of it."""
    (name,) = thread.act("t")
    assert [thread.receive(content) for content in MIXED] == [[]] * 4
    assert [thread.inbox.disposition(one) for one in NAMES] == ["deferred"] * 4
    assert thread.receive(ToolResult(call_id=name, content="x")) == ["tool_result", *NAMES]
    assert thread.told == NAMES
    assert results(thread.store.messages[1]) == [("ok", "x")]
    assert thread.roles() == ["user", "assistant", *["event"] * 4, "assistant"]
    assert violations(view(thread.store.path)) == []


def test_words_of_the_user_release_what_waits(thread: Deferring) -> None:
    """They interrupt the call; they stand before what waited, in whatever order it came."""
    thread.act("t")
    thread.receive(*MIXED)
    assert thread.receive(UserMessage(id="m2", text="stop")) == ["m2", *NAMES]
    assert thread.told == ["stop", *NAMES]
    assert results(thread.store.messages[1]) == [("interrupted", INTERRUPTED)]
    assert violations(view(thread.store.path)) == []


def test_a_stop_releases_what_waits(thread: Deferring) -> None:
    """The thread is idle then, and goes on for what it is told."""
    thread.act("t")
    thread.receive(*MIXED)
    assert thread.receive(Interrupt()) == ["interrupt", *NAMES]
    assert thread.phase() == "boundary"


@pytest.mark.parametrize("stale", ["answered", "unknown"])
def test_a_stale_result_releases_nothing(thread: Deferring, stale: str) -> None:
    """Only what settles the call does: neither a result of an earlier call, nor one of none."""
    (earlier,) = thread.act("t")
    thread.receive(ToolResult(call_id=earlier, content="x"))
    (name,) = thread.act("t")
    thread.receive(*MIXED)
    result = ToolResult(call_id=earlier if stale == "answered" else "call_unknown", content="late")
    assert thread.receive(result) == ["tool_result"]
    assert len(thread.inbox) == 4
    assert thread.receive(ToolResult(call_id=name, content="y")) == ["tool_result", *NAMES]


def test_words_that_the_store_knows_release_nothing(thread: Deferring) -> None:
    """They seemed to interrupt the call, and did not."""
    (name,) = thread.act("t")
    thread.history = HistoryManager.from_tail(thread.store.tail(processed=0))
    thread.receive(*MIXED)
    assert thread.receive(UserMessage(id="m1", text="hi")) == ["m1"]
    assert len(thread.inbox) == 4
    assert thread.receive(ToolResult(call_id=name, content="x")) == ["tool_result", *NAMES]


def test_events_wait_for_the_whole_group(thread: Deferring) -> None:
    """The results of a step stand together."""
    first, second = thread.act("t", "t")
    thread.receive(event("e1"))
    assert thread.receive(ToolResult(call_id=second, content="2")) == ["tool_result"]
    assert thread.receive(ToolResult(call_id=first, content="1")) == ["tool_result", "e1"]
    assert results(thread.store.messages[1]) == [("ok", "1"), ("ok", "2")]


def test_events_wait_while_a_step_streams(thread: Deferring) -> None:
    """Only words of the user and a stop break off what the model says; it is told between two steps."""
    thread.stream(TextPart(text="half"))
    assert thread.receive(*MIXED) == []
    thread.history.flush_turn()
    thread.sync()
    assert thread.receive() == NAMES
    assert thread.told == ["half", *NAMES]


@pytest.mark.parametrize("content", MIXED)
def test_a_passive_call_holds_nothing_back(thread: Deferring, content: Event) -> None:
    """Whatever is told wakes the sleeper, and what comes in the same moment joins it."""
    thread.act("sleep")
    assert thread.receive(content, event("e3", source="child")) == [content.id, "e3"]
    assert results(thread.store.messages[1]) == [("interrupted", WOKEN)]
    assert thread.roles() == ["user", "assistant", "event", "event", "assistant"]


def test_a_sleeper_beside_another_call_is_woken_when_that_is_settled(thread: Deferring) -> None:
    """Until then the event waits for the call, not for the sleeper."""
    _, name = thread.act("sleep", "t")
    assert thread.receive(event("e1")) == []
    assert thread.receive(ToolResult(call_id=name, content="x")) == ["tool_result", "e1"]
    assert results(thread.store.messages[1]) == [("interrupted", WOKEN), ("ok", "x")]


def test_events_for_child_threads_wait_too(thread: Deferring) -> None:
    """What a child inherits ends before the pending call otherwise, and here after its result; order is kept."""
    (name,) = thread.act("t")
    assert thread.receive(*(event(f"e{number}", associative=False) for number in range(3))) == []
    thread.receive(ToolResult(call_id=name, content="x"))
    spawns = thread.history.take_spawns()
    assert [spawn.event.id for spawn in spawns] == ["e0", "e1", "e2"]
    assert [spawn.point for spawn in spawns] == [thread.history.safe_spawn_point()] * 3
    assert thread.history.safe_spawn_point().parts == 2


@pytest.mark.parametrize("associative", [True, False])
def test_the_first_event_may_overtake_the_result_that_confirms_its_subscription(
    thread: Deferring, associative: bool
) -> None:
    """It waits for the open call, is known by then, and is handled in the batch of the result."""
    (name,) = thread.act("watch")
    assert thread.receive(event("e1", name, associative=associative)) == []
    confirmed = ToolResult(call_id=name, content="Watching.", subscription=True)
    assert thread.receive(confirmed) == ["tool_result", "e1"]
    assert thread.told == (["e1"] if associative else [])
    assert len(thread.history.take_spawns()) == (0 if associative else 1)
    assert thread.history.state.dropped == 0
    assert [one.received for one in thread.store.subscriptions if one.call_id == name] == [1]


@pytest.mark.parametrize("outcome", ["ok", "error"])
def test_an_event_that_overtakes_a_result_without_a_subscription_is_dropped(
    thread: Deferring, outcome: Literal["ok", "error"]
) -> None:
    """It turns out to be one of a plain call."""
    (name,) = thread.act("watch")
    thread.receive(event("e1", name))
    plain = ToolResult(call_id=name, content="x", outcome=outcome, subscription=outcome == "error")
    assert thread.receive(plain) == ["tool_result", "e1"]
    assert thread.told == []
    assert thread.history.state.dropped == 1


def test_an_event_that_overtook_a_call_that_was_interrupted_is_dropped(thread: Deferring) -> None:
    """There is no such subscription, and the server is told so; its late result opens none."""
    (name,) = thread.act("watch")
    thread.receive(event("e1", name))
    assert thread.receive(UserMessage(id="m2", text="stop")) == ["m2", "e1"]
    thread.receive(ToolResult(call_id=name, content="Watching.", subscription=True))
    assert thread.told == ["stop"]
    assert thread.history.state.dropped == 2
    assert thread.history.take_cancelled() == (name,)


def test_many_events_keep_their_order(thread: Deferring) -> None:
    """Fifty while a call is pending, some of them twice: each is told once, in the order of its first coming."""
    (name,) = thread.act("t")
    names = [f"e{number:02}" for number in range(50)]
    thread.receive(*(event(one) for one in names[:30]))
    thread.receive(*(event(one) for one in names[20:]))
    thread.receive(ToolResult(call_id=name, content="x"))
    assert thread.receive(*(event(one) for one in names[::7])) == names[::7], "known by now"
    assert thread.told == names
    assert texts(thread.last.parts) == []
    assert thread.phase() == "boundary"
    assert violations(view(thread.store.path)) == []


def test_words_that_are_queued_come_behind_the_turn_that_answers_what_waited(thread: Deferring) -> None:
    """They wait for the end of the turn, and events do not put that off for ever: at its end the oldest is taken."""
    (name,) = thread.act("t")
    thread.receive(UserMessage(id="m2", text="later", mode="queue"), event("e1"))
    assert thread.receive(ToolResult(call_id=name, content="x")) == ["tool_result", "e1"]
    thread.history.begin_step()
    thread.receive(event("e2"))
    thread.history.flush_turn()
    thread.sync()
    assert thread.receive() == ["m2", "e2"]
    assert thread.told == ["e1", "later", "e2"]
