"""The async shell around `HistoryManager`, for people who drive the loop themselves, without Temporal.

It keeps the order that the workflow keeps: inputs are synced before anything acts on them, a step is synced before any
tool call of it is dispatched, all results of a step are synced before the next model call. What it does not do is
survive its process: whoever owns the thread loads it again elsewhere, and it goes on where it stood. Two owners at
once do no harm, since the store takes batches from one of them only; the other gets `StaleWriter` and loads again.

Nor does it do what needs a workflow: timers, child threads, activities elsewhere. A call of such a tool is answered
with an error that says so, an event that would get a child thread of its own joins the conversation, and a tool server
is waited for without a limit.

    thread = await AgentThread.load(store, store, "t1", complete=..., dispatch=...)
    thread.put(UserMessage(id="m1", text="What is the weather in Paris?"))
    while await thread.step():
        pass

The pieces of `step` are there for loops of one's own: `history` takes contents and streamed chunks, `sync` makes
durable what was decided, and then `execute_action` runs a call.
"""

import asyncio
import secrets
from collections.abc import Awaitable, Callable, Coroutine, Iterable
from dataclasses import dataclass
from time import time  # noqa: TID251 - no workflow runs this code, and events are counted by the minute
from typing import Any, Final, Self

from temporalio.exceptions import ApplicationError

from perdure import policy
from perdure.codec import clip
from perdure.contract import (
    PREVIEW_CHARS,
    CompactResult,
    CompleteRequest,
    CompleteResult,
    DispatchResult,
)
from perdure.errors import UsageError
from perdure.history import HistoryManager
from perdure.history_state import LiveCall, OpenTurn, SubscriptionLimits
from perdure.inbox import Inbox
from perdure.inputs import AnyInput, Disposition, Event, ToolResult
from perdure.messages import Message
from perdure.ports import ConversationStore, StateStore
from perdure.records import ThreadRecord
from perdure.retries import retried
from perdure.running_calls import Dispatch, Outcome, RunningCalls, give_up
from perdure.upkeep import AfterTurn, Compact, Notify, Upkeep
from perdure.watch import View

Complete = Callable[[CompleteRequest, int], Awaitable[CompleteResult]]
"""Makes a model call as the given attempt, into the store's turn buffer: `CompleteActivities.execute`."""

REFUSALS: Final = 10
BATCH_INPUTS: Final = 500
"""Inputs that one sync takes."""


@dataclass(frozen=True)
class ReplaySnapshot:
    """A thread for a client that attaches now, in mid-stream too.

    Attributes:
        committed: the path as it is stored, oldest first.
        messages: the same with what is in flight at its end: words that stream, inputs that are not synced yet.
        seq: `ConversationStore.read_changes` goes on after this number.
    """

    committed: tuple[Message, ...]
    messages: tuple[Message, ...]
    seq: int


