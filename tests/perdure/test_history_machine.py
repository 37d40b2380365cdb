"""The history manager against a twin that keeps everything in lists: whatever happens, both tell the same story.

The machine drives the manager as its callers do: inputs through the inbox, steps streamed through the manager or into
the store, results staged in the store or from outside, events of subscriptions, calls that sleep or close the thread;
and it does to it what the world does: the same input again, another text under a known id, late results, events of
what is not subscribed to, lost replies, crashes at any moment, continue-as-new. A real store goes along in memory, and
has to agree with the naive one.
"""

from typing import Any
from unittest import TestCase

from hypothesis.stateful import invariant

from perdure.codec import dumps
from perdure.history import HistoryManager
from perdure.history_state import HistoryState, LiveCall
from perdure.messages import Message, ToolCallPart, ToolResultPart
from perdure.records import Path, Tail
from perdure.view import view
from tests.perdure.history_inputs import now
from tests.perdure.history_turns import HistoryTurns
from tests.perdure.naive import LIMITS
from tests.perdure.naive_store import THREAD
from tests.perdure.view_rules import violations
from tests.properties import settings

STATE_BYTES = 16_000


class HistoryMachine(HistoryTurns):
    """What holds whatever happens."""

    @invariant()
    def what_is_stored_is_the_conversation(self) -> None:
        """Message by message and part by part."""
        assert [message.status for message in self.store.messages] == [one.status for one in self.durable.messages]
        for stored, expected in zip(self.store.messages, self.durable.messages, strict=True):
            assert (stored.role, stored.input_id) == (expected.role, expected.input_id)
            assert list(stored.parts) == expected.parts

    @invariant()
    def subscriptions_and_calls_are_stored(self) -> None:
        """With all that has come of a subscription, and when a call ends by itself."""
        stored = [(one.call_id, one.tool, one.arguments, one.received, one.paused) for one in self.store.subscriptions]
        assert stored == [
            (call_id, one.tool, one.arguments, one.received, one.paused)
            for call_id, one in self.durable.subscriptions.items()
        ]
        assert [call.due for call in self.store.open_calls] == [call.due for call in self.durable.calls]

    @invariant()
    def the_real_store_agrees(self) -> None:
        """Part by part, call by call, and on all that a new owner is told."""
        path = now(self.real.load_history_with_ancestors(THREAD))
        assert [one.id for one in path.messages] == [one.id for one in self.store.messages]
        for real, naive in zip(path.messages, self.store.messages, strict=True):
            assert (real.parts, real.status, real.input_id) == (naive.parts, naive.status, naive.input_id)
        assert _known(now(self.real.load_tail(THREAD, processed=5))) == _known(self.store.tail())

    @invariant()
    def every_input_is_accepted_once(self) -> None:
        """By its id, whatever came how often."""
        accepted = [message.input_id for message in self.store.messages if message.input_id]
        assert len(accepted) == len(set(accepted))
        assert self.store.digests == self.durable.accepted

    @invariant()
    def each_call_has_one_result_after_its_group(self) -> None:
        """In call order, directly after the calls of its step; calls without results are at the very end."""
        for message in self.store.messages:
            _check_groups(message, is_open=message is self.store.messages[-1] and bool(self.store.open_calls))

    @invariant()
    def only_the_open_turn_is_running(self) -> None:
        """Nothing is left behind half done, and everything that is not answered is being answered."""
        running = [message.id for message in self.store.messages if message.status.state == "running"]
        assert running in ([], [self.store.messages[-1].id] if self.store.messages else [])
        if self.store.messages:
            assert self.store.messages[-1].role == "assistant", "words are answered, or said to be turned away"
        if not self.manager.state.pending:
            turn = self.manager.open_turn
            assert running == ([turn.message_id] if turn else [])
            assert turn is None or turn.parts == len(self.store.message(turn.message_id).parts)

    @invariant()
    def the_view_is_valid(self) -> None:
        """What a model would read of it obeys V1 to V8, at every moment."""
        assert violations(view(self.store.path)) == []

    @invariant()
    def a_child_inherits_no_open_call(self) -> None:
        """Up to the spawn point every call has its result."""
        if self.manager.state.pending:
            return
        point = self.manager.safe_spawn_point()
        if point.message_id is None:
            assert self.store.messages == []
            return
        inherited = self.store.message(point.message_id)
        inherited = inherited.with_(parts=inherited.parts[: point.parts])
        _check_groups(inherited, is_open=False)
        assert violations(view(Path(messages=(inherited,)))) == []

    @invariant()
    def the_state_is_small(self) -> None:
        """Whatever was said so far."""
        assert len(dumps(self.manager.state)) < STATE_BYTES

    @invariant()
    def a_new_owner_would_know_the_same(self) -> None:
        """What is restored from the store is what the owner has, but for what only a running process can know."""
        if self.manager.state.pending or self.streams_on():
            return
        restored, state = HistoryManager.from_tail(self.store.tail(), LIMITS).state, self.manager.state
        if any(call.result and not call.told for call in self.thread.calls):
            return
        assert _comparable(restored) == _comparable(state)


def _check_groups(message: Message, *, is_open: bool) -> None:
    waiting: list[str] = []
    answering = False
    for part in message.parts:
        if isinstance(part, ToolResultPart):
            assert waiting, "a result without a call"
            assert part.call_id == waiting.pop(0)
            answering = bool(waiting)
        else:
            assert not answering, "something between results"
            if isinstance(part, ToolCallPart):
                waiting.append(part.call_id)
    assert is_open == bool(waiting)


def _known(tail: Tail) -> dict[str, Any]:
    return {
        "thread": (tail.thread.version, tail.thread.turn, tail.thread.head_id),
        "message": (tail.message and tail.message.id, tail.parts),
        "step": tail.step if tail.message and tail.message.status.state == "running" else None,
        "calls": [(one.call_id, one.step, one.index, one.position, one.result, one.due) for one in tail.calls],
        "closed": tail.thread.closed_at is not None,
        "subscriptions": tail.subscriptions,
        "processed": tail.processed,
    }


def _comparable(state: HistoryState) -> dict[str, Any]:
    turn = state.open
    return {
        "state": (state.thread_id, state.version, state.turn, state.head_id, state.last, state.answer_due),
        "closed": (state.closing, state.closed),
        # How many events came in the last minute is known to a running process only.
        "subscriptions": [one.with_(minute=0, in_minute=0) for one in state.subscriptions],
        "turn": turn and (turn.message_id, turn.turn, turn.step, turn.parts, turn.spawn_parts),
        "calls": turn and [_comparable_call(call) for call in turn.calls],
    }


def _comparable_call(call: LiveCall) -> tuple[object, ...]:
    outline = call.outline
    return call.call_id, call.settled, call.due, outline.kind, outline.passive, outline.operation, outline.arguments


TestHistory: type[TestCase] = HistoryMachine.TestCase
# There is more to combine here than elsewhere.
TestHistory.settings = settings(max_examples=max(100, settings().max_examples))  # type: ignore[attr-defined] # pyright: ignore[reportAttributeAccessIssue] - Hypothesis reads it
