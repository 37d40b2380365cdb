"""The stores under test. `store` is each of them in turn, `postgres` the one on PostgreSQL alone.

These tests share a database, which is emptied for each: that takes milliseconds, a copy of the template a tenth of a
second. Tests that change more than rows ask for `own_database_url`.
"""

from collections.abc import AsyncGenerator
from typing import Any

import asyncpg
import pytest
import pytest_asyncio

from perdure.ports import Store
from stores.memory import MemoryStore
from stores.postgres import PostgresStore
from stores.queries import QUERIES
from tests.databases import execute, new_database
from tests.stores.postgres_eye import columns_with
from tests.stores.secret_words import SECRET, Traces


@pytest_asyncio.fixture(scope="session", loop_scope="session")
async def shared_database_url(postgres_url: str, template_database: str) -> AsyncGenerator[str]:
    """The database of all tests of the stores."""
    async with new_database(postgres_url, template_database) as url:
        yield url


@pytest_asyncio.fixture(loop_scope="session")
async def database_url(shared_database_url: str) -> str:
    """A database without any thread."""
    await execute(shared_database_url, "delete from perdure.threads")
    return shared_database_url


@pytest_asyncio.fixture(loop_scope="session")
async def own_database_url(postgres_url: str, template_database: str) -> AsyncGenerator[str]:
    """A database that the test may damage."""
    async with new_database(postgres_url, template_database) as url:
        yield url


@pytest_asyncio.fixture(loop_scope="session")
async def postgres(database_url: str) -> AsyncGenerator[PostgresStore]:
    """A store on the emptied database."""
    async with await PostgresStore.connect(database_url) as store:
        yield store


@pytest.fixture(params=["memory", "postgres"])
def store(request: pytest.FixtureRequest) -> Store:
    """Each store that keeps the contract of `perdure.ports.Store`."""
    if request.param == "memory":
        return MemoryStore()
    found: PostgresStore = request.getfixturevalue("postgres")
    return found


@pytest.fixture
def statements(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Every statement that is sent from now on, those that begin and end transactions included."""
    sent: list[str] = []

    def count(method: str) -> None:
        original = getattr(asyncpg.Connection, method)

        async def counted(self: Any, statement: str, *args: Any, **options: Any) -> Any:
            if statement != QUERIES["notify"]:  # nobody waits for it
                sent.append(statement)
            return await original(self, statement, *args, **options)

        monkeypatch.setattr(asyncpg.Connection, method, counted)

    count("_do_execute")  # the one way that all statements with results take
    count("execute")
    return sent


@pytest.fixture
def traces(request: pytest.FixtureRequest, store: Store) -> Traces:
    """Where the words are still to be found: columns of the database, or what the store in memory holds."""

    async def in_memory() -> list[str]:
        return [name for name, held in vars(store).items() if SECRET in repr(held)]

    async def in_database() -> list[str]:
        return await columns_with(request.getfixturevalue("database_url"), SECRET)

    return in_memory if isinstance(store, MemoryStore) else in_database
