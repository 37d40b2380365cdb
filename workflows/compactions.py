"""Compactions of a thread's conversation, as the thread sees them: begun beside it, and heard of when they are over.

Each runs in a workflow of its own, one at a time for a thread, whose id says so. The thread does not hold it: it lives
on when the thread continues as new or hibernates, and what it brings is in the store, where the next model call finds
it. What comes back here is only how it went.
"""

from temporalio import workflow
from temporalio.exceptions import WorkflowAlreadyStartedError

with workflow.unsafe.imports_passed_through():
    from perdure import ids
    from perdure.codec import Text, Wire
    from perdure.contract import COMPACTION_TYPE, CompactRequest, CompactResult
    from perdure.history_state import SpawnPoint
    from perdure.policy import WORKFLOW_TASK_TIMEOUT
    from workflows.background import Background
    from workflows.board import Board
    from workflows.calls import seen
    from workflows.run_length import CHILD, SIGNAL, TASK, RunLength

FAILURES = 3
"""Failures in a row after which people are told: a single one may be a passing fault of a provider."""

TURNS = 20
"""Turns after which another one may begin though nothing was heard of the last: its workflow may have been ended."""


class CompactionState(Wire):
    """What a run hands on: how many were begun, in which turn the one that runs was, how many failed in a row.

    `running` is 0 if none runs.
    """

    begun: int = 0
    running: int = 0
    failures: int = 0


class Compactions:
    """Begins compactions of one thread, and keeps how they went."""

    def __init__(self, thread_id: str, background: Background, board: Board, length: RunLength) -> None:
        self._thread_id = thread_id
        self._background = background
        self._board = board
        self._length = length
        self.state = CompactionState()
        self.last: CompactResult | None = None

    @property
    def running(self) -> bool:
        """Whether one is under way."""
        return self.state.running > 0

    def begin(self, agent: str, point: SpawnPoint, turn: int, *, forced: bool) -> None:
        """Begin one, unless one is under way: what stands before the point is made shorter."""
        if point.message_id is None or (self.state.running > 0 and turn < self.state.running + TURNS):
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
        self._background.start(self._start(request), "The conversation was not compacted")

    def take(self, result: CompactResult) -> None:
        """One is over."""
        self._length.add(SIGNAL + TASK)
        self.state = self.state.with_(running=0)
        self.last = result
        match result.outcome:
            case "done":
                self.state = self.state.with_(failures=0)
                self._board.line("Compaction", f"{result.covered} messages are summed up for the model.")
            case "failed" | "empty":
                self._failed(result.detail or "the summariser said nothing.")
            case "nothing" | "void":
                pass

    def _failed(self, why: Text) -> None:
        self.state = self.state.with_(failures=self.state.failures + 1)
        if self.state.failures >= FAILURES:
            self._board.problem(
                f"The conversation could not be compacted, {self.state.failures} times in a row: {why}",
                about="compaction",
            )

    async def _start(self, request: CompactRequest) -> None:
        self._length.add(CHILD)
        try:
            handle = await workflow.start_child_workflow(
                COMPACTION_TYPE,
                request,
                id=ids.compaction_id(self._thread_id),
                task_timeout=WORKFLOW_TASK_TIMEOUT,
                parent_close_policy=workflow.ParentClosePolicy.ABANDON,
                cancellation_type=workflow.ChildWorkflowCancellationType.ABANDON,
            )
        except WorkflowAlreadyStartedError:
            # Begun by a run before this one; its signal comes here.
            return
        handle.add_done_callback(seen)
