"""The hooks of context providers after a turn: begun when the settled turn is durable, and not waited for by it.

Those that are not over when a run ends are begun again by the next one. The store knows which of them have run.
"""

import asyncio
from collections.abc import Callable
from datetime import timedelta

from temporalio import workflow

with workflow.unsafe.imports_passed_through():
    from perdure.contract import AFTER_TURN, AfterTurnRequest, AfterTurnResult
    from perdure.history_state import EndedTurn
    from perdure.policy import AFTER_TURN as POLICY
    from perdure.policy import HOOKS_PATIENCE
    from workflows.background import Background
    from workflows.board import Board
    from workflows.run_length import ACTIVITY, TASK, TIMER, RunLength


PENDING = 50
"""Turns whose hooks may wait for those of a turn before them. More would fill what a run hands to the next one."""


_ABOUT = "hooks"
"""What problems with hooks are about: of several the newest is shown, until the hooks after a turn have all worked."""


class Hooks:
    """Runs them turn after turn: those of a turn begin when those of the turn before are over or given up."""

    def __init__(self, thread_id: str, board: Board, length: RunLength) -> None:
        self._thread_id = thread_id
        # Of their own: a provider that hangs must not keep the run from its end, as all else in the background does.
        self._background = Background(board)
        self._board = board
        self._length = length
        self._last: asyncio.Task[None] | None = None
        self.pending: tuple[EndedTurn, ...] = ()

    @property
    def busy(self) -> bool:
        """Whether the hooks of a turn are under way or wait for those of the turn before."""
        return self._background.busy

    def begin(self, agent: str, ended: EndedTurn) -> None:
        """The turn is settled, and that is durable."""
        if len(self.pending) >= PENDING:
            before = f"those of {PENDING} turns before it are not over"
            self._board.problem(f"Hooks after turn {ended.turn} were given up: {before}.", _ABOUT)
            return
        self.pending = (*self.pending, ended)
        request = AfterTurnRequest(thread_id=self._thread_id, agent=agent, turn=ended.turn, message_id=ended.message_id)
        what = f"Hooks after turn {ended.turn} were given up"
        self._last = self._background.start(self._run(request, self._last), what, _ABOUT)
        self._last.add_done_callback(lambda _: self._over(ended))

    async def over(self, is_interrupted: Callable[[], bool]) -> None:
        """Wait until the hooks of all turns so far are over, or something comes.

        For a moment only: a slow one must not hold up the next turn.
        """
        last = self._last
        if last is None or last.done():
            return
        self._length.add(TIMER + TASK)
        try:
            await workflow.wait_condition(
                lambda: last.done() or is_interrupted(),
                timeout=HOOKS_PATIENCE,
                timeout_summary="hooks of the last turn",
            )
        except TimeoutError:
            return

    def _over(self, ended: EndedTurn) -> None:
        self.pending = tuple(one for one in self.pending if one.turn != ended.turn)

    async def _run(self, request: AfterTurnRequest, before: "asyncio.Task[None] | None") -> None:
        if before is not None:
            await asyncio.wait([before])
        self._length.add(ACTIVITY + TASK)
        result: AfterTurnResult = await workflow.execute_activity(
            AFTER_TURN,
            request,
            result_type=AfterTurnResult,
            start_to_close_timeout=POLICY.start_to_close or timedelta(minutes=5),
            heartbeat_timeout=POLICY.heartbeat,
            retry_policy=POLICY.retry,
            summary=f"after turn {request.turn}",
        )
        if result.problems:
            # As one, since of those about the same only the last is shown.
            self._board.problem(" ".join(result.problems), _ABOUT)
        else:
            # All providers are told of every turn, so whichever had failed after one before works again.
            self._board.works(_ABOUT)
