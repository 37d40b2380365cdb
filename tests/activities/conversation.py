"""A thread in a memory store, driven by hand: what the workflow does around `complete`."""

from collections.abc import Awaitable, Callable
from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest
from temporalio.exceptions import ApplicationError
from temporalio.testing import ActivityEnvironment

from activities.complete import CompleteActivities
from perdure import ids
from perdure.agent import Agent, Agents
from perdure.batch import AppendMessage, CommitResults, CommitStep, Operation, SetStatus, SyncBatch
from perdure.contract import CompleteRequest, CompleteResult
from perdure.errors import StoreUnavailable
from perdure.messages import Message, Part, Status, TextPart, ToolResultPart, TurnOptions
from perdure.records import Path, Step, StepOutcome, ThreadRecord
from perdure.testing import Script, ScriptedModel
from perdure.turn_buffer import Chunk
from stores.memory import MemoryStore
from tests.eventually import eventually


class FaultyStore(MemoryStore):
    """Counts what `complete` does to it, and is away as often as it is told.

    A failing write is done all the same: it is its reply that gets lost.

    Attributes:
        writes: the writes to the turn buffer, by name.
        known: what each reader of the path knew already.
        away: how often the next calls of a name fail.
    """

    def __init__(self, **away: int) -> None:
        super().__init__()
        self.writes: list[str] = []
        self.known: list[str | None] = []
        self.away = away

    async def begin_step(self, thread_id: str, turn: int, step: int, attempt: int) -> Step:
        """See the class."""
        self.writes.append("begin")
        return await super().begin_step(thread_id, turn, step, attempt)

    async def append_chunks(
        self, thread_id: str, turn: int, step: int, attempt: int, chunks: list[Chunk], first: int | None = None
    ) -> None:
        """See the class."""
        self.writes.append("append")
        await super().append_chunks(thread_id, turn, step, attempt, chunks, first)
        self._fail("append")

    async def finish_step(
        self,
        thread_id: str,
        turn: int,
        step: int,
        attempt: int,
        parts: tuple[Part, ...],
        outcome: StepOutcome,
        chunks: list[Chunk],
    ) -> None:
        """See the class."""
        self.writes.append("finish")
        await super().finish_step(thread_id, turn, step, attempt, parts, outcome, chunks)
        self._fail("finish")

    async def load_history_with_ancestors(
        self, thread_id: str, known: str | None = None, message_id: str | None = None, *, whole: bool = False
    ) -> Path:
        """See the class."""
        self._fail("load")
        self.known.append(known)
        return await super().load_history_with_ancestors(thread_id, known, message_id, whole=whole)

    def _fail(self, name: str) -> None:
        if self.away.get(name, 0) > 0:
            self.away[name] -= 1
            raise StoreUnavailable("The database cannot be reached.")


async def until(condition: Callable[[], bool | Awaitable[bool]]) -> None:
    """Wait for a condition."""
    await eventually(condition)


