"""Inputs that come twice, at once, or near the end of a run."""

import asyncio
import warnings
from collections.abc import Generator
from contextlib import contextmanager
from datetime import timedelta
from typing import Any

import pytest
from pydantic_ai.messages import UserPromptPart
from temporalio import workflow
from temporalio.client import Client, WorkflowExecutionStatus, WorkflowHandle, WorkflowUpdateFailedError
from temporalio.worker import Worker

from perdure import ids
from perdure.agent import Agent
from perdure.limits import Limits
from perdure.messages import TextPart
from perdure.testing import Asked, Reply, ScriptedModel
from tests.chaos.faults import faults
from tests.eventually import eventually
from tests.recorded import chained_runs
from tests.stack import Stack
from tests.workflows.conftest import StackFactory


def echo(asked: Asked) -> Reply:
    """Answer with the user's last words, or hang in mid-answer if they ask for it."""
    return Reply("one two", chunk_chars=4, hang=True) if asked.user_text == "hang" else Reply(f"said {asked.user_text}")


def users(asked: Asked) -> list[str]:
    """All words of the user that a request brings."""
    parts = [part for message in asked.messages for part in message.parts]
    return [str(part.content) for part in parts if isinstance(part, UserPromptPart)]


async def words(stack: Stack, thread: str) -> list[str]:
    """What stands in the conversation, in order."""
    return ["".join(p.text for p in m.parts if isinstance(p, TextPart)) for m in await stack.client.history(thread)]


async def hibernated(stack: Stack, thread: str) -> bool:
    """Whether the thread's workflow has completed."""
    return (await stack.handle(thread).describe()).status is WorkflowExecutionStatus.COMPLETED


async def test_b12_the_same_message_comes_twice(start_stack: StackFactory, thread: str) -> None:
    """B12 (a), (c): repeats in the turn, after it, after a restart and after hibernation change nothing."""
    model = ScriptedModel(lambda asked: Reply("hello", chunk_chars=1, delay_s=0.05))
    stack = await start_stack(Agent("a", model=model, limits=Limits(idle=timedelta(seconds=0.1))))
    sent = [await stack.client.send(thread, "hi", id="m1"), await stack.client.send(thread, "hi", id="m1")]
    await stack.client.wait_settled(thread, sent[0].message_id)
    sent.append(await stack.client.send(thread, "hi", id="m1"))
    await stack.restart_worker()
    sent.append(await stack.client.send(thread, "hi", id="m1"))
    await eventually(lambda: hibernated(stack, thread))
    sent.append(await stack.client.send(thread, "hi", id="m1"))
    sent.append(await stack.client.send(thread, "other words", id="m1"))
    assert [each.disposition for each in sent] == ["started", *["duplicate"] * 4, "conflict"]
    assert len({each.message_id for each in sent}) == 1
    assert await words(stack, thread) == ["hi", "hello"]
    assert len(model.requests) == 1


async def test_b12_two_messages_come_at_once(start_stack: StackFactory, thread: str) -> None:
    """B12 (b): both are stored once and answered, by one turn or one after the other; neither sender gets an error."""
    model = ScriptedModel(lambda asked: " and ".join(users(asked)))
    stack = await start_stack(Agent("a", model=model))
    await stack.client.start(thread)
    answers = await asyncio.gather(*(stack.client.ask(thread, word, mode="queue") for word in ("one", "two")))
    assert "one" in answers[0]
    assert "two" in answers[1]
    messages = await stack.client.history(thread)
    assert faults(messages) == []
    assert sum(message.role == "user" for message in messages) == 2


@contextmanager
def unfinished_handlers() -> Generator[list[str]]:
    """What the SDK says of signals and updates whose handlers have not ended when their run does, in any thread."""
    said: list[str] = []
    kinds = workflow.UnfinishedUpdateHandlersWarning, workflow.UnfinishedSignalHandlersWarning
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        yield said
    said.extend(str(one.message) for one in caught if issubclass(one.category, kinds))


@workflow.defn(sandboxed=False)
class Hasty:
    """Ends while an update is at work."""

    def __init__(self) -> None:
        self._begun = False

    @workflow.run
    async def run(self) -> None:
        """Wait until the update has begun, and no longer."""
        await workflow.wait_condition(lambda: self._begun)

    @workflow.update
    async def hang(self) -> None:
        """Begin, and never end."""
        self._begun = True
        await workflow.wait_condition(lambda: False)


async def test_b18_control_a_run_that_leaves_a_handler_is_noticed(temporal: Client, thread: str) -> None:
    """The control: an update that is cut off by the end of its run is among what the SDK says."""
    with unfinished_handlers() as unfinished:
        async with Worker(temporal, task_queue=thread, workflows=[Hasty]):
            handle: WorkflowHandle[Any, Any] = await temporal.start_workflow(Hasty.run, id=thread, task_queue=thread)
            with pytest.raises(WorkflowUpdateFailedError):
                await handle.execute_update("hang")  # pyright: ignore[reportUnknownMemberType]  # the SDK's `args` has no type
    assert len(unfinished) == 1


@pytest.mark.slow
async def test_b18_messages_near_continue_as_new_arrive(start_stack: StackFactory, thread: str) -> None:
    """B18: twenty messages as fast as they can be sent over at least three runs, and one after a long sleep."""
    limits = Limits(history_events=10, idle=timedelta(seconds=0.1))
    model = ScriptedModel(echo)
    stack = await start_stack(Agent("a", model=model, limits=limits))
    numbers: list[str] = []
    with unfinished_handlers() as unfinished:
        while len(numbers) < 20 or len(await chained_runs(stack.temporal, thread)) < 3:
            # Each is on its way before the one before it is answered; what waits together is answered together, so on
            # a busy machine it takes more of them to fill three runs.
            numbers.append(str(len(numbers) + 1))
            await stack.client.send(thread, numbers[-1], id=f"m{numbers[-1]}", mode="queue")
        last = ids.input_message_id(thread, f"m{numbers[-1]}")
        assert (await stack.client.wait_settled(thread, last)).status.state == "complete"
        await eventually(lambda: hibernated(stack, thread))
        assert await stack.client.ask(thread, "1000") == "said 1000"
    assert unfinished == []
    messages = await stack.client.history(thread)
    assert [word for word in await words(stack, thread) if word.isdigit()] == [*numbers, "1000"]
    assert [m.status.state for m in messages if m.role == "assistant"] == ["complete"] * len(model.requests)
    assert faults(messages) == []


@pytest.mark.parametrize("stops", [1, 2])
async def test_b21_a_turn_ends_once(stops: int, start_stack: StackFactory, thread: str) -> None:
    """B21 (a), (e): stops that meet each other or the end of the answer: no error, and one end that stays."""
    stack = await start_stack(Agent("a", model=ScriptedModel(echo)))
    ends: dict[int, list[str]] = {}
    for text in ("hang", "short", "hang", "shorter"):
        accepted = await stack.client.send(thread, text)
        await asyncio.gather(*(stack.client.stop(thread) for _ in range(stops)))
        await stack.client.wait_settled(thread, accepted.message_id)
    for change in await stack.store.read_changes(thread, 0):
        if change.message and change.message.role == "assistant":
            ends.setdefault(change.message.turn, []).append(change.message.status.state)
    assert [[state for state in states if state != "running"] for states in ends.values()]
    assert all(sum(state != "running" for state in states) == 1 for states in ends.values()), ends
    last = [m.status.state for m in await stack.client.history(thread) if m.role == "assistant"]
    assert last == [states[-1] for states in ends.values()]
    assert (await stack.client.stop(thread)).turn == 0
