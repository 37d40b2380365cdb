"""Compactions of a thread's conversation, as the thread sees them: begun beside it, and heard of when they are over.

Each runs in a workflow of its own, one at a time for a thread, whose id says so. The thread does not hold it: it lives
on when the thread continues as new or hibernates, and what it brings is in the store, where the next model call finds
it. What comes back here is only how it went.
"""

import asyncio
from datetime import timedelta
from typing import Any

from temporalio import workflow
from temporalio.exceptions import WorkflowAlreadyStartedError

with workflow.unsafe.imports_passed_through():
    from perdure import ids
    from perdure.codec import Text, Wire
    from perdure.compaction import ENDED
    from perdure.contract import COMPACTION_TYPE, Compacting, CompactRequest, CompactResult
    from perdure.history_state import SpawnPoint
    from perdure.policy import WORKFLOW_TASK_TIMEOUT
    from workflows.background import Background
    from workflows.board import Board
    from workflows.run_length import CHILD, SIGNAL, TASK, TIMER, RunLength

FAILURES = 3
"""Failures in a row after which people are told: a single one may be a passing fault of a provider."""

TURNS = 20
"""Turns after which another one may begin though nothing was heard of the last: its workflow may have been ended, and
Temporal tells that only the run that began it."""

STARTS = 5
FIRST_WAIT_S = 0.2
"""How often one is tried to begin while another has its name, and how long the first wait is; each is twice the one
before. One that has just told how it went still closes, and that is a matter of moments."""

REST = 5
"""Long requests for which none is begun after one that found nothing to leave out: instructions and tools may fill a
window by themselves, and every request would begin another one."""

_ABOUT = "compaction"
"""What problems with compactions are about: they are over with the first that is done."""


class CompactionState(Wire):
    """What a run hands on: how many were begun, in which turn the one that runs was, how many failed in a row.

    `running` is 0 if none runs. For the next `rests` long requests none is begun. `expected`: a turn waits for it.
    """

    begun: int = 0
    running: int = 0
    failures: int = 0
    rests: int = 0
    expected: bool = False


class Compactions:
    """Begins compactions of one thread, and keeps how they went."""

    def __init__(self, thread_id: str, background: Background, board: Board, length: RunLength) -> None:
        self._thread_id = thread_id
        self._background = background
        self._board = board
        self._length = length
        self._start_up: asyncio.Future[Any] | None = None
        self._child: workflow.ChildWorkflowHandle[Any, CompactResult] | None = None
        self.state = CompactionState()
        self.last: CompactResult | None = None

    @property
    def running(self) -> bool:
        """Whether one is under way."""
        return self.state.running > 0

    @property
    def expected(self) -> bool:
        """Whether a turn has yet to take the outcome of one."""
        return self.state.expected

    def expect(self) -> None:
        """A turn waits for the one that is under way."""
        self.state = self.state.with_(expected=True)

    def take_last(self) -> CompactResult | None:
        """The outcome of the last one, which nobody else is to take; None if there is none."""
        last, self.last = self.last, None
        self.state = self.state.with_(expected=False)
        return last

    async def under_way(self) -> Compacting:
        """The one that somebody has just asked for, as soon as it has begun."""
        await workflow.wait_condition(lambda: self._start_up is None or self._start_up.done())
        if not self.running:
            return Compacting(result=self.last or CompactResult(outcome="nothing"))
        child = self._child if self._is_held else None
        return Compacting(run_id=child.first_execution_run_id if child else None)

    def begin(self, agent: str, point: SpawnPoint, turn: int, *, forced: bool) -> None:
        """Begin one, unless one is under way: what stands before the point is made shorter.

        Of one that a run before has begun it is not known whether it was ended from outside. If it matters, `forced`,
        another one is tried to begin, which the name that they share refuses as long as the first runs.
        """
        if point.message_id is None or self._is_held:
            return
        if self.expected and self.last is not None:
            # The turn that waits is about to take this, and whoever asks now is served by it as well.
            return
        if not forced and self._is_recent(turn):
            return
        if not forced and self.state.rests > 0:
            self.state = self.state.with_(rests=self.state.rests - 1)
            return
        self.state = self.state.with_(begun=self.state.begun + 1, running=max(turn, 1))
        self.last = None
        request = CompactRequest(
            thread_id=self._thread_id,
            agent=agent,
            message_id=point.message_id,
            parts=point.parts,
            number=self.state.begun,
            forced=forced,
        )
        # A turn that waits for the one that runs asks again later.
        work = self._start(request, 1 if self.expected else STARTS)
        self._start_up = self._background.start(work, "The conversation was not compacted", _ABOUT)

    def take(self, result: CompactResult) -> None:
        """One is over."""
        self._length.add(SIGNAL + TASK)
        self.state = self.state.with_(running=0)
        self.last = result
        match result.outcome:
            case "done":
                self.state = self.state.with_(failures=0)
                self._board.works(_ABOUT)
                self._board.line("Compaction", f"{result.covered} messages are summed up for the model.")
            case "failed" | "empty":
                self._failed(result.detail or "the summariser said nothing.")
            case "nothing":
                self.state = self.state.with_(rests=REST)
                self._board.line("Compaction", "There is nothing that could be left out.")
            case "void":
                pass

    def _failed(self, why: Text) -> None:
        self.state = self.state.with_(failures=self.state.failures + 1)
        self._board.line("Compaction", f"failed: {why}")
        if self.state.failures >= FAILURES:
            self._board.problem(
                f"The conversation could not be compacted, {self.state.failures} times in a row: {why}",
                _ABOUT,
            )

    @property
    def _is_held(self) -> bool:
        """Whether the one under way was begun by this run, which is told of its end whatever happens to it."""
        begun = (self._start_up, self._child)
        return self.running and any(work is not None and not work.done() for work in begun)

    def _is_recent(self, turn: int) -> bool:
        return self.running and turn < self.state.running + TURNS

    async def _start(self, request: CompactRequest, tries: int) -> None:
        for tried in range(tries):
            self._length.add(CHILD)
            try:
                self._child = child = await workflow.start_child_workflow(
                    COMPACTION_TYPE,
                    request,
                    id=ids.compaction_id(self._thread_id),
                    result_type=CompactResult,
                    task_timeout=WORKFLOW_TASK_TIMEOUT,
                    parent_close_policy=workflow.ParentClosePolicy.ABANDON,
                    cancellation_type=workflow.ChildWorkflowCancellationType.ABANDON,
                    static_summary="make the conversation shorter for the model",
                )
            except WorkflowAlreadyStartedError:
                self._length.add(TIMER)
                await workflow.sleep(timedelta(seconds=FIRST_WAIT_S * 2**tried), summary="another one still runs")
                if not self.running:
                    return
            else:
                child.add_done_callback(lambda child: self._ended(request.number, child))
                return
        # Begun by a run before this one; its signal comes here.

    def _ended(self, number: int, child: "asyncio.Future[CompactResult]") -> None:
        """The workflow is over. If it has told how it went, as it does before it ends, nothing is left to do."""
        if child.cancelled():
            return
        is_lost = child.exception() is not None
        if self.running and self.state.begun == number:
            self.take(CompactResult(outcome="failed", detail=ENDED) if is_lost else child.result())
