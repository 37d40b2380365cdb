"""Conversations with each of the providers' real clients."""

from collections.abc import AsyncGenerator, Awaitable, Callable
from typing import Any

import pytest

from perdure.agent import Agent
from tests.activities.conversation import Conversation
from tests.providers.anthropic_wire import Anthropic
from tests.providers.chat_wire import Chat
from tests.providers.dialect import KEY, Dialect, Reply
from tests.providers.google_wire import Google
from tests.providers.model_server import Answer, ModelServer
from tests.providers.responses_wire import Responses

DIALECTS: tuple[Dialect, ...] = (Chat(), Responses(), Anthropic(), Google())
KEY_VARIABLE = "PERDURE_TEST_KEY"


class Talk:
    """A conversation with an agent whose model is the server."""

    def __init__(self, server: ModelServer, thread: Conversation) -> None:
        self.server = server
        self.thread = thread


Talks = Callable[..., Awaitable[Talk]]


@pytest.fixture(params=DIALECTS, ids=[dialect.name for dialect in DIALECTS])
def dialect(request: pytest.FixtureRequest) -> Dialect:
    """Each provider's protocol."""
    found: Dialect = request.param
    return found


@pytest.fixture(autouse=True)
def _key(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(KEY_VARIABLE, KEY)


@pytest.fixture
async def talks() -> AsyncGenerator[Talks]:
    """Starts servers and conversations, and closes what they opened."""
    opened: list[tuple[ModelServer, Conversation]] = []

    async def start(dialect: Dialect, *script: Answer | Reply, **options: Any) -> Talk:
        answers = [dialect.answer(each) if isinstance(each, Reply) else each for each in script]
        server = await ModelServer(answers).__aenter__()
        thread = await Conversation.start(agent_at(server, dialect, **options))
        opened.append((server, thread))
        return Talk(server, thread)

    yield start
    for server, thread in opened:
        await thread.activities.close()
        await server.__aexit__(None, None, None)


def agent_at(
    server: ModelServer,
    dialect: Dialect,
    model: str | None = None,
    settings: dict[str, Any] | None = None,
    **options: Any,
) -> Agent:
    """An agent with two tools, whose model is at the server."""
    place = {"base_url": dialect.base_url(server.url), "api_key_env": KEY_VARIABLE}
    agent = Agent(
        "a",
        model=model or dialect.model,
        instructions="Be brief.",
        settings={**place, **(settings or {})},
        **options,
    )

    @agent.tool
    async def weather(city: str, days: int = 1) -> str:
        """The weather in a city."""
        return f"{city}: sunny for {days}"

    @agent.tool
    async def clock() -> str:
        """The time."""
        return "noon"

    return agent
