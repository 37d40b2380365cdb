"""The client over a real Temporal server, a real PostgreSQL and a worker."""

import asyncio
import os
import shutil
import tempfile
from collections.abc import AsyncGenerator
from contextlib import AsyncExitStack, aclosing, asynccontextmanager
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from temporalio.client import (
    Client,
    Interceptor,
    OutboundInterceptor,
    StartWorkflowUpdateWithStartInput,
    WorkflowExecutionStatus,
    WorkflowFailureError,
    WorkflowUpdateHandle,
)
from temporalio.service import RPCError, RPCStatusCode

from perdure import ids
from perdure.agent import Agent, Limits
from perdure.client import PerdureClient
from perdure.connection import connect_temporal
from perdure.contract import WORKFLOW_TYPE, ThreadStart, ThreadStatus
from perdure.dev.temporal_server import TemporalServer
from perdure.errors import ConfigurationError, StoreUnavailable, ThreadNotFound, TurnFailed, Unreachable, UsageError
from perdure.inputs import Accepted
from perdure.large_text import TEXT_BYTES
from perdure.messages import TextPart, ToolResultPart
from perdure.ports import Change, Snapshot
from perdure.testing import Asked, Call, Failure, Reply, ScriptedModel
from perdure.thread_calls import ThreadCalls
from perdure.turn_buffer import Chunk
from perdure.watch import View, WatchEvent, is_settled
from stores.embedded import EmbeddedPostgres
from stores.memory import MemoryStore
from stores.migrate import migrate
from stores.postgres import PostgresStore
from tests.eventually import eventually
from tests.stack import Stack
from tests.talk import THREAD, Talk
from tests.workflows.conftest import StackFactory

SOON = timedelta(seconds=1)


def echo(asked: Asked) -> Reply:
    """Answer with the user's last words, or hang in mid-answer if they ask for it."""
    if asked.user_text == "hang":
        return Reply("one two three", chunk_chars=4, hang=True)
    return Reply(f"you said {asked.user_text}")


@pytest.fixture
async def stack(start_stack: StackFactory) -> Stack:
    """A stack with an agent that echoes."""
    return await start_stack(Agent("echo", model=ScriptedModel(echo)))


async def payload_bytes(stack: Stack, thread_id: str) -> int:
    """The size of a thread's Temporal history."""
    return sum([event.ByteSize() async for event in stack.handle(thread_id).fetch_history_events()])


async def streamed(client: PerdureClient, thread_id: str) -> bool:
    """Whether the thread is in the middle of an answer."""
    live = (await client.store.snapshot(thread_id)).live
    return live is not None and bool(live.parts)


# -- sending ---------------------------------------------------------------------------------------------------


async def test_ask_returns_the_answer(stack: Stack, thread: str) -> None:
    """A thread that never was is started by the first words, and answers."""
    assert await stack.client.ask(thread, "hi") == "you said hi"
    assert await stack.client.ask(thread, "again") == "you said again"
    texts = [part.text for message in await stack.client.history(thread) for part in message.parts]  # type: ignore[union-attr]  # all parts are texts
    assert texts == ["hi", "you said hi", "again", "you said again"]
    assert (await stack.client.transcript(thread)).startswith("User: hi\n\nAssistant: you said hi\n\nUser: again")


async def test_the_same_id_is_answered_once_and_other_words_under_it_are_refused(stack: Stack, thread: str) -> None:
    """Sending twice says so and changes nothing (case B12)."""
    first = await stack.client.send(thread, "hi", id="m1")
    await stack.client.wait_settled(thread, first.message_id)
    again = await stack.client.send(thread, "hi", id="m1")
    other = await stack.client.send(thread, "ho", id="m1")
    assert [sent.disposition for sent in (first, again, other)] == ["started", "duplicate", "conflict"]
    assert {sent.message_id for sent in (first, again, other)} == {ids.input_message_id(thread, "m1")}
    assert await stack.client.ask(thread, "hi", id="m1") == "you said hi", "a duplicate is answered already"
    with pytest.raises(UsageError, match="conflict"):
        await stack.client.ask(thread, "ho", id="m1")
    assert len(await stack.client.history(thread)) == 2


