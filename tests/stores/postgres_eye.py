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


async def columns_with(url: str, words: str) -> list[str]:
    """All columns of all tables, whatever their type, in which the words are; bytes are read as hexadecimal digits."""
    async with connected(url) as eye:
        columns = await eye.fetch(
            """select table_name, column_name from information_schema.columns c join information_schema.tables t
               using (table_schema, table_name) where table_schema = 'perdure' and table_type = 'BASE TABLE'"""
        )
        assert len(columns) > 80, "there must be something to look through"
        return [
            f"{table}.{column}"
            for table, column in columns
            # Names of our own tables and columns; a name cannot be a parameter.
            if await eye.fetchval(
                f"""select exists (select from perdure."{table}"
                    where strpos("{column}"::text, $1) > 0 or strpos("{column}"::text, $2) > 0)""",
                words,
                words.encode().hex(),
            )
        ]
