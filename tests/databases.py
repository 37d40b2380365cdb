"""Databases for tests, copied from a template that was migrated once."""

import itertools
import os
import re
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager

import asyncpg

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
