"""Building a request: loading the path and making the model's messages of it, by the length of the conversation.

Cold is the first request of a worker, warm every later one: the worker's cache has the rest. PostgreSQL is real and
durable; neither Temporal nor a model takes part.
"""

import argparse
import time
from collections.abc import AsyncGenerator
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Final

from activities.path_cache import PathCache
from activities.request_builder import RequestBuilder
from benchmarks.agents import ANSWER, QUESTION, RESULT
from benchmarks.stage import Figures, data_folder, quantile, rounded, run
from perdure import ids
from perdure.agent import Agent
from perdure.batch import AppendMessage, AppendParts, Operation, SetStatus, SyncBatch
from perdure.contract import CompleteRequest
from perdure.messages import Message, Part, Status, TextPart, ToolCallPart, ToolResultPart
from perdure.records import Path, ThreadRecord
from perdure.testing import ScriptedModel
from perdure.turn_context import TurnContext
from stores.database import Database
from stores.embedded import EmbeddedPostgres
from stores.migrate import migrate
from stores.postgres import PostgresStore

LENGTHS: Final = (10, 200, 2_000)
"""Turns, each of two model calls with two tool results between them."""

BATCH: Final = 100
"""Turns that are written at once."""


class CountingStore(PostgresStore):
    """Counts rows of paths that a reader had read before and that have not changed since; a turn that grows has."""

    def __init__(self, database: Database) -> None:
        super().__init__(database)
        self.reread = 0
        self._read: dict[str, Message] = {}

    def forget(self) -> None:
        """The next reader has read nothing."""
        self._read.clear()

    async def load_history_with_ancestors(
        self, thread_id: str, known: str | None = None, message_id: str | None = None, *, whole: bool = False
    ) -> Path:
        """See `perdure.ports.ConversationStore`."""
        path = await super().load_history_with_ancestors(thread_id, known, message_id, whole=whole)
        for message in path.messages:
            self.reread += self._read.get(message.id) == message
            self._read[message.id] = message
        return path


class Worker:
    """What of a worker makes a request, with its cache."""

    def __init__(self, store: CountingStore) -> None:
        store.forget()
        self._paths = PathCache(store)
        self._requests = RequestBuilder(store, self._paths)
        self._model = ScriptedModel([])
        self._agent = Agent("a", model=self._model)

    async def request_ms(self, thread_id: str, turn: int, step: int) -> float:
        """Make the request of a model call."""
        request = CompleteRequest(thread_id=thread_id, agent="a", turn=turn, step=step)
        began = time.perf_counter()
        path = await self._paths.load(thread_id, ids.turn_message_id(thread_id, turn))
        await self._requests.build(self._agent, request, path, TurnContext(step=step), self._model)
        return (time.perf_counter() - began) * 1000


class Talk:
    """A stored conversation that goes on turn by turn, as the runtime writes it."""

    def __init__(self, store: PostgresStore, length: int) -> None:
        self.thread_id = f"t{length}"
        self.turn = 0
        self._store = store
        self._version = 0

    async def write(self, turns: int) -> None:
        """So many whole turns."""
        await self._store.create_thread(ThreadRecord(thread_id=self.thread_id, agent="a"))
        while self.turn < turns:
            batch = [self._opened((*self._first(), *self._second()), Status()) for _ in range(min(BATCH, turns))]
            await self._sync(*(operation for opened in batch for operation in opened))

    async def open(self) -> None:
        """Words, and the turn that answers them."""
        await self._sync(*self._opened((), Status(state="running")))

    async def take_first_step(self) -> None:
        """Two calls and their results."""
        await self._sync(AppendParts(message_id=self.message_id, start=0, parts=self._first()))

    async def end(self) -> None:
        """The answer."""
        start = len(self._first())
        await self._sync(
            AppendParts(message_id=self.message_id, start=start, parts=self._second()),
            SetStatus(message_id=self.message_id, status=Status()),
        )

    @property
    def message_id(self) -> str:
        """The message of the turn."""
        return ids.turn_message_id(self.thread_id, self.turn)

    def _opened(self, parts: tuple[Part, ...], status: Status) -> tuple[Operation, ...]:
        self.turn += 1
        words = Message(id=f"{self.thread_id}-u{self.turn}", thread_id=self.thread_id, role="user", turn=self.turn)
        answer = Message(
            id=self.message_id,
            thread_id=self.thread_id,
            role="assistant",
            turn=self.turn,
            status=status,
            parts=parts,
        )
        return AppendMessage(message=words.with_(parts=(TextPart(text=QUESTION),))), AppendMessage(message=answer)

    def _first(self) -> tuple[Part, ...]:
        call_ids = [ids.call_id(self.thread_id, self.turn, 0, index) for index in range(2)]
        calls = [ToolCallPart(call_id=call_id, tool="look_up", arguments='{"key":"first"}') for call_id in call_ids]
        return (*calls, *(ToolResultPart(call_id=call_id, content=RESULT) for call_id in call_ids))

    def _second(self) -> tuple[Part, ...]:
        return (TextPart(text=ANSWER, step=1),)

    async def _sync(self, *operations: Operation) -> None:
        self._version += 1
        sync_id = str(self._version)
        await self._store.append_messages(
            SyncBatch(thread_id=self.thread_id, number=self._version, sync_id=sync_id, operations=operations)
        )


async def measure(cold: int, warm: int) -> Figures:
    """Both, for each length: the medians."""
    figures: Figures = {"cold_requests": cold, "warm_requests": 2 * warm}
    async with _store() as store:
        for length in LENGTHS:
            talk = Talk(store, length)
            await talk.write(length)
            await talk.open()
            times = [await Worker(store).request_ms(talk.thread_id, talk.turn, 0) for _ in range(cold)]
            figures[f"cold_{length}_ms"] = rounded(quantile(times, 0.5))
            figures[f"warm_{length}_ms"] = rounded(quantile(await _warm(Worker(store), talk, warm), 0.5))
    return {**figures, "rows_reread_warm": store.reread}


async def _warm(worker: Worker, talk: Talk, turns: int) -> list[float]:
    """The conversation goes on: two requests a turn, after a first one that is not counted."""
    await worker.request_ms(talk.thread_id, talk.turn, 0)
    times: list[float] = []
    for _ in range(turns):
        await talk.take_first_step()
        times.append(await worker.request_ms(talk.thread_id, talk.turn, 1))
        await talk.end()
        await talk.open()
        times.append(await worker.request_ms(talk.thread_id, talk.turn, 0))
    return times


@asynccontextmanager
async def _store() -> AsyncGenerator[CountingStore]:
    async with AsyncExitStack() as exits:
        folder = exits.enter_context(data_folder())
        postgres = await exits.enter_async_context(EmbeddedPostgres(folder / "postgres", durable=True))
        await migrate(postgres.url)
        yield await exits.enter_async_context(await CountingStore.connect(postgres.url))


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--cold", type=int, default=5, help="first requests at each length, each of a new worker")
    parser.add_argument("--warm", type=int, default=20, help="turns that go on from there")
    arguments = parser.parse_args()
    run(lambda: measure(arguments.cold, arguments.warm))
