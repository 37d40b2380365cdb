"""A store that keeps what was written to it in order, and that can be held up or fail."""

import asyncio
from collections.abc import Callable

from typing_extensions import override

from perdure.batch import AppendMessage, Operation, SetStatus, SyncBatch, SyncReport
from perdure.errors import StoreUnavailable
from perdure.records import Tail
from stores.database import Database
from stores.postgres import PostgresStore

Which = Callable[[SyncBatch], bool]


class RecordedStore(PostgresStore):
    """Keeps the batches that it has applied.

    Attributes:
        batches: each once, oldest first.
        held: which batches wait for `gate`; `reached` tells that one does.
        failing: which batches are refused as if the database were away; `failures` counts them.
        losing: of which batches the reply is lost, once each.
        holds_loading: whether the reading of threads waits for `gate` too.
    """

    def __init__(self, database: Database) -> None:
        super().__init__(database)
        self.batches: list[SyncBatch] = []
        self.held: Which = nothing
        self.failing: Which = nothing
        self.losing: Which = nothing
        self.holds_loading = False
        self.failures = 0
        self.reached = asyncio.Event()
        self.gate = asyncio.Event()
        self._lost: set[str] = set()

    @override
    async def append_messages(self, batch: SyncBatch) -> SyncReport:
        if self.held(batch):
            await self._pass()
        if self.failing(batch):
            self.failures += 1
            raise StoreUnavailable("The database is away: this one is asked to be.")
        report = await super().append_messages(batch)
        if not report.refused and batch not in self.batches:
            self.batches.append(batch)
        if self.losing(batch) and batch.sync_id not in self._lost:
            self._lost.add(batch.sync_id)
            raise StoreUnavailable("The reply was lost: this one is asked to be.")
        return report

    @override
    async def load_tail(self, thread_id: str, processed: int = 200) -> Tail:
        tail = await super().load_tail(thread_id, processed)
        if self.holds_loading:
            await self._pass()
        return tail

    @property
    def operations(self) -> list[Operation]:
        """All that was written, in order."""
        return [operation for batch in self.batches for operation in batch.operations]

    def written(self, message_id: str) -> list[str]:
        """What was written of one message: that it was added, and each status it took."""
        return [word for word, about in map(_told, self.operations) if about == message_id]

    def appended(self) -> list[str]:
        """The roles of the messages in the order in which they were added."""
        return [one.message.role for one in self.operations if isinstance(one, AppendMessage)]

    async def _pass(self) -> None:
        self.reached.set()
        await self.gate.wait()


def nothing(_: SyncBatch) -> bool:
    """No batch."""
    return False


def having(kind: type[Operation]) -> Which:
    """The batches with an operation of a kind."""
    return lambda batch: any(isinstance(operation, kind) for operation in batch.operations)


def saying(words: str) -> Which:
    """The batches that add these words of the user."""
    return lambda batch: any(
        isinstance(one, AppendMessage) and any(getattr(part, "text", "") == words for part in one.message.parts)
        for one in batch.operations
    )


def _told(operation: Operation) -> tuple[str, str | None]:
    match operation:
        case AppendMessage(message=message):
            return f"append {message.status.state}", message.id
        case SetStatus(message_id=message_id, status=status):
            return f"{status.state} {status.reason}" if status.reason else status.state, message_id
        case _:
            return "", None
