"""Child threads: made in the store by an activity, then started as child workflows.

A parent does not hold its children: they live on when it continues as new, hibernates or ends, and all that goes
between them are signals. So what is known here of a child is over as soon as it has started.
"""

import asyncio
from collections.abc import Callable

from temporalio import workflow
from temporalio.exceptions import WorkflowAlreadyStartedError

with workflow.unsafe.imports_passed_through():
    from perdure import ids
    from perdure.contract import (
        SPAWN,
        STOP_CHILDREN,
        WORKFLOW_TYPE,
        SpawnRequest,
        SpawnResult,
        StopChildrenRequest,
        ThreadStart,
    )
    from perdure.history_state import Spawn, SpawnPoint
    from perdure.policy import SPAWN as POLICY
    from perdure.policy import WORKFLOW_TASK_TIMEOUT
    from workflows.background import Background
    from workflows.calls import seen
    from workflows.run_length import ACTIVITY, CHILD, TASK, RunLength


class Children:
    """Makes, starts and stops the child threads of one thread."""

    def __init__(self, thread_id: str, background: Background, length: RunLength) -> None:
        self._thread_id = thread_id
        self._background = background
        self._length = length
        self._stops = 0
        self._making = 0
        self._is_closed = False
        self.any = False

    def spawn(
        self, agent: str, call_id: str, point: SpawnPoint, is_wanted: Callable[[], bool]
    ) -> "asyncio.Task[SpawnResult]":
        """Make and start the child that a call asks for. Returns what to answer.

        The task is not to be cancelled: what was made must be started or stopped, whoever still waits for it.
        """
        request = SpawnRequest(
            thread_id=self._thread_id, agent=agent, call_id=call_id, message_id=point.message_id, parts=point.parts
        )
        return self._background.start(
            self._spawned(request, is_wanted, "a child thread"), "A child thread was not made"
        )

    def spawn_for_event(self, agent: str, spawn: Spawn) -> None:
        """Make and start the child that handles an event."""
        request = SpawnRequest(
            thread_id=self._thread_id,
            agent=agent,
            call_id=spawn.event.call_id,
            message_id=spawn.point.message_id,
            parts=spawn.point.parts,
            event=spawn.event,
            origin=spawn.origin,
        )
        what = f"The event {spawn.event.id} was lost, since no child thread was made for it"
        # Of a stream of them one is shown, with their number.
        self._background.start(self._spawned(request, lambda: True, "a child thread for an event"), what, "events lost")

    def start_unstarted(self, thread_ids: tuple[str, ...]) -> None:
        """Start children that an owner before made, and vanished before it could start them."""
        for thread_id in thread_ids:
            what = f"The child thread {thread_id} was not started"
            self._background.start(self._start(thread_id, ThreadStart()), what, "children not started")

    def stop(self, reason: str | None) -> None:
        """Interrupt all children, and the ones that are just being made: they never start (case B11)."""
        self._stops += 1
        if self.any:
            request = StopChildrenRequest(thread_id=self._thread_id, reason=reason)
            self._background.start(self._stop(request), "Child threads were not stopped")

    def close(self) -> None:
        """The thread is closed: nobody would hear its children any more, and no stop would reach them through it."""
        if not self._is_closed:
            self._is_closed = True
            self.stop("The parent thread was closed.")

    @property
    def making(self) -> bool:
        """Whether any child is being made or started."""
        return self._making > 0

    async def _spawned(self, request: SpawnRequest, is_wanted: Callable[[], bool], summary: str) -> SpawnResult:
        self._making += 1
        try:
            return await self._made(request, is_wanted, summary)
        finally:
            self._making -= 1

    async def _made(self, request: SpawnRequest, is_wanted: Callable[[], bool], summary: str) -> SpawnResult:
        self.any = True
        self._length.add(ACTIVITY + TASK)
        stops = self._stops
        result: SpawnResult = await workflow.execute_activity(
            SPAWN,
            request,
            result_type=SpawnResult,
            start_to_close_timeout=POLICY.start_to_close,
            retry_policy=POLICY.retry,
            summary=summary,
        )
        if result.start is None:
            return result
        if self._stops == stops and is_wanted():
            await self._start(result.thread_id, result.start)
        else:
            # The stop came while the child was made, so it was not there to be stopped with the others.
            await self._stop(StopChildrenRequest(thread_id=self._thread_id, child=result.thread_id))
        return result

    async def _start(self, thread_id: str, start: ThreadStart) -> None:
        self._length.add(CHILD)
        try:
            handle = await workflow.start_child_workflow(
                WORKFLOW_TYPE,
                start,
                id=ids.workflow_id(thread_id),
                task_timeout=WORKFLOW_TASK_TIMEOUT,
                parent_close_policy=workflow.ParentClosePolicy.ABANDON,
                cancellation_type=workflow.ChildWorkflowCancellationType.ABANDON,
                memo={"title": start.title} if start.title else None,
                # Not its title: that is made of words, which can be deleted, and this cannot.
                static_summary="child thread",
            )
        except WorkflowAlreadyStartedError:
            # A message to the child has woken it already.
            return
        handle.add_done_callback(seen)

    async def _stop(self, request: StopChildrenRequest) -> None:
        self._length.add(ACTIVITY + TASK)
        await workflow.execute_activity(
            STOP_CHILDREN,
            request,
            start_to_close_timeout=POLICY.start_to_close,
            retry_policy=POLICY.retry,
            summary="stop a child thread" if request.child else "stop all child threads",
        )
