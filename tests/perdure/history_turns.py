"""What happens to turns, at random: steps that stream, calls, results.

The second part of the machine in `test_history_machine`.
"""

from collections.abc import Sequence
from typing import Literal

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import precondition, rule

from perdure.codec import clip
from perdure.draft import DETAIL_CHARS
from perdure.errors import UnflushedTurn
from perdure.inputs import ToolResult, UserMessage
from perdure.messages import Part, ReasoningPart, Status, TextPart, ToolCallPart, ToolResultPart
from perdure.records import StepOutcome
from perdure.turn_buffer import Chunk, TurnBuffer, trim_reasoning
from tests.perdure.history_inputs import HistoryInputs, now
from tests.perdure.naive import NaiveCall, NaiveThread
from tests.perdure.naive_store import THREAD, outline
from tests.properties import few_words

few_pieces = st.sampled_from(["c", "d e", ""])
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


class HistoryTurns(HistoryInputs):
    """Steps and calls."""

    # -- steps -------------------------------------------------------------------------------------------------

    def at_boundary(self) -> bool:
        """Whether a model call may begin."""
        return self.manager.phase == "boundary"

    def is_running(self) -> bool:
        """Whether a model call is under way."""
        return self.thread.running

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
