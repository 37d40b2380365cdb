"""Words and answers by the client, over a real Temporal server, a real PostgreSQL and a worker."""

import asyncio
from contextlib import aclosing
from datetime import timedelta
from typing import Any

import pytest
from temporalio.client import (
    Client,
    Interceptor,
    OutboundInterceptor,
    StartWorkflowUpdateWithStartInput,
    WorkflowUpdateHandle,
)
from temporalio.service import RPCError, RPCStatusCode

from perdure import ids
from perdure.agent import Agent
from perdure.client import PerdureClient
from perdure.connection import connect_temporal
from perdure.contract import ThreadStart
from perdure.dev.temporal_server import TemporalServer
from perdure.errors import ConfigurationError, StoreUnavailable, ThreadNotFound, Unreachable, UsageError
from perdure.inputs import Accepted
from perdure.large_text import TEXT_BYTES
from perdure.limits import Limits
from perdure.messages import TextPart
from perdure.records import Change
from perdure.testing import ScriptedModel
from perdure.thread_calls import ThreadCalls
from stores.memory import MemoryStore
from tests.perdure.echo import echo
from tests.stack import Stack
from tests.workflows.conftest import StackFactory

SOON = timedelta(seconds=1)


async def payload_bytes(stack: Stack, thread_id: str) -> int:
    """The size of a thread's Temporal history."""
    return sum([event.ByteSize() async for event in stack.handle(thread_id).fetch_history_events()])


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
    # `duplicate` is exact where a task was lost after its sync: only the words are left (tests/chaos/test_senders.py).
    assert {accepted.disposition for accepted in sent} <= {"started", "queued", "duplicate"}
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
        # Hibernation follows the answer by about the idle time, later on a busy machine: pauses on both sides of it.
        await asyncio.sleep(0.012 * number)
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
