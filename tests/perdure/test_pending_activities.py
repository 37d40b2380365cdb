"""Why a thread does not go on: its status names what Temporal tries again, with the reason and when."""

import asyncio
import time
import uuid
from collections.abc import Callable
from typing import Any

import pytest
from temporalio import activity
from temporalio.client import Client
from temporalio.exceptions import ApplicationError, CancelledError, TimeoutError, TimeoutType
from temporalio.worker import Worker
from typing_extensions import override

from perdure import pending_activities
from perdure.agent import Agent
from perdure.batch import SyncBatch, SyncReport
from perdure.cli.threads import show_status
from perdure.compaction import Compaction
from perdure.connection import connect_temporal
from perdure.contract import Retry
from perdure.dev.temporal_server import TemporalServer
from perdure.errors import StoreUnavailable
from perdure.records import ThreadRecord
from perdure.testing import Call, Failure, Reply, ScriptedModel
from perdure.watch import answer_text
from stores.memory import MemoryStore
from stores.postgres import PostgresStore
from tests.activities.providers import Teller
from tests.eventually import eventually
from tests.stack import Stack
from tests.workflows.conftest import StackFactory

LIMITED = Failure(status=429, retry_after_s=60)


async def retried(stack: Stack, thread: str, is_it: Callable[[Retry], bool] = lambda _: True) -> Retry:
    """Wait until the status has one such retry, and no other."""

    async def only() -> Retry | None:
        found = (await stack.client.status(thread)).retrying
        return found[0] if len(found) == 1 and is_it(found[0]) else None

    found = await eventually(only, timeout=30)
    assert found is not None
    return found


async def test_a_required_provider_that_is_away(start_stack: StackFactory, thread: str) -> None:
    """The step is named with its model; when the provider is back, the turn goes on and nothing is retried any more."""
    hints = Teller("hints", ConnectionError("no index"))
    stack = await start_stack(Agent("a", model=ScriptedModel(["hello"], name="m"), context=[hints]))
    asking = asyncio.create_task(stack.client.ask(thread, "hi"))
    await eventually(lambda: hints.asked)
    found = await retried(stack, thread, lambda retry: retry.attempt > 2)
    assert found.what == "turn 1 · step 1 · m"
    assert found.why == "Context provider 'hints' failed: ConnectionError: no index."
    hints.answers = ("a hint",)
    assert await asking == "hello"
    assert (await stack.client.status(thread)).retrying == ()


async def test_a_model_that_asks_for_patience(start_stack: StackFactory, thread: str) -> None:
    """The provider's own delay is when the next try comes; a person reads it all in one line."""
    before = time.time()
    stack = await start_stack(Agent("a", model=ScriptedModel([Reply("hello", failures=[LIMITED])], name="m")))
    await stack.client.send(thread, "hi")
    found = await retried(stack, thread)
    assert found.attempt == 2
    assert found.why.startswith("m: the provider's rate limit was reached.")
    assert found.next_try is not None
    assert before + 59 < found.next_try < time.time() + 61
    shown = (await show_status(stack.client, thread)).splitlines()
    assert shown[0].startswith("running · agent a · turn 1")
    assert shown[1].startswith("retrying: turn 1 · step 1 · m, attempt 2 at ")
    await stack.client.stop(thread)
    await eventually(lambda: _retries_nothing(stack, thread))


class Away(MemoryStore):
    """A store that can be read and not written."""

    away = False

    @override
    async def append_messages(self, batch: SyncBatch) -> SyncReport:
        if self.away:
            raise StoreUnavailable("PostgreSQL cannot be reached: refused. Is it running?")
        return await super().append_messages(batch)


async def test_a_store_that_is_away(temporal: Client, thread: str) -> None:
    """What the turn waits for is the store; of a thread that has its answer nothing is retried."""
    store = Away()
    async with Stack(temporal, store, [Agent("a", model=ScriptedModel(["one", "two"]))], sandbox=False) as stack:
        assert await stack.client.ask(thread, "hi") == "one"
        assert (await stack.client.status(thread)).retrying == ()
        store.away = True
        await stack.client.post(thread, "go on")
        found = await retried(stack, thread)
        assert found.what.endswith(", waiting for the store")
        assert found.why == "PostgreSQL cannot be reached: refused. Is it running?"
        store.away = False
        await eventually(lambda: _said(stack, thread, "two"), timeout=30)


class NotYet(MemoryStore):
    """A store in which no thread can begin."""

    away = True

    @override
    async def create_thread(self, thread: ThreadRecord) -> ThreadRecord:
        if self.away:
            raise StoreUnavailable("PostgreSQL cannot be reached: refused. Is it running?")
        return await super().create_thread(thread)


async def test_a_thread_that_could_not_be_stored_yet(temporal: Client, thread: str) -> None:
    """It runs and waits for the store; that this does not know it is no reason to say that there is none."""
    store = NotYet()
    async with Stack(temporal, store, [Agent("a", model=ScriptedModel(["one"]))], sandbox=False) as stack:
        message_id = await stack.client.post(thread, "hi")
        found = await retried(stack, thread)
        assert found.what == "load the thread, waiting for the store"
        store.away = False
        assert answer_text(await stack.client.wait_settled(thread, message_id)) == "one"


