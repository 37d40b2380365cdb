"""A database, a task queue and a thread for each case, on the servers of the run."""

import uuid
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import AsyncExitStack

import pytest
from temporalio.client import Client

from perdure.agent import Agent
from perdure.testing import Reply, Script, ScriptedModel
from stores.postgres import PostgresStore
from tests.cases.conversation import Conversation, agent_of, by_words
from tests.stack import Stack

Converse = Callable[..., Awaitable[Conversation]]


@pytest.fixture
async def store(database_url: str) -> AsyncGenerator[PostgresStore]:
    """A store over a database of its own."""
    store = await PostgresStore.connect(database_url)
    yield store
    await store.close()


@pytest.fixture
async def converse(temporal: Client, store: PostgresStore) -> AsyncGenerator[Converse]:
    """Begin a conversation: with replies by the last words of the user, or a script; and an agent, if need be."""
    async with AsyncExitStack() as stacks:

        async def begin(
            replies: dict[str, list[Reply | str]] | None = None,
            *,
            script: Script | None = None,
            agent: Callable[[ScriptedModel], Agent] = agent_of,
        ) -> Conversation:
            model = ScriptedModel(by_words(replies or {}) if script is None else script)
            stack = await stacks.enter_async_context(Stack(temporal, store, [agent(model)]))
            return Conversation(stack, f"t-{uuid.uuid4()}", model)

        yield begin
