"""The activity `dispatch` as a worker runs it: one call, its result staged once, its stops told apart."""

import asyncio
import hashlib
import inspect
import threading
from collections.abc import Callable
from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest
from temporalio import activity
from temporalio.activity import ActivityCancellationDetails
from temporalio.exceptions import ApplicationError
from temporalio.testing import ActivityEnvironment

from activities import dispatch as module
from activities.dispatch import DispatchActivities
from perdure.agent import Agent, Agents
from perdure.batch import AppendMessage, AppendParts, SyncBatch
from perdure.contract import DispatchRequest, DispatchResult
from perdure.inputs import INLINE_BYTES
from perdure.messages import Message, Status, ToolCallPart, ToolResultPart
from perdure.policy import ErrorType
from perdure.records import ThreadRecord
from perdure.testing import ScriptedModel
from perdure.tools import function_tool
from stores.memory import MemoryStore
from tests.activities.lossy_store import LossyStore
from tests.eventually import eventually

THREAD = "t"
REQUEST = DispatchRequest(thread_id=THREAD, agent="a", call_id="c")


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """The store is asked again at once."""
    monkeypatch.setattr(module, "_RETRY_S", 0.001)


class Dispatched:
    """One call of a tool, dispatched in an activity environment as often as the test wants.

    Attributes:
        ran: how often the tool has begun.
        store: where its result goes.
    """

    def __init__(self, function: Callable[..., Any], store: MemoryStore | None = None, **options: Any) -> None:
        self.ran = 0
        self.store = store or MemoryStore()
        self._tool = replace(function_tool(function, name="tool", **options), function=self._counted(function))
        self._activities = DispatchActivities(
            self.store, Agents([Agent(name="a", model=ScriptedModel(["hi"]), tools=[self._tool])])
        )

    def _counted(self, function: Callable[..., Any]) -> Callable[..., Any]:
        def sync(**arguments: Any) -> Any:
            self.ran += 1
            return function(**arguments)

        async def on_loop(**arguments: Any) -> Any:
            self.ran += 1
            return await function(**arguments)

        return on_loop if inspect.iscoroutinefunction(function) else sync

    async def called(self, arguments: str = "{}", error: str | None = None) -> "Dispatched":
        """The model has called it, and the call is durable."""
        await self.store.create_thread(ThreadRecord(thread_id=THREAD, agent="a"))
        message = Message(id="m", thread_id=THREAD, role="assistant", turn=1, status=Status(state="running"))
        call = ToolCallPart(call_id="c", tool="tool", arguments=arguments, error=error, step=2)
        operations = (AppendMessage(message=message), AppendParts(message_id="m", start=0, parts=(call,)))
        await self.store.append_messages(SyncBatch(thread_id=THREAD, number=1, sync_id="s", operations=operations))
        return self

    async def run(self, environment: ActivityEnvironment | None = None) -> DispatchResult:
        """Run the activity."""
        return await (environment or ActivityEnvironment()).run(self._activities.dispatch, REQUEST)

    async def result(self) -> ToolResultPart:
        """What is staged."""
        (call,) = (await self.store.load_tail(THREAD)).calls
        assert call.result is not None
        return call.result


async def sunny(city: str = "Paris") -> str:
    """The weather."""
    return f"sunny in {city}"


async def test_a_call_is_run_with_its_stored_arguments_and_its_result_is_staged() -> None:
    """What goes back through Temporal is an outcome and a preview."""
    dispatched = await Dispatched(sunny).called('{"city":"Oslo"}')
    assert await dispatched.run() == DispatchResult(preview="sunny in Oslo")
    assert await dispatched.result() == ToolResultPart(call_id="c", content="sunny in Oslo", size_bytes=13, step=2)


async def test_a_staged_result_is_reported_without_another_run() -> None:
    """The reply was lost: the tool does not run twice, whatever it is declared as."""
    for retry_safe in (False, True):
        dispatched = await Dispatched(sunny, retry_safe=retry_safe).called()
        assert await dispatched.run() == await dispatched.run() == DispatchResult(preview="sunny in Paris")
        assert dispatched.ran == 1


async def test_a_retry_safe_tool_runs_again_after_its_worker_died() -> None:
    """That is what the declaration is for."""
    dispatched = await Dispatched(sunny, retry_safe=True).called()
    await dispatched.store.start_call(THREAD, "c", "a worker that died")
    assert await dispatched.run() == DispatchResult(preview="sunny in Paris")
    assert dispatched.ran == 1


