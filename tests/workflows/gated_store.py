"""A store in which the making of a child thread can be held up."""

import asyncio
from typing import Literal

from typing_extensions import override

from perdure.batch import SyncBatch, SyncReport
from perdure.records import ThreadRecord
from stores.database import Database
from stores.postgres import PostgresStore


class GatedStore(PostgresStore):
    """Holds up the child whose task is `k2`, before its row is written or after its seed is."""

    def __init__(self, database: Database) -> None:
        super().__init__(database)
        self.hold: Literal["before", "after"] | None = None
        self.reached = asyncio.Event()
        self.gate = asyncio.Event()
        self._child = ""

    @override
    async def create_thread(self, thread: ThreadRecord) -> ThreadRecord:
        if thread.title == "k2" and thread.parent_thread_id:
            self._child = thread.thread_id
            if self.hold == "before":
                await self._held()
        return await super().create_thread(thread)

    @override
    async def append_messages(self, batch: SyncBatch) -> SyncReport:
        report = await super().append_messages(batch)
        if self.hold == "after" and (batch.thread_id, batch.sync_id) == (self._child, "spawn"):
            await self._held()
        return report

    async def _held(self) -> None:
        self.reached.set()
        await self.gate.wait()
