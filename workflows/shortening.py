"""A conversation that is too long for its model: the turn waits for a compaction, and its model call is made again."""

import contextlib

from temporalio import workflow
from temporalio.exceptions import ActivityError, ApplicationError

with workflow.unsafe.imports_passed_through():
    from perdure.history_state import OpenTurn
    from perdure.policy import COMPACTION_PATIENCE, ErrorType
    from workflows.durability import ThreadDurability
    from workflows.failure import sentence
    from workflows.run_length import TASK, TIMER


class ThreadShortening(ThreadDurability):
    """Has the conversation made shorter when a model refuses it, once for each step of a turn."""

    def __init__(self) -> None:
        super().__init__()
        # The model call for which the conversation was made shorter, and what the model had said of its length.
        self._shortened: tuple[int, int] | None = None
        self._too_long = "The request was too long for the model."

    def _fail(self, why: str) -> None:
        self._history.fail_turn(why)
        self._board.line("Assistant", f"({why})")

    def _may_shorten(self, error: ActivityError, turn: OpenTurn) -> bool:
        """Whether the model call is to be made once more, after a compaction: once for each step (case B02)."""
        cause = error.cause
        is_too_long = isinstance(cause, ApplicationError) and cause.type == ErrorType.TOO_LONG
        step = turn.turn, turn.step
        if not is_too_long or not self._loaded.compacts or self._shortened == step:
            return False
        self._shortened, self._too_long = step, sentence(error, "The model call failed")
        self._history.retry_step()
        # One that is under way already may be enough.
        self._compact(forced=True)
        return self._compactions.running

    def _is_shortening(self, turn: OpenTurn) -> bool:
        """Whether the turn waits for the compaction that its model call needs."""
        return self._shortened == (turn.turn, turn.step) and (
            self._compactions.running or self._compactions.last is not None
        )

    async def _shorten(self) -> None:
        """Wait for the compaction, raced against inputs; without one that helps the turn fails as it would have."""
        if self._compactions.running:
            self._length.add(TIMER + TASK)
            with contextlib.suppress(TimeoutError):
                await workflow.wait_condition(
                    lambda: not self._compactions.running or self._has_ready(),
                    timeout=COMPACTION_PATIENCE,
                    timeout_summary="until the conversation is compacted",
                )
                if self._compactions.running:
                    return
        result, self._compactions.last = self._compactions.last, None
        if result is None or result.outcome != "done":
            why = result.detail if result and result.detail else "no compaction came that makes it shorter."
            self._fail(f"{self._too_long} It could not be made shorter: {why}")
            await self._sync()
