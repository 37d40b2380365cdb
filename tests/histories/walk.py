"""What can be done to a thread whose history is recorded, and the store that it has."""

import asyncio

from temporalio.client import WorkflowExecutionStatus
from typing_extensions import override

from perdure.batch import SyncBatch, SyncReport
from perdure.errors import StoreUnavailable
from perdure.inputs import Mode
from perdure.messages import TextPart
from stores.database import Database
from stores.postgres import PostgresStore
from tests.eventually import eventually
from tests.stack import Stack


class FickleStore(PostgresStore):
    """A store that can be told to be away for a number of syncs, and to take its time for each."""

    def __init__(self, database: Database) -> None:
        super().__init__(database)
        self.away_for = 0
        self.takes_s = 0.0

    @override
    async def append_messages(self, batch: SyncBatch) -> SyncReport:
        if self.away_for > 0:
            self.away_for -= 1
            raise StoreUnavailable("The database is away.")
        await asyncio.sleep(self.takes_s)
        return await super().append_messages(batch)


class Walk:
    """One path: a thread of that name, and what may be done to it."""

    def __init__(self, name: str, stack: Stack, store: FickleStore) -> None:
        self.name = name
        self.stack = stack
        self.store = store

    async def ask(self, words: str) -> None:
        """Send words and wait until their turn has settled, complete or not."""
        await self.settled(await self.send(words))

    async def send(self, words: str, mode: Mode = "interrupt") -> str:
        """Send words by the update; their id is the words."""
        accepted = await self.stack.client.send(self.name, words, id=words, mode=mode)
        return accepted.message_id

    async def settled(self, message_id: str) -> None:
        """Wait for the answer."""
        await self.stack.client.wait_settled(self.name, message_id)

    async def streams(self) -> None:
        """Wait until words of an answer have streamed."""

        async def has_words() -> bool:
            live = (await self.store.snapshot(self.name)).live
            return live is not None and any(isinstance(part, TextPart) for part in live.parts)

        await eventually(has_words)

    async def calls(self, state: str) -> None:
        """Wait until a call is in this state."""

        async def is_there() -> bool:
            return any(call.state == state for call in await self.stack.client.open_calls(self.name))

        await eventually(is_there)

    async def asked(self, count: int) -> list[str]:
        """Wait until so many calls wait for somebody to approve them; their ids."""

        async def waiting() -> list[str]:
            calls = await self.stack.client.open_calls(self.name)
            asked = [call.call_id for call in calls if call.state == "approval"]
            return asked if len(asked) == count else []

        return await eventually(waiting)

    async def head(self) -> str:
        """The message that is shown last."""
        return (await self.stack.client.history(self.name))[-1].id

    async def ended(self, status: WorkflowExecutionStatus) -> None:
        """Wait until the present run has this status."""

        async def has_status() -> bool:
            return (await self.stack.handle(self.name).describe()).status == status

        await eventually(has_status)
