"""The tool calls of a step that is durable: each is begun in the way of its kind, and its result is taken in.

A call gets here only after the sync of the turn that made it. `ThreadWorkflow` sees to that: it comes here with the
calls of an open turn, and a turn has calls only once its step was flushed and synced, or restored from the store.
"""

import asyncio
import itertools

from temporalio import workflow

with workflow.unsafe.imports_passed_through():
    from perdure.batch import SyncReport
    from perdure.builtins import CANCEL_SUBSCRIPTION, SPAWN_THREAD
    from perdure.codec import Text, clip, dumps
    from perdure.contract import NOTIFY, SYNC, LoadResult, NotifyRequest
    from perdure.history_state import LiveCall, OpenTurn
    from perdure.inputs import ToolResult
    from perdure.policy import NOTIFY as NOTIFY_POLICY
    from perdure.records import Tail, ThreadRecord
    from workflows.attributes import Attributes, State
    from workflows.calls import Handle
    from workflows.expiry import Expiry
    from workflows.handlers import ThreadHandlers
    from workflows.results import cancelled, not_subscribed, result_of, slept_already, timed_out
    from workflows.run_length import ACTIVITY, TASK
    from workflows.stored import stored

RESULTS_BYTES = 400_000
"""Results of others' activities that one sync takes. One may have 1.6 MB as JSON; a payload has 2 MB at most."""


