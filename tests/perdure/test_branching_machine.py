"""Branches, pauses and decisions against a store: whatever people do, the manager knows what the store knows.

The machine does to one thread what people and tools do: words anywhere in the tree, with and without an answer, other
answers, switches, deletions, resets, decisions, results in time and late, stops. After each of them another process
that loads the thread must know the same as the manager that was there all along. That is the whole of it: whatever the
two disagree about would go wrong with the next crash.
"""

from collections.abc import Coroutine
from typing import Any, Literal, TypeVar
from unittest import TestCase

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from perdure import ids
from perdure.codec import digest
from perdure.contract import CallOutline, CompleteResult
from perdure.errors import UsageError
from perdure.history import HistoryManager
from perdure.history_state import LiveCall, OpenTurn
from perdure.inputs import ROOT, AnyInput, Approval, Interrupt, Regenerate, ToolResult, TreeChange, UserMessage
from perdure.messages import Message, Part, TextPart, ToolCallPart
from perdure.records import OpenCall, StepOutcome, Tail, ThreadRecord
from perdure.view import view
from stores.memory import MemoryStore
from tests.perdure.driven import PLAIN
from tests.perdure.view_rules import violations
from tests.properties import settings

Answer = TypeVar("Answer")

THREAD = "t"
TOOLS = ("look", "ask", "pay")
places = st.integers(0, 30)


class BranchingMachine(RuleBasedStateMachine):
    """One thread over a store in memory, its worker played by the rules."""

    @initialize()
    def begin(self) -> None:
        """A new thread."""
        self.store = MemoryStore()
        self.count = 0
        now(self.store.create_thread(ThreadRecord(thread_id=THREAD, agent="a")))
        self.manager = self.loaded()

    # -- people ------------------------------------------------------------------------------------------------

    @rule(
        place=places, where=st.sampled_from(["head", "head", "below", "beside", "root", "nowhere"]), run=st.booleans()
    )
    def somebody_speaks(self, place: int, where: str, run: bool) -> None:
        """At the end, or anywhere in the tree."""
        words = UserMessage(id=self.name("m"), text=self.name("words "), run=run)
        target = self.somewhere(place)
        match where:
            case "below" if target:
                words = words.with_(parent_id=target)
            case "beside" if target:
                words = words.with_(source_id=target)
            case "root":
                words = words.with_(parent_id=ROOT)
            case "nowhere":
                words = words.with_(parent_id="nowhere")
            case _:
                pass
        self.take(words)

    @rule(place=places)
    def somebody_wants_another_answer(self, place: int) -> None:
        """Beside any message, or one that is not there."""
        self.take(Regenerate(id=self.name("r"), message_id=self.somewhere(place) or "nowhere"))

    @rule(place=places, action=st.sampled_from(["switch", "switch", "delete"]))
    def somebody_changes_the_tree(self, place: int, action: Literal["switch", "delete"]) -> None:
        """Anywhere."""
        self.take(TreeChange(id=self.name("c"), action=action, message_id=self.somewhere(place) or "nowhere"))

    @rule(place=places, everything=st.booleans())
    def somebody_resets(self, place: int, everything: bool) -> None:
        """All that follows goes."""
        target = ROOT if everything else self.somewhere(place) or ROOT
        self.take(TreeChange(id=self.name("c"), action="reset", message_id=target))

    @rule(
        place=places,
        option=st.sampled_from(["yes", "no", "always", "never", "same"]),
    )
    def somebody_decides(self, place: int, option: str) -> None:
        """About a call that waits, or about any other."""
        calls = self.calls
        asked = [call.call_id for call in calls if call.awaits_approval] or [call.call_id for call in calls]
        self.take(Approval(call_id=asked[place % len(asked)] if asked else "call_no", option_id=option))

    @rule()
    def somebody_stops(self) -> None:
        """Whatever there is."""
        self.take(Interrupt())

    # -- tools -------------------------------------------------------------------------------------------------

    @rule(place=places, outcome=st.sampled_from(["ok", "ok", "expired"]))
    def a_result_comes(self, place: int, outcome: Literal["ok", "expired"]) -> None:
        """Of a call that is open here."""
        if calls := [call for call in self.calls if not call.settled]:
            call_id = calls[place % len(calls)].call_id
            self.take(ToolResult(call_id=call_id, outcome=outcome, content=self.name("result ")))

    @rule(place=places, preliminary=st.booleans())
    def a_result_comes_late(self, place: int, preliminary: bool) -> None:
        """For a call anywhere in the tree, open or not."""
        found = [
            (one.message.id, part.call_id)
            for one in now(self.store.load_tree(THREAD)).messages
            for part in one.message.parts
            if isinstance(part, ToolCallPart)
        ]
        if found:
            message_id, call_id = found[place % len(found)]
            content = self.name("late ")
            self.take(ToolResult(call_id=call_id, content=content, message_id=message_id, preliminary=preliminary))

    # -- the worker --------------------------------------------------------------------------------------------

    @precondition(lambda self: self.manager.phase == "boundary")
    @rule(tools=st.lists(st.sampled_from(TOOLS), max_size=3))
    def the_model_answers(self, tools: list[str]) -> None:
        """With words, and with calls that make the turn go on."""
        turn, step = self.manager.begin_step()
        parts: tuple[Part, ...] = (
            TextPart(text=self.name("said "), step=step),
            *(
                ToolCallPart(
                    call_id=ids.call_id(THREAD, turn, step, index),
                    tool=tool,
                    arguments="{}",
                    step=step,
                    approval=PLAIN if tool == "pay" else None,
                )
                for index, tool in enumerate(tools)
            ),
        )
        now(self.store.finish_step(THREAD, turn, step, 1, parts, StepOutcome(), []))
        outlines = tuple(_outline(index, tool) for index, tool in enumerate(tools))
        self.manager.handle_step(CompleteResult(parts=len(parts), first_call=1, calls=outlines))
        self.manager.flush_turn()
        self.sync()

    @precondition(lambda self: self.manager.phase == "boundary")
    @rule(place=places)
    def the_tree_is_changed_while_the_model_answers(self, place: int) -> None:
        """The step goes on, wherever it is shown; what is closed was closed by that."""
        turn = self.manager.begin_step()
        self.take(TreeChange(id=self.name("c"), action="switch", message_id=self.somewhere(place) or "nowhere"))
        assert self.manager.open_turn is not None, "a switch stops nothing"
        now(self.store.finish_step(THREAD, *turn, 1, (TextPart(text="said", step=turn[1]),), StepOutcome(), []))
        self.manager.handle_step(CompleteResult(parts=1))
        self.manager.flush_turn()
        self.sync()

    @rule()
    def another_worker_takes_over(self) -> None:
        """From what is stored."""
        self.manager = self.loaded()
        self.sync()

    # -- what holds --------------------------------------------------------------------------------------------

    @invariant()
    def whoever_loads_it_knows_the_same(self) -> None:
        """All that decisions rest on is durable."""
        mine, stored = self.manager.state, self.loaded().state
        assert (mine.version, mine.head_id, mine.turn) == (stored.version, stored.head_id, stored.turn)
        assert _shape(mine.open) == _shape(stored.open)
        assert (mine.last, mine.paused_head, mine.answer_due) == (stored.last, stored.paused_head, stored.answer_due)
        assert mine.remembered == stored.remembered

    @invariant()
    def one_turn_works_and_it_is_the_open_one(self) -> None:
        """Any number may wait for people; each of them can still be answered, since nothing follows it."""
        messages = [one.message for one in now(self.store.load_tree(THREAD)).messages]
        parents = {one.parent_id for one in now(self.store.load_tree(THREAD)).messages}
        working = [message.id for message in messages if message.status.state == "running"]
        turn = self.manager.open_turn
        assert working == ([turn.message_id] if turn and not turn.paused else [])
        for message in messages:
            if message.status.state == "requires_action":
                assert message.id not in parents
                assert _open_calls(message)

    @invariant()
    def the_model_reads_a_valid_conversation(self) -> None:
        """On the branch that is shown, and on that of the turn that works."""
        turn = self.manager.open_turn
        for end in (None, turn.message_id if turn else None):
            assert violations(view(now(self.store.load_history_with_ancestors(THREAD, message_id=end)))) == []

    # -- how it is done ----------------------------------------------------------------------------------------

    @property
    def calls(self) -> tuple[LiveCall, ...]:
        """Of the open turn."""
        return self.manager.open_turn.calls if self.manager.open_turn else ()

    def name(self, kind: str) -> str:
        """One that is new."""
        self.count += 1
        return f"{kind}{self.count}"

    def somewhere(self, place: int) -> str | None:
        """A message of the tree, if there is any."""
        messages = sorted(now(self.store.load_tree(THREAD)).messages, key=lambda one: one.message.seq)
        return messages[place % len(messages)].message.id if messages else None

    def take(self, content: AnyInput) -> None:
        """An input, as the loop takes it."""
        try:
            self.manager.handle_content(content)
        except UsageError:
            pass
        self.sync()
        self.manager.take_dispositions()

    def sync(self) -> None:
        """Make it durable; a turn that rests is loaded when it is shown."""
        while (batch := self.manager.take_pending("run")) is not None:
            self.manager.synced(now(self.store.append_messages(batch)))
            if self.manager.rests:
                self.manager = self.loaded()
        if self.manager.rests:
            self.manager = self.loaded()
            self.sync()

    def loaded(self) -> HistoryManager:
        """What another process makes of it."""
        tail: Tail = now(self.store.load_tail(THREAD))
        return HistoryManager.from_tail(tail.with_(calls=tuple(map(_declared, tail.calls))))


