"""Calls that go on sending events: how they begin and end, and whom servers are told of."""

import pytest

from perdure.history_state import SubscriptionLimits
from perdure.inputs import Control, Interrupt, ToolResult
from perdure.messages import ToolResultPart
from perdure.records import Subscription
from tests.perdure.driven import Thread, results
from tests.perdure.subscribed import event, subscribe, tracked


@pytest.fixture
def thread() -> Thread:
    """A thread between two steps, in which nothing is subscribed to."""
    thread = Thread()
    thread.say("hi")
    return thread


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
