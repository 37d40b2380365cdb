"""A worker process that kills itself with SIGKILL at a named point, as nothing else can do so exactly.

The point lies in what surrounds the product (the store it is given), never in the product itself. Processes are forked
from a server that has imported everything already, so that one is up in some 50 ms.
"""

import asyncio
import ctypes
import multiprocessing
import os
import signal
from dataclasses import dataclass
from multiprocessing.context import ForkServerContext
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Self

from typing_extensions import override

from perdure.batch import (
    AnnotateMessage,
    AppendMessage,
    CloseThread,
    CommitResults,
    CommitStep,
    Decide,
    DeleteMessage,
    ImportMessages,
    Operation,
    ResetThread,
    SetStatus,
    ShowInterim,
    StageResult,
    StoreLateResult,
    SwitchBranch,
    SyncBatch,
    SyncReport,
)
from perdure.connection import connect_temporal
from perdure.messages import Part, ToolResultPart
from perdure.records import OpenCall, ProviderState, StepOutcome, Summary, Tail, ThreadRecord
from perdure.settings import Settings
from perdure.turn_buffer import Chunk
from perdure.turn_context import TurnContext
from stores.postgres import PostgresStore
from tests.chaos.agents import agents
from tests.eventually import eventually
from worker import create_worker

_PR_SET_PDEATHSIG = 1

POINTS = (
    "before load",
    "after load",
    "before input sync",
    "after input sync",
    "in mid stream",
    "before end of stream",
    "after end of stream",
    "before step sync",
    "after step sync",
    "before call starts",
    "after call has started",
    "before result is staged",
    "after result is staged",
    "before results sync",
    "after results sync",
    "before final sync",
    "after final sync",
)
"""Every boundary of a turn with tools, in the order in which it comes to them."""

CHILD_POINTS = (
    "before child is made",
    "after child is made",
    "before child is seeded",
    "after child is seeded",
    "before child is loaded",
    "after child is loaded",
    "before end is called",
    "before end is staged",
    "after end is staged",
    "before child is closed",
    "after child is closed",
)
"""Every boundary in the life of a child thread that ends with a report."""

_DEEDS: dict[type[Operation], str] = {
    SwitchBranch: "switch",
    ResetThread: "reset",
    ImportMessages: "import",
    AnnotateMessage: "annotation",
    ShowInterim: "preliminary result",
    StoreLateResult: "late result",
    StageResult: "given result",
}
"""What else people do, by the operation that tells."""

BRANCH_POINTS = (
    "before regeneration",
    "after regeneration",
    "before deletion",
    "after deletion",
    "before decision",
    "after decision",
    *(f"{side} {what}" for what in _DEEDS.values() for side in ("before", "after")),
)
"""Both sides of what people do with branches and with calls that wait for them."""

MODEL_POINTS = (
    "in hook before",
    "before context is kept",
    "after context is kept",
    "before hook is finished",
    "after hook is finished",
    "in hook after of second",
    "in hook after of first",
    "before context is dropped",
    "after context is dropped",
    "in summary",
    "before summary is kept",
    "after summary is kept",
)
"""Every boundary of what stands around a model call: context providers and a compaction."""


