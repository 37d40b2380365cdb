"""A conversation that is too long for its model: the turn waits for a compaction, and its model call is made again."""

from datetime import timedelta
from typing import Any

from temporalio import workflow
from temporalio.exceptions import ActivityError, ApplicationError

with workflow.unsafe.imports_passed_through():
    from perdure.contract import Compacting
    from perdure.history_state import OpenTurn
    from perdure.policy import COMPACTION_ASKED, COMPACTION_PATIENCE, ErrorType
    from workflows.durability import ThreadDurability
    from workflows.failure import sentence
    from workflows.run_length import TASK, TIMER


_COMPACT = {"action": "compact"}


class ThreadShortening(ThreadDurability):
    """Has the conversation made shorter when a model refuses it, once for each step of a turn."""

    def __init__(self) -> None:
        super().__init__()
        # The model call for which the conversation was made shorter, and what the model had said of its length.
        self._shortened: tuple[int, int] | None = None
        self._too_long = "The request was too long for the model."

    @workflow.update
    async def compact(self, *_: Any) -> Compacting:
        """Make the conversation shorter for the model; answered when that has begun, or there is nothing to begin."""
        await self._ask("control", _COMPACT)
        return await self._compactions.under_way()

    @compact.validator
    def _validate_compact(self, *_: Any) -> None:
        self._validate("control", _COMPACT)

    def _fail(self, why: str) -> None:
        self._history.fail_turn(why)
        self._board.line("Assistant", f"({why})")

    def _compact(self, *, forced: bool) -> None:
        turn = self._history.open_turn
        if self._loaded.revision > 6 and (turn is None or self._shortened != (turn.turn, turn.step)):
            # A turn that waited may have been stopped. The outcome that it did not take is nobody's, and keeps none of
            # those that are asked for now from beginning.
            self._compactions.take_last()
        super()._compact(forced=forced)

    def _may_shorten(self, error: ActivityError, turn: OpenTurn) -> bool:
        """Whether the model call is to be made once more, after a compaction: once for each step (case B02)."""
        cause = error.cause
        is_too_long = isinstance(cause, ApplicationError) and cause.type == ErrorType.TOO_LONG
        step = turn.turn, turn.step
        if not is_too_long or not self._loaded.compacts or self._shortened == step:
            return False
        self._shortened, self._too_long = step, sentence(error, "The model call failed")
        self._history.retry_step()
        if self._loaded.revision > 6:
            # The call that was refused has had what earlier ones brought.
            self._compactions.take_last()
        # One that is under way already may be enough.
        self._compact(forced=True)
        if self._loaded.revision > 3 and self._compactions.running:
            self._compactions.expect()
        return self._compactions.running

    def _is_shortening(self, turn: OpenTurn) -> bool:
        """Whether the turn waits for the compaction that its model call needs.

        It does until it has taken the outcome of that one: another, which somebody asks for before the model call is
        made again, is none of its business.
        """
        if self._shortened != (turn.turn, turn.step) or (self._loaded.revision > 3 and not self._compactions.expected):
            return False
        return self._compactions.running or self._compactions.last is not None

    async def _shorten(self) -> None:
        """Wait for the compaction, raced against inputs; without one that helps the turn fails as it would have."""
        if self._compactions.running and not await self._is_over():
            return
        result = self._compactions.take_last()
        if result is None or result.outcome != "done":
            why = result.detail if result and result.detail else "no compaction came that makes it shorter."
            self._fail(f"{self._too_long} It could not be made shorter: {why}")
            await self._sync()

    async def _is_over(self) -> bool:
        """Wait until the compaction is over, or has taken too long; False if something else is to be done before.

        Only the run that has begun one is told when it is ended from outside. Any run may begin another one under the
        same name, which Temporal refuses while the first still runs; so that is what is asked now and then.
        """
        left = COMPACTION_PATIENCE
        wait = COMPACTION_ASKED if self._loaded.revision > 3 else left
        while left > timedelta():
            self._length.add(TIMER + TASK)
            wait = min(wait, left)
            try:
                await workflow.wait_condition(
                    lambda: not self._compactions.running or self._has_ready(),
                    timeout=wait,
                    timeout_summary="until the conversation is compacted",
                )
            except TimeoutError:
                left -= wait
                wait *= 2
                if left > timedelta():
                    self._compact(forced=True)
            else:
                return not self._compactions.running
        return True