async def test_post_needs_no_worker(stack: Stack, thread: str) -> None:
    """Words that were posted while no worker is up are answered when one is."""
    await stack.stop_worker()
    message_id = await stack.client.post(thread, "hi", id="m1")
    assert message_id == ids.input_message_id(thread, "m1")
    await stack.start_worker()
    await stack.client.status(thread)
    answer = await stack.client.wait_settled(thread, message_id)
    assert answer.parts == (TextPart(text="you said hi"),)


async def test_the_answer_to_words_just_posted_to_a_new_thread_can_be_waited_for(stack: Stack, thread: str) -> None:
    """The wait begins before the thread is stored: no worker has looked at it yet."""
    await stack.stop_worker()
    message_id = await stack.client.post(thread, "hi")
    with pytest.raises(ThreadNotFound):
        await stack.store.get_thread(thread)
    waiting = asyncio.create_task(stack.client.wait_settled(thread, message_id))
    await stack.start_worker()
    assert (await asyncio.wait_for(waiting, 20)).parts == (TextPart(text="you said hi"),)


async def test_a_wait_for_words_that_no_worker_takes_ends(stack: Stack, thread: str) -> None:
    """After the client's patience the waiter is told that no worker answers, or that there is no such thread."""
    await stack.stop_worker()
    client = PerdureClient(stack.temporal, stack.store, task_queue=stack.settings.task_queue, patience=SOON)
    message_id = await client.post(thread, "hi")
    with pytest.raises(Unreachable, match="No worker answered within 1 s"):
        await client.wait_settled(thread, message_id)
    with pytest.raises(ThreadNotFound):
        await client.wait_settled("nope", message_id)


class Dropping(ThreadCalls):
    """Calls to a thread that drops what is sent, as one does that cannot store it."""

    async def update_with_start(
        self, thread_id: str, update: str, content: object, answer: type[Any], start: ThreadStart
    ) -> Any:
        """Answer that the message was dropped."""
        return Accepted(message_id="m", disposition="dropped")


async def test_words_that_were_dropped_are_not_waited_for(temporal: Client, thread: str) -> None:
    """Nothing will ever answer them, so whoever asks is told at once."""
    client = PerdureClient(temporal, MemoryStore())
    client._calls = Dropping(temporal, "none", SOON)
    with pytest.raises(UsageError, match="dropped"):
        await asyncio.wait_for(client.ask(thread, "hi"), 5)


@pytest.mark.parametrize("first", [True, False])
async def test_a_large_text_travels_as_a_reference(stack: Stack, first: bool, thread: str) -> None:
    """300 KB with NUL and half a character come back whole, to a new thread too, and Temporal sees the beginning."""
    text = "a\x00\ud83d🙂" + "x" * 300_000
    if not first:
        await stack.client.ask(thread, "hi")
    accepted = await stack.client.send(thread, text)
    await stack.client.wait_settled(thread, accepted.message_id)
    message = next(m for m in await stack.client.history(thread) if m.id == accepted.message_id)
    assert [part.text for part in message.parts if isinstance(part, TextPart)] == [text]
    async with aclosing(stack.client.watch(thread, after=0)) as changes:
        async for change in changes:
            if isinstance(change, Change) and change.message_id == accepted.message_id:
                assert isinstance(change.part, TextPart)
                assert change.part.text == text
                break
    assert await payload_bytes(stack, thread) < 30_000


