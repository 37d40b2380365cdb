"""Random conversations, written to both stores: every answer, error and reading must be the same."""

import random
from collections.abc import Awaitable, Callable
from datetime import UTC, datetime
from typing import Any, Literal

import pytest

from perdure.batch import (
    AppendMessage,
    AppendParts,
    CloseThread,
    CommitResults,
    CommitStep,
    Operation,
    RemoveSubscription,
    SetDue,
    SetStatus,
    StageResult,
    SyncBatch,
    SyncReport,
    TrackSubscription,
)
from perdure.codec import dumps
from perdure.errors import StaleWriter, StepSealed, StoreError
from perdure.messages import Message, Part, ReasoningPart, Status, TextPart, ToolCallPart, ToolResultPart, Usage
from perdure.ports import Choice, StepOutcome, Store, Summary, ThreadRecord
from perdure.turn_buffer import Chunk
from stores.memory import MemoryStore
from stores.postgres import PostgresStore
from tests.stores.builders import started

Call = Callable[[Store], Awaitable[object]]
THREADS = ("t", "k")
SOME_TIME = datetime(2026, 1, 1, tzinfo=UTC)


class Writer:
    """Makes calls of a store that are right often enough to go far, and wrong often enough to be refused."""

    def __init__(self, seed: int) -> None:
        self._random = random.Random(seed)
        self._names = 0
        self._version = {"t": 1, "k": 0}

    def call(self) -> Call:
        """One more call, and how it is told in a failure."""
        batches = [self._batch] * 4
        others = [self._chunks, self._chunks, self._begin, self._finish, self._start, self._stage, self._summary]
        others += [self._ask, self._ask, self._answer, self._view]
        make: Callable[[], Call] = self._random.choice([*batches, *others])
        return make()

    async def learn(self, store: Store) -> None:
        """What is true now, for the next call to be right about."""
        for thread_id in THREADS:
            self._version[thread_id] = (await store.get_thread(thread_id)).version

    def _batch(self) -> Call:
        thread_id = self._thread()
        number = self._version[thread_id] + self._random.choice([0, 1, 1, 1, 1, 1, 2])
        operations = tuple(self._operation() for _ in range(self._random.randint(0, 4)))
        sync_id = f"s{number}-{self._random.randint(0, 1)}"
        batch = SyncBatch(thread_id=thread_id, number=number, sync_id=sync_id, operations=operations)
        return lambda store: store.append_messages(batch)

    def _operation(self) -> Operation:
        pick = self._random
        message_id, start = self._message_id(), pick.choice([0, 0, 0, 1, 2, 3])
        make: Callable[[], Operation] = pick.choice(
            [
                self._append_message,
                self._append_message,
                lambda: AppendParts(message_id=message_id, start=start, parts=self._parts()),
                lambda: CommitStep(
                    message_id=message_id,
                    start=start,
                    turn=pick.randint(0, 2),
                    step=pick.randint(0, 2),
                    sealed=pick.random() < 0.2,
                    trim_reasoning=pick.random() < 0.3,
                    discard=pick.random() < 0.2,
                    usage=Usage(requests=1, output_tokens=pick.randint(0, 2)),
                ),
                lambda: StageResult(result=self._result()),
                lambda: CommitResults(
                    message_id=message_id,
                    start=start,
                    call_ids=tuple(dict.fromkeys(self._call_id() for _ in range(2))),
                    results=tuple(self._result() for _ in range(pick.randint(0, 3))),
                ),
                lambda: SetStatus(message_id=message_id, status=self._status()),
                lambda: TrackSubscription(call_id=self._call_id(), tool="feed", received=pick.randint(0, 3)),
                lambda: SetDue(call_id=self._call_id(), due=pick.random()),
                CloseThread,
                lambda: RemoveSubscription(call_id=self._call_id()),
            ]
        )
        return make()

    def _append_message(self) -> Operation:
        pick = self._random
        self._names += 1
        known = pick.random() < 0.5
        message = Message(
            id=self._message_id() if pick.random() < 0.1 else f"m{self._names}",
            thread_id="t",
            role=pick.choice(["user", "assistant", "event"]),
            parent_id=self._message_id() if pick.random() < 0.2 else None,
            parent_parts=pick.choice([None, None, 0, 1]),
            turn=pick.randint(0, 2),
            status=Status() if known else self._status(),
            parts=self._parts(),
            input_id=f"i{pick.randint(0, 30)}" if known else None,
        )
        return AppendMessage(message=message, digest=pick.choice(["d1", "d2"]) if known else None)

    def _begin(self) -> Call:
        thread_id, turn, step, attempt = self._step()
        return lambda store: store.begin_step(thread_id, turn, step, attempt)

    def _chunks(self) -> Call:
        thread_id, turn, step, attempt = self._step()
        chunks = [Chunk(index=self._random.randint(0, 2), delta="x ") for _ in range(self._random.randint(0, 3))]
        chunks += [Chunk(index=3, part=part) for part in self._parts()]
        first = self._random.choice([None, None, 0, 1, 2])
        return lambda store: store.append_chunks(thread_id, turn, step, attempt, chunks, first)

    def _finish(self) -> Call:
        thread_id, turn, step, attempt = self._step()
        parts, outcome = self._parts(), StepOutcome(finish="stop", detail="\x00")
        return lambda store: store.finish_step(thread_id, turn, step, attempt, parts, outcome, [Chunk(index=0)])

    def _start(self) -> Call:
        thread_id, call_id = self._thread(), self._call_id()
        return lambda store: store.start_call(thread_id, call_id)

    def _stage(self) -> Call:
        thread_id, result = self._thread(), self._result()
        return lambda store: store.stage_result(thread_id, result)

    def _ask(self) -> Call:
        thread_id, pick = self._thread(), self._random
        kind: Literal["choice", "oauth"] = pick.choice(["choice", "oauth"])
        choice = Choice(id=f"q{pick.randint(0, 5)}", call_id=self._call_id(), kind=kind, prompt=f"{self._names}?")
        return lambda store: store.put_choice(thread_id, choice)

    def _answer(self) -> Call:
        thread_id, choice_id = self._thread(), f"q{self._random.randint(0, 5)}"
        return lambda store: store.remove_choice(thread_id, choice_id)

    def _view(self) -> Call:
        thread_id, view_type, content = self._thread(), *self._random.choices(["{}", "null", "1", "2"], k=2)
        return lambda store: store.put_view(thread_id, view_type, content)

    def _summary(self) -> Call:
        name, parts = f"summary{self._random.randint(0, 5)}", self._random.randint(0, 2)
        summary = Summary(id=name, thread_id=self._thread(), message_id=self._message_id(), parts=parts, text="so far")
        return lambda store: store.add_summary(summary)

    def _step(self) -> tuple[str, int, int, int]:
        pick = self._random
        return self._thread(), pick.randint(0, 2), pick.randint(0, 2), pick.randint(1, 3)

    def _parts(self) -> tuple[Part, ...]:
        self._names += 1
        pick = self._random
        choices: list[Part] = [
            TextPart(text=f"text {self._names} \ud800", step=pick.randint(0, 1)),
            ReasoningPart(text="hm", signature=pick.choice([None, "s"])),
            ToolCallPart(call_id=f"c{self._names}", tool="search", error=pick.choice([None, None, "no"])),
        ]
        return tuple(pick.sample(choices, pick.randint(0, 3)))

    def _result(self) -> ToolResultPart:
        self._names += 1
        return ToolResultPart(call_id=self._call_id(), content=f"result {self._names}")

    def _status(self) -> Status:
        return Status(state=self._random.choice(["running", "running", "requires_action", "complete"]))

    def _thread(self) -> str:
        return self._random.choice(["t", "t", "t", "k"])

    def _message_id(self) -> str:
        return f"m{self._random.randint(max(0, self._names - 12), self._names)}"

    def _call_id(self) -> str:
        return f"c{self._random.randint(max(0, self._names - 12), self._names)}"


