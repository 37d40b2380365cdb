"""A thread that is driven in this process, over a store that keeps a journal."""

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable, Coroutine
from contextlib import asynccontextmanager
from typing import Any, TypeVar

from activities.complete import CompleteActivities
from activities.dispatch import DispatchActivities
from perdure.agent import Agent, Agents
from perdure.batch import SyncBatch, SyncReport
from perdure.errors import StoreUnavailable
from perdure.inputs import Mode, UserMessage
from perdure.messages import Message
from perdure.runtime import AgentThread
from perdure.testing import ScriptedModel
from perdure.watch import answer_text
from stores.memory import MemoryStore

Value = TypeVar("Value")


class Journal(MemoryStore):
    """A store that remembers in which order it was asked, and fails on demand."""

    def __init__(self) -> None:
        super().__init__()
        self.calls: list[str] = []
        self.syncs = 0
        self.fails_at: int | None = None
        self.applies_first = False

    async def append_messages(self, batch: SyncBatch) -> SyncReport:
        """Remember a sync by its operations. One of them fails, before or after it was applied."""
        self.syncs += 1
        fails = self.syncs == self.fails_at
        if fails and not self.applies_first:
            raise StoreUnavailable("away")
        report = await super().append_messages(batch)
        self.calls.append("sync " + " ".join(operation.kind for operation in batch.operations))
        if fails:
            raise StoreUnavailable("the reply was lost")
        return report

    async def start_call(self, thread_id: str, call_id: str, owner: str | None = None) -> Any:
        """Remember a dispatch."""
        self.calls.append("dispatch")
        return await super().start_call(thread_id, call_id, owner)


async def load(store: MemoryStore, agent: Agent, *, new: bool = True) -> AgentThread:
    """The thread `t1` with this agent, as any process would load it."""
    agents = Agents([agent])
    return await AgentThread.load(
        store,
        store,
        "t1",
        complete=CompleteActivities(store, agents).execute,
        dispatch=DispatchActivities(store, agents).execute,
        agent=agent.name if new else None,
    )


async def drive(thread: AgentThread) -> None:
    """Run until there is nothing to do."""
    while await thread.step():
        pass


@asynccontextmanager
async def background(work: Coroutine[Any, Any, Value]) -> AsyncGenerator[asyncio.Task[Value]]:
    """Work that goes on beside the test, and not beyond it."""
    task = asyncio.create_task(work)
    try:
        yield task
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


def said(text: str, mode: Mode = "interrupt", id: str | None = None) -> UserMessage:
    """Words of the user."""
    return UserMessage(id=id or text, text=text, mode=mode)


async def messages(store: MemoryStore) -> tuple[Message, ...]:
    """The committed path."""
    return (await store.load_history_with_ancestors("t1")).messages


def weather_agent(script: Any, tool: Callable[[str], Awaitable[str]] | None = None, **options: Any) -> Agent:
    """An agent with one tool."""
    agent = Agent("demo", model=ScriptedModel(script))

    @agent.tool(name="get_weather", **options)
    async def get_weather(city: str) -> str:
        return await tool(city) if tool else f"sunny in {city}"

    return agent


async def streams(thread: AgentThread, text: str) -> bool:
    """Whether these words are what is shown of the last message."""
    shown = (await thread.snapshot()).messages
    return bool(shown) and answer_text(shown[-1]) == text