@pytest.mark.parametrize(
    ("thread_id", "text", "options", "reason"),
    [
        ("t1", "", {}, "empty"),
        ("t1", " \n", {}, "empty"),
        ("t1", "x" * (TEXT_BYTES + 1), {}, "10,485,761 bytes"),
        ("t1", "hi", {"id": "a\nb"}, "cannot be an id"),
        ("t1", "hi", {"id": "x" * 201}, "cannot be an id"),
        ("t\x001", "hi", {}, "cannot be an id"),
        ("", "hi", {}, "cannot be an id"),
        ("t1", "hi", {"metadata": {"x": "y" * 40_000}}, "metadata"),
    ],
)
async def test_what_cannot_be_sent_is_refused_with_a_reason(
    stack: Stack, thread_id: str, text: str, options: dict[str, Any], reason: str, thread: str
) -> None:
    """The sender is told what is wrong, and nothing is started (case B28)."""
    with pytest.raises(UsageError, match=reason):
        await stack.client.send(thread_id, text, **options)
    with pytest.raises(UsageError, match=reason):
        await stack.client.post(thread_id, text, **options)
    with pytest.raises(ThreadNotFound):
        await stack.client.status(thread)


async def test_messages_that_come_at_once_are_all_taken(stack: Stack, thread: str) -> None:
    """Forty senders to a new thread, more than Temporal has updates in flight: none fails, none is lost (case B12)."""
    sent = await asyncio.gather(*(stack.client.send(thread, str(n), id=f"m{n}", mode="queue") for n in range(40)))
    assert {accepted.disposition for accepted in sent} <= {"started", "queued"}
    for accepted in sent:
        await stack.client.wait_settled(thread, accepted.message_id)
    stored = [message.input_id for message in await stack.client.history(thread) if message.role == "user"]
    assert sorted(map(str, stored)) == sorted(f"m{n}" for n in range(40))


@pytest.mark.slow
async def test_words_that_meet_a_thread_falling_asleep_wake_it(start_stack: StackFactory, thread: str) -> None:
    """Whether they come just before, while or after it hibernates, each is answered once."""
    limits = Limits(idle=timedelta(milliseconds=30))
    stack = await start_stack(Agent("echo", model=ScriptedModel(echo), limits=limits))
    runs: set[str] = set()
    for number in range(25):
        # Hibernation follows the answer by about the idle time: pauses on both sides of it.
        await asyncio.sleep(0.004 * number)
        assert await stack.client.ask(thread, str(number)) == f"you said {number}"
        runs.add((await stack.handle(thread).describe()).run_id)
    assert len(runs) > 2, "the control: it did sleep in between"
    assert len(await stack.client.history(thread)) == 50


class LostReply(OutboundInterceptor):
    """Lets the first update through and then loses its reply, as a broken connection does."""

    lost = 0

    async def start_update_with_start_workflow(
        self, input: StartWorkflowUpdateWithStartInput
    ) -> WorkflowUpdateHandle[Any]:
        """Send, and lose the first reply."""
        handle = await super().start_update_with_start_workflow(input)
        if not self.lost:
            self.lost += 1
            raise RPCError("connection reset", RPCStatusCode.UNAVAILABLE, b"")
        return handle


class LosesReplies(Interceptor):
    """Puts a `LostReply` into a client."""

    def intercept_client(self, next: OutboundInterceptor) -> OutboundInterceptor:
        """Wrap the client."""
        self.outbound = LostReply(next)
        return self.outbound


async def test_a_lost_reply_is_asked_for_again(stack: Stack, thread: str) -> None:
    """The words are sent again under the same id, and are there once."""
    config = stack.temporal.config()
    interceptor = LosesReplies()
    config["interceptors"] = [interceptor]
    client = PerdureClient(Client(**config), stack.store, task_queue=stack.settings.task_queue)
    accepted = await client.send(thread, "hi")
    assert interceptor.outbound.lost == 1
    assert accepted.disposition == "started"
    assert len(await client.history(thread)) == 2


async def test_without_a_worker_the_sender_is_told_so(stack: Stack, thread: str) -> None:
    """It says what to do; the same words sent again are answered once."""
    await stack.stop_worker()
    client = PerdureClient(stack.temporal, stack.store, task_queue=stack.settings.task_queue, patience=SOON)
    with pytest.raises(Unreachable, match=r"No worker answered within 1 s.*perdure worker"):
        await client.send(thread, "hi", id="m1")
    with pytest.raises(Unreachable, match="No worker"):
        await client.status(thread)
    await stack.start_worker()
    accepted = await stack.client.send(thread, "hi", id="m1")
    await stack.client.wait_settled(thread, accepted.message_id)
    assert len(await stack.client.history(thread)) == 2


