"""The schema of the database: numbered files in `migrations/`, applied in order, each in a transaction of its own.

An advisory lock lets any number of processes start at once: one applies, the others wait and find nothing to do. A
database that a newer release has migrated is refused, since this one does not know what its tables mean.
"""

import re
from pathlib import Path
from typing import NamedTuple, Self, TypeAlias

import asyncpg
from asyncpg.pool import PoolConnectionProxy

from perdure.errors import ConfigurationError
from stores.address import CONNECT_TIMEOUT_S, Address

FOLDER = Path(__file__).parent / "migrations"
Connection: TypeAlias = "asyncpg.Connection[asyncpg.Record] | PoolConnectionProxy[asyncpg.Record]"

LOCK = 0x70657264757265  # "perdure": the key is shared by all programs that use the database


class Migration(NamedTuple):
    """One file: `NNNN_name.sql`."""

    number: int
    name: str
    sql: str

    @classmethod
    def read(cls, path: Path) -> Self:
        """One file of the folder."""
        named = re.fullmatch(r"(\d{4})_(\w+)", path.stem)
        if named is None:
            raise ValueError(f"bug: {path.name} is not named NNNN_name.sql")
        return cls(int(named[1]), named[2], path.read_text())


def read_migrations(folder: Path = FOLDER) -> tuple[Migration, ...]:
    """All migrations in order. Their numbers are 1, 2, 3 and so on."""
    migrations = tuple(Migration.read(path) for path in sorted(folder.glob("*.sql")))
    if [migration.number for migration in migrations] != list(range(1, len(migrations) + 1)):
        raise ValueError(f"bug: the migrations in {folder} are not numbered one by one")
    return migrations


MIGRATIONS = read_migrations()
SCHEMA_VERSION = len(MIGRATIONS)


async def migrate(url: str) -> int:
    """Bring the database to this release's schema; returns how many migrations were applied. Safe to repeat.

    Raises:
        ConfigurationError: if the URL is bad or the database is newer than this release.
        StoreUnavailable: if the database cannot be reached.
    """
    address = Address(url)
    with address.plain_errors():
        connection: asyncpg.Connection[asyncpg.Record] = await asyncpg.connect(url, timeout=CONNECT_TIMEOUT_S)
        try:
            await connection.execute("select pg_advisory_lock($1)", LOCK)
            return await _apply(connection, address)
        finally:
            await connection.close()  # the lock goes with it


async def check_schema(connection: Connection, address: Address) -> None:
    """Raises ConfigurationError unless the database has exactly this release's schema."""
    version = await _version(connection)
    if version < SCHEMA_VERSION:
        raise ConfigurationError(
            f"The tables in {address} are at version {version}, this release needs {SCHEMA_VERSION}. "
            "Run `perdure migrate`."
        )
    _refuse_newer(version, address)


async def _apply(connection: Connection, address: Address) -> int:
    version = await _version(connection)
    _refuse_newer(version, address)
    pending = MIGRATIONS[version:]
    for migration in pending:
        async with connection.transaction():
            if migration.number == 1:
                await connection.execute("create schema if not exists perdure")
                await connection.execute(
                    "create table perdure.schema_version "
                    "(version int primary key, name text not null, applied_at timestamptz not null default now())"
                )
            await connection.execute(migration.sql)
            await connection.execute(
                "insert into perdure.schema_version (version, name) values ($1, $2)", migration.number, migration.name
            )
    return len(pending)


async def _version(connection: Connection) -> int:
    if await connection.fetchval("select to_regclass('perdure.schema_version')") is None:
        return 0
    version: int = await connection.fetchval("select coalesce(max(version), 0) from perdure.schema_version")
    return version


def _refuse_newer(version: int, address: Address) -> None:
    if version > SCHEMA_VERSION:
        raise ConfigurationError(
            f"The tables in {address} are at version {version}, which is newer than this release of Perdure knows "
            f"({SCHEMA_VERSION}). Upgrade Perdure, or use another database."
        )
