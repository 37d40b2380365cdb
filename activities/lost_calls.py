"""Model calls that brought nothing are paid for all the same: they are counted when they are stopped or fail."""

import asyncio

from perdure.contract import CompleteRequest
from perdure.messages import Usage
from perdure.ports import Store


class LostCalls:
    """Counts them beside the work: a stop does not wait for that, and a count that fails is no failure of the call."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._counting = set[asyncio.Task[None]]()

    def count(self, request: CompleteRequest, attempt: int, usage: Usage) -> None:
        """Begin to add the usage to the thread's. Safe to repeat for one attempt."""
        counting = asyncio.create_task(
            self._store.add_usage(request.thread_id, request.turn, request.step, attempt, usage)
        )
        self._counting.add(counting)
        counting.add_done_callback(self._counting.discard)

    async def close(self) -> None:
        """Wait for what is being counted."""
        await asyncio.gather(*self._counting, return_exceptions=True)