async def test_whoever_cancels_a_send_gets_the_cancellation(stack: Stack, thread: str) -> None:
    """A timeout of the caller ends the call at once, and is not taken for trouble on the way."""
    await stack.stop_worker()
    started = asyncio.get_running_loop().time()
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0.5):
            await stack.client.send(thread, "hi")
    assert asyncio.get_running_loop().time() - started < 3


@pytest.mark.slow
async def test_temporal_may_be_away_for_a_while(stack: Stack, tmp_path: Any, thread: str) -> None:
    """An impatient client is told that Temporal is away; a patient one sends when it is back."""
    async with TemporalServer(tmp_path / "temporal.db") as server:
        temporal = await connect_temporal({"target_host": server.address})
        other = Stack(temporal, stack.store, stack.agents.values())
        await other.client.post(thread, "before")
        await server.kill()
        impatient = PerdureClient(temporal, stack.store, task_queue=other.settings.task_queue, patience=SOON)
        with pytest.raises(Unreachable, match=f"Temporal at {server.address} cannot be used now"):
            await impatient.send(thread, "hi")
        sending = asyncio.create_task(other.client.send(thread, "hi"))
        await server.start()
        async with other:
            accepted = await sending
            await other.client.wait_settled(thread, accepted.message_id)


# -- threads ---------------------------------------------------------------------------------------------------


async def test_start_is_idempotent_and_makes_ids(stack: Stack) -> None:
    """A thread is stored when `start` returns, and starting it again changes nothing."""
    thread_id = await stack.client.start(title="Paris")
    assert await stack.client.start(thread_id, title="Rome") == thread_id
    thread = await stack.store.get_thread(thread_id)
    assert (thread.agent, thread.tenant, thread.title) == ("echo", "default", "Paris")
    assert await stack.client.start("mine", agent="echo", tenant="acme") == "mine"
    assert (await stack.store.get_thread("mine")).tenant == "acme"


async def test_every_way_to_begin_a_thread_names_its_run(stack: Stack) -> None:
    """The memo holds the title that was given, or else the first words; large words name the stored thread as well."""
    client = stack.client
    begun = {
        await client.start(title="Paris"): "Paris",
        "named-by-send": "hi",
        "named-by-post": "hello there",
        "named-by-large": "y" * 79 + "…",
    }
    await client.send("named-by-send", "hi")
    await client.send("named-by-send", "later words")
    await client.post("named-by-post", "hello\nthere")
    await client.send("named-by-large", "y" * 300_000)
    for thread_id, title in begun.items():
        assert await (await stack.handle(thread_id).describe()).memo() == {"title": title}
    assert (await stack.store.get_thread("named-by-large")).title == "y" * 79 + "…"


class Unloaded(ThreadCalls):
    """Calls to a thread whose worker cannot reach the database: it answers, and does not know its agent."""

    async def start(self, thread_id: str, start: ThreadStart) -> None:
        """It starts."""

    async def query(self, thread_id: str, query: str, answer: type[Any]) -> Any:
        """The status before the load."""
        return ThreadStatus(thread_id=thread_id, agent="", state="idle")


async def test_a_start_that_cannot_be_stored_ends(temporal: Client, thread: str) -> None:
    """While the workers have no database, a start gives up after the client's patience and says why."""
    client = PerdureClient(temporal, MemoryStore(), patience=SOON)
    client._calls = Unloaded(temporal, "none", SOON)
    with pytest.raises(Unreachable, match=r"not stored within 1 s.*database"):
        await asyncio.wait_for(client.start(thread), 10)


