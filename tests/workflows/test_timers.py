"""Calls that end by themselves: the sleep family, and calls whose result is waited for only so long."""

from perdure.agent import Agent, Limits
from perdure.builtins import Timers
from perdure.messages import ToolResultPart
from perdure.testing import Call, Reply, ScriptedModel
from perdure.watch import answer_text
from tests.eventually import eventually
from tests.stack import Stack
from tests.workflows.conftest import StackFactory


async def waiting(stack: Stack, thread: str) -> None:
    """Return when the thread waits for something from outside, or for a time."""

    async def is_waiting() -> bool:
        return (await stack.client.status(thread)).state == "waiting"

    await eventually(is_waiting)


async def test_a_sleep_wakes_by_itself(start_stack: StackFactory, thread: str) -> None:
    """The call ends after its time, and the turn goes on."""
    model = ScriptedModel([Reply(Call("sleep", {"seconds": 0.2})), "awake"])
    stack = await start_stack(Agent("a", model=model, toolsets=[Timers()]))
    assert await stack.client.ask(thread, "sleep", id="m1") == "awake"
    assert "0.2" in model.requests[1].results[0]


async def test_words_wake_a_sleeper(start_stack: StackFactory, thread: str) -> None:
    """Whatever the mode: a thread that sleeps is not busy."""
    model = ScriptedModel([Reply(Call("sleep_until_event_or_input")), "yes?"])
    stack = await start_stack(Agent("a", model=model, toolsets=[Timers()]))
    await stack.client.send(thread, "wait for me", id="m1")
    await waiting(stack, thread)
    assert await stack.client.ask(thread, "hello", id="m2", mode="queue") == "yes?"


async def test_a_sleep_goes_on_over_continue_as_new_and_a_restart(start_stack: StackFactory, thread: str) -> None:
    """It wakes once, at the time it was to wake from the start."""
    model = ScriptedModel([Reply(Call("sleep", {"seconds": 2})), "awake"])
    stack = await start_stack(Agent("a", model=model, toolsets=[Timers()], limits=Limits(history_events=10)))
    accepted = await stack.client.send(thread, "sleep", id="m1")
    await waiting(stack, thread)
    await stack.restart_worker()
    message = await stack.client.wait_settled(thread, accepted.message_id)
    assert answer_text(message) == "awake"
    assert len([part for part in message.parts if isinstance(part, ToolResultPart)]) == 1
    assert len(model.requests) == 2
