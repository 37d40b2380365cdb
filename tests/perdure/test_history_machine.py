"""The history manager against a twin that keeps everything in lists: whatever happens, both tell the same story.

The machine drives the manager as its callers do: inputs through the inbox, steps streamed through the manager or into
the store, results staged in the store or from outside; and it does to it what the world does: the same input again,
another text under a known id, late results, lost replies, crashes at any moment, continue-as-new. A real store goes
along in memory, and has to agree with the naive one.
"""

from collections.abc import Coroutine
from copy import deepcopy
from typing import Any, Literal, TypeVar
from unittest import TestCase

import pytest
from hypothesis import event
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from perdure.batch import SyncBatch, SyncReport
from perdure.codec import clip, dumps, loads
from perdure.contract import CallOutline, CompleteResult
from perdure.draft import DETAIL_CHARS
from perdure.errors import StaleWriter, UnflushedTurn
from perdure.history import HistoryManager
from perdure.history_state import HistoryState
from perdure.inbox import Inbox
from perdure.inputs import AnyInput, Disposition, Event, Interrupt, ToolResult, UserMessage
from perdure.messages import Message, Part, ReasoningPart, Status, TextPart, ToolCallPart, ToolResultPart
from perdure.ports import Path, StepOutcome, Tail, ThreadRecord
from perdure.turn_buffer import Chunk, TurnBuffer, trim_reasoning
from perdure.view import view
from stores.memory import MemoryStore
from tests.perdure.naive import THREAD, NaiveStore, NaiveThread
from tests.perdure.view_rules import violations
from tests.properties import few_words

Answer = TypeVar("Answer")

STATE_BYTES = 16_000
few_pieces = st.sampled_from(["c", "d e", ""])
SUBSCRIPTIONS = ("s1", "s2")

user_messages = st.builds(
    UserMessage,
    id=st.integers(1, 14).map(lambda number: f"m{number}"),
    text=few_words,
    mode=st.sampled_from(["interrupt", "interrupt", "queue", "steer", "reject"]),
)
events = st.builds(
    Event,
    id=st.integers(1, 6).map(lambda number: f"e{number}"),
    call_id=st.sampled_from([*SUBSCRIPTIONS, "unknown"]),
    content=few_words,
    final=st.booleans(),
)
inputs: st.SearchStrategy[AnyInput] = st.one_of(user_messages, user_messages, events, st.just(Interrupt()))
streamed_calls: st.SearchStrategy[Part] = st.builds(
    ToolCallPart, call_id=st.sampled_from(["", "dup"]), tool=st.just("t"), error=st.sampled_from([None, None, "no"])
)
streamed_parts: st.SearchStrategy[Part] = st.one_of(
    st.builds(TextPart, text=st.sampled_from(["a", " ", "b"])),
    st.builds(ReasoningPart, text=st.just("thought"), signature=st.sampled_from(["signed", None])),
    streamed_calls,
    streamed_calls,
)