async def test_an_unknown_agent_is_said_and_leaves_no_thread(stack: Stack, thread: str) -> None:
    """The worker names the agents that it serves; nothing falls back to another agent."""
    with pytest.raises(UsageError, match="There is no agent 'typo' on this worker; it serves echo"):
        await stack.client.start(thread, agent="typo")
    with pytest.raises(ThreadNotFound):
        await stack.store.get_thread(thread)


@pytest.mark.parametrize("wrong", [{"tenant": "x" * 300}, {"agent": "a\nb"}, {"title": "x" * 201}])
async def test_a_start_that_cannot_be_is_refused_before_anything_starts(
    stack: Stack, thread: str, wrong: dict[str, Any]
) -> None:
    """A name that Temporal's list cannot hold is refused with the field's name."""
    with pytest.raises(UsageError, match=f"`{next(iter(wrong))}` must be .*200 characters"):
        await stack.client.start(thread, **wrong)
    with pytest.raises(RPCError):
        await stack.handle(thread).describe()


async def test_a_misspelt_field_of_a_start_fails_the_thread_with_its_name(stack: Stack, thread: str) -> None:
    """Someone who types `agnet` does not get the default agent."""
    handle = await stack.temporal.start_workflow(
        WORKFLOW_TYPE, {"agnet": "echo"}, id=ids.workflow_id(thread), task_queue=stack.settings.task_queue
    )
    with pytest.raises(WorkflowFailureError) as raised:
        await handle.result()
    assert "agnet" in str(raised.value.__cause__)


async def test_a_thread_keeps_its_agent_and_tenant(stack: Stack, thread: str) -> None:
    """Starting it with others is refused, instead of going on with what it has."""
    await stack.client.start(thread, agent="echo", tenant="acme")
    with pytest.raises(UsageError, match="belongs to the agent 'echo'"):
        await stack.client.start(thread, agent="other", tenant="acme")
    with pytest.raises(UsageError, match="the tenant 'acme'"):
        await stack.client.start(thread)


async def test_stop_settles_the_turn_and_interrupt_does_not_wait(stack: Stack, thread: str) -> None:
    """Both end an answer in mid-stream; with nothing to stop they do nothing."""
    await stack.client.send(thread, "hang")
    await eventually(lambda: streamed(stack.client, thread))
    assert (await stack.client.stop(thread)).turn == 1
    assert (await stack.client.history(thread))[-1].status.reason == "cancelled"
    assert (await stack.client.stop(thread)).turn == 0
    await stack.client.send(thread, "hang")
    await eventually(lambda: streamed(stack.client, thread))
    await stack.client.interrupt(thread, "enough")
    answer = await stack.client.wait_settled(thread)
    assert (answer.status.reason, answer.status.detail) == ("cancelled", "enough")


async def test_a_thread_that_never_was_is_named(stack: Stack) -> None:
    """No call starts a thread by accident, except sending words to it."""
    client = stack.client
    calls = [
        client.stop("nope"),
        client.interrupt("nope"),
        client.status("nope"),
        client.open_calls("nope"),
        client.history("nope"),
        client.tool_result("nope", "c", "x"),
        client.event("nope", "c", "x", id="e"),
        client.wait_settled("nope"),
    ]
    for call in calls:
        with pytest.raises(ThreadNotFound, match="nope"):
            await call


async def test_a_thread_that_sleeps_is_read_without_waking_it(start_stack: StackFactory, thread: str) -> None:
    """Status, history and stop answer from the store; the next words wake it."""
    limits = Limits(idle=timedelta(seconds=0.1))
    stack = await start_stack(Agent("echo", model=ScriptedModel(echo), limits=limits))
    await stack.client.ask(thread, "hi")
    await eventually(lambda: _is(stack, thread, WorkflowExecutionStatus.COMPLETED))
    run = (await stack.handle(thread).describe()).run_id
    await stack.stop_worker()
    status = await stack.client.status(thread)
    assert (status.state, status.agent, status.turn, status.problems) == ("idle", "echo", 1, ())
    assert status.last is not None
    assert status.last.state == "complete"
    assert (await stack.client.stop(thread)).turn == 0
    await stack.client.interrupt(thread)
    assert len(await stack.client.history(thread)) == 2
    assert (await stack.handle(thread).describe()).run_id == run
    await stack.start_worker()
    assert await stack.client.ask(thread, "again") == "you said again"