class DoomedStore(PostgresStore):
    """A store whose process dies when it comes to a point."""

    doom: str | None = None
    _booking: str | None = None
    _child: str | None = None

    def _at(self, point: str) -> None:
        if point == self.doom:
            os.kill(os.getpid(), signal.SIGKILL)

    @override
    async def create_thread(self, thread: ThreadRecord) -> ThreadRecord:
        # Whoever spawns says where the child begins; what is loaded later does not.
        if thread.spawn_message_id is None:
            return await super().create_thread(thread)
        self._at("before child is made")
        self._child = self._child or thread.thread_id
        stored = await super().create_thread(thread)
        self._at("after child is made")
        return stored

    @override
    async def load_tail(self, thread_id: str, processed: int = 200) -> Tail:
        what = "child is loaded" if thread_id == self._child else "load"
        self._at(f"before {what}")
        tail = await super().load_tail(thread_id, processed)
        self._at(f"after {what}")
        return tail

    @override
    async def append_messages(self, batch: SyncBatch) -> SyncReport:
        what = _name(batch)
        self._at(f"before {what}")
        report = await super().append_messages(batch)
        self._at(f"after {what}")
        return report

    @override
    async def append_chunks(
        self, thread_id: str, turn: int, step: int, attempt: int, chunks: list[Chunk], first: int | None = None
    ) -> None:
        await super().append_chunks(thread_id, turn, step, attempt, chunks, first)
        self._at("in mid stream")

    @override
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
        self._at("before end of stream")
        await super().finish_step(thread_id, turn, step, attempt, parts, outcome, chunks)
        self._at("after end of stream")

    @override
    async def start_call(self, thread_id: str, call_id: str, owner: str | None = None) -> OpenCall:
        self._at("before call starts")
        call = await super().start_call(thread_id, call_id, owner)
        # The two calls run at once, so the point must belong to one of them: the one that must not run again.
        if call.tool == "book":
            self._booking = call_id
            self._at("after call has started")
        if thread_id == self._child:
            self._at("before end is called")
        return call

    @override
    async def stage_result(self, thread_id: str, result: ToolResultPart) -> ToolResultPart:
        if result.call_id == self._booking:
            self._at("before result is staged")
        if thread_id == self._child:
            self._at("before end is staged")
        staged = await super().stage_result(thread_id, result)
        if thread_id == self._child:
            self._at("after end is staged")
        if result.call_id == self._booking:
            self._at("after result is staged")
        return staged

    @override
    async def put_turn_context(self, thread_id: str, turn: int, step: int, context: TurnContext) -> TurnContext:
        self._at("before context is kept")
        kept = await super().put_turn_context(thread_id, turn, step, context)
        self._at("after context is kept")
        return kept

    @override
    async def finish_hook(self, thread_id: str, turn: int, source: str, state: ProviderState | None = None) -> bool:
        self._at("before hook is finished")
        finished = await super().finish_hook(thread_id, turn, source, state)
        self._at("after hook is finished")
        return finished

    @override
    async def drop_turn_contexts(self, thread_id: str, turn: int) -> None:
        self._at("before context is dropped")
        await super().drop_turn_contexts(thread_id, turn)
        self._at("after context is dropped")

    @override
    async def add_summary(self, summary: Summary) -> bool:
        self._at("before summary is kept")
        added = await super().add_summary(summary)
        self._at("after summary is kept")
        return added


def _name(batch: SyncBatch) -> str:
    """Which sync of a turn this is, or what people have done."""
    kinds = {type(operation) for operation in batch.operations}
    if Decide in kinds:
        return "decision"
    if DeleteMessage in kinds:
        return "deletion"
    if any(isinstance(operation, AppendMessage) and operation.answering for operation in batch.operations):
        return "regeneration"
    if CloseThread in kinds:
        return "child is closed"
    if deed := next((name for kind, name in _DEEDS.items() if kind in kinds), None):
        return deed
    if batch.sync_id == "spawn":
        return "child is seeded"
    if AppendMessage in kinds:
        return "input sync"
    if SetStatus in kinds:
        return "final sync"
    if CommitResults in kinds:
        return "results sync"
    return "step sync" if CommitStep in kinds else "other sync"


@dataclass(frozen=True)
class Place:
    """Where a worker finds its servers, and where its tools leave their notes."""

    temporal_address: str
    database_url: str
    task_queue: str
    state_dir: Path


class DoomedWorker:
    """A worker process; with `doom` it dies at that point, without it lives until `async with` ends."""

    def __init__(self, place: Place, doom: str | None = None) -> None:
        assert doom is None or doom in (*POINTS, *CHILD_POINTS, *BRANCH_POINTS, *MODEL_POINTS)
        context: ForkServerContext = multiprocessing.get_context("forkserver")
        context.set_forkserver_preload([__name__])
        self._process: BaseProcess = context.Process(target=_main, args=(place, doom), daemon=True)
        self._process.start()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        self._process.kill()
        await self.died()

    async def died(self) -> int:
        """Wait until it has ended; returns the exit code, negative for a signal."""
        await eventually(lambda: self._process.exitcode is not None, timeout=60)
        assert self._process.exitcode is not None
        return self._process.exitcode


def _main(place: Place, doom: str | None) -> None:
    # The fork server ends with the test run, and takes its children along.
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    asyncio.run(_serve(place, doom))


async def _serve(place: Place, doom: str | None) -> None:
    os.environ["CHAOS_DIR"] = str(place.state_dir)
    os.environ["CHAOS_DOOM"] = doom or ""
    client = await connect_temporal({"target_host": place.temporal_address})
    store = await DoomedStore.connect(place.database_url, max_size=4)
    store.doom = doom
    settings = Settings(task_queue=place.task_queue, max_cached_workflows=100)
    await create_worker(client, store, agents(), settings).run()