async def test_a_tool_that_failed_is_not_run_again() -> None:
    """Its failure is its result, and is staged like one."""

    def fail() -> str:
        """Fail."""
        raise ValueError("no such city")

    dispatched = await Dispatched(fail).called()
    assert (await dispatched.run()).outcome == (await dispatched.run()).outcome == "error"
    assert dispatched.ran == 1
    assert (await dispatched.result()).content == "ValueError: no such city"


async def test_a_call_that_was_refused_is_not_run() -> None:
    """The reason stands in the call, and is what is reported."""
    dispatched = await Dispatched(sunny).called("{", error="The arguments are not a JSON object.")
    answer = await dispatched.run()
    assert (answer.outcome, dispatched.ran) == ("error", 0)
    assert "not a JSON object" in answer.preview


async def test_arguments_are_checked_before_the_tool_runs() -> None:
    """The model reads what does not fit."""
    dispatched = await Dispatched(sunny).called('{"town":"Oslo"}')
    assert (await dispatched.run()).outcome == "error"
    assert "town: Extra inputs are not permitted" in (await dispatched.result()).content
    assert dispatched.ran == 0


async def test_a_tool_that_is_gone_is_an_error_of_the_call() -> None:
    """The agent was declared anew between the call and now."""
    dispatched = await Dispatched(sunny).called()
    activities = DispatchActivities(dispatched.store, Agents([Agent(name="a", model=ScriptedModel(["hi"]))]))
    assert (await ActivityEnvironment().run(activities.dispatch, REQUEST)).outcome == "error"
    assert (await dispatched.result()).content == "There is no tool 'tool' any more."


async def test_a_worker_without_the_agent_does_not_touch_the_call() -> None:
    """The start is not counted, so another worker still runs it and knows its outcome."""
    dispatched = await Dispatched(sunny).called()
    activities = DispatchActivities(dispatched.store, Agents([Agent(name="b", model=ScriptedModel(["hi"]))]))
    with pytest.raises(ApplicationError, match="no agent 'a'") as failure:
        await ActivityEnvironment().run(activities.dispatch, REQUEST)
    assert failure.value.type == ErrorType.USAGE
    assert await dispatched.run() == DispatchResult(preview="sunny in Paris")


@pytest.mark.parametrize("size", [INLINE_BYTES + 1, 4_194_474, 5_000_000])
async def test_b28_a_result_above_the_payload_limit_is_kept_whole(size: int) -> None:
    """It runs once, its bytes are in a blob under their SHA-256, and what is inline is a beginning of it."""

    def large() -> str:
        """Large."""
        return "é" + "x" * (size - 2)

    dispatched = await Dispatched(large).called()
    answer = await dispatched.run()
    assert answer.outcome == "ok"
    assert len(answer.preview) <= 80
    part = await dispatched.result()
    assert part.blob is not None
    stored = await dispatched.store.get_blob(THREAD, part.blob)
    assert hashlib.sha256(stored).hexdigest() == hashlib.sha256(large().encode()).hexdigest() == part.blob
    assert part.size_bytes == len(stored) == size
    assert len(part.content.encode()) <= INLINE_BYTES
    assert stored.startswith(part.content.encode())
    assert dispatched.ran == 1


async def test_a_result_at_the_limit_travels_inline() -> None:
    """The control: no blob for what fits."""

    def small() -> str:
        """Small."""
        return "x" * INLINE_BYTES

    dispatched = await Dispatched(small).called()
    await dispatched.run()
    part = await dispatched.result()
    assert (part.blob, len(part.content)) == (None, INLINE_BYTES)


async def test_hostile_words_are_staged_as_they_are() -> None:
    """NUL and half characters, inline and in a blob."""
    for length in (1, INLINE_BYTES):
        words = "\x00\ud83d" * length

        def hostile(words: str = words) -> str:
            """Hostile."""
            return words

        dispatched = await Dispatched(hostile).called()
        (await dispatched.run()).preview.encode("utf-8")
        part = await dispatched.result()
        whole = part.content.encode("utf-8", "surrogatepass")
        if part.blob:
            assert words.startswith(part.content)
            whole = await dispatched.store.get_blob(THREAD, part.blob)
        assert whole.decode("utf-8", "surrogatepass") == words


async def test_a_store_that_is_away_is_waited_for_and_the_tool_runs_once() -> None:
    """Only this process knows what the tool returned, so it tries on until it is stored."""

    def large() -> str:
        """Large."""
        return "x" * (INLINE_BYTES + 1)

    dispatched = await Dispatched(large, LossyStore(blob=3, stage=3)).called()
    assert (await dispatched.run()).outcome == "ok"
    assert dispatched.ran == 1


