"""Threads in the hands of the client: begun, stopped, asleep, failed, with results from outside."""

import asyncio
from datetime import timedelta
from typing import Any

import pytest
from temporalio.client import (
    Client,
    WorkflowExecutionStatus,
    WorkflowFailureError,
)
from temporalio.service import RPCError

from perdure import ids
from perdure.agent import Agent
from perdure.client import PerdureClient
from perdure.contract import WORKFLOW_TYPE, ThreadStart, ThreadStatus
from perdure.errors import ThreadNotFound, TurnFailed, Unreachable, UsageError
from perdure.limits import Limits
from perdure.messages import ToolResultPart
from perdure.testing import Call, Failure, Reply, ScriptedModel
from perdure.thread_calls import ThreadCalls
from stores.memory import MemoryStore
from tests.eventually import eventually
from tests.perdure.echo import echo
from tests.stack import Stack
from tests.workflows.conftest import StackFactory

SOON = timedelta(seconds=1)


async def streamed(client: PerdureClient, thread_id: str) -> bool:
    """Whether the thread is in the middle of an answer."""
    live = (await client.store.snapshot(thread_id)).live
    return live is not None and bool(live.parts)


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


async def test_a_repeated_request_for_another_answer_names_it(stack: Stack, thread: str) -> None:
    """The answer is made once, and whoever asks again under the same id can wait for it."""
    await stack.client.ask(thread, "hi")
    (_, answer) = await stack.client.history(thread)
    first = await stack.client.regenerate(thread, answer.id, id="r1")
    again = await stack.client.regenerate(thread, answer.id, id="r1")
    assert (first.disposition, again.disposition) == ("started", "duplicate")
    assert first.message_id == again.message_id != answer.id
    assert again.message_id is not None
    assert (await stack.client.wait_settled(thread, again.message_id)).id == again.message_id
    assert len(await stack.client.branches(thread, answer.id)) == 2


async def test_a_decision_that_was_never_made_cannot_be_withdrawn(stack: Stack, thread: str) -> None:
    """Whoever tries is told, and so of a thread that is not there."""
    await stack.client.ask(thread, "hi")
    with pytest.raises(UsageError, match="Nothing was decided for calls of 'pay' to come"):
        await stack.client.forget_decision(thread, "pay")
    with pytest.raises(ThreadNotFound):
        await stack.client.forget_decision("nope", "pay")
