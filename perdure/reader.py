"""Threads as they are read: everything comes from the store.

So reading wakes nothing, any number of readers costs the workflow nothing, and a conversation can be read while no
worker runs.
"""

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import aclosing
from typing import Final

from perdure.errors import StoreUnavailable
from perdure.large_text import LargeTexts
from perdure.messages import Message
from perdure.ports import Choice, Store, ThreadRecord
from perdure.transcript import transcript
from perdure.watch import View, WatchEvent, is_settled

_RECONNECT_S: Final = (0.1, 0.2, 0.5, 1.0, 2.0)
_PAGE: Final = 1000


class ThreadReader:
    """Reads and watches threads.

    Args:
        store: where the conversations are.
    """

    def __init__(self, store: Store) -> None:
        self.store = store
        self._texts = LargeTexts(store)

    async def history(self, thread_id: str) -> list[Message]:
        """The conversation, oldest message first, with large texts in full. Raises ThreadNotFound."""
        path = await self.store.load_history_with_ancestors(thread_id)
        return [await self._texts.message(thread_id, message) for message in path.messages]

    async def transcript(self, thread_id: str) -> str:
        """The conversation as plain text, whole. Raises ThreadNotFound."""
        return transcript(await self.history(thread_id))

    async def children(self, thread_id: str) -> tuple[ThreadRecord, ...]:
        """The thread's child threads that are not closed, oldest first. Raises ThreadNotFound."""
        await self.store.get_thread(thread_id)
        return await self.store.get_children(thread_id)

    async def watch(self, thread_id: str, after: int | None = None) -> AsyncGenerator[WatchEvent, None]:
        """What happens in a thread from now on, without end: a snapshot first, then one change after the other.

        Any number of readers may watch; nothing of it goes through Temporal. With `after`, the sequence number of
        the last event that was seen, there is no snapshot and the changes go on from there. A database that is away
        is waited for, and no change is left out or told twice. `perdure.watch.View` folds the events.

        Raises:
            ThreadNotFound: if there is no such thread.
            StoreUnavailable: if the database cannot be reached at the start.
        """
        if after is None:
            snapshot = await self._texts.snapshot(await self.store.snapshot(thread_id))
            yield snapshot.with_(choices=tuple(map(asked, snapshot.choices)))
            after = snapshot.seq
        failures = 0
        while True:
            try:
                async with aclosing(self.store.listen(thread_id)) as hints:
                    async for _ in hints:
                        more = True
                        while more:
                            changes = await self.store.read_changes(thread_id, after, _PAGE)
                            more = len(changes) == _PAGE
                            failures = 0
                            for change in changes:
                                told = await self._texts.change(thread_id, change)
                                yield told.with_(choice=asked(told.choice)) if told.choice else told
                                after = change.seq
            except StoreUnavailable:
                # Rows are the truth, and `after` says which of them were told: going on is only a matter of time.
                await asyncio.sleep(_RECONNECT_S[min(failures, len(_RECONNECT_S) - 1)])
                failures += 1

    async def _settled(self, thread_id: str, find: Callable[[View], Message | None]) -> Message:
        """Watch until the message that `find` picks is there and settled."""
        async with aclosing(self.watch(thread_id)) as events:
            view = View()
            async for event in events:
                view.apply(event)
                message = find(view)
                if message and is_settled(message):
                    return message
        raise AssertionError("bug: a watch ended by itself")

    async def _until(self, thread_id: str, is_done: Callable[[], Awaitable[bool]]) -> None:
        """Ask after each change of the thread, until the answer is yes."""
        async with aclosing(self.store.listen(thread_id)) as hints:
            async for _ in hints:
                if await is_done():
                    return


def asked(choice: Choice) -> Choice:
    """A question as readers see it: the address that its answer goes to is between the thread and the tool's server."""
    return choice.with_(response_url=None)