async def asleep_behind_a_call(start_stack: StackFactory, thread: str) -> Stack:
    """A stack with a thread that hibernates while a call of its open turn waits for its result."""
    limits = Limits(idle=timedelta(seconds=0.1))
    agent = Agent("a", model=ScriptedModel([Reply(Call("ask_user", {})), "fine"]), limits=limits)

    @agent.tool(kind="client")
    def ask_user() -> str:
        """Ask the person."""
        raise AssertionError("runs on the person's side")

    stack = await start_stack(agent)
    await stack.client.send(thread, "hi")
    await eventually(lambda: _is(stack, thread, WorkflowExecutionStatus.COMPLETED))
    return stack


async def test_a_thread_asleep_behind_an_open_call_is_stopped(start_stack: StackFactory, thread: str) -> None:
    """Its status names the call that it waits for; a stop wakes it and settles the turn, and the next words go on."""
    stack = await asleep_behind_a_call(start_stack, thread)
    status = await stack.client.status(thread)
    assert (status.state, status.problems) == ("waiting", ())
    assert [(call.tool, call.state) for call in status.open_calls] == [("ask_user", "waiting")]
    assert (await stack.client.stop(thread)).turn == 1
    answer = (await stack.client.history(thread))[-1]
    assert (answer.status.reason, answer.parts[-1].kind) == ("cancelled", "tool_result")
    assert await stack.client.ask(thread, "again") == "fine"


async def test_a_thread_asleep_behind_an_open_call_is_interrupted(start_stack: StackFactory, thread: str) -> None:
    """The interrupt wakes it, and whoever waits for the turn is told the reason."""
    stack = await asleep_behind_a_call(start_stack, thread)
    waiting = asyncio.create_task(stack.client.wait_settled(thread))
    await stack.client.interrupt(thread, "enough")
    assert await (await stack.handle(thread).describe()).memo() == {"title": "hi"}
    answer = await asyncio.wait_for(waiting, 20)
    assert (answer.status.reason, answer.status.detail) == ("cancelled", "enough")


async def test_without_a_worker_a_sleeping_turn_cannot_be_stopped(start_stack: StackFactory, thread: str) -> None:
    """Whoever stops it is told so in time, and the stop takes effect when a worker is there."""
    stack = await asleep_behind_a_call(start_stack, thread)
    await stack.stop_worker()
    client = PerdureClient(stack.temporal, stack.store, task_queue=stack.settings.task_queue, patience=SOON)
    with pytest.raises(Unreachable, match="No worker answered within 1 s"):
        await client.stop(thread)
    await stack.start_worker()
    assert (await stack.client.wait_settled(thread)).status.reason == "cancelled"


async def _is(stack: Stack, thread_id: str, status: WorkflowExecutionStatus) -> bool:
    return (await stack.handle(thread_id).describe()).status is status


async def test_a_workflow_that_was_killed_in_a_turn_is_a_problem_that_the_next_message_solves(
    stack: Stack, thread: str
) -> None:
    """The status says that the turn stands still, and words take the thread up again."""
    await stack.client.send(thread, "hang")
    await eventually(lambda: streamed(stack.client, thread))
    await stack.handle(thread).terminate()
    status = await stack.client.status(thread)
    assert status.problems == ("Its workflow ended in the middle of a turn; the next message takes it up.",)
    assert await stack.client.ask(thread, "hi") == "you said hi"


async def test_a_turn_that_fails_raises_for_the_asker(start_stack: StackFactory, thread: str) -> None:
    """The error says why in the words of the turn."""
    failing = Reply("never", failures=[Failure(status=401)] * 3)
    stack = await start_stack(Agent("a", model=ScriptedModel([failing, "fine"])))
    with pytest.raises(TurnFailed) as raised:
        await stack.client.ask(thread, "hi")
    assert raised.value.status.reason == "error"
    assert str(raised.value) == raised.value.status.detail


