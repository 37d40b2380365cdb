"""The gateway over each store, and threads for it."""

import uuid
from collections.abc import AsyncGenerator

import pytest
from temporalio.client import Client

from perdure.ports import Store
from stores.memory import MemoryStore
from stores.postgres import PostgresStore
from tests.databases import new_database
from tests.gateway.served import Served
from tests.gateway.waiting import WaitingThread


@pytest.fixture
def thread() -> str:
    """A thread id of its own: all tests share one server, so one name would be one workflow."""
    return f"t-{uuid.uuid4()}"


@pytest.fixture(scope="module")
async def postgres(postgres_url: str, template_database: str) -> AsyncGenerator[PostgresStore]:
    """A store on a database for all tests of a file: each has threads of its own."""
    async with new_database(postgres_url, template_database) as url, await PostgresStore.connect(url) as store:
        yield store


@pytest.fixture(params=["memory", "postgres"], scope="module")
def store(request: pytest.FixtureRequest) -> Store:
    """Each store that keeps the contract of `perdure.ports.Store`."""
    if request.param == "memory":
        return MemoryStore()
    found: PostgresStore = request.getfixturevalue("postgres")
    return found


@pytest.fixture(scope="module")
async def served(temporal: Client, store: Store) -> AsyncGenerator[Served]:
    """The gateway, without any worker."""
    async with Served(temporal, store) as served:
        yield served


@pytest.fixture
async def waiting(store: Store, thread: str) -> WaitingThread:
    """A stored thread with two open calls."""
    return await WaitingThread.stored(store, thread, calls=2)