class HistoryMachine(RuleBasedStateMachine):
    """`durable` is the naive thread as it is stored, `thread` the same with what is not synced yet."""

    @initialize(here=st.booleans())
    def begin(self, here: bool) -> None:
        """A new thread, streaming through the manager (`here`) or into the store."""
        self.here = here
        self.store = NaiveStore()
        self.real = MemoryStore()
        self.attempt = 0
        now(self.real.create_thread(ThreadRecord(thread_id=THREAD, agent="a")))
        self.thread = NaiveThread()
        self.durable = NaiveThread()
        self.inbox = Inbox()
        self.manager = HistoryManager.from_tail(self.store.tail())
        self.awaited: dict[str, Disposition] = {}
        self.chunk_index = -1
        self.subscription_changes(SUBSCRIPTIONS[0], ends=False)

    # -- inputs ------------------------------------------------------------------------------------------------

    @precondition(lambda self: self.thread.open is None or self.store.version % 2)
    @rule(contents=st.lists(inputs, min_size=1, max_size=4), lost=st.booleans())
    def inputs_come(self, contents: list[AnyInput], lost: bool) -> None:
        """Some inputs at once, taken in one batch."""
        for content in contents:
            self.inbox.put(content)
        self.accept(lost)

    @precondition(lambda self: bool(self.thread.all_calls))
    @rule(data=st.data(), words=few_words)
    def result_comes_from_outside(self, data: st.DataObject, words: str) -> None:
        """For an open call, for one of long ago, or for none."""
        call_id = data.draw(st.sampled_from([*self.thread.all_calls[-4:], "unknown"]))
        self.inbox.put(ToolResult(call_id=call_id, content=words))
        self.accept(lost=False)

    def accept(self, lost: bool) -> None:
        """Take what may be taken, and sync it, until nothing is ready."""
        while self.inbox.has_ready(self.manager.phase):
            stops = False
            while (content := self.inbox.take(self.manager.phase)) is not None:
                expected = self.thread.handle(content)
                told = self.manager.handle_content(content)
                stops = stops or told in ("interrupted", "steered")
                if isinstance(content, UserMessage | Event):
                    self.awaited[content.id] = expected
                elif not self.awaited:
                    # Behind words that the store may know it is said only "if the store agrees".
                    assert told == expected
            if self.streams_on() and not stops:
                # Nothing of it has closed the turn that streams through the manager, so it is not to be synced now.
                return
            self.sync(lost)

    # -- steps -------------------------------------------------------------------------------------------------

    def at_boundary(self) -> bool:
        """Whether a model call may begin."""
        return self.manager.phase == "boundary"

    def is_running(self) -> bool:
        """Whether a model call is under way."""
        return self.thread.running

    def streams_on(self) -> bool:
        """Whether the manager's own buffer holds something."""
        return self.here and bool(self.thread.streamed) and self.thread.running

    @precondition(at_boundary)
    @rule()
    def step_begins(self) -> None:
        """A model call; in the store a new attempt voids what an earlier one streamed."""
        step = self.manager.begin_step()
        assert step == (self.thread.turn, self.thread.step)
        self.thread.running = True
        self.chunk_index = -1
        self.attempt += 1
        if self.here:
            self.thread.streamed = []
            return
        begun = now(self.real.begin_step(THREAD, *step, self.attempt))
        assert begun.state == ("done" if step in self.store.finished else "open")
        if step not in self.store.finished:
            self.store.streaming[step] = []
            self.thread.streamed = self.durable.streamed = []

    @precondition(is_running)
    @rule(parts=st.lists(streamed_parts, min_size=1, max_size=4), pieces=st.lists(few_pieces, max_size=3))
    def parts_stream(self, parts: list[Part], pieces: list[str]) -> None:
        """Some parts, each in pieces."""
        if (self.thread.turn, self.thread.step) in self.store.finished:
            return
        for part in parts:
            self.stream(part, pieces)
        if self.streams_on() and TurnBuffer(self.thread.streamed):
            with pytest.raises(UnflushedTurn):
                self.manager.take_pending("too early")

    def stream(self, part: Part, pieces: list[str]) -> None:
        """One part."""
        step = (self.thread.turn, self.thread.step)
        self.chunk_index += 1
        part = part.with_(step=step[1])
        chunks = [Chunk(index=self.chunk_index, part=part)]
        if not isinstance(part, ToolCallPart):
            chunks += [Chunk(index=self.chunk_index, delta=piece) for piece in pieces]
        self.thread.streamed = [*self.thread.streamed, *chunks]
        if self.here:
            for chunk in chunks:
                self.manager.handle_completion(chunk)
        else:
            # What is in the store's buffer is there, whatever becomes of the owner.
            self.store.streaming[step] += chunks
            now(self.real.append_chunks(THREAD, *step, self.attempt, chunks))
            self.durable.streamed = self.thread.streamed

    @precondition(at_boundary)
    @rule(calls=st.lists(streamed_calls, min_size=1, max_size=3), before=st.lists(streamed_parts, max_size=2))
    def step_makes_calls(self, calls: list[Part], before: list[Part]) -> None:
        """A whole step at once, so that calls are open often."""
        self.step_begins()
        self.parts_stream([*before, *calls], [])
        self.step_ends(trim=False, finish="stop", lost=False)

    @precondition(is_running)
    @rule(trim=st.booleans(), finish=st.sampled_from(["stop", "stop", "length", "limit"]), lost=st.booleans())
    def step_ends(self, trim: bool, finish: Literal["stop", "length", "limit"], lost: bool) -> None:
        """The step is flushed, and synced."""
        step = (self.thread.turn, self.thread.step)
        if self.here:
            parts, status = TurnBuffer(self.thread.streamed).parts, Status()
        else:
            streamed = NaiveThread(turn=step[0], step=step[1]).stamped(TurnBuffer(self.thread.streamed).parts)
            if step not in self.store.finished:
                self.store.finished[step] = tuple(streamed)
                now(self.real.finish_step(THREAD, *step, self.attempt, tuple(streamed), StepOutcome(), []))
            parts = self.store.finished[step]
            status = Status() if finish == "stop" else Status(state="incomplete", reason=finish, detail="why")
            self.manager.handle_step(_outline(parts, finish))
            with pytest.raises(UnflushedTurn):
                self.manager.take_pending("too early")
        if trim:
            self.manager.flush_turn_trimming_reasoning()
        else:
            self.manager.flush_turn()
        self.thread.flush(trim_reasoning(parts) if trim else parts, status)
        self.sync(lost)

    @precondition(is_running)
    @rule()
    def step_is_discarded(self) -> None:
        """A failure that is tried again: nothing of it is left."""
        self.manager.discard_turn()
        self.thread.running = False
        if self.here:
            self.thread.streamed = []
        self.sync(lost=False)

    @precondition(lambda self: self.thread.open is not None and self.now_and_then(1))
    @rule(detail=st.sampled_from(["The key is wrong.", "x" * 2 * DETAIL_CHARS]))
    def turn_fails(self, detail: str) -> None:
        """A failure for good, wherever the turn stands; the thread stays usable."""
        self.manager.fail_turn(detail)
        self.thread.fail(clip(detail, DETAIL_CHARS))
        self.sync(lost=False)

    # -- calls -------------------------------------------------------------------------------------------------

    def has_open_calls(self) -> bool:
        """Whether there is something to run."""
        return bool(self.thread.calls)

    @precondition(has_open_calls)
    @rule(data=st.data(), words=few_words, reported=st.booleans())
    def tool_returns(self, data: st.DataObject, words: str, reported: bool) -> None:
        """A result is staged in the store; the thread hears of it now, or only after a crash."""
        call_id = data.draw(st.sampled_from([call.call_id for call in self.thread.calls]))
        self.manager.mark_dispatched(call_id)
        self.stage(ToolResultPart(call_id=call_id, content=words, step=self.thread.step))
        if reported:
            staged = ToolResult(call_id=call_id, staged=True)
            assert self.manager.handle_content(staged) == self.thread.handle(staged)
            self.sync(lost=False)

    def stage(self, result: ToolResultPart) -> None:
        """A worker stores a result."""
        self.store.stage(result)
        now(self.real.stage_result(THREAD, result))
        self.durable.stage(result)
        self.thread.stage(result)

    @precondition(has_open_calls)
    @rule(data=st.data())
    def all_tools_return(self, data: st.DataObject) -> None:
        """In any order, staged or from outside; the group is committed with the last of them."""
        for call_id in data.draw(st.permutations([call.call_id for call in self.thread.calls if not call.told])):
            result = ToolResult(call_id=call_id, staged=True)
            if any(call.call_id == call_id and call.result for call in self.thread.calls) or data.draw(st.booleans()):
                self.stage(ToolResultPart(call_id=call_id, content="staged", step=self.thread.step))
            else:
                result = ToolResult(call_id=call_id, content="from outside")
            assert self.manager.handle_content(result) == self.thread.handle(result) == "settled"
        self.sync(lost=False)
        assert self.manager.phase == "boundary"

    def interrupted_calls_are_stopped(self) -> None:
        """Each is named once, when its interruption is durable."""
        assert [call.call_id for call in self.manager.take_interrupted_tool_calls()] == self.thread.interrupted
        self.thread.interrupted = []
        self.durable.interrupted = []

    @precondition(lambda self: not self.streams_on() and self.now_and_then(3))
    @rule(name=st.sampled_from(SUBSCRIPTIONS), ends=st.booleans())
    def subscription_changes(self, name: str, ends: bool) -> None:
        """Tracked or removed, any number of times."""
        if ends:
            self.manager.remove_subscription(name)
            self.thread.subscriptions = [other for other in self.thread.subscriptions if other != name]
        else:
            self.manager.track_subscription(name, "watch")
            if name not in self.thread.subscriptions:
                self.thread.subscriptions.append(name)
        self.sync(lost=False)

    # -- the world ---------------------------------------------------------------------------------------------

    @precondition(lambda self: self.now_and_then(0))
    @rule(data=st.data(), contents=st.lists(user_messages, max_size=2))
    def owner_dies(self, data: st.DataObject, contents: list[AnyInput]) -> None:
        """At any moment: with inputs that nobody has synced, or right after the store took a batch."""
        synced = False
        for content in contents:
            if self.inbox.put(content) is None and (taken := self.inbox.take(self.manager.phase)):
                self.manager.handle_content(taken)
                self.thread.handle(taken)
        if not self.streams_on() and data.draw(st.booleans()):
            batch = self.manager.take_pending("run")
            if batch is not None and not self.written(batch).refused:
                self.thread.open_due_turn()
                synced = True
        # The one that did not die with it writes no more.
        zombie = self.manager
        if not synced:
            self.thread = deepcopy(self.durable)
        self.durable = deepcopy(self.thread)
        self.thread.crash(keeps_stream=not self.here)
        self.durable.interrupted = []
        self.inbox, self.awaited = Inbox(), {}
        self.manager = HistoryManager.from_tail(self.store.tail())
        self.sync(lost=False)
        self.zombie_is_refused(zombie)

    def now_and_then(self, turn: int) -> bool:
        """A rule that is not to be taken as often as the others."""
        return self.store.version % 4 == turn

    def zombie_is_refused(self, zombie: HistoryManager) -> None:
        """An owner that was taken over by another cannot change anything any more."""
        try:
            zombie.handle_content(UserMessage(id="late", text="late"))
            batch = zombie.take_pending("zombie")
        except UnflushedTurn:
            return
        assert batch is not None
        if batch.number <= self.store.version:
            before = deepcopy(self.store)
            with pytest.raises(StaleWriter):
                self.store.append_messages(batch)
            with pytest.raises(StaleWriter):
                now(self.real.append_messages(batch))
            assert vars(before) == vars(self.store)

    @precondition(lambda self: not self.streams_on() and self.now_and_then(2))
    @rule()
    def run_continues_as_new(self) -> None:
        """The state crosses to another run as JSON."""
        self.sync(lost=False)
        carried = HistoryState.model_validate(loads(dumps(self.manager.state)))
        assert carried == self.manager.state
        self.manager = HistoryManager(carried)

    def sync(self, lost: bool) -> None:
        """Write what is pending; with `lost` the reply of the store gets lost and the batch is sent again."""
        while (batch := self.manager.take_pending("run")) is not None:
            batch = type(batch).model_validate(loads(dumps(batch)))
            report = self.written(batch)
            if lost and not report.refused:
                again = self.manager.take_pending("run")
                assert again is not None
                assert again == batch
                assert self.written(again) == report
            if report.refused:
                event("refused")
            assert self.manager.synced(report) == report.refused
        told = self.manager.take_dispositions()
        for input_id, became in told.items():
            expected = self.awaited.pop(input_id)
            # What is turned away at the door is not looked up in the store, so an old one is not known as such.
            unasked = became in ("rejected", "dropped") and expected in ("duplicate", "conflict")
            assert became == expected or unasked
        if self.streams_on():
            event("streams on after a refusal")
            return
        self.thread.open_due_turn()
        self.durable = deepcopy(self.thread)
        assert self.awaited == {}
        if self.store.version % 3:
            # Now and then later, with what was interrupted after it.
            self.interrupted_calls_are_stopped()
        assert self.manager.phase == self.thread.phase
        assert self.manager.unsynced_inputs == ()

    def written(self, batch: SyncBatch) -> SyncReport:
        """Both stores take the batch, or both refuse the same of it."""
        report, real = self.store.append_messages(batch), now(self.real.append_messages(batch))
        assert (real.number, real.refused) == (report.number, report.refused)
        return report

    # -- what always holds -------------------------------------------------------------------------------------

    @invariant()
    def what_is_stored_is_the_conversation(self) -> None:
        """Message by message and part by part."""
        assert [message.status for message in self.store.messages] == [one.status for one in self.durable.messages]
        for stored, expected in zip(self.store.messages, self.durable.messages, strict=True):
            assert (stored.role, stored.input_id) == (expected.role, expected.input_id)
            assert list(stored.parts) == expected.parts

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
            assert self.store.messages[-1].role == "assistant"
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
        restored, state = HistoryManager.from_tail(self.store.tail()).state, self.manager.state
        if any(call.result and not call.told for call in self.thread.calls):
            return
        assert _comparable(restored) == _comparable(state)


