"""The connections to PostgreSQL: the pool, and how statements are run.

The pool replaces connections that died, so a database that comes back is used again without a restart.
"""

import asyncio
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from typing import Literal, Self

import asyncpg
from asyncpg.pool import PoolConnectionProxy

from stores.address import CONNECT_TIMEOUT_S, Address
from stores.migrate import check_schema
from stores.queries import QUERIES

Row = asyncpg.Record

COMMAND_TIMEOUT_S = 60
CLOSE_TIMEOUT_S = 5

SESSION_SETTINGS = {
    "application_name": "perdure",
    # Every statement finds its rows by key, whatever the parameters. A plan that was made while a table was nearly
    # empty would scan it, and would be kept while it grows; to plan again for other parameters, or to compile a plan,
    # costs more than to run it.
    "plan_cache_mode": "force_generic_plan",
    "enable_seqscan": "off",
    "enable_hashjoin": "off",
    "enable_mergejoin": "off",
    "enable_bitmapscan": "off",
    "jit": "off",
}


class Transaction:
    """Statements that are applied together, or not at all if the block is left by an error."""

    def __init__(self, connection: "PoolConnectionProxy[Row]") -> None:
        self._connection = connection

    async def rows(self, query: str, *args: object) -> list[Row]:
        """Run a statement of `queries.sql`."""
        return await self._connection.fetch(QUERIES[query], *args)

    async def row(self, query: str, *args: object) -> Row | None:
        """The first row of a statement, None if there is none."""
        return await self._connection.fetchrow(QUERIES[query], *args)


class Database:
    """A pool of connections. Each of `rows` and `row` is one statement, one transaction and one round trip."""

    def __init__(self, address: Address, pool: "asyncpg.Pool[Row]") -> None:
        self.address = address
        self._pool = pool

    @classmethod
    async def connect(cls, url: str, *, max_size: int) -> Self:
        """Make the pool. It connects when a statement needs it. Raises ConfigurationError, StoreUnavailable."""
        address = Address(url)
        with address.plain_errors():
            pool = await asyncpg.create_pool(
                url,
                min_size=0,  # with a floor the driver reconnects by itself, and logs a traceback for each failure
                max_size=max_size,
                timeout=CONNECT_TIMEOUT_S,
                command_timeout=COMMAND_TIMEOUT_S,
                max_cached_statement_lifetime=0,
                reset=_keep,
                server_settings=SESSION_SETTINGS,
            )
        return cls(address, pool)

    async def check_schema(self) -> None:
        """Raises ConfigurationError unless the database has exactly this release's schema."""
        with self.address.plain_errors():
            async with self._pool.acquire() as connection:
                await check_schema(connection, self.address)

    async def close(self) -> None:
        """Close the connections; those in use are given a moment to finish."""
        try:
            async with asyncio.timeout(CLOSE_TIMEOUT_S):
                await self._pool.close()
        except TimeoutError:
            self._pool.terminate()

    async def rows(self, query: str, *args: object) -> list[Row]:
        """Run a statement of `queries.sql`."""
        with self.address.plain_errors():
            return await self._pool.fetch(QUERIES[query], *args)

    async def row(self, query: str, *args: object) -> Row | None:
        """The first row of a statement, None if there is none."""
        with self.address.plain_errors():
            return await self._pool.fetchrow(QUERIES[query], *args)

    @asynccontextmanager
    async def transaction(self, *, snapshot: bool = False) -> AsyncGenerator[Transaction]:
        """Several statements as one. With `snapshot` all of them read the same point of time, and none writes."""
        with self.address.plain_errors():
            async with self._pool.acquire() as connection:
                isolation: Literal["repeatable_read"] | None = "repeatable_read" if snapshot else None
                async with connection.transaction(isolation=isolation, readonly=snapshot):
                    yield Transaction(connection)


async def _keep(connection: object) -> None:
    # The driver's own reset costs a round trip after every statement. Nothing here changes a connection: settings
    # are those it was opened with, transactions end with their block, and LISTEN has a connection of its own.
    del connection
