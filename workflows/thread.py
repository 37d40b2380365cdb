"""ThreadWorkflow: one conversation thread. It owns the order of things and nothing else.

What is decided is in `perdure.history` and `perdure.inbox`, what is done is in `activities`. The order is this:

    inputs are synced before anything acts on them
    a step is synced before any tool call of it is dispatched
    all results of a step are synced before the next model call

Handlers only put into the mailbox; the one loop takes from it, also while it waits for a model or a tool. So there is
one writer, and every wait can be interrupted.
"""

import asyncio
from datetime import timedelta
from typing import Any

from temporalio import workflow
from temporalio.exceptions import ActivityError, ApplicationError

with workflow.unsafe.imports_passed_through():
    from perdure import ids
    from perdure.codec import Text, Wire, dumps
    from perdure.contract import (
        COMPLETE,
        WORKFLOW_TYPE,
        CompleteRequest,
        CompleteResult,
        LoadResult,
        ThreadStart,
    )
    from perdure.details import Line
    from perdure.errors import UsageError
    from perdure.history import HistoryManager
    from perdure.history_state import EndedTurn, HistoryState, OpenTurn
    from perdure.inputs import AnyInput, Interrupt
    from perdure.policy import COMPLETE as COMPLETE_POLICY
    from perdure.policy import ErrorType
    from workflows.attributes import Attributes
    from workflows.calls import seen
    from workflows.compactions import CompactionState
    from workflows.durability import PAYLOAD_BYTES
    from workflows.failure import model_failure
    from workflows.handlers import refusal
    from workflows.parent import tell_parent
    from workflows.problems import Problems
    from workflows.run_length import ACTIVITY, TASK, TIMER
    from workflows.shortening import ThreadShortening


class Carried(Wire):
    """What a run hands to the next one over continue-as-new."""

    agent: str
    loaded: LoadResult
    history: HistoryState
    waiting: tuple[AnyInput, ...] = ()
    lines: tuple[Line, ...] = ()
    problems: tuple[Text, ...] = ()
    noted: Problems = Problems()
    children: bool = False
    compactions: CompactionState = CompactionState()
    shortened: tuple[int, int] | None = None
    hooks: tuple[EndedTurn, ...] = ()


