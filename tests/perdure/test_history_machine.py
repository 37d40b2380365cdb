"""The history manager against a twin that keeps everything in lists: whatever happens, both tell the same story.

The machine drives the manager as its callers do: inputs through the inbox, steps streamed through the manager or into
the store, results staged in the store or from outside, events of subscriptions, calls that sleep or close the thread;
and it does to it what the world does: the same input again, another text under a known id, late results, events of
what is not subscribed to, lost replies, crashes at any moment, continue-as-new. A real store goes along in memory, and
has to agree with the naive one.
"""

from collections.abc import Coroutine, Sequence
from copy import deepcopy
from typing import Any, Literal, TypeVar
from unittest import TestCase

import pytest
from hypothesis import event
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from perdure.batch import SyncBatch, SyncReport
from perdure.codec import clip, dumps, loads
from perdure.draft import DETAIL_CHARS
from perdure.errors import StaleWriter, UnflushedTurn
from perdure.history import HistoryManager
from perdure.history_state import HistoryState, LiveCall
from perdure.inbox import Inbox
from perdure.inputs import AnyInput, Control, Disposition, Event, EventSource, Interrupt, ToolResult, UserMessage
from perdure.messages import Message, Part, ReasoningPart, Status, TextPart, ToolCallPart, ToolResultPart
from perdure.records import Path, StepOutcome, Tail, ThreadRecord
from perdure.turn_buffer import Chunk, TurnBuffer, trim_reasoning
from perdure.view import view
from stores.memory import MemoryStore
from tests.perdure.naive import LIMITS, NaiveCall, NaiveSubscription, NaiveThread
from tests.perdure.naive_store import THREAD, Declared, NaiveStore, outline
from tests.perdure.view_rules import violations
from tests.properties import few_words, settings

Answer = TypeVar("Answer")

STATE_BYTES = 16_000
few_pieces = st.sampled_from(["c", "d e", ""])
TOOLS = {
    "t": Declared(),
    "sleep": Declared("workflow", passive=True),
    "watch": Declared("rap"),
    "close": Declared("thread", operation="close_thread"),
}

user_messages = st.builds(
    UserMessage,
    id=st.integers(1, 14).map(lambda number: f"m{number}"),
    text=few_words,
    mode=st.sampled_from(["interrupt", "interrupt", "queue", "steer", "reject"]),
)
inputs: st.SearchStrategy[AnyInput] = st.one_of(*[user_messages] * 5, st.just(Interrupt()))
few_inputs: st.SearchStrategy[list[AnyInput]] = st.one_of(*[st.just([])] * 3, inputs.map(lambda one: [one]))
event_kinds = st.sampled_from(["joins", "joins", "spawns", "ends", "ends in a child", "child", "parent"])
streamed_calls: st.SearchStrategy[Part] = st.builds(
    ToolCallPart,
    call_id=st.sampled_from(["", "dup"]),
    tool=st.sampled_from(["t", "sleep", "watch"]),
    arguments=st.sampled_from(["{}", '{"q":1}']),
    error=st.sampled_from([None, None, None, "no"]),
)
few_calls: st.SearchStrategy[Sequence[Part]] = st.one_of(
    st.lists(streamed_calls, min_size=1, max_size=3),
    st.sampled_from(["sleep", "watch", "close"]).map(lambda tool: [ToolCallPart(call_id="", tool=tool)]),
    st.lists(streamed_calls, max_size=2).map(lambda calls: [*calls, ToolCallPart(call_id="", tool="close")]),
)
streamed_parts: st.SearchStrategy[Part] = st.one_of(
    st.builds(TextPart, text=st.sampled_from(["a", " ", "b"])),
    st.builds(ReasoningPart, text=st.just("thought"), signature=st.sampled_from(["signed", None])),
    streamed_calls,
    streamed_calls,
)