class ThreadDispatch(ThreadHandlers):
    """Runs the calls of the open step, and whatever follows from a decision without being waited for."""

    def __init__(self) -> None:
        super().__init__()
        self._loaded = LoadResult(tail=Tail(thread=ThreadRecord(thread_id=self._thread_id, agent="")))
        self._attributes = Attributes(self._loaded.tail.thread, enabled=False)
        self._expiry = Expiry()
        self._refusals: dict[tuple[str, str | None], Text] = {}

    async def _dispatch(self, turn: OpenTurn) -> None:
        """Run the calls of a step that is durable, and take in results until its group is settled.

        The turn's step was synced before `turn.calls` could hold anything: `_complete` ends with that sync, and a
        restored turn comes from the store.
        """
        for call in turn.calls:
            if call.awaits_approval:
                self._await_approval(call)
            elif not call.dispatched and not call.settled and not _is_held(turn, call):
                self._start_call(call)
                self._length.add(ACTIVITY)
        self._length.add(TASK)
        # When a sleeper is to wake is durable before anything is waited for: whoever takes the thread over goes by it.
        await self._sync()
        self._show("running")
        # Not only with the first result: a sleeper's time and the end of a subscription wait for no slow tool beside.
        await self._sync()
        self._follow_up()
        await workflow.wait_condition(lambda: self._has_ready() or not self._calls.running or self._calls.has_done())
        await self._collect()

    def _await_approval(self, call: LiveCall) -> None:
        """Wait for somebody to decide, until the question expires if it does."""
        if self._calls.is_asking(call.call_id):
            return
        assert call.outline.approval is not None
        due, expires_s = call.due, call.outline.approval.expires_s
        if due is None and expires_s is not None:
            due = workflow.now().timestamp() + expires_s
            self._history.ask(call.call_id, due)
        self._calls.wait_for_approval(call, due)

    def _start_call(self, call: LiveCall) -> None:
        """Begin a call whose turn is durable, in the way of its kind."""
        due: float | None = call.due
        match call.outline.kind:
            case "client":
                self._calls.wait_outside(call.call_id)
            case "workflow":
                if call.outline.operation == CANCEL_SUBSCRIPTION:
                    self._history.handle_content(self._cancel_subscription(call))
                    return
                due = self._sleep(call)
                if due is not None and due <= workflow.now().timestamp():
                    return
            case "activity":
                self._calls.start_remote(call)
                # The step's outline has brought them, and the activity takes them along.
                self._length.add(0, 2 * len(call.outline.arguments or ""))
            case "thread" if call.outline.operation == SPAWN_THREAD:
                self._spawn(call)
            case _:
                self._calls.dispatch(call, self._thread_id, self._agent)
        self._history.mark_dispatched(call.call_id, due)

    def _cancel_subscription(self, call: LiveCall) -> ToolResult:
        target = call.argument("tool_call_id")
        is_active = any(known.call_id == target for known in self._history.state.subscriptions)
        self._history.cancel_subscription(target)
        return cancelled(call, target) if is_active else not_subscribed(call, target)

    def _sleep(self, call: LiveCall) -> float | None:
        """Start the timer of a sleeper; returns when it wakes, None if only events and inputs wake it."""
        timer = call.outline.timer
        if timer is None:
            self._calls.wait_outside(call.call_id)
            return None
        now = workflow.now().timestamp()
        due = call.due or timer.due or now + (timer.seconds or 0.0)
        if due <= now:
            # With a time of its own it was started by an owner before: then it was not past when the call was made.
            self._history.handle_content(timed_out(call) if call.due else slept_already(call))
        else:
            self._calls.wait_until(call, due)
        return due

    def _spawn(self, call: LiveCall) -> None:
        def is_wanted() -> bool:
            live = self._live_call(call.call_id)
            return live is not None and not live.settled

        task = self._children.spawn(self._agent, call.call_id, self._history.safe_spawn_point(), is_wanted)
        # Shielded: whoever stops waiting for the call does not keep the child from being started or stopped.
        self._calls.run(call.call_id, asyncio.shield(task))

    async def _collect(self) -> None:
        """Take in the results of what has ended, and make them durable."""
        size = 0
        # What is left is taken in after these are durable.
        while size < RESULTS_BYTES and (done := self._calls.take_done()) is not None:
            size += self._take_result(*done)
        self._length.add(0, size)
        for call_id in self._calls.take_due():
            if call := self._live_call(call_id):
                self._history.handle_content(timed_out(call))
        await self._sync()
        # A call that has expired or was answered from outside may still have something behind it.
        self._calls.stop_settled(self._history.open_turn)
        self._follow_up()

    def _take_result(self, call_id: str, handle: Handle) -> int:
        """Returns how many bytes of it the next sync carries: none if it is staged or comes from outside."""
        call = self._live_call(call_id)
        result, dispatched = result_of(call_id, handle)
        if result is None:
            self._wait_outside(call_id, call, dispatched.expires_s)
            return 0
        self._history.handle_content(result)
        if dispatched.closed:
            self._history.close_thread()
        if call and dispatched.preview:
            mark = "" if dispatched.outcome == "ok" else "failed: "
            self._board.line(f"Tool {clip(call.outline.tool, 64)}", mark + dispatched.preview)
        return len(dumps(result.content))

    def _wait_outside(self, call_id: str, call: LiveCall | None, expires_s: float | None) -> None:
        """The result comes from outside; some day it is not waited for any more, if a time is given."""
        self._calls.wait_outside(call_id)
        if call is None or (call.due is None and expires_s is None):
            return
        due = call.due or workflow.now().timestamp() + (expires_s or 0.0)
        self._calls.wait_until(call, due)
        self._history.mark_dispatched(call_id, due)

    def _notify(self, call_ids: tuple[str, ...], *, closed: bool = False) -> None:
        """Tell the agent's tool servers that nobody waits for calls any more; not waited for, and never repeated."""
        if not self._loaded.servers:
            return
        work = workflow.execute_activity(
            NOTIFY,
            NotifyRequest(thread_id=self._thread_id, agent=self._agent, call_ids=call_ids, closed=closed),
            start_to_close_timeout=NOTIFY_POLICY.start_to_close,
            retry_policy=NOTIFY_POLICY.retry,
            summary="tell tool servers: closed" if closed else "tell tool servers: given up",
        )
        self._background.start(work, "Tool servers were not told")

    def _follow_up(self) -> None:
        """Begin what durable decisions entail and the loop does not wait for."""
        if self._history.state.closed and self._loaded.tail.thread.closed_at is None:
            self._children.close()
        for spawn in self._history.take_spawns():
            self._children.spawn_for_event(self._agent, spawn)
        cancelled = self._history.take_cancelled()
        if cancelled:
            self._notify(cancelled)

    def _live_call(self, call_id: str) -> LiveCall | None:
        turn = self._history.open_turn
        return next((call for call in turn.calls if call.call_id == call_id), None) if turn else None

    def _wait_for_dispatched(self) -> None:
        """Go on waiting for calls that an owner before has dispatched, and that nothing here runs."""
        for call in self._history.open_turn.calls if self._history.open_turn else ():
            if not call.dispatched or call.settled:
                continue
            self._calls.wait_outside(call.call_id)
            if call.due is not None:
                self._calls.wait_until(call, call.due)

    def _has_ready(self) -> bool:
        return self._mailbox.inbox.has_ready(self._history.phase)

    async def _sync(self) -> None:
        """Make everything durable that was decided since the last sync."""
        while (batch := self._history.take_pending(workflow.info().run_id)) is not None:
            self._length.add()
            report = await stored(SYNC, batch, SyncReport, f"sync {batch.number}")
            for refused in self._history.synced(report):
                if refused.detail is not None or refused.message_id == "":
                    self._refusals[refused.input_id, refused.message_id] = refused.detail or ""
            if report.tree is not None and report.tree.untitled:
                # Reports of older releases do not say so: their histories replay.
                self._forget_title()
        for ended in self._history.take_ended():
            self._hooks.begin(self._agent, ended)

    def _forget_title(self) -> None:
        tail = self._loaded.tail
        self._loaded = self._loaded.with_(tail=tail.with_(thread=tail.thread.with_(title=None)))
        self._attributes.forget_title()

    def _show(self, state: State | None) -> None:
        self._board.show(self.status(), self._attributes, state)


def _is_held(turn: OpenTurn, call: LiveCall) -> bool:
    """Whether mail to another thread has to wait: it goes out in call order, and nothing overtakes the last report."""
    before = itertools.takewhile(lambda other: other.call_id != call.call_id, turn.calls)
    return _is_mail(call) and any(_is_mail(other) and not other.settled for other in before)


def _is_mail(call: LiveCall) -> bool:
    return call.outline.kind == "thread" and call.outline.operation != SPAWN_THREAD
