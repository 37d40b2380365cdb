"""Databases for tests, copied from a template that was migrated once, and handed on."""

import itertools
import os
import re
from collections.abc import AsyncGenerator
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Final, Self

import asyncpg

EMPTY: Final = ("delete from perdure.threads", "delete from perdure.keys")
"""Deletes every row but those that tell of the schema: all other tables hang on these two."""

_OTHERS: Final = """
    select count(*) from pg_stat_activity
    where datname = current_database() and backend_type = 'client backend' and pid <> pg_backend_pid()
"""

_numbers = itertools.count(1)


@asynccontextmanager
async def new_database(server_url: str, template: str) -> AsyncGenerator[str]:
    """The URL of a database that lives as long as the block."""
    name = f"perdure_test_{os.getpid()}_{next(_numbers)}"
    await execute(server_url, f"create database {name} template {template}")
    try:
        yield in_database(server_url, name)
    finally:
        await execute(server_url, f"drop database {name} with (force)")


class Databases:
    """Databases that tests hand on to each other: emptied in a tenth of the time that a copy and its end take.

    Args:
        server_url: the server, which is also asked who is connected.
        template: what a database is copied from when none is free.
    """

    def __init__(self, server_url: str, template: str) -> None:
        self._server_url = server_url
        self._template = template
        self._free: list[str] = []
        self._kept = AsyncExitStack()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._kept.aclose()

    @asynccontextmanager
    async def lend(self) -> AsyncGenerator[str]:
        """The URL of an empty database that nobody else uses as long as the block lasts.

        It goes back only if nobody is connected at the end: what a test left behind might write into the next one's
        rows. Such a database is never used again. Rows are deleted when it is lent and not when it comes back, so that
        all that was written until its last connection was gone is deleted too.
        """
        if self._free:
            url = self._free.pop()
            await execute(url, *EMPTY)
        else:
            url = await self._kept.enter_async_context(new_database(self._server_url, self._template))
        yield url
        if not await self._in_use(url):
            self._free.append(url)

    async def _in_use(self, url: str) -> bool:
        connection: asyncpg.Connection[asyncpg.Record] = await asyncpg.connect(url)
        try:
            others: int = await connection.fetchval(_OTHERS)
        finally:
            await connection.close()
        return others > 0


def in_database(url: str, name: str) -> str:
    """The same server, another database."""
    changed, times = re.subn(r"^(\w+://[^/?]*/)[^?]*", rf"\g<1>{name}", url)
    assert times == 1, "the URL of the server must name a database"
    return changed


async def execute(url: str, *statements: str) -> None:
    """Run statements on a connection of their own, each by itself."""
    connection: asyncpg.Connection[asyncpg.Record] = await asyncpg.connect(url)
    try:
        for statement in statements:
            await connection.execute(statement)
    finally:
        await connection.close()
