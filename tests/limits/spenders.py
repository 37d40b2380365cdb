"""Agents whose model calls cost a known sum, and what their threads have spent."""

import time
from collections.abc import Callable, Sequence
from typing import Any

from perdure.agent import Agent
from perdure.limits import Budget, Limits, Price
from perdure.messages import Message, Status, ToolResultPart, Usage
from perdure.testing import Asked, Call, Failure, Reply, ScriptedModel
from tests.eventually import eventually
from tests.stack import Stack

PRICE = Price(input=1, output=2, cached_input=0.1)

CALL = Usage(requests=1, input_tokens=100, output_tokens=10, cached_tokens=40, nano_usd=84_000)
"""What one model call takes: 60 tokens at 1,000 billionths of a dollar, 40 at 100, and 10 at 2,000."""

Script = Callable[[Asked], Reply | str]


class Clock:
    """The time, and what was put on top of it."""

    def __init__(self) -> None:
        self.ahead = 0.0

    def now(self) -> float:
        """Seconds since 1970."""
        return time.time() + self.ahead


def reply(*items: str | Call, failures: Sequence[Failure] = (), **options: Any) -> Reply:
    """An answer that takes as much as `CALL` says."""
    tokens = Usage(input_tokens=100, output_tokens=10, cached_tokens=40)
    return Reply(*items, usage=tokens, failures=failures, **options)


def by_words(asked: Asked) -> Reply:
    """`loop` calls a tool for ever, `hang` never ends, `shaky` fails twice before it answers; others are repeated."""
    words = asked.user_text
    match words:
        case "loop":
            return reply(Call("look"))
        case "hang":
            return reply("one two three four five", chunk_chars=4, hang=True)
        case "shaky":
            return reply("at last", failures=[Failure(503), Failure(None)])
        case _:
            return reply(f"you said {words}")


def spender(script: Script = by_words, limits: Limits | None = None, **options: Any) -> Agent:
    """An agent with a tool `look`; its price is `PRICE`."""
    options = {"price": PRICE, "compaction": None} | options
    agent = Agent("a", model=ScriptedModel(script), limits=limits, **options)

    @agent.tool
    async def look() -> str:
        """Look."""
        return "seen"

    return agent


def limits(scope: str, **budget: Any) -> Limits:
    """Limits with one budget."""
    budgets: dict[str, Any] = {scope: Budget(**budget)}
    return Limits(**budgets)


def model_of(agent: Agent) -> ScriptedModel:
    """The agent's model, to look at its requests."""
    assert isinstance(agent.model, ScriptedModel)
    return agent.model


def times(usage: Usage, number: int) -> Usage:
    """The same, so many times."""
    return sum([usage] * number, Usage())


async def say(stack: Stack, thread_id: str, words: str) -> Status:
    """How the turn ends that answers these words; they are always taken."""
    accepted = await stack.client.send(thread_id, words)
    assert accepted.disposition in ("started", "interrupted")
    return (await stack.client.wait_settled(thread_id, accepted.message_id)).status


async def messages(stack: Stack, thread_id: str) -> list[Message]:
    """All messages of a thread, those of hidden branches too."""
    return [one.message for one in (await stack.store.load_tree(thread_id)).messages]


async def told(stack: Stack, thread_id: str) -> Usage:
    """The sum of what the messages of a thread say that their turns have cost."""
    return sum([message.usage or Usage() for message in await messages(stack, thread_id)], Usage())


async def spent(stack: Stack, thread_id: str) -> Usage:
    """What a thread has spent in all."""
    return (await stack.store.get_spending(thread_id, tree=False, tenant=False)).thread.usage


def results(message: Message) -> list[str]:
    """What the tools of a turn have brought."""
    return [part.content for part in message.parts if isinstance(part, ToolResultPart)]


async def streams(stack: Stack, thread_id: str, text: str) -> bool:
    """Whether a reader sees this much of an answer."""
    live = (await stack.store.snapshot(thread_id)).live
    return live is not None and any(text in getattr(part, "text", "") for part in live.parts)


async def counted(stack: Stack, thread_id: str, requests: int) -> None:
    """Return when so many model calls of a thread are counted."""

    async def are() -> bool:
        return (await spent(stack, thread_id)).requests == requests

    await eventually(are)
