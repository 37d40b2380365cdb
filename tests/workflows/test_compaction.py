"""The compaction workflow by itself: what it runs, whom it tells, and that it replays."""

import uuid
from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager
from datetime import timedelta
from typing import Any

import pytest
from temporalio import activity, workflow
from temporalio.client import Client, WorkflowHandle
from temporalio.exceptions import ApplicationError
from temporalio.worker import Worker

from perdure import ids, policy
from perdure.contract import COMPACT, COMPACTED, COMPACTION_TYPE, CompactRequest, CompactResult
from tests.eventually import eventually
from tests.histories.replay import replay
from workflows.compaction import CANCELLED, CompactionWorkflow

Act = Callable[[CompactRequest], CompactResult]


@workflow.defn(name="Listener", sandboxed=False)
class Listener:
    """Stands for a thread: it hears how compactions went, until it has heard of so many."""

    def __init__(self) -> None:
        self.heard: list[CompactResult] = []

    @workflow.run
    async def run(self, number: int) -> None:
        """Wait."""
        await workflow.wait_condition(lambda: len(self.heard) >= number)

    @workflow.signal(name=COMPACTED)
    def compacted(self, result: CompactResult) -> None:
        """One is over."""
        self.heard.append(result)

    @workflow.query
    def told(self) -> list[CompactResult]:
        """What it was told."""
        return self.heard


@workflow.defn(name=COMPACTION_TYPE, sandboxed=False)
class Silent:
    """Makes other commands than the real one."""

    @workflow.run
    async def run(self, request: CompactRequest) -> CompactResult:
        """Go straight to the end."""
        return CompactResult()


class Stage:
    """A worker whose `compact` does what a test wants, and one thread."""

    def __init__(self, client: Client, queue: str, asked: list[CompactRequest]) -> None:
        self.client = client
        self.queue = queue
        self.asked = asked
        self.thread_id = f"t-{uuid.uuid4()}"

    @property
    def request(self) -> CompactRequest:
        """A compaction of the thread."""
        return CompactRequest(thread_id=self.thread_id, agent="a", message_id="m", parts=2, number=7)

    async def listen(self) -> WorkflowHandle[Any, Any]:
        """The thread runs."""
        name = ids.workflow_id(self.thread_id)
        return await self.client.start_workflow("Listener", 1_000, id=name, task_queue=self.queue)

    async def begin(self) -> WorkflowHandle[Any, CompactResult]:
        """The compaction begins."""
        return await self.client.start_workflow(
            COMPACTION_TYPE,
            self.request,
            id=ids.compaction_id(self.thread_id),
            task_queue=self.queue,
            result_type=CompactResult,
        )


@asynccontextmanager
async def staged(client: Client, act: Act) -> AsyncGenerator[Stage]:
    """A worker that runs the workflow over this activity."""
    asked: list[CompactRequest] = []

    @activity.defn(name=COMPACT)
    async def compact(request: CompactRequest) -> CompactResult:
        asked.append(request)
        return act(request)

    queue = f"test-{uuid.uuid4()}"
    async with Worker(client, task_queue=queue, workflows=[CompactionWorkflow, Listener], activities=[compact]):
        yield Stage(client, queue, asked)


def done(request: CompactRequest) -> CompactResult:
    """A compaction that goes through."""
    return CompactResult(summary_id="s", covered=request.number)


def refused(request: CompactRequest) -> CompactResult:
    """One that fails for good."""
    raise ApplicationError("The key was refused.", type=policy.ErrorType.MODEL, non_retryable=True)


def broken(request: CompactRequest) -> CompactResult:
    """One whose worker has an odd accident."""
    raise ApplicationError("odd", non_retryable=True) from ValueError("odder")


@pytest.mark.parametrize(
    ("act", "expected"),
    [
        (done, CompactResult(summary_id="s", covered=7)),
        (refused, CompactResult(outcome="failed", detail="The key was refused.")),
        (broken, CompactResult(outcome="failed", detail="odd")),
    ],
)
async def test_the_thread_is_told_how_it_went(temporal: Client, act: Act, expected: CompactResult) -> None:
    """Success and failure alike; the workflow ends well in both cases, since nobody is to look into it."""
    async with staged(temporal, act) as stage:
        listener = await stage.listen()
        handle = await stage.begin()
        assert await handle.result() == expected
        assert await listener.query(Listener.told) == [expected]
        assert stage.asked == [stage.request]
        await listener.terminate()


async def test_a_thread_that_does_not_run_is_no_failure(temporal: Client) -> None:
    """It rests, or was never there: what was made is in the store."""
    async with staged(temporal, done) as stage:
        assert await (await stage.begin()).result() == CompactResult(summary_id="s", covered=7)


async def test_a_passing_fault_is_tried_again(temporal: Client) -> None:
    """The thread hears of the end only."""
    tries: list[int] = []

    def act(request: CompactRequest) -> CompactResult:
        tries.append(1)
        if len(tries) < 2:
            raise ApplicationError("away", next_retry_delay=timedelta(milliseconds=1))
        return done(request)

    async with staged(temporal, act) as stage:
        listener = await stage.listen()
        assert (await (await stage.begin()).result()).outcome == "done"
        assert [result.outcome for result in await listener.query(Listener.told)] == ["done"]
        await listener.terminate()


async def test_one_that_is_cancelled_tells_the_thread(temporal: Client) -> None:
    """A turn may wait for it, and must not wait for ever."""

    def act(request: CompactRequest) -> CompactResult:
        raise ApplicationError("away", next_retry_delay=timedelta(minutes=10))

    async with staged(temporal, act) as stage:
        listener = await stage.listen()
        handle = await stage.begin()
        await eventually(lambda: stage.asked)
        await handle.cancel()
        assert await handle.result() == CompactResult(outcome="failed", detail=CANCELLED)
        assert [result.detail for result in await listener.query(Listener.told)] == [CANCELLED]
        await listener.terminate()


@pytest.mark.parametrize("act", [done, refused])
async def test_it_replays(temporal: Client, act: Act) -> None:
    """Its history gives the same commands again; it is short, and nothing in it grows with the conversation."""
    async with staged(temporal, act) as stage:
        listener = await stage.listen()
        handle = await stage.begin()
        await handle.result()
        await listener.terminate()
        history = await handle.fetch_history()
    assert await replay(history, CompactionWorkflow) is None
    assert await replay(history, Silent) is not None, "control: one that tells nobody is found out"
    assert len(history.events) <= 16
