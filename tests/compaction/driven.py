"""A thread in a memory store that is driven by hand and compacted in between."""

import asyncio
from typing import Any

from pydantic_ai.messages import ModelRequest, UserPromptPart

from activities.compact import CompactActivities
from perdure.agent import Agent, Agents
from perdure.batch import AppendMessage, AppendParts, SyncBatch
from perdure.codec import digest
from perdure.compaction import Compaction
from perdure.contract import CompactRequest, CompactResult
from perdure.messages import Message, Part, Role, Status, TextPart, Usage
from perdure.ports import Store
from perdure.records import Path, Summary, ThreadRecord
from perdure.summary_prompt import BEFORE, BEFORE_END, SINCE, SINCE_END
from perdure.testing import Asked, Reply, Script, ScriptedModel
from perdure.view import Request, Response, UserText, view
from stores.memory import MemoryStore

THREAD = "t"


class Talk:
    """One thread. `user` and `answer` add messages, `compact` makes it shorter.

    Attributes:
        summariser: the model that sums up, to look at what it was asked.
    """

    def __init__(self, store: Store, agent: Agent, thread_id: str = THREAD) -> None:
        self.store = store
        self.agent = agent
        self.thread_id = thread_id
        self.activities = CompactActivities(store, Agents([agent]))
        self.compactions = 0
        self._version = 0
        self._turns = 0

    @classmethod
    async def begin(cls, agent: Agent, store: Store | None = None, **thread: Any) -> "Talk":
        """A thread in which nothing was said."""
        store = store or MemoryStore()
        record = ThreadRecord(thread_id=THREAD, agent=agent.name).with_(**thread)
        await store.create_thread(record)
        return cls(store, agent, record.thread_id)

    @property
    def summariser(self) -> ScriptedModel:
        """The model that sums up."""
        compaction = self.agent.compaction
        model = self.agent.model if compaction is None or compaction.model is None else compaction.model
        assert isinstance(model, ScriptedModel)
        return model

    async def user(self, id: str, *parts: Part | str) -> str:
        """Words of the user."""
        return await self.add(id, "user", parts)

    async def answer(
        self, id: str, *parts: Part | str, status: Status | None = None, usage: Usage | None = None
    ) -> str:
        """What the model said."""
        self._turns += 1
        return await self.add(id, "assistant", parts, status, turn=self._turns, usage=usage)

    async def add(
        self, id: str, role: Role, parts: tuple[Part | str, ...], status: Status | None = None, **fields: Any
    ) -> str:
        """Any message, at the head."""
        given = tuple(TextPart(text=part) if isinstance(part, str) else part for part in parts)
        message = Message(id=id, thread_id=self.thread_id, role=role, parts=given, status=status or Status(), **fields)
        await self.sync(AppendMessage(message=message, digest=digest(id)))
        return id

    async def extend(self, id: str, start: int, *parts: Part) -> None:
        """Parts at the end of a message."""
        await self.sync(AppendParts(message_id=id, start=start, parts=parts))

    async def sync(self, *operations: Any) -> None:
        """Apply a batch."""
        self._version += 1
        batch = SyncBatch(
            thread_id=self.thread_id, number=self._version, sync_id=f"s{self._version}", operations=operations
        )
        assert not (await self.store.append_messages(batch)).refused

    def request(self, message_id: str, parts: int | None = None, *, forced: bool = True) -> CompactRequest:
        """The next compaction that is asked for, up to this message."""
        self.compactions += 1
        return CompactRequest(
            thread_id=self.thread_id,
            agent=self.agent.name,
            message_id=message_id,
            parts=parts,
            number=self.compactions,
            forced=forced,
        )

    async def compact(self, message_id: str, parts: int | None = None, *, forced: bool = True) -> CompactResult:
        """Make it shorter up to this message, by a worker that has just been started."""
        self.activities = CompactActivities(self.store, Agents([self.agent]))
        return await self.activities.execute(self.request(message_id, parts, forced=forced))

    async def path(self) -> Path:
        """What is read for the model."""
        return await self.store.load_history_with_ancestors(self.thread_id)

    async def whole(self) -> Path:
        """All that was ever said on the path."""
        return await self.store.load_history_with_ancestors(self.thread_id, whole=True)

    async def ids(self) -> list[str]:
        """The ids of all messages on the path."""
        return [message.id for message in (await self.whole()).messages]

    async def kept(self) -> list[str]:
        """The ids of the messages that no summary stands for."""
        return [message.id for message in (await self.path()).messages]

    async def view(self) -> tuple[Request | Response, ...]:
        """What the model reads."""
        return view(await self.path())

    async def summary(self) -> Summary:
        """The summary on the path."""
        found = (await self.path()).summary
        assert found is not None
        return found


def asked(request: Asked) -> str:
    """What a summariser reads besides its instructions."""
    (message,) = request.messages
    assert isinstance(message, ModelRequest)
    (part,) = message.parts
    assert isinstance(part, UserPromptPart)
    assert isinstance(part.content, str)
    return part.content


def earlier_of(words: str) -> str:
    """The summary so far, in what a summariser reads; empty if there is none."""
    return words.partition(f"{BEFORE}\n")[2].partition(f"\n{BEFORE_END}")[0]


def piece_of(words: str) -> str:
    """The piece of the transcript in what a summariser reads."""
    return words.partition(f"{SINCE}\n")[2].rpartition(f"\n{SINCE_END}")[0]


def joining(request: Asked) -> str:
    """A summariser that joins what it is given: the summary so far, and the words of the piece, without who said it."""
    words = asked(request)
    said = [line.partition(": ")[2] for line in piece_of(words).split("\n")]
    return "+".join(filter(None, [earlier_of(words), *said]))


class Held:
    """A summariser that waits until it is released, and then joins what it was given."""

    def __init__(self) -> None:
        self.reached = asyncio.Event()
        self.release = asyncio.Event()
        self.model = _HeldModel(self)


class _HeldModel(ScriptedModel):
    def __init__(self, held: Held) -> None:
        super().__init__(joining, name="held")
        self._held = held

    def request_stream(self, *arguments: Any, **options: Any) -> Any:
        """See `Model`."""
        return self._stream(super().request_stream(*arguments, **options))

    def _stream(self, stream: Any) -> Any:
        held = self._held

        class Waiting:
            async def __aenter__(self) -> Any:
                held.reached.set()
                await held.release.wait()
                return await stream.__aenter__()

            async def __aexit__(self, *error: Any) -> Any:
                return await stream.__aexit__(*error)

        return Waiting()


def agent(script: Script = joining, **compaction: Any) -> Agent:
    """An agent that answers `ok` and is summed up by a script."""
    model = compaction.pop("model", None) or ScriptedModel(script, name="summariser")
    return Agent("a", model=ScriptedModel(lambda _: Reply("ok")), compaction=Compaction(model=model, **compaction))


def first_text(seen: tuple[Request | Response, ...]) -> str:
    """The first words of a view."""
    item = seen[0].items[0]
    assert isinstance(item, UserText)
    return item.text