def _outline(index: int, tool: str) -> CallOutline:
    return CallOutline(
        index=index,
        tool=tool,
        kind="client" if tool == "ask" else "function",
        approval=PLAIN if tool == "pay" else None,
        arguments_digest=digest("{}") if tool == "pay" else None,
    )


def _declared(call: OpenCall) -> OpenCall:
    kind: Literal["client", "function"] = "client" if call.tool == "ask" else "function"
    return call.with_(kind=kind, arguments_digest=digest("{}") if call.approval else None)


def _shape(turn: OpenTurn | None) -> object:
    if turn is None:
        return None
    calls = [(call.call_id, call.settled, call.approved, call.due) for call in turn.calls]
    return turn.message_id, turn.turn, turn.step, turn.parts, turn.followers, turn.hidden, turn.paused, calls


def _open_calls(message: Message) -> set[str]:
    called = {part.call_id for part in message.parts if part.kind == "tool_call"}
    return called - {part.call_id for part in message.parts if part.kind == "tool_result"}


def now(answer: Coroutine[Any, Any, Answer]) -> Answer:
    """What the store in memory says: it waits for nothing."""
    try:
        answer.send(None)
    except StopIteration as stop:
        value: Answer = stop.value
        return value
    raise AssertionError("the store in memory waited")


TestBranching: type[TestCase] = BranchingMachine.TestCase
TestBranching.settings = settings(max_examples=settings().max_examples)  # type: ignore[attr-defined] # pyright: ignore[reportAttributeAccessIssue] - Hypothesis reads it