def _outline(parts: tuple[Part, ...], finish: Literal["stop", "length", "limit"]) -> CompleteResult:
    calls = [(position, part) for position, part in enumerate(parts) if isinstance(part, ToolCallPart)]
    return CompleteResult(
        parts=len(parts),
        first_call=calls[0][0] if calls else 0,
        trailing_reasoning=len(parts) - len(trim_reasoning(parts)),
        calls=tuple(
            CallOutline(index=index, tool=part.tool, error=part.error) for index, (_, part) in enumerate(calls)
        ),
        finish=finish,
        detail=None if finish == "stop" else "why",
    )


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
        "thread": (tail.thread.version, tail.thread.turn, tail.thread.head_id, tail.sync_id),
        "message": (tail.message and tail.message.id, tail.parts),
        "step": tail.step if tail.message and tail.message.status.state == "running" else None,
        "calls": [(one.call_id, one.step, one.index, one.position, one.result) for one in tail.calls],
        "subscriptions": tail.subscriptions,
        "processed": tail.processed,
    }


def now(work: Coroutine[Any, Any, Answer]) -> Answer:
    """What a store in memory answers: it never waits for anything."""
    try:
        work.send(None)
    except StopIteration as done:
        answer: Answer = done.value
        return answer
    raise AssertionError("it waits")


def _comparable(state: HistoryState) -> dict[str, Any]:
    turn = state.open
    return {
        "state": (state.thread_id, state.version, state.turn, state.head_id, state.last, state.answer_due),
        "subscriptions": sorted(one.call_id for one in state.subscriptions),
        "turn": turn and (turn.message_id, turn.turn, turn.step, turn.parts, turn.spawn_parts),
        "calls": turn and [(call.call_id, call.settled) for call in turn.calls],
    }


TestHistory: type[TestCase] = HistoryMachine.TestCase
