"""The history manager and what ends a turn, or a sleep, before its time."""

import pytest

from perdure.contract import CompleteResult
from perdure.history import HistoryManager
from perdure.inputs import AnyInput, Interrupt, Mode, ToolResult, UserMessage
from perdure.messages import (
    ReasoningPart,
    Status,
    TextPart,
)
from perdure.turn import INTERRUPTED, WOKEN
from perdure.turn_buffer import Chunk
from perdure.view import Response, Result, UserText, view
from tests.perdure.driven import Thread, call, results, texts
from tests.perdure.view_rules import items, violations


@pytest.fixture
def thread() -> Thread:
    """A new thread."""
    return Thread()


# -- interruption -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("content", "reason"), [(UserMessage(id="m2", text="stop"), "cancelled"), (Interrupt(reason="enough"), "cancelled")]
)
def test_a_stop_in_mid_stream_keeps_what_was_said(thread: Thread, content: AnyInput, reason: str) -> None:
    """Text stays, a thought that was cut off and calls that nobody has run do not."""
    thread.say("hi")
    thread.stream(TextPart(text="half an ans"), call("a"), ReasoningPart(text="hm"))
    assert thread.take(content) == "interrupted"
    assert texts(thread.store.messages[1].parts) == ["half an ans"]
    assert len(thread.store.messages[1].parts) == 1
    assert thread.store.messages[1].status.reason == reason


def test_a_stop_before_the_first_step_settles_the_turn(thread: Thread) -> None:
    """Also in one batch with the words: whoever sends and stops at once gets no answer."""
    thread.history.handle_content(UserMessage(id="m1", text="hi"))
    assert thread.history.handle_content(Interrupt(reason="never mind")) == "interrupted"
    thread.sync()
    assert thread.roles() == ["user", "assistant"]
    assert (thread.last.status.reason, thread.last.status.detail) == ("cancelled", "never mind")
    assert thread.phase() == "idle"
    assert thread.take(Interrupt()) == "dropped"


def test_what_an_owner_before_left_streaming_is_sealed_by_a_stop(thread: Thread) -> None:
    """Its words stay and its late writes are refused, though no step was begun here."""
    thread.say("hi")
    thread.store.streaming[1, 0] = [Chunk(index=0, delta="half an ans")]
    thread.reload()
    thread.say("stop", "m2")
    assert texts(thread.store.messages[1].parts) == ["half an ans"]
    assert thread.store.streaming == {}


def test_modes(thread: Thread) -> None:
    """`reject` gives up while a turn is under way; `steer` joins between steps and cancels nothing."""
    thread.say("hi")
    assert thread.say("no", "m2", "reject") == "rejected"
    assert thread.say("by the way", "m3", "steer") == "steered"
    assert thread.store.messages[1].status.reason == "steered"
    assert [message.role for message in thread.store.messages] == ["user", "assistant", "user", "assistant"]
    thread.answer(TextPart(text="hello"))
    assert thread.say("yes", "m2", "reject") == "started", "it was never accepted"
    thread.answer(TextPart(text="hello"))
    assert thread.say("queued", "m4", "queue") == "started"


@pytest.mark.parametrize("mode", ["interrupt", "queue", "steer", "reject"])
def test_any_words_wake_a_sleeper(thread: Thread, mode: Mode) -> None:
    """Its call is closed as interrupted and the turn as steered; nobody waits for a thread that only waits."""
    thread.say("hi")
    (sleep,) = thread.act("sleep")
    assert thread.phase() == "sleeping"
    assert thread.say("wake up", "m2", mode) == "steered"
    assert results(thread.store.messages[1]) == [("interrupted", WOKEN)]
    assert thread.store.messages[1].status.reason == "steered"
    assert [one.call_id for one in thread.history.take_interrupted_tool_calls()] == [sleep]
    assert thread.roles() == ["user", "assistant", "user", "assistant"]
    assert thread.take(ToolResult(call_id=sleep, content="woke by itself")) == "dropped"


def test_a_thread_sleeps_when_only_sleepers_are_left(thread: Thread) -> None:
    """While another call of the group is open it does not, so words of mode `reject` are turned away."""
    thread.say("hi")
    sleep, other = thread.act("sleep", "t")
    assert thread.phase() == "calling"
    assert thread.say("no", "m2", "reject") == "rejected"
    thread.take(ToolResult(call_id=other, content="x"))
    assert thread.phase() == "sleeping"
    thread.reload()
    assert thread.phase() == "sleeping", "the tools say so, whoever owns the thread"
    thread.take(ToolResult(call_id=sleep, content="Slept 5 seconds."))
    assert results(thread.last) == [("ok", "Slept 5 seconds."), ("ok", "x")]
    assert thread.phase() == "boundary"


