"""A mutation: the thread's workflow with sync and dispatch in the wrong order. The checks of the order must see it.

In a module of its own, because the sandbox loads the module of a workflow anew.
"""

from typing import Any

from temporalio import workflow

with workflow.unsafe.imports_passed_through():
    from perdure.contract import WORKFLOW_TYPE
    from perdure.history_state import OpenTurn
    from workflows.thread import Carried, ThreadWorkflow


@workflow.defn(name=WORKFLOW_TYPE)
class EarlyDispatch(ThreadWorkflow):
    """Dispatches the calls of a step before the step is synced."""

    @workflow.run
    async def run(self, start: Any = None, carried: Carried | None = None) -> None:
        """As the original."""
        await super().run(start, carried)

    async def _sync(self) -> None:
        turn = self._history.open_turn
        if turn is not None:
            self._dispatch_now(turn)
        await super()._sync()

    def _dispatch_now(self, turn: OpenTurn) -> None:
        for call in turn.calls:
            if not call.dispatched and not call.settled:
                self._calls.dispatch(call, self._thread_id, self._agent)
                self._history.mark_dispatched(call.call_id)
