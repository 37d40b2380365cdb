"""The stores under test. `store` is each of them in turn, `postgres` the one on PostgreSQL alone."""

from collections.abc import AsyncGenerator

import pytest
import pytest_asyncio

from perdure.ports import Store
from stores.memory import MemoryStore
from stores.postgres import PostgresStore


@pytest_asyncio.fixture(loop_scope="session")
async def postgres(database_url: str) -> AsyncGenerator[PostgresStore]:
    """A store on a database of its own."""
    async with await PostgresStore.connect(database_url) as store:
        yield store


@pytest.fixture(params=["memory", "postgres"])
def store(request: pytest.FixtureRequest) -> Store:
    """Each store that keeps the contract of `perdure.ports.Store`."""
    if request.param == "memory":
        return MemoryStore()
    found: PostgresStore = request.getfixturevalue("postgres")
    return found
