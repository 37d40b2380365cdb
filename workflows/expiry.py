"""The time of calls whose turns rest: nobody looks at them, and they end by themselves all the same."""

import asyncio
from datetime import timedelta

from temporalio import workflow

with workflow.unsafe.imports_passed_through():
    from perdure.inputs import ToolResult
    from perdure.records import Deadline
    from workflows.results import nobody_approved


class Expiry:
    """The timer of the first call that ends by itself on a branch that is not shown."""

    def __init__(self) -> None:
        self._deadline: Deadline | None = None
        self._timer: asyncio.Task[None] | None = None

    @property
    def is_set(self) -> bool:
        """Whether a call ends by itself some day: the run must be there then."""
        return self._timer is not None

    @property
    def is_over(self) -> bool:
        """Whether it has ended."""
        return self._timer is not None and self._timer.done()

    def watch(self, deadline: Deadline | None) -> None:
        """From now on this one is the first. Safe to repeat."""
        if deadline == self._deadline:
            return
        if self._timer is not None:
            self._timer.cancel()
        self._deadline, self._timer = deadline, None
        if deadline is not None:
            left = timedelta(seconds=max(deadline.due - workflow.now().timestamp(), 0.0))
            summary = "until a question on another branch expires"
            self._timer = asyncio.create_task(workflow.sleep(left, summary=summary))

    def take(self) -> ToolResult | None:
        """What answers the call that has ended; None if none has. Only questions are waited for where nothing works."""
        if not self.is_over or self._deadline is None:
            return None
        result = nobody_approved(self._deadline.call_id)
        self._deadline, self._timer = None, None
        return result