class HistoryMachine(RuleBasedStateMachine):
    """`durable` is the naive thread as it is stored, `thread` the same with what is not synced yet."""

    @initialize(here=st.sampled_from([False, False, True]))
    def begin(self, here: bool) -> None:
        """A new thread, streaming through the manager (`here`) or into the store."""
        self.here = here
        # What streams through the manager has no outline, so its calls are those of plain functions.
        self.tools: dict[str, Declared] = {} if here else TOOLS
        self.store = NaiveStore(self.tools)
        self.real = MemoryStore()
        self.attempt = 0
        now(self.real.create_thread(ThreadRecord(thread_id=THREAD, agent="a")))
        self.thread: NaiveThread = NaiveThread(self.tools)
        self.durable: NaiveThread = NaiveThread(self.tools)
        self.inbox = Inbox()
        self.manager = HistoryManager.from_tail(self.store.tail(), LIMITS)
        self.awaited: dict[str, Disposition] = {}
        self.chunk_index = -1
        self.resumed = False
        self.clock = 1e9
        self.sent: list[Event] = []
        self.tracked = 0
        self.after_close = 0
        self.subscription_is_tracked()

    # -- inputs ------------------------------------------------------------------------------------------------

    @precondition(
        lambda self: self.is_alive() and (self.thread.open is None or self.thread.closing or self.now_and_then(2))
    )
    @rule(contents=st.lists(inputs, min_size=1, max_size=4), lost=st.booleans())
    def inputs_come(self, contents: list[AnyInput], lost: bool) -> None:
        """Some inputs at once, taken in one batch."""
        self.put(contents)
        self.accept(lost)

    @precondition(lambda self: self.is_alive() and (bool(self.thread.subscriptions) or self.now_and_then(1)))
    @rule(
        data=st.data(),
        lost=st.booleans(),
        count=st.integers(1, 5),
        words=few_words,
        behind=few_inputs,
    )
    def events_come(self, data: st.DataObject, lost: bool, count: int, words: str, behind: list[AnyInput]) -> None:
        """Of a subscription, of one that has ended, of a plain call, of nothing; some of them again."""
        calls = [*self.thread.subscriptions] * 4 + ["s1", *self.thread.all_calls[-1:], "unknown"]
        call_id = data.draw(st.sampled_from(calls))
        for kind in data.draw(st.lists(event_kinds, min_size=count, max_size=count)):
            self.sent.append(self.event(kind, call_id, data.draw(st.integers(0, 4)), words))
            self.put([self.sent[-1]])
        if data.draw(st.booleans()):
            # The store does not know those for child threads, so these are the ones to try.
            again = [one for one in self.sent if one.id in self.thread.spawned] or self.sent[-9:]
            self.put([data.draw(st.sampled_from(again)).with_(at=self.clock)])
        self.clock += data.draw(st.sampled_from([0, 1, 61]))
        self.put(behind)
        self.accept(lost)

    def event(self, kind: str, call_id: str, number: int, words: str) -> Event:
        """An event whose id says everything about it but its words."""
        source: EventSource = "child" if kind == "child" else "parent" if kind == "parent" else "subscription"
        return Event(
            id=f"{kind} {number} {call_id}",
            call_id=call_id,
            content=words,
            final=kind.startswith("ends"),
            associative=kind in ("joins", "ends"),
            source=source,
            at=self.clock,
        )

    @precondition(lambda self: self.is_alive() and bool(self.thread.all_calls))
    @rule(
        data=st.data(),
        words=few_words,
        subscription=st.booleans(),
        outcome=st.sampled_from(["ok", "ok", "ok", "error", "expired"]),
        behind=few_inputs,
    )
    def result_comes_from_outside(
        self,
        data: st.DataObject,
        words: str,
        subscription: bool,
        outcome: Literal["ok", "error", "expired"],
        behind: list[AnyInput],
    ) -> None:
        """For an open call, for one of long ago, or for none; its first event may have come before it."""
        live = [call.call_id for call in self.thread.calls if not call.closes]
        late = self.thread.all_calls[-3:] if not self.thread.calls else []
        call_id = data.draw(st.sampled_from([*live * 3, *late, "unknown"]))
        if data.draw(st.booleans()):
            self.put([self.event("joins", call_id, 0, words)])
        self.put([ToolResult(call_id=call_id, content=words, subscription=subscription, outcome=outcome), *behind])
        self.accept(lost=False)

    @precondition(lambda self: self.is_alive() and self.now_and_then(1))
    @rule(data=st.data(), action=st.sampled_from(["cancel_subscription", "resume_subscription"]))
    def person_decides(
        self, data: st.DataObject, action: Literal["cancel_subscription", "resume_subscription"]
    ) -> None:
        """To end a subscription, or to hear of it again; one that there is, or not."""
        others = [*self.thread.subscriptions, *self.thread.all_calls[-1:], "unknown"]
        self.put([Control(action=action, call_id=data.draw(st.sampled_from(others)))])
        self.accept(lost=False)

    @precondition(lambda self: bool(self.paused()))
    @rule(data=st.data())
    def person_resumes(self, data: st.DataObject) -> None:
        """A subscription that has sent too much is heard of again."""
        call_id = data.draw(st.sampled_from(self.paused()))
        self.put([Control(action="resume_subscription", call_id=call_id)])
        self.accept(lost=False)

    def paused(self) -> list[str]:
        """Subscriptions that wait for a person."""
        return [call_id for call_id, known in self.thread.subscriptions.items() if known.paused]

    @precondition(lambda self: self.store.version % 32 == 9 and not self.thread.closed)
    @rule(contents=st.lists(inputs, max_size=2))
    def person_closes(self, contents: list[AnyInput]) -> None:
        """Whatever the thread does; what comes in the same moment is taken before it or turned away."""
        self.put([*contents, Control(action="close")])
        self.accept(lost=False)
        assert self.thread.closed

    @precondition(lambda self: self.store.version % 16 == 7 and not self.thread.closed and not self.thread.calls)
    @rule()
    def workflow_closes(self) -> None:
        """While no call is open."""
        self.manager.close_thread()
        self.thread.close_thread()
        self.sync(lost=False)

    @precondition(lambda self: not self.is_alive())
    @rule(here=st.booleans())
    def another_thread(self, here: bool) -> None:
        """A closed one has nothing more to show."""
        self.begin(here)

    def is_alive(self) -> bool:
        """Whether there is something to see yet: a closed thread turns everything away."""
        return self.after_close < 3

    def put(self, contents: list[AnyInput]) -> None:
        """They reach the inbox; what waits there already is not put again."""
        for content in contents:
            self.inbox.put(content)
        self.after_close += self.thread.closed

    def accept(self, lost: bool) -> None:
        """Take what may be taken, and sync it, until nothing is ready."""
        while self.inbox.has_ready(self.manager.phase):
            stops = False
            while (content := self.inbox.take(self.manager.phase)) is not None:
                expected = self.thread.handle(content)
                told = self.manager.handle_content(content)
                stops = stops or told in ("interrupted", "steered") or self.manager.state.closed
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
        if self.resumed:
            assert self.manager.take_pending("too early") is None
        elif self.streams_on() and TurnBuffer(self.thread.streamed):
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

    def may_act(self) -> bool:
        """Whether a step can be made at once."""
        return not self.thread.closed and self.manager.phase in ("boundary", "idle")

    @precondition(may_act)
    @rule(calls=few_calls, before=st.lists(streamed_parts, max_size=2))
    def step_makes_calls(self, calls: Sequence[Part], before: list[Part]) -> None:
        """A whole step at once, in a turn of its own if need be, so that calls are open often."""
        if self.manager.phase == "idle":
            self.put([UserMessage(id=f"go{self.store.version}", text="go")])
            self.accept(lost=False)
        self.step_begins()
        self.parts_stream([*before, *calls], [])
        self.step_ends(trim=False, finish="stop", lost=False)

    @precondition(lambda self: self.may_act() and not self.here)
    @rule(others=st.sampled_from([(), ("watch",), ("watch", "sleep"), ("close",)]))
    def thread_falls_asleep(self, others: tuple[str, ...]) -> None:
        """With other calls in the group, or without."""
        self.step_makes_calls([ToolCallPart(call_id="", tool=tool) for tool in ("sleep", *others)], [])

    @precondition(lambda self: self.may_act() and not self.here and self.now_and_then(3))
    @rule(others=st.sampled_from([("t",), ("watch",), ("t", "sleep"), ("watch", "t")]), closes_first=st.booleans())
    def thread_begins_to_close(self, others: tuple[str, ...], closes_first: bool) -> None:
        """A call closes it while others of its group are open."""
        self.step_makes_calls([ToolCallPart(call_id="", tool=tool) for tool in ("close", *others)], [])
        self.stage(self.thread.result(self.thread.calls[0].call_id, "Closed."))
        self.hears_of(self.thread.calls[0], closes_first)
        self.sync(lost=False)
        assert self.thread.closing

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
            self.manager.handle_step(outline(parts, self.tools, finish))
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
    @rule(data=st.data(), due=st.sampled_from([None, 2e9, 3e9]))
    def call_is_dispatched(self, data: st.DataObject, due: float | None) -> None:
        """It may end by itself some day, which the store is told once."""
        call = data.draw(st.sampled_from(self.thread.calls))
        self.manager.mark_dispatched(call.call_id, due)
        call.due = call.due if due is None else due
        self.sync(lost=False)

    @precondition(has_open_calls)
    @rule(data=st.data(), words=few_words, reported=st.booleans(), failed=st.booleans(), closes_first=st.booleans())
    def tool_returns(self, data: st.DataObject, words: str, reported: bool, failed: bool, closes_first: bool) -> None:
        """A result is staged in the store; the thread hears of it now, or only after a crash."""
        closing = [call for call in self.thread.calls if call.closes and not call.told]
        call = data.draw(st.sampled_from(closing or self.thread.calls))
        self.manager.mark_dispatched(call.call_id)
        self.stage(self.thread.result(call.call_id, words, "error" if failed and call.closes else "ok"))
        if reported:
            self.hears_of(call, closes_first)
            self.sync(lost=False)

    def stage(self, result: ToolResultPart) -> None:
        """A worker stores a result."""
        self.store.stage(result)
        now(self.real.stage_result(THREAD, result))
        self.durable.stage(result)
        self.thread.stage(result)

    def hears_of(self, call: NaiveCall, closes_first: bool = False) -> None:
        """The thread hears of a staged result; one of its calls may have closed the thread by that."""
        staged = ToolResult(call_id=call.call_id, staged=True)
        closes = call.closes and call.result is not None and call.result.outcome == "ok"
        if closes and closes_first:
            self.close_with_open_calls()
        assert self.manager.handle_content(staged) == self.thread.handle(staged)
        if closes and not closes_first:
            self.close_with_open_calls()

    def close_with_open_calls(self) -> None:
        """As the workflow does when a call has closed the thread."""
        self.manager.close_thread()
        self.thread.close_thread()

    @precondition(has_open_calls)
    @rule(data=st.data())
    def all_tools_return(self, data: st.DataObject) -> None:
        """In any order, staged or from outside; the group is committed with the last of them."""
        for call in data.draw(st.permutations([call for call in self.thread.calls if not call.told])):
            if call not in self.thread.calls:
                break  # the thread has closed, and nobody sleeps in it
            if call.result or call.closes or data.draw(st.booleans()):
                self.stage(self.thread.result(call.call_id, "staged"))
                self.hears_of(call)
            else:
                result = ToolResult(call_id=call.call_id, content="from outside")
                assert self.manager.handle_content(result) == self.thread.handle(result) == "settled"
        self.sync(lost=False)
        assert self.manager.phase == ("idle" if self.thread.closed else "boundary")

    def outcomes_are_handed_out(self) -> None:
        """Interrupted calls, those that servers are to be told of and children: each is named once, when durable."""
        told = [call.call_id for call in self.manager.take_interrupted_tool_calls()]
        assert told == _handed_out(self.durable.interrupted, self.thread.interrupted)
        assert list(self.manager.take_cancelled()) == _handed_out(self.durable.cancelled, self.thread.cancelled)
        for spawn in self.manager.take_spawns():
            expected = self.durable.spawns.pop(0)
            assert self.thread.spawns.pop(0) == expected
            inherited = self.store.messages[expected.messages - 1].id if expected.messages else None
            assert (spawn.event.id, spawn.event.content, spawn.origin.call_id, spawn.point.message_id) == (
                expected.event_id,
                expected.content,
                expected.call_id,
                inherited,
            )
            assert spawn.point.parts == expected.parts
            event("child for an event")
        assert self.durable.spawns == []
        assert self.manager.take_interrupted_tool_calls() == ()
        assert self.manager.take_cancelled() == ()
        assert self.manager.take_spawns() == ()

    @precondition(lambda self: not self.streams_on() and not self.thread.closed and self.now_and_then(3))
    @rule()
    def subscription_is_tracked(self) -> None:
        """Any number of times, by hand."""
        self.tracked += 1
        for _ in range(2):
            self.manager.track_subscription(f"s{self.tracked}", "watch")
        self.thread.subscriptions[f"s{self.tracked}"] = NaiveSubscription("watch", "{}")
        self.sync(lost=False)

    @precondition(lambda self: not self.streams_on() and self.thread.subscriptions and self.now_and_then(3))
    @rule(data=st.data())
    def subscription_is_removed(self, data: st.DataObject) -> None:
        """It has ended by itself."""
        call_id = data.draw(st.sampled_from(list(self.thread.subscriptions)))
        for _ in range(2):
            self.manager.remove_subscription(call_id)
        del self.thread.subscriptions[call_id]
        self.sync(lost=False)

    # -- the world ---------------------------------------------------------------------------------------------

    @precondition(lambda self: self.now_and_then(0) or self.thread.closing)
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
        self.durable.interrupted, self.durable.cancelled, self.durable.spawns = [], [], []
        self.inbox, self.awaited = Inbox(), {}
        self.manager = HistoryManager.from_tail(self.store.tail(), LIMITS)
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
        if batch is None:
            assert zombie.state.closed or zombie.state.closing
            return
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
            if self.store.version % 3 == 2:
                # What was durable before may be asked for while the batch is on its way.
                self.outcomes_are_handed_out()
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
            self.thread.dropped += unasked and became == "dropped"
        if self.streams_on():
            event("streams on after a refusal")
            self.resumed = True
            return
        self.resumed = False
        self.thread.open_due_turn()
        self.durable = deepcopy(self.thread)
        assert self.awaited == {}
        if self.store.version % 3 == 1:
            # Else later, with what came after it.
            self.outcomes_are_handed_out()
        assert self.manager.phase == self.thread.phase
        assert self.manager.state.dropped == self.thread.dropped
        assert self.store.closed == self.thread.closed

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


def _handed_out(durable: list[str], all_of_them: list[str]) -> list[str]:
    handed_out = list(durable)
    durable.clear()
    assert all_of_them[: len(handed_out)] == handed_out
    del all_of_them[: len(handed_out)]
    return handed_out


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