async def test_results_from_outside_settle_open_calls(start_stack: StackFactory, thread: str) -> None:
    """A client-side call waits for its result; a large one is stored and clipped for the model."""
    agent = Agent("a", model=ScriptedModel([Reply(Call("ask_user", {}), Call("ask_user", {})), "thanks"]))

    @agent.tool(kind="client")
    def ask_user() -> str:
        """Ask the person."""
        raise AssertionError("runs on the person's side")

    stack = await start_stack(agent)
    accepted = await stack.client.send(thread, "hi")
    calls = await eventually(lambda: stack.client.open_calls(thread))
    await stack.client.tool_result(thread, calls[0].call_id, "x" * 100_000)
    await stack.client.tool_result(thread, calls[1].call_id, "no", outcome="denied")
    answer = await stack.client.wait_settled(thread, accepted.message_id)
    results = [part for part in answer.parts if isinstance(part, ToolResultPart)]
    assert [(part.outcome, part.size_bytes) for part in results] == [("ok", 100_000), ("denied", 2)]
    assert results[0].blob is not None
    assert await stack.store.get_blob(thread, results[0].blob) == b"x" * 100_000


# -- watching --------------------------------------------------------------------------------------------------


async def take_until_settled(client: PerdureClient, thread_id: str, after: int | None, seen: list[WatchEvent]) -> None:
    """Watch until the thread's last turn has ended."""
    async with aclosing(client.watch(thread_id, after)) as events:
        async for event in events:
            seen.append(event)
            if isinstance(event, Change) and event.message and is_settled(event.message):
                return


@dataclass
class Reader:
    """Watches until the last turn has ended."""

    seen: list[WatchEvent]
    done: asyncio.Task[None]

    @property
    def view(self) -> View:
        """What it has seen, folded."""
        view = View()
        for event in self.seen:
            view.apply(event)
        return view


@asynccontextmanager
async def reader(client: PerdureClient, thread_id: str) -> AsyncGenerator[Reader]:
    """A reader who is there from now on."""
    seen: list[WatchEvent] = []
    done = asyncio.create_task(take_until_settled(client, thread_id, None, seen))
    try:
        await eventually(lambda: seen)
        yield Reader(seen, done)
    finally:
        done.cancel()
        await asyncio.gather(done, return_exceptions=True)


async def test_several_readers_see_the_answer_as_it_streams(start_stack: StackFactory, thread: str) -> None:
    """A snapshot first, then every change in order, for each of them."""
    reply = Reply("one two three four", chunk_chars=4, delay_s=0.06)
    stack = await start_stack(Agent("a", model=ScriptedModel([reply])))
    await stack.client.start(thread)
    async with AsyncExitStack() as reading:
        readers = [await reading.enter_async_context(reader(stack.client, thread)) for _ in range(3)]
        await stack.client.send(thread, "hi")
        await asyncio.gather(*(each.done for each in readers))
        for each in readers:
            assert isinstance(each.seen[0], Snapshot)
            assert [event.seq for event in each.seen] == sorted({event.seq for event in each.seen})
            assert sum(isinstance(event, Change) and event.chunk is not None for event in each.seen) > 1
            assert each.view.messages == list((await stack.store.snapshot(thread)).path.messages)


async def test_a_reader_goes_on_where_it_stopped(stack: Stack, thread: str) -> None:
    """With `after` there is no snapshot; committed words come as parts, and nothing comes twice."""
    await stack.client.start(thread)
    first: list[WatchEvent] = []
    async with aclosing(stack.client.watch(thread)) as events:
        first.append(await anext(events))
    accepted = await stack.client.send(thread, "hi")
    await stack.client.wait_settled(thread, accepted.message_id)
    second: list[WatchEvent] = []
    await take_until_settled(stack.client, thread, first[0].seq, second)
    assert all(isinstance(event, Change) and event.chunk is None for event in second)
    view = View()
    for event in first + second:
        view.apply(event)
    assert [message.parts for message in view.messages] == [m.parts for m in await stack.client.history(thread)]