async def test_a_result_from_outside_that_came_first_is_kept() -> None:
    """The tool ran too, and its own result is dropped: a call has one."""
    dispatched: Dispatched

    async def slow() -> str:
        """Slow."""
        await dispatched.store.stage_result(THREAD, ToolResultPart(call_id="c", content="from outside"))
        return "from the tool"

    dispatched = await Dispatched(slow).called()
    assert (await dispatched.run()).preview == "from outside"
    assert (await dispatched.result()).content == "from outside"


@pytest.mark.parametrize("sync", [True, False])
async def test_a_stop_ends_the_activity_at_once_and_stages_nothing(sync: bool) -> None:
    """The workflow has closed the call already. A tool in a thread can see that it was stopped."""
    started, release, saw_stop = threading.Event(), threading.Event(), threading.Event()

    def in_thread() -> str:
        """Wait."""
        started.set()
        release.wait(10)
        if activity.is_cancelled():
            saw_stop.set()
        return "late"

    async def on_loop() -> str:
        """Wait."""
        started.set()
        await asyncio.Event().wait()
        return "never"

    dispatched = await Dispatched(in_thread if sync else on_loop).called()
    environment = ActivityEnvironment()
    run = asyncio.create_task(dispatched.run(environment))
    await eventually(started.is_set)
    environment.cancel()
    with pytest.raises(asyncio.CancelledError):
        await asyncio.wait_for(run, 1)
    (call,) = (await dispatched.store.load_tail(THREAD)).calls
    assert call.result is None
    if sync:
        release.set()
        await eventually(saw_stop.is_set)


async def test_b58_a_worker_that_shuts_down_hands_the_call_over() -> None:
    """It is no stop: the failure is retried at once, and nothing is staged for another worker to believe."""
    started = asyncio.Event()

    async def wait() -> str:
        """Wait."""
        started.set()
        await asyncio.Event().wait()
        return "never"

    dispatched = await Dispatched(wait).called()
    environment = ActivityEnvironment()
    run = asyncio.create_task(dispatched.run(environment))
    await started.wait()
    environment.cancel(ActivityCancellationDetails(worker_shutdown=True))
    with pytest.raises(ApplicationError) as failure:
        await asyncio.wait_for(run, 1)
    assert failure.value.type == ErrorType.WORKER_SHUTDOWN
    assert not failure.value.non_retryable
    assert failure.value.next_retry_delay is not None
    assert failure.value.next_retry_delay < timedelta(seconds=0.1)
    (call,) = (await dispatched.store.load_tail(THREAD)).calls
    assert call.result is None


async def test_a_tool_may_end_in_the_grace_of_a_shutdown() -> None:
    """What it returns then is its result; nobody has to run it again."""
    started, release = asyncio.Event(), asyncio.Event()

    async def wait() -> str:
        """Wait."""
        started.set()
        await release.wait()
        return "just in time"

    dispatched = await Dispatched(wait).called()
    environment = ActivityEnvironment()
    run = asyncio.create_task(dispatched.run(environment))
    await started.wait()
    environment.worker_shutdown()
    release.set()
    assert (await run).preview == "just in time"


@pytest.mark.parametrize("sync", [True, False])
async def test_the_heart_beats_while_a_tool_runs(sync: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """A dead worker is told from a slow tool by it, and a stop comes with the answer to a beat."""
    monkeypatch.setattr("activities.heartbeat.HEARTBEAT_INTERVAL", timedelta(milliseconds=1))
    release = threading.Event()

    def in_thread() -> str:
        """Wait."""
        release.wait(10)
        return "done"

    async def on_loop() -> str:
        """Wait."""
        await eventually(release.is_set, interval=0.001)
        return "done"

    dispatched = await Dispatched(in_thread if sync else on_loop).called()
    environment = ActivityEnvironment()
    beats: list[object] = []
    environment.on_heartbeat = lambda *details: beats.append(details)
    run = asyncio.create_task(dispatched.run(environment))
    await eventually(lambda: len(beats) > 5)
    assert _is_beating()
    release.set()
    assert (await run).outcome == "ok"
    assert not _is_beating(), "it stops with the tool"


def _is_beating() -> bool:
    coroutines = [task.get_coro() for task in asyncio.all_tasks()]
    return "_beat" in [getattr(coroutine, "__name__", "") for coroutine in coroutines]


async def test_parallel_calls_do_not_wait_for_each_other() -> None:
    """Sync tools that block have threads of their own."""
    both = threading.Barrier(2)

    def meet() -> str:
        """Meet."""
        both.wait(10)
        return "met"

    calls = [await Dispatched(meet).called() for _ in range(2)]
    answers = await asyncio.gather(*(one.run() for one in calls))
    assert [answer.preview for answer in answers] == ["met", "met"]
