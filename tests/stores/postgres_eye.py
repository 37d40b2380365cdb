"""A second connection, to look at what the store's statements do and to stand in their way."""

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager

import asyncpg

from stores.queries import QUERIES


@asynccontextmanager
async def connected(url: str) -> AsyncGenerator["asyncpg.Connection[asyncpg.Record]"]:
    """A plain connection of the test's own."""
    connection: asyncpg.Connection[asyncpg.Record] = await asyncpg.connect(url)
    try:
        yield connection
    finally:
        await connection.close()


async def waiting(eye: "asyncpg.Connection[asyncpg.Record]") -> int:
    """How many statements of this database wait for a lock."""
    count: int = await eye.fetchval(
        "select count(*) from pg_stat_activity where datname = current_database() and wait_event_type = 'Lock'"
    )
    return count


async def run(connection: "asyncpg.Connection[asyncpg.Record]", query: str, *args: object) -> None:
    """A statement of the store, in a transaction of the test's own."""
    await connection.fetch(QUERIES[query], *args)