class AgentThread:
    """One thread of an agent, and the loop that runs it.

    Attributes:
        history: decides what becomes of everything that reaches the thread.
        refusals: why decisions about calls were refused, the last few.
        upkeep: what is done beside the loop, and what of that failed.
    """

    def __init__(
        self,
        store: ConversationStore,
        state: StateStore,
        thread: ThreadRecord,
        history: HistoryManager,
        complete: Complete,
        dispatch: Dispatch,
        upkeep: Upkeep | None = None,
    ) -> None:
        self.history = history
        self.upkeep = upkeep or Upkeep(thread)
        self.refusals: tuple[str, ...] = ()
        self._store = store
        self._state = state
        self._thread = thread
        self._complete_call = complete
        self._owner = secrets.token_hex(8)
        self._inbox = Inbox()
        self._arrived = asyncio.Event()
        self._stepping = asyncio.Lock()
        self._asked = (0, 0, 0)
        self._too_long = (0, 0)
        self._calls = RunningCalls(thread, dispatch)

    @classmethod
    async def load(
        cls,
        conversation_store: ConversationStore,
        state_store: StateStore,
        thread_id: str,
        *,
        complete: Complete,
        dispatch: Dispatch,
        notify: Notify | None = None,
        after_turn: AfterTurn | None = None,
        compact: Compact | None = None,
        agent: str | None = None,
        limits: SubscriptionLimits | None = None,
    ) -> Self:
        """Restore a thread from its two stores, in any process; with `agent`, one that is not stored yet begins.

        Raises:
            ThreadNotFound: if it is not stored and no agent is named.
        """
        if agent is not None:
            await conversation_store.create_thread(ThreadRecord(thread_id=thread_id, agent=agent))
        tail = await state_store.load_tail(thread_id)
        history = HistoryManager.from_tail(tail, limits, hooks=after_turn is not None)
        upkeep = Upkeep(tail.thread, notify, after_turn, compact)
        return cls(conversation_store, state_store, tail.thread, history, complete, dispatch, upkeep)

    # -- the loop ----------------------------------------------------------------------------------------------

    def put(self, content: AnyInput) -> Disposition | None:
        """Take an input, also while a step runs: one that interrupts stops it at once.

        Returns its disposition if that is known at once, since the same input waits already. What becomes of it
        afterwards says `history.disposition`, until `history.take_dispositions` has handed it out. Raises UsageError
        if too many wait.
        """
        if isinstance(content, Event):
            content = content.with_(at=time(), associative=True)
        known = self._inbox.put(content)
        self._arrived.set()
        return known

    async def step(self) -> bool:
        """One batch of inputs through completion, sync and dispatch, in that order.

        Returns whether there is more to do now; if not, the next input is waited for. After an error of the store
        the step can be tried again: what was decided stays, and tools that run go on. `StaleWriter` means to load
        the thread again. Who cancels a step cancels its model call and tools with it.
        """
        async with self._stepping:
            try:
                return await self._step()
            except asyncio.CancelledError:
                await self._calls.stop()
                raise

    async def close(self) -> None:
        """Cancel tools that still run, and wait for what goes on beside. The thread can be loaded and goes on."""
        await self._calls.stop()
        await self.upkeep.over()

    async def sync(self) -> None:
        """Make durable what was decided since the last sync. Safe to repeat after a failure.

        Raises:
            UnflushedTurn: if the turn buffer holds content, which would be lost.
            StaleWriter: if somebody else has written the thread.
        """
        while (batch := self.history.take_pending(self._owner)) is not None:
            self.history.synced(await self._store.append_messages(batch))
        self.upkeep.turns_ended(self.history.take_ended())

    async def execute_action(self, call: LiveCall) -> DispatchResult:
        """Run a call of the open step and take in what it returned. Safe to repeat: the tool runs once.

        Raises:
            UsageError: if something is not synced yet. The turn that made a call must be durable before the call runs,
                or its result would have nothing to belong to after a crash.
        """
        return self._take(call.call_id, await self._run(call))

    async def snapshot(self) -> ReplaySnapshot:
        """What a client that attaches now shows."""
        snapshot = await self._store.snapshot(self._thread.thread_id)
        view = View()
        view.apply(snapshot)
        streamed = tuple(message.with_(parts=view.parts(message)) for message in view.messages)
        return ReplaySnapshot(snapshot.path.messages, self.history.current_turn_view(streamed), snapshot.seq)

    async def _step(self) -> bool:
        await self._accept()
        if self.history.rests:
            tail = await self._state.load_tail(self._thread.thread_id)
            state = self.history.state
            self.history = HistoryManager.from_tail(tail, state.limits, hooks=state.hooks)
            await self.sync()
        turn = self.history.open_turn
        if turn is not None and not turn.calls:
            await self._complete(turn)
        turn = self.history.open_turn
        if turn is not None and turn.calls:
            await self._dispatch(turn)
        turn = self.history.open_turn
        works = turn is not None and not self._calls.are_outside(turn)
        # Another turn that rests may lack nothing more by now.
        return works or self._has_ready() or self.history.rests

    async def _accept(self) -> None:
        """Take inputs and make them durable. What they interrupt is stopped after that: the store may know them."""
        while True:
            was_closed = self.history.state.closed
            for _ in range(BATCH_INPUTS):
                content = self._inbox.take(self.history.phase)
                if content is None:
                    break
                self._handle(content)
                if self.history.changes_tree:
                    break
            await self.sync()
            await self._calls.give_up(call.call_id for call in self.history.take_interrupted_tool_calls())
            self.upkeep.tell_servers(self.history.take_cancelled(), closed=self.history.state.closed and not was_closed)
            if not self._has_ready():
                return

    def _handle(self, content: AnyInput) -> None:
        try:
            self.history.handle_content(content)
        except UsageError as error:
            self.refusals = (*self.refusals, str(error))[-REFUSALS:]

    def _has_ready(self) -> bool:
        return self._inbox.has_ready(self.history.phase)

    async def _wait(self, work: Iterable["asyncio.Task[Any]"], timeout_s: float | None = None) -> None:
        """Wait until some of the work is done or an input has come, and take the input."""
        self._arrived.clear()
        if not self._has_ready():
            arrival = asyncio.create_task(self._arrived.wait())
            try:
                await asyncio.wait({arrival, *work}, timeout=timeout_s, return_when=asyncio.FIRST_COMPLETED)
            finally:
                arrival.cancel()
        if self._has_ready():
            await self._accept()

    def _is_open(self, turn: OpenTurn) -> bool:
        return self.history.open_turn is not None and self.history.open_turn.turn == turn.turn

    # -- model calls -------------------------------------------------------------------------------------------

    async def _complete(self, turn: OpenTurn) -> None:
        """One model call, raced against inputs; then its step is durable."""
        if turn.running:
            self.history.discard_turn()  # an earlier `step` broke off in here
        if turn.step == 0:
            # What they keep is there when the providers are asked again. A slow one must not hold up the turn.
            if hooks := self.upkeep.hooks:
                await self._wait(hooks, policy.HOOKS_PATIENCE.total_seconds())
            if not self._is_open(turn):
                return
        number, step = self.history.begin_step()
        call = asyncio.create_task(self._ask(turn.message_id, number, step, turn.attempts))
        try:
            while not call.done():
                await self._wait([call])
                if not self._is_open(turn):
                    return
            self.history.handle_step(call.result())
            self.history.flush_turn_trimming_reasoning()
        except ApplicationError as error:
            if await self._shortened(error, turn):
                return
            if self._is_open(turn):
                self.history.fail_turn(f"The model call failed: {error.message}")
        finally:
            await give_up([call])
        await self.sync()
        if call.done() and not call.cancelled() and call.exception() is None and call.result().compact:
            self.compact(forced=False)

    def compact(self, *, forced: bool = True) -> "asyncio.Task[CompactResult] | None":
        """Make the conversation shorter for the model, beside what goes on here; None if nobody was given to do it."""
        return self.upkeep.compaction(self.history.safe_spawn_point(), forced=forced)

    async def _shortened(self, error: ApplicationError, turn: OpenTurn) -> bool:
        """Whether the model call is to be made once more, after a compaction: once for each step."""
        place = turn.turn, turn.step
        if error.type != policy.ErrorType.TOO_LONG or self._too_long == place:
            return False
        compaction = self.compact()
        if compaction is None:
            return False
        while not compaction.done():
            await self._wait([compaction])
            if not self._is_open(turn):
                return True
        # Only now: a step that is cancelled while it waits has not had its second try yet.
        self._too_long = place
        if compaction.result().outcome == "done":
            self.history.retry_step()
            return True
        return False

    async def _ask(self, message_id: str, turn: int, step: int, attempts: int) -> CompleteResult:
        request = CompleteRequest(
            thread_id=self._thread.thread_id,
            agent=self._thread.agent,
            turn=turn,
            step=step,
            attempts=attempts,
            message_id=message_id,
        )
        if self._asked[:2] != (turn, step):
            self._asked = (turn, step, attempts)

        def call() -> Awaitable[CompleteResult]:
            # Each try is an attempt of its own, so that the store refuses what an earlier one may still write.
            self._asked = (turn, step, self._asked[2] + 1)
            return self._complete_call(request, self._asked[2])

        return await retried(call, policy.COMPLETE.retry)

    # -- tool calls --------------------------------------------------------------------------------------------

    async def _dispatch(self, turn: OpenTurn) -> None:
        """Run the calls of a step that is durable, until their group is settled or only waits for the outside."""
        while (current := self.history.open_turn) and self._is_open(turn) and current.calls:
            for call in current.calls:
                if call.settled or call.awaits_approval or call.call_id in self._calls:
                    continue
                if call.outline.kind == "client":
                    self._calls.wait_outside(call.call_id)
                else:
                    self._calls.start(call.call_id, self._run(call))
            if self._calls.are_outside(current):
                return
            await self._wait(self._calls.tasks)
            for call_id, outcome in self._calls.take_done():
                self._take(call_id, outcome)
            await self.sync()

    def _run(self, call: LiveCall) -> Coroutine[Any, Any, Outcome]:
        """A call that is on its way from now on. Raises UsageError if its turn is not durable yet."""
        if self.history.state.pending:
            raise UsageError(f"The call {call.call_id} may not run yet: sync first, so that its turn is durable.")
        self.history.mark_dispatched(call.call_id)
        return self._calls.run(call)

    def _take(self, call_id: str, result: Outcome) -> DispatchResult:
        if isinstance(result, ApplicationError):
            content = f"The tool could not be run: {result.message}"
            self.history.handle_content(ToolResult(call_id=call_id, outcome="error", content=content))
            return DispatchResult(outcome="error", preview=clip(content, PREVIEW_CHARS))
        if result.outcome == "pending":
            self._calls.wait_outside(call_id)
        else:
            self.history.handle_content(ToolResult(call_id=call_id, staged=True))
        return result