class Flaky(MemoryStore):
    """A store whose database goes away with every second read of changes and every third hint."""

    def __init__(self) -> None:
        super().__init__()
        self.reads = 0
        self.failures = 0

    async def read_changes(self, thread_id: str, after: int, limit: int = 1000) -> tuple[Change, ...]:
        """Fails every second time, and gives small pages."""
        self.reads += 1
        if self.reads % 2:
            self.failures += 1
            raise StoreUnavailable("away")
        return await super().read_changes(thread_id, after, limit)

    async def listen(self, thread_id: str) -> AsyncGenerator[None]:
        """Breaks after two hints."""
        async with aclosing(super().listen(thread_id)) as hints:
            for _ in range(2):
                await anext(hints)
                yield
        raise StoreUnavailable("away")


async def test_a_watch_survives_a_database_that_goes_away(temporal: Client) -> None:
    """However often it fails, no change is left out and none comes twice."""
    store = Flaky()
    talk = await Talk.begin(store)
    async with reader(PerdureClient(temporal, store), THREAD) as watcher:
        await talk.say("hi")
        for word in ("1 ", "2 ", "3 "):
            await talk.stream([Chunk(index=0, delta=word)])
            newest = (await store.get_thread(THREAD)).seq
            await eventually(lambda: watcher.seen[-1].seq == newest)  # noqa: B023  # awaited in the same round
        await talk.commit((TextPart(text="1 2 3"),))
        await asyncio.wait_for(watcher.done, 20)
        assert store.failures > 3
        assert [event.seq for event in watcher.seen] == list(range(watcher.seen[-1].seq + 1))


@pytest.mark.slow
async def test_a_watch_survives_a_restart_of_postgresql(temporal: Client) -> None:
    """The server stops in mid-stream and comes back: the reader goes on, without a gap and without a repeat."""
    folder = Path(tempfile.gettempdir()) / f"perdure-watch-{os.getpid()}"
    server = EmbeddedPostgres(folder)
    await server.start()
    try:
        await migrate(server.url)
        async with await PostgresStore.connect(server.url) as store:
            talk = await Talk.begin(store)
            async with reader(PerdureClient(temporal, store), THREAD) as watcher:
                await talk.say("hi")
                await talk.stream([Chunk(index=0, delta="one ")])
                await eventually(lambda: watcher.view.live)
                await server.stop()
                with pytest.raises(StoreUnavailable):
                    await store.get_thread(THREAD)
                await server.start()
                await talk.stream([Chunk(index=0, delta="two")])
                await talk.commit((TextPart(text="one two"),))
                await asyncio.wait_for(watcher.done, 30)
                assert [event.seq for event in watcher.seen] == sorted({event.seq for event in watcher.seen})
                assert watcher.view.messages == list((await store.load_history_with_ancestors(THREAD)).messages)
    finally:
        await server.stop()
        shutil.rmtree(folder)


# -- connecting ------------------------------------------------------------------------------------------------


async def test_connect_takes_its_settings_from_the_environment(
    stack: Stack, database_url: str, temporal_server: TemporalServer, monkeypatch: pytest.MonkeyPatch, thread: str
) -> None:
    """Like every command; arguments win over the environment."""
    monkeypatch.setenv("PERDURE_DATABASE_URL", database_url)
    monkeypatch.setenv("PERDURE_TASK_QUEUE", stack.settings.task_queue)
    monkeypatch.setenv("TEMPORAL_ADDRESS", "127.0.0.1:1")
    async with await PerdureClient.connect(temporal=temporal_server.address) as client:
        assert await client.ask(thread, "hi") == "you said hi"
    with pytest.raises(ConfigurationError, match=r"Temporal is not reachable at 127\.0\.0\.1:1:"):
        await PerdureClient.connect()
    with pytest.raises(StoreUnavailable):
        await PerdureClient.connect(database_url="postgresql://127.0.0.1:1/x")
    await client.close()
