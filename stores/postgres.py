"""Threads in PostgreSQL: the store of production.

Every method is one statement and one round trip unless it says otherwise. The writes that must look before they write
are SQL functions (`migrations/`), which lock the thread's row first; argued there.
"""

from collections.abc import AsyncGenerator
from typing import Self

from perdure.turn_buffer import Chunk
from stores.database import Database
from stores.hint_sender import HintSender
from stores.listener import Listener
from stores.postgres_context import PostgresContext
from stores.postgres_conversation import PostgresConversation
from stores.postgres_state import PostgresState
from stores.postgres_turn_buffer import PostgresTurnBuffer

__all__ = ["PostgresStore"]


class PostgresStore(PostgresConversation, PostgresTurnBuffer, PostgresState, PostgresContext):
    """`perdure.ports.Store` over one database. Open it with `connect`, close it with `close` or `async with`."""

    def __init__(self, database: Database) -> None:
        super().__init__(database)
        self._listener = Listener(database.address)
        self._hints = HintSender(database)

    @classmethod
    async def connect(cls, url: str, *, max_size: int = 10) -> Self:
        """Open a pool of up to `max_size` connections; one more is opened by the first listener.

        Raises:
            ConfigurationError: if the URL is bad, access is refused, or the schema is not this release's.
            StoreUnavailable: if the database cannot be reached.
        """
        database = await Database.connect(url, max_size=max_size)
        try:
            await database.check_schema()
        except BaseException:
            await database.close()
            raise
        return cls(database)

    async def close(self) -> None:
        """Close all connections."""
        await self._hints.close()
        await self._listener.close()
        await self._database.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def append_chunks(
        self, thread_id: str, turn: int, step: int, attempt: int, chunks: list[Chunk], first: int | None = None
    ) -> None:
        """See `perdure.ports.ConversationStore`."""
        await super().append_chunks(thread_id, turn, step, attempt, chunks, first)
        self._hints.send(thread_id)

    def listen(self, thread_id: str) -> AsyncGenerator[None]:
        """Yields when the thread may have changed, at once and after every lost connection."""
        return self._listener.listen(thread_id)