def test_a_stop_wakes_a_sleeper(thread: Thread) -> None:
    """For good: the turn is cancelled."""
    thread.say("hi")
    thread.act("sleep")
    assert thread.take(Interrupt()) == "interrupted"
    assert thread.last.status.reason == "cancelled"
    assert thread.phase() == "idle"


def test_known_words_do_not_wake_a_sleeper(thread: Thread) -> None:
    """Nobody is told to stop before the store has said that they are new; if it knows them, the sleeper sleeps on."""
    thread.say("old", "m0")
    thread.answer(TextPart(text="hello"))
    thread.say("hi", "m1")
    (sleep,) = thread.act("sleep")
    thread.history = HistoryManager.from_tail(thread.store.tail(processed=1))
    thread.history.handle_content(UserMessage(id="m0", text="old"))
    assert thread.phase() == "sleeping"
    thread.sync()
    assert thread.history.take_interrupted_tool_calls() == ()
    assert thread.take(ToolResult(call_id=sleep, content="slept")) == "settled"


def test_several_words_in_one_batch_are_answered_together(thread: Thread) -> None:
    """One turn for all of them, in their order."""
    for number in range(3):
        thread.history.handle_content(UserMessage(id=f"m{number}", text=f"n{number}"))
    thread.sync()
    assert thread.roles() == ["user", "user", "user", "assistant"]


# -- bug cases ----------------------------------------------------------------------------------------------------


def test_b06_the_user_speaks_while_some_of_the_parallel_results_are_in(thread: Thread) -> None:
    """Every call is closed, in call order and before the words; those without a result are told to stop."""
    thread.say("go")
    thread.answer(call("a"), call("b"), call("c"))
    a, b, c = thread.calls
    thread.take(ToolResult(call_id=b, content="two"))
    thread.say("stop, do X", "m2")
    assert [one.call_id for one in thread.history.take_interrupted_tool_calls()] == [a, c]
    assert results(thread.store.messages[1]) == [
        ("interrupted", INTERRUPTED),
        ("ok", "two"),
        ("interrupted", INTERRUPTED),
    ]
    seen = view(thread.store.path)
    assert violations(seen) == []
    tail = items(seen[-2:])
    assert isinstance(seen[-2], Response)
    assert [one.text for one in tail if isinstance(one, Result)] == [INTERRUPTED, "two", INTERRUPTED]
    assert tail[-1] == UserText("stop, do X")
    assert thread.phase() == "boundary", "one model call follows"
    assert thread.take(ToolResult(call_id=a, content="late")) == "dropped"


@pytest.mark.parametrize("cancelled_first", [True, False])
def test_b21a_cancel_and_finish_in_the_same_moment(thread: Thread, cancelled_first: bool) -> None:
    """The first one to be taken decides; the other one changes nothing, and there is one final status."""
    thread.say("hi")
    thread.stream(TextPart(text="hello"))
    if cancelled_first:
        assert thread.take(Interrupt()) == "interrupted"
        with pytest.raises(AssertionError, match="bug"):
            thread.history.flush_turn()
    else:
        thread.history.flush_turn()
        assert thread.history.handle_content(Interrupt()) == "dropped"
        thread.sync()
    assert thread.last.status.state == ("incomplete" if cancelled_first else "complete")
    assert texts(thread.last.parts) == ["hello"]
    assert thread.store.settled == [thread.last.id]


def test_b21e_a_second_cancel_is_a_no_op(thread: Thread) -> None:
    """In the same batch and later."""
    thread.say("hi")
    assert thread.history.handle_content(Interrupt()) == "interrupted"
    assert thread.history.handle_content(Interrupt()) == "dropped"
    thread.sync()
    assert thread.take(Interrupt()) == "dropped"
    assert thread.store.settled == [thread.last.id]


def test_b62_a_limit_settles_the_turn_and_the_thread_stays_usable(thread: Thread) -> None:
    """Results that were obtained stay, the reason is stored, and the next words are answered with all of it."""
    thread.say("go")
    for step in range(3):
        thread.answer(call("t", step=step))
        thread.take(ToolResult(call_id=thread.calls[0], content=f"result {step}"))
    assert thread.history.begin_step() == (1, 3)
    detail = "The turn reached its limit of 3 model calls."
    thread.history.handle_step(CompleteResult(finish="limit", detail=detail))
    thread.history.flush_turn_trimming_reasoning()
    thread.sync()
    assert thread.last.status == Status(state="incomplete", reason="limit", detail=detail)
    assert results(thread.last) == [("ok", f"result {step}") for step in range(3)]
    assert thread.say("continue", "m2") == "started"
    seen = view(thread.store.path)
    assert violations(seen) == []
    assert [one.text for one in items(seen) if isinstance(one, Result)] == ["result 0", "result 1", "result 2"]
    assert items(seen)[-1] == UserText("continue")
    assert thread.history.begin_step() == (2, 0)
