"""What happens around the history manager, at random: inputs, deaths of its owner, new runs; and its twin in lists.

The first part of the machine in `test_history_machine`.
"""

from collections.abc import Coroutine
from copy import deepcopy
from typing import Any, Literal, TypeVar

import pytest
from hypothesis import event
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, precondition, rule

from perdure.batch import SyncBatch, SyncReport
from perdure.codec import dumps, loads
from perdure.errors import StaleWriter, UnflushedTurn
from perdure.history import HistoryManager
from perdure.history_state import HistoryState
from perdure.inbox import Inbox
from perdure.inputs import AnyInput, Control, Disposition, Event, EventSource, Interrupt, ToolResult, UserMessage
from perdure.records import ThreadRecord
from stores.memory import MemoryStore
from tests.perdure.naive import LIMITS, NaiveSubscription, NaiveThread
from tests.perdure.naive_store import THREAD, Declared, NaiveStore
from tests.properties import few_words

Answer = TypeVar("Answer")

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


class HistoryInputs(RuleBasedStateMachine):
    """`durable` is the naive thread as it is stored, `thread` the same with what is not synced yet."""

    @initialize(here=st.sampled_from([False, False, True]))
    def begin(self, here: bool) -> None:
        """A new thread, streaming through the manager (`here`) or into the store."""
        self.here = here
        # What streams through the manager has no outline, so its calls are those of plain functions.
        self.tools: dict[str, Declared] = {} if here else TOOLS
        self.store = NaiveStore(self.tools)
        self.real = MemoryStore()
        self.attempt: int = 0
        now(self.real.create_thread(ThreadRecord(thread_id=THREAD, agent="a")))
        self.thread: NaiveThread = NaiveThread(self.tools)
        self.durable: NaiveThread = NaiveThread(self.tools)
        self.inbox = Inbox()
        self.manager = HistoryManager.from_tail(self.store.tail(), LIMITS)
        self.awaited: dict[str, Disposition] = {}
        self.chunk_index: int = -1
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
                    # Behind words that the store may know it is said only "if the store agrees". So it is of a result
                    # whose call is not at hand: that such a call is not open either is the store's to say.
                    asks = isinstance(content, ToolResult) and expected == "dropped"
                    assert told in ((expected, "settled") if asks else (expected,))
            if self.streams_on() and not stops:
                # Nothing of it has closed the turn that streams through the manager, so it is not to be synced now.
                return
            self.sync(lost)

    def streams_on(self) -> bool:
        """Whether the manager's own buffer holds something."""
        return self.here and bool(self.thread.streamed) and self.thread.running

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


def _handed_out(durable: list[str], all_of_them: list[str]) -> list[str]:
    handed_out = list(durable)
    durable.clear()
    assert all_of_them[: len(handed_out)] == handed_out
    del all_of_them[: len(handed_out)]
    return handed_out


def now(work: Coroutine[Any, Any, Answer]) -> Answer:
    """What a store in memory answers: it never waits for anything."""
    try:
        work.send(None)
    except StopIteration as done:
        answer: Answer = done.value
        return answer
    raise AssertionError("it waits")