class Conversation:
    """One thread. `say` opens a turn, `complete` makes a model call, `commit` makes it history.

    Attributes:
        named: whether the requests name the turn's message, as they do when it came from outside.
    """

    def __init__(self, store: MemoryStore, agent: Agent, activities: CompleteActivities) -> None:
        self.store = store
        self.agent = agent
        self.activities = activities
        self.thread_id = "t"
        self.turn = 0
        self.step = 0
        self.named = False
        self._version = 0
        self._parts = 0

    @classmethod
    async def start(cls, agent: Agent, store: MemoryStore | None = None) -> "Conversation":
        """A new thread of this agent."""
        store = store or MemoryStore()
        await store.create_thread(ThreadRecord(thread_id="t", agent=agent.name))
        return cls(store, agent, CompleteActivities(store, Agents([agent])))

    @property
    def message_id(self) -> str:
        """The assistant message of the turn."""
        return ids.turn_message_id(self.thread_id, self.turn)

    @property
    def request(self) -> CompleteRequest:
        """The model call that is due."""
        named = self.message_id if self.named else None
        agent = self.agent.name
        return CompleteRequest(thread_id=self.thread_id, agent=agent, turn=self.turn, step=self.step, message_id=named)

    async def say(self, *parts: Part | str, options: TurnOptions | None = None) -> None:
        """Words of the user, and the turn that answers them."""
        self.turn, self.step, self._parts = self.turn + 1, 0, 0
        said = tuple(TextPart(text=part) if isinstance(part, str) else part for part in parts)
        user = Message(id=f"u{self.turn}", thread_id=self.thread_id, role="user", parts=said, options=options)
        answer = Message(
            id=self.message_id,
            thread_id=self.thread_id,
            role="assistant",
            turn=self.turn,
            status=Status(state="running"),
        )
        await self.sync(AppendMessage(message=user), AppendMessage(message=answer))

    async def complete(self, attempt: int = 1, environment: ActivityEnvironment | None = None) -> CompleteResult:
        """Run the activity once."""
        environment = environment or ActivityEnvironment()
        environment.info = replace(environment.info, attempt=attempt, heartbeat_timeout=timedelta(seconds=5))
        return await environment.run(self.activities.complete, self.request)

    async def commit(self, result: CompleteResult, *results: str) -> None:
        """Make the step history, its calls answered with these texts in call order; refused calls with their error."""
        message_id = self.message_id
        operations: list[Operation] = [
            CommitStep(message_id=message_id, start=self._parts, turn=self.turn, step=self.step)
        ]
        self._parts += result.parts
        if result.calls:
            answers = list(results)
            call_ids = [ids.call_id(self.thread_id, self.turn, self.step, call.index) for call in result.calls]
            given = tuple(
                ToolResultPart(call_id=call_id, step=self.step, content=call.error, outcome="error")
                if call.error is not None
                else ToolResultPart(call_id=call_id, step=self.step, content=answers.pop(0))
                for call_id, call in zip(call_ids, result.calls, strict=True)
            )
            operations.append(
                CommitResults(message_id=message_id, start=self._parts, call_ids=tuple(call_ids), results=given)
            )
            self._parts += len(call_ids)
            self.step += 1
        else:
            operations.append(SetStatus(message_id=message_id, status=Status()))
        await self.sync(*operations)

    async def commit_step(self, result: CompleteResult) -> None:
        """Make the step history and leave its calls open."""
        await self.sync(CommitStep(message_id=self.message_id, start=self._parts, turn=self.turn, step=self.step))
        self._parts += result.parts

    async def stop(self) -> None:
        """Seal the step and settle the turn."""
        message_id = self.message_id
        await self.sync(
            CommitStep(message_id=message_id, start=self._parts, turn=self.turn, step=self.step, sealed=True),
            SetStatus(message_id=message_id, status=Status(state="incomplete", reason="cancelled")),
        )

    async def sync(self, *operations: Operation) -> None:
        """Apply a batch."""
        self._version += 1
        batch = SyncBatch(
            thread_id=self.thread_id, number=self._version, sync_id=f"s{self._version}", operations=operations
        )
        report = await self.store.append_messages(batch)
        assert not report.refused

    async def streamed(self) -> bool:
        """Whether a reader sees something of the running step."""
        live = (await self.store.snapshot(self.thread_id)).live
        return live is not None and bool(live.parts)

    async def parts(self) -> tuple[Part, ...]:
        """The committed parts of the turn's message."""
        path = await self.store.load_history_with_ancestors(self.thread_id)
        return next(message.parts for message in path.messages if message.id == self.message_id)


def scripted(script: Script, **options: Any) -> Agent:
    """An agent whose model follows the script."""
    return Agent("a", model=ScriptedModel(script), **options)


def requests_of(agent: Agent) -> ScriptedModel:
    """The model of the agent, to look at its requests."""
    assert isinstance(agent.model, ScriptedModel)
    return agent.model


def with_write(agent: Agent) -> Agent:
    """The agent with a tool that must not run on half of its arguments."""

    @agent.tool
    async def write(path: str, content: str = "") -> str:
        return path + content

    @agent.tool
    async def read() -> str:
        return ""

    return agent


async def failed(run: Awaitable[Any]) -> ApplicationError:
    """The failure that Temporal gets to see."""
    with pytest.raises(ApplicationError) as caught:
        await run
    return caught.value
