"""A database and a task queue for each test, on the servers of the run."""

import uuid
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import AsyncExitStack
from datetime import timedelta

import pytest
from temporalio.client import Client

from perdure import policy
from perdure.agent import Agent
from stores.postgres import PostgresStore
from tests.fakes.rap_server import FakeRapServer, FakeTool
from tests.stack import Stack
from tests.workflows.rap_stack import RapStack

StackFactory = Callable[..., Awaitable[Stack]]


@pytest.fixture
def thread() -> str:
    """A thread id of its own: all tests share one server, so one name would be one workflow."""
    return f"t-{uuid.uuid4()}"


@pytest.fixture
def short_drain(monkeypatch: pytest.MonkeyPatch) -> None:
    """Workers that stop cut off what runs after half a second: for tests of what comes of that, and not of the wait."""
    monkeypatch.setattr(policy, "GRACEFUL_SHUTDOWN", timedelta(seconds=0.5))


@pytest.fixture
async def store(database_url: str) -> AsyncGenerator[PostgresStore]:
    """A store over a database of its own."""
    store = await PostgresStore.connect(database_url)
    yield store
    await store.close()


@pytest.fixture
async def start_stack(temporal: Client, store: PostgresStore) -> AsyncGenerator[StackFactory]:
    """Start a stack for some agents; it ends with the test."""
    async with AsyncExitStack() as stacks:

        async def start(*agents: Agent, sandbox: bool = True) -> Stack:
            return await stacks.enter_async_context(Stack(temporal, store, agents, sandbox=sandbox))

        yield start


@pytest.fixture
async def server() -> AsyncGenerator[FakeRapServer]:
    """A RAP server whose tools say what the test says."""
    async with FakeRapServer(FakeTool("ask"), FakeTool("subscribe")) as server:
        yield server


@pytest.fixture
async def stack(temporal: Client, store: PostgresStore, server: FakeRapServer) -> AsyncGenerator[RapStack]:
    """A stack with an agent that has that server."""
    async with RapStack(temporal, store, server) as stack:
        yield stack