async def answer(store: Store, call: Call) -> object:
    """What a caller gets: the answer, or the kind of the error."""
    try:
        found = await call(store)
        if isinstance(found, SyncReport) and any(refused.detail for refused in found.refused):
            return "refused"
        return plain(found)
    except (StaleWriter, StepSealed) as error:
        return type(error).__name__
    except StoreError:
        return "refused"  # which of several mistakes in one batch is found first is nobody's business


def plain(value: Any) -> Any:
    """A value that can be compared, without the times at which threads were made."""
    return dumps(value).replace('"created_at"', '"created_at_left_out"') if value is not None else None


def timeless(thread: ThreadRecord) -> ThreadRecord:
    """A thread without the times at which it was made and closed: only whether it is closed."""
    return thread.with_(created_at=None, closed_at=SOME_TIME if thread.closed_at else None)


async def reading(store: Store) -> list[object]:
    """Everything that can be read."""
    found: list[object] = []
    for thread_id in THREADS:
        thread = timeless(await store.get_thread(thread_id))
        snapshot = (await store.snapshot(thread_id)).with_(thread=thread)
        tail = (await store.load_tail(thread_id, processed=5)).with_(thread=thread)
        path = await store.load_history_with_ancestors(thread_id)
        found += [thread, snapshot, tail, path, await store.get_message_counts(thread_id)]
        found += [await store.load_history_with_ancestors(thread_id, message.id) for message in path.messages[-3:]]
        found += await store.read_changes(thread_id, 0)
        found += await store.get_active_subscriptions(thread_id)
        found += await store.get_choices(thread_id)
        found += [timeless(child) for child in await store.get_children(thread_id)]
        found += sorted((await store.get_processed_ids(thread_id, tuple(f"i{n}" for n in range(31)))).items())
    return found


@pytest.mark.parametrize("seed", range(6))
async def test_both_stores_give_the_same_answers(postgres: PostgresStore, seed: int) -> None:
    """The store in memory is as strict as the one in the database, and the other way round."""
    memory, writer = MemoryStore(), Writer(seed)
    stores: tuple[Store, Store] = (memory, postgres)
    refused = 0
    for store in stores:
        await started(store)
        child = ThreadRecord(thread_id="k", agent="demo", kind="child", parent_thread_id="t", spawn_parts=1)
        await store.create_thread(child.with_(spawn_message_id="a"))
    for count in range(150):
        call = writer.call()
        answers = [await answer(store, call) for store in stores]
        assert answers[0] == answers[1], (seed, count)
        refused += answers[0] in ("refused", "StaleWriter", "StepSealed")
        if count % 10 == 9:
            assert await reading(memory) == await reading(postgres), (seed, count)
        await writer.learn(memory)
    assert 20 < refused < 130, "the calls are all refused or all accepted, so they compare little"