async def test_a_tool_elsewhere_that_fails_and_others_that_run(
    start_stack: StackFactory, temporal: Client, thread: str
) -> None:
    """The call that fails is named with its arguments, and not the one that takes its time beside it."""
    works, queue = asyncio.Event(), f"elsewhere-{uuid.uuid4()}"

    @activity.defn(name="CheckStock")
    async def check_stock(_: dict[str, Any]) -> str:
        if not works.is_set():
            raise ApplicationError("the shelf is locked")
        return "7 left"

    agent = Agent("a", model=ScriptedModel([Reply(Call("wait"), Call("check_stock", '{"article": 7}')), "done"]))
    agent.activity_tool(
        "check_stock",
        description="Count.",
        parameters={"type": "object"},
        task_queue=queue,
        activity="CheckStock",
        retry_safe=True,
    )

    @agent.tool
    async def wait() -> str:
        """Wait."""
        await works.wait()
        return "waited"

    stack = await start_stack(agent)
    async with Worker(temporal, task_queue=queue, activities=[check_stock]):
        sent = await stack.client.send(thread, "hi")
        found = await retried(stack, thread)
        assert (found.what, found.why) == ("check_stock(article=7)", "the shelf is locked")
        works.set()
        assert answer_text(await stack.client.wait_settled(thread, sent.message_id)) == "done"


async def test_hooks_and_a_compaction_beside_an_idle_thread(start_stack: StackFactory, thread: str) -> None:
    """The turn is over, and what goes on after it stands still; the compaction is another workflow."""
    diary = Teller("diary", failures=1_000)
    summariser = ScriptedModel(lambda _: Reply("They said hi.", failures=[LIMITED]), name="s")
    agent = Agent(
        "a",
        model=ScriptedModel(["hello"]),
        context=[diary],
        compaction=Compaction(context_window=10_000, keep=0.0, model=summariser),
    )
    stack = await start_stack(agent)
    await stack.client.ask(thread, "hi")
    hook = await retried(stack, thread)
    assert hook.what == "after turn 1"
    assert hook.why.startswith("Context provider 'diary' failed after turn 1:")
    await stack.client.compact(thread)

    async def both() -> tuple[Retry, ...]:
        found = (await stack.client.status(thread)).retrying
        return found if len(found) == 2 else ()

    _, compaction = await eventually(both, timeout=30)
    assert compaction.what == "make the conversation shorter for the model"
    assert "rate limit" in compaction.why
    assert (await stack.client.status(thread)).state == "idle"


async def test_names_are_found_however_far_back(
    start_stack: StackFactory, thread: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What is retried was scheduled before the newest page of the history."""
    monkeypatch.setattr(pending_activities, "_PAGE_EVENTS", 1)
    stack = await start_stack(Agent("a", model=ScriptedModel([Reply("hello", failures=[LIMITED])], name="m")))
    await stack.client.send(thread, "hi")
    for number in range(5):
        await stack.handle(thread).signal("event", {"id": f"e{number}", "call_id": "c", "content": "rain"})
    assert (await retried(stack, thread)).what == "turn 1 · step 1 · m"


async def test_what_a_codec_hides_is_told_to_whoever_has_it(
    temporal_server: TemporalServer, store: PostgresStore, thread: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Temporal has neither the name nor the reason in the clear; the client has both."""
    monkeypatch.setenv("PERDURE_PAYLOAD_CODEC", "tests.fakes.payload_codec:codec")
    temporal = await connect_temporal({"target_host": temporal_server.address})
    agent = Agent("a", model=ScriptedModel([Reply("hello", failures=[LIMITED])], name="xylophone"))
    async with Stack(temporal, store, [agent]) as stack:
        await stack.client.send(thread, "hi")
        found = await retried(stack, thread)
        assert found.what == "turn 1 · step 1 · xylophone"
        assert found.why.startswith("xylophone: the provider's rate limit was reached.")
        described = (await stack.handle(thread).describe()).raw_description
        assert b"xylophone" not in described.SerializeToString()
        await stack.client.stop(thread)


async def test_a_turn_that_takes_its_time_is_not_retried(
    start_stack: StackFactory, thread: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Control: an activity runs for the first time, and no history is read to say nothing of it."""

    async def unread(*_: object) -> dict[str, str]:
        raise AssertionError("the history was read")

    monkeypatch.setattr(pending_activities, "_summaries", unread)
    stack = await start_stack(Agent("a", model=ScriptedModel([Reply("well", hang=True)])))
    await stack.client.send(thread, "hi")
    await eventually(lambda: _streams(stack, thread))
    status = await stack.client.status(thread)
    assert (status.state, status.retrying) == ("running", ())
    await stack.client.stop(thread)


@pytest.mark.parametrize(
    ("failure", "why"),
    [
        (ApplicationError("The provider is away.", type="ModelError"), "The provider is away."),
        (
            TimeoutError("x", type=TimeoutType.HEARTBEAT, last_heartbeat_details=[]),
            "Its worker was not heard of any more.",
        ),
        (TimeoutError("x", type=TimeoutType.START_TO_CLOSE, last_heartbeat_details=[]), "It was not over in time."),
        (CancelledError("cancelled"), "cancelled"),
    ],
    ids=["ours", "heartbeat", "too long", "other"],
)
def test_a_failure_is_told_in_a_sentence(failure: BaseException, why: str) -> None:
    """Ours are sentences already; Temporal's own are put into one."""
    assert pending_activities._why(failure) == why


async def _retries_nothing(stack: Stack, thread: str) -> bool:
    return not (await stack.client.status(thread)).retrying


async def _said(stack: Stack, thread: str, words: str) -> bool:
    return any(words in str(message.parts) for message in await stack.client.history(thread))


async def _streams(stack: Stack, thread: str) -> bool:
    return bool((await stack.store.snapshot(thread)).chunks)
