"""How long the history of a run has become, counted from what the run has done.

Temporal tells it too, but the same line of code may read another number at a replay: a workflow task that waited for a
slow local activity is several tasks in the history, and a replay sees them as one, from its end.
"""

from temporalio import workflow

with workflow.unsafe.imports_passed_through():
    from perdure.policy import CONTINUE_AS_NEW_BYTES

TASK = 3
"""Events of a workflow task. Each input counts with a task of its own, which it shares with others in a storm."""

SIGNAL, UPDATE, TIMER, ACTIVITY = 1, 2, 2, 3
CHILD = 3 + 2 * TASK
"""Events of a child workflow: it was to start, it has started, it has ended; the last two wake the run."""

EVENT_BYTES = 300


class RunLength:
    """Counts events and bytes, roughly."""

    def __init__(self) -> None:
        self._events = 0
        self._bytes = 0

    def add(self, events: int = 1, size: int = 0) -> None:
        """So many events were recorded, one of them with a payload of this size."""
        self._events += events
        self._bytes += events * EVENT_BYTES + size

    def is_over(self, events: int, times: int = 1) -> bool:
        """Whether the run has so many events, or so many bytes that a wake-up would be slow; or so many times more."""
        return self._events >= events * times or self._bytes >= CONTINUE_AS_NEW_BYTES * times