@workflow.defn(name=WORKFLOW_TYPE)
class ThreadWorkflow(ThreadShortening):
    """One conversation thread, workflow id `thread:{thread_id}`."""

    # -- the loop ----------------------------------------------------------------------------------------------

    @workflow.run
    async def run(self, start: Any = None, carried: Carried | None = None) -> None:
        """Live until there is nothing to do for a long time; the next input starts the workflow again."""
        try:
            await self._restore(start, carried)
            self._idle = self._idle_timer()
            while True:
                try:
                    if not await self._advance():
                        return
                    self._failures = 0
                except Exception as error:  # a refused sync or a bug is one turn's trouble and never the task's
                    await self._recover(error)
        except asyncio.CancelledError:
            await self._cancel()
            raise

    async def _advance(self) -> bool:
        """One move of the thread; False if it is time to hibernate."""
        # What was decided while the thread was loaded is durable before anything rests on it.
        if expired := self._expiry.take():
            self._history.expire(expired)
        await self._sync()
        # What is shown may be a turn that rests: it is loaded before anything else comes, a stop above all. So is one
        # that lacks nothing more, if none works.
        while self._has_ready() and not self._history.rests and not self._is_history_long():
            if self._is_history_full():
                # Events may come faster than their child threads are made, and each makes the run longer: so no more
                # are taken until those that are under way are made. That is a matter of moments.
                await workflow.wait_condition(lambda: not self._children.making)
            if not self._is_history_long():
                await self._accept()
        if self._history.rests:
            # Before a new run: what waits for it has senders who wait, and no run ends while they do.
            await self._load(ThreadStart())
            return True
        if self._is_history_long():
            await self._continue_as_new()
        if self._history.state.closed:
            return await self._leave()
        if self._history.rests:
            return True
        turn = self._history.open_turn
        if turn is None or self._calls.wait_only_outside(turn):
            return await self._wait()
        if turn.calls:
            await self._dispatch(turn)
        elif self._is_shortening(turn):
            await self._shorten()
        else:
            await self._complete(turn)
        return True

    async def _restore(self, start: Any, carried: Carried | None) -> None:
        if ids.workflow_id(self._thread_id) != workflow.info().workflow_id:
            raise ApplicationError(
                f"The workflow id {workflow.info().workflow_id!r} is not a thread's: start it as "
                f"{ids.workflow_id(self._thread_id)!r}. Two workflows of one thread would get in each other's way.",
                type=ErrorType.USAGE,
                non_retryable=True,
            )
        if carried is None:
            try:
                request = ThreadStart.read(start)
            except UsageError as error:
                raise refusal(error) from error
            await self._load(request)
        else:
            self._agent, self._loaded = carried.agent, carried.loaded
            self._history = HistoryManager(carried.history)
            # Signals of this run may have come before its first line ran; what was carried is older.
            put = self._mailbox.put_carried if self._loaded.revision > 5 else self._mailbox.put_first
            put(carried.waiting)
            self._board.restore(carried.lines, carried.problems, carried.noted)
            self._children.any = carried.children
            self._compactions.state = carried.compactions
            self._shortened = carried.shortened
            for ended in carried.hooks:
                self._hooks.begin(self._agent, ended)
            self._wait_for_dispatched()
        self._is_loaded = True
        self._attributes = Attributes(self._loaded.tail.thread, enabled=self._loaded.search_attributes)

    async def _complete(self, turn: OpenTurn) -> None:
        """One model call, raced against inputs; then its step is durable."""
        if turn.step == 0:
            await self._hooks.over(self._has_ready)
            if self._has_ready():
                return
        number, step = self._history.begin_step()
        self._length.add(ACTIVITY + TASK)
        self._show("running" if step else None)
        self._model_call = model_call = workflow.start_activity(
            COMPLETE,
            CompleteRequest(
                thread_id=self._thread_id,
                agent=self._agent,
                turn=number,
                step=step,
                attempts=turn.attempts,
                # A turn that came in from outside has a message of another id than a turn of ours.
                message_id=None if self._is_ours(turn) else turn.message_id,
            ),
            result_type=CompleteResult,
            start_to_close_timeout=timedelta(seconds=self._loaded.model_timeout_s),
            heartbeat_timeout=COMPLETE_POLICY.heartbeat,
            retry_policy=COMPLETE_POLICY.retry,
            cancellation_type=workflow.ActivityCancellationType.TRY_CANCEL,
            summary=f"turn {number} · step {step + 1} · {self._loaded.model}",
        )
        model_call.add_done_callback(seen)
        while not model_call.done():
            await workflow.wait_condition(lambda: model_call.done() or self._has_ready())
            if self._has_ready():
                await self._accept()
                if self._is_closed(turn):
                    model_call.cancel()
                    return
        try:
            outline = model_call.result()
        except ActivityError as error:
            if self._may_shorten(error, turn):
                return
            self._fail(model_failure(error))
        else:
            self._history.handle_step(outline)
            self._history.flush_turn_trimming_reasoning()
            self._board.step(outline)
            self._board.problems_of(outline)
        await self._sync()
        if self._loaded.revision > 2:
            self._active_at = workflow.now()
        if model_call.exception() is None and model_call.result().compact:
            self._compact(forced=False)

    # -- durability --------------------------------------------------------------------------------------------

    async def _cancel(self) -> None:
        """The workflow is cancelled from outside: keep every input that came, leave no turn open and no child at work.

        What was on its way when the cancellation came goes first and unchanged, so that the store knows it again.
        """
        if self._model_call is not None:
            self._model_call.cancel()
        self._calls.stop_all()
        while True:
            try:
                await self._sync()
                while self._batch or self._history.open_turn is not None or self._has_ready():
                    self._history.handle_content(Interrupt(reason="The workflow was cancelled."))
                    await self._accept()
                self._children.stop("The workflow of the parent thread was cancelled.")
                await workflow.wait_condition(lambda: not self._background.busy)
                # A slow one must not keep the run: it would cancel whatever is said to it meanwhile.
                await self._hooks.over(self._has_ready)
                if not self._has_ready():
                    return
            except Exception as error:  # as in `run`
                await self._recover(error)

    def _is_history_long(self) -> bool:
        """Whether the run is to end: it is full, and what nobody waits for is over.

        Hooks are waited for until it is twice as long, and are then begun again by the next run.
        """
        if not self._is_history_full() or self._background.busy:
            return False
        return not self._hooks.busy or self._length.is_over(self._loaded.history_events, times=2)

    def _is_history_full(self) -> bool:
        """Whether the run is to take nothing more: its history is long, no call runs, and what waits can be carried.

        What it was carried itself does not count: a run that began with much would end at once, and the next one too.
        """
        is_over = self._length.is_over(self._loaded.history_events)
        return is_over and not self._calls.running and self._can_carry()

    def _can_carry(self) -> bool:
        return len(dumps(self._mailbox.inbox.waiting)) <= PAYLOAD_BYTES

    async def _continue_as_new(self) -> None:
        """Hand everything to a new run, between two steps.

        Handlers that wait for their message's disposition get it from `_accept`, so they end; inputs that nobody
        waits for are carried. The timer ends the workflow task: its local activities are recorded, and not run again
        if the closing task is refused because a signal came in. Nothing is awaited after the inbox was read, so no
        signal can slip in between. If a next sender is always quicker than the timer, senders are asked to try again:
        their handlers would keep this run from its end until Temporal takes no more updates. What an input begins here
        in the background, a child thread for one, would be cut off by the end; then this run goes on instead.
        """
        while True:
            while not workflow.all_handlers_finished() and not self._background.busy:
                await self._accept()
                if self._history.rests:
                    self._is_leaving = False
                    return
                await workflow.wait_condition(
                    lambda: workflow.all_handlers_finished() or self._has_ready() or self._background.busy
                )
            if self._background.busy:
                break
            await workflow.sleep(0.001, summary="before continue-as-new")
            if workflow.all_handlers_finished():
                break
            self._is_leaving = True
        self._is_leaving = False
        if not self._can_carry() or self._background.busy:
            # More came in meanwhile, or something has been begun: this run goes on until enough of it is worked off.
            return
        carried = Carried(
            agent=self._agent,
            loaded=self._loaded,
            # Accepted ids stay behind: the store judges them in any case, and they would weigh 20 KB in two events.
            history=self._history.state.with_(processed={}),
            waiting=self._mailbox.inbox.waiting,
            lines=self._board.lines,
            noted=self._board.noted,
            children=self._children.any,
            compactions=self._compactions.state,
            shortened=self._shortened,
            hooks=self._hooks.pending,
        )
        workflow.continue_as_new(args=[None, carried], memo=self._attributes.memo)

    # -- waiting -----------------------------------------------------------------------------------------------

    async def _leave(self) -> bool:
        """The thread is closed: tell everybody, and end the workflow."""
        self._show("closed")
        if self._loaded.tail.thread.closed_at is None:
            # Else it was closed before this run, which only turns away what has come since.
            self._notify((), closed=True)
            if self._history.state.dismissed:
                tell_parent(self._loaded.tail.thread, self._background)
        while True:
            # Whoever waits for an answer gets it at once, and a stop that is meant for child threads is passed on:
            # hooks that hang keep neither waiting.
            await workflow.wait_condition(
                lambda: self._has_ready() or (not self._is_busy and workflow.all_handlers_finished())
            )
            if not self._has_ready():
                return False
            # A stop is passed on to child threads by a closed thread too.
            await self._accept()

    @property
    def _is_busy(self) -> bool:
        return self._background.busy or self._hooks.busy

    @property
    def _is_timed(self) -> bool:
        return self._calls.timed or self._expiry.is_set

    async def _wait(self) -> bool:
        """Wait for an input; False if none came for so long that the thread may hibernate."""
        self._show("waiting" if self._history.open_turn else "idle")
        self._expiry.watch(self._history.state.deadline)
        # With a timer of a call set, the thread stays: waking up to see that, hour after hour, would fill the history.
        # What has to wait makes the run longer too, and a run that is full would refuse the result that it waits for.
        await workflow.wait_condition(
            lambda: (
                self._has_ready()
                or self._calls.has_done()
                or (self._idle.done() and not self._is_timed)
                or self._expiry.is_over
                or self._is_history_long()
            )
        )
        if self._calls.has_done():
            await self._collect()
            return True
        if self._has_ready() or self._expiry.is_over or self._is_history_long():
            return True
        if self._is_idle():
            return False
        self._length.add(TIMER + TASK)
        self._idle = self._idle_timer()
        return True

    def _idle_timer(self) -> "asyncio.Task[None]":
        # One timer for as long as the thread idles, looked at when it fires: restarting it with every turn would cost
        # two events each.
        left = timedelta(seconds=self._loaded.idle_s) - (workflow.now() - self._active_at)
        if left <= timedelta():
            # Something keeps the thread from hibernating, an input that waits for instance: look again much later.
            left = timedelta(seconds=self._loaded.idle_s)
        return asyncio.create_task(workflow.sleep(left, summary="until hibernation"))

    def _is_idle(self) -> bool:
        idle_for = workflow.now() - self._active_at
        return (
            idle_for >= timedelta(seconds=self._loaded.idle_s)
            and not len(self._mailbox.inbox)
            and not self._calls.running
            and not self._is_timed
            and not self._is_busy
            and workflow.all_handlers_finished()
        )

    def _is_ours(self, turn: OpenTurn) -> bool:
        return turn.message_id == ids.turn_message_id(self._thread_id, turn.turn)
