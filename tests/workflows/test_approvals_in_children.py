"""Approvals in child threads: a child waits for people as any thread does, whatever happens above it meanwhile."""

import asyncio
from datetime import timedelta
from typing import Literal

import pytest
from temporalio.client import WorkflowExecutionStatus

from perdure.approval import ApprovalOption, ApprovalRequest
from perdure.errors import ThreadClosed, UsageError
from perdure.limits import Limits
from perdure.messages import Message, ToolCallPart, ToolResultPart
from perdure.testing import Call, Reply
from tests.chaos.faults import faults
from tests.eventually import eventually
from tests.stack import Stack
from tests.workflows.conftest import StackFactory
from tests.workflows.family import ROOT, Me, child_of, closed, is_idle, reports, results, spawn
from tests.workflows.household import PAY, Household, closing_with_what_was_heard, root
from tests.workflows.soundness import assert_sound


async def _sleeps(stack: Stack, *threads: str) -> bool:
    described = [await stack.handle(thread).describe() for thread in threads]
    return all(one.status == WorkflowExecutionStatus.COMPLETED for one in described)


def _own_results(message: Message) -> list[str]:
    return [part.outcome for part in message.parts if isinstance(part, ToolResultPart)]


async def _refused(stack: Stack, thread: str, call_id: str) -> None:
    with pytest.raises(UsageError):
        await stack.client.approve(thread, call_id)


# -- whose question it is ------------------------------------------------------------------------------------------


async def test_a_childs_call_is_decided_about_in_the_child_alone(start_stack: StackFactory, thread: str) -> None:
    """Its parent has nothing to ask and idles; by the parent's id the call is refused, by the child's it runs once."""
    house = Household(thread)
    stack = await start_stack(house.agent)
    call_id = await house.begin(stack)
    assert await stack.client.approvals(thread) == ()
    assert (await stack.client.status(thread)).state == "idle"
    await _refused(stack, thread, call_id)
    assert house.paid == []
    assert await house.paused(stack) == [call_id]
    assert (await stack.client.approve(house.child, call_id, by="ann")).disposition == "settled"
    await house.assert_heard(stack, "paid 3")
    assert house.paid == [3]
    calls = [part for one in await stack.client.history(house.child) for part in one.parts]
    (call,) = [part for part in calls if isinstance(part, ToolCallPart) and part.call_id == call_id]
    assert call.decision is not None
    assert (call.decision.approved, call.decision.by) == (True, "ann")
    await assert_sound(stack, thread, house.child)


async def test_a_denied_call_of_a_child_does_not_run_and_the_child_reads_why(
    start_stack: StackFactory, thread: str
) -> None:
    """It goes on with that, and says so to its parent."""
    house = Household(thread)
    stack = await start_stack(house.agent)
    await stack.client.deny(house.child, await house.begin(stack), "too much")
    await closed(stack, house.child)
    await eventually(lambda: is_idle(stack, thread))
    (told,) = await reports(stack, thread)
    assert "too much" in told
    assert house.paid == []


async def test_questions_of_two_children_are_two(start_stack: StackFactory, thread: str) -> None:
    """The same call of the same task: each child waits for its own decision."""
    house = Household(thread)
    house.model.roles[ROOT] = [lambda who: spawn(who, "one", "one"), "noted"]
    stack = await start_stack(house.agent)
    await stack.client.ask(thread, "go", id="m1")
    other = child_of(thread, index=1)
    (first,) = await house.paused(stack)
    (second,) = await house.paused(stack, other)
    assert first != second
    await _refused(stack, other, first)
    await stack.client.deny(other, second)
    await closed(stack, other)
    assert await house.paused(stack) == [first]
    await stack.client.approve(house.child, first)
    await closed(stack, house.child)
    assert house.paid == [3]


async def test_a_question_of_a_child_expires(start_stack: StackFactory, thread: str) -> None:
    """Also with another worker than the one that asked; the child goes on, and its parent hears of it."""
    house = Household(thread, asked=ApprovalRequest(expires_s=1.5))
    stack = await start_stack(house.agent)
    call_id = await house.begin(stack)
    await stack.restart_worker()
    await closed(stack, house.child)
    await _closed_refuses(stack, house.child, call_id)
    assert [outcome for outcome, _ in await results(stack, house.child)][1:] == ["expired", "ok"]
    assert house.paid == []


async def _closed_refuses(stack: Stack, thread: str, call_id: str) -> None:
    with pytest.raises((UsageError, ThreadClosed)):
        await stack.client.approve(thread, call_id)


# -- decisions that last -------------------------------------------------------------------------------------------

ALWAYS = ApprovalRequest(
    options=(ApprovalOption(id="always", kind="allow_always"), ApprovalOption(id="no", kind="reject_once"))
)


async def test_a_lasting_decision_of_a_child_is_for_that_child(start_stack: StackFactory, thread: str) -> None:
    """Its next call runs unasked; the same call of its parent is asked about, and so is that of the next child."""
    house = Household(thread, one=[PAY, PAY, closing_with_what_was_heard], asked=ALWAYS)
    stack = await start_stack(house.agent)
    await stack.client.decide(house.child, await house.begin(stack), option_id="always")
    await house.assert_heard(stack, "paid 3")
    assert house.paid == [3, 3]
    await stack.client.send(thread, "pay", id="m2")
    (own,) = await house.paused(stack, thread)
    await stack.client.decide(thread, own, option_id="no")
    turn = await stack.client.wait_settled(thread)
    assert _own_results(turn) == ["denied"]
    await stack.client.ask(thread, "go", id="m3")
    await house.paused(stack, child_of(thread, turn=turn.turn + 1))
    assert house.paid == [3, 3]


async def test_a_lasting_decision_of_the_parent_does_not_reach_its_children(
    start_stack: StackFactory, thread: str
) -> None:
    """What somebody allowed in one thread, where they saw what it did, says nothing of another one."""
    house = Household(thread, asked=ALWAYS)
    stack = await start_stack(house.agent)
    await stack.client.send(thread, "pay", id="m1")
    (own,) = await house.paused(stack, thread)
    await stack.client.decide(thread, own, option_id="always")
    await stack.client.wait_settled(thread)
    await stack.client.ask(thread, "go", id="m2")
    house.child = child_of(thread, turn=2)
    (call_id,) = await house.paused(stack)
    assert house.paid == [3]
    # The control: in the parent it holds.
    await stack.client.ask(thread, "pay", id="m3")
    assert house.paid == [3, 3]
    await stack.client.decide(house.child, call_id, option_id="no")
    await closed(stack, house.child)
    assert house.paid == [3, 3]


# -- what happens above --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("how", ["stop", "interrupt", "close"])
async def test_the_end_of_what_a_parent_does_cancels_the_questions_below_it(
    how: Literal["stop", "interrupt", "close"], start_stack: StackFactory, thread: str
) -> None:
    """Nobody can let the call run any more; the child can be spoken to, and asks anew."""
    house = Household(thread, one=lambda who: "ok" if who.heard == "paid 3" else PAY)
    stack = await start_stack(house.agent)
    call_id = await house.begin(stack)
    client = stack.client
    match how:
        case "stop":
            await client.stop(thread)
        case "interrupt":
            await client.interrupt(thread)
        case "close":
            await client.close_thread(thread)
    await eventually(lambda: _cancelled(stack, house.child))
    assert await client.approvals(house.child) == ()
    await _refused(stack, house.child, call_id)
    assert house.paid == []
    await client.send(house.child, "again", id="m2")
    (anew,) = await house.paused(stack)
    assert anew != call_id
    await client.approve(house.child, anew)
    await client.wait_settled(house.child)
    assert house.paid == [3]
    assert faults(await client.history(house.child)) == []
    await assert_sound(stack, house.child)


async def _cancelled(stack: Stack, thread: str) -> bool:
    turn = (await stack.client.history(thread))[-1]
    settled = (turn.status.state, turn.status.reason) == ("incomplete", "cancelled")
    return settled and _own_results(turn) == ["cancelled"]


async def test_words_to_a_parent_leave_the_questions_below_it_alone(start_stack: StackFactory, thread: str) -> None:
    """They are for its own turn, also where they stop one that works."""
    house = Household(thread)
    stack = await start_stack(house.agent)
    call_id = await house.begin(stack)
    house.model.roles[ROOT] = lambda who: Reply("on and on", hang=True) if who.asked.user_text == "talk" else root(who)
    await stack.client.send(thread, "talk", id="m2")
    await eventually(lambda: len(house.model.requests_of(thread)) == 3)
    assert await stack.client.ask(thread, "enough", id="m3") == "I am here"
    assert await house.paused(stack) == [call_id]
    await stack.client.approve(house.child, call_id)
    await house.assert_heard(stack, "paid 3")
    assert house.paid == [3]


async def test_a_message_of_the_parent_waits_for_the_decision(start_stack: StackFactory, thread: str) -> None:
    """It cancels no question; the child reads it behind the result of the call."""

    def one(who: Me) -> Reply | str:
        if "hurry" in who.heard:
            return closing_with_what_was_heard(who)
        return PAY

    house = Household(thread, one=one)
    stack = await start_stack(house.agent)
    call_id = await house.begin(stack)
    tell = Reply(Call("send_message_to_child", {"thread_id": house.child, "message": "hurry"}))
    house.model.roles[ROOT] = lambda who: tell if who.asked.user_text == "tell" and not who.heard else root(who)
    await stack.client.ask(thread, "tell", id="m2")

    async def waits_in_the_child() -> bool:
        return (await stack.client.status(house.child)).deferred == 1

    await eventually(waits_in_the_child)
    assert await house.paused(stack) == [call_id]
    await stack.client.approve(house.child, call_id)
    await closed(stack, house.child)
    assert house.paid == [3]
    assert ["hurry" in asked.results[-1] for asked in house.model.requests_of(house.child)] == [False, True]


async def test_another_answer_of_the_parent_leaves_its_childs_question_open(
    start_stack: StackFactory, thread: str
) -> None:
    """The child of the answer beside it still waits, is decided about, and reports to what is shown by then."""
    house = Household(thread)
    stack = await start_stack(house.agent)
    call_id = await house.begin(stack)
    answer = (await stack.client.history(thread))[-1]
    house.model.roles[ROOT] = lambda who: "noted" if who.heard else "rather not"
    again = await stack.client.regenerate(thread, answer.id)
    await stack.client.wait_settled(thread, again.message_id)
    assert await house.paused(stack) == [call_id]
    assert [child.thread_id for child in await stack.client.children(thread)] == [house.child]
    await stack.client.approve(house.child, call_id)
    await house.assert_heard(stack, "paid 3")
    assert house.paid == [3]
    shown = await stack.client.history(thread)
    assert [message.id for message in shown[:2]] == [shown[0].id, again.message_id]
    await assert_sound(stack, thread, house.child)


async def test_deleting_what_a_child_inherits_leaves_its_question_open(start_stack: StackFactory, thread: str) -> None:
    """It reads less, and waits as before."""
    house = Household(thread)
    stack = await start_stack(house.agent)
    call_id = await house.begin(stack)
    await stack.client.reset(thread)
    assert await house.paused(stack) == [call_id]
    await stack.client.approve(house.child, call_id)
    await closed(stack, house.child)
    assert house.paid == [3]


async def test_both_sleep_while_the_child_waits(start_stack: StackFactory, thread: str) -> None:
    """Neither costs anything until somebody decides, which wakes the child, and its report the parent."""
    house = Household(thread, limits=Limits(idle=timedelta(seconds=0.5)))
    stack = await start_stack(house.agent)
    call_id = await house.begin(stack)
    await eventually(lambda: _sleeps(stack, thread, house.child), timeout=20)
    await stack.restart_worker()
    assert [one.call_id for one in await stack.client.approvals(house.child)] == [call_id]
    await stack.client.approve(house.child, call_id)
    await house.assert_heard(stack, "paid 3")
    assert house.paid == [3]
    assert len(house.model.requests_of(house.child)) == 2


@pytest.mark.parametrize("how", ["stop", "close"])
async def test_a_stop_of_a_family_that_sleeps_cancels_the_question(
    how: Literal["stop", "close"], start_stack: StackFactory, thread: str
) -> None:
    """The parent is woken, and wakes the child to settle what it waits for."""
    house = Household(thread, limits=Limits(idle=timedelta(seconds=0.5)))
    stack = await start_stack(house.agent)
    call_id = await house.begin(stack)
    await eventually(lambda: _sleeps(stack, thread, house.child), timeout=20)
    if how == "stop":
        await stack.client.stop(thread)
    else:
        await stack.client.close_thread(thread)
    await eventually(lambda: _cancelled(stack, house.child))
    await _refused(stack, house.child, call_id)
    assert house.paid == []


# -- making a child is a call too ----------------------------------------------------------------------------------


def _asking_before_it_spawns(thread: str) -> Household:
    house = Household(thread)
    house.agent.approval = lambda name, arguments: name == "spawn_thread"
    return house


async def test_a_child_that_needs_approval_is_made_when_it_is_approved(start_stack: StackFactory, thread: str) -> None:
    """There is none before, and one after; what the turn of the parent has then is the usual result."""
    house = _asking_before_it_spawns(thread)
    stack = await start_stack(house.agent)
    await stack.client.send(thread, "go", id="m1")
    (call_id,) = await house.paused(stack, thread)
    assert await stack.client.children(thread) == ()
    await stack.client.approve(thread, call_id)
    (inner,) = await house.paused(stack)
    await stack.client.approve(house.child, inner)
    await house.assert_heard(stack, "paid 3")
    assert house.paid == [3]
    await assert_sound(stack, thread, house.child)


async def test_a_child_that_is_denied_is_never_made(start_stack: StackFactory, thread: str) -> None:
    """Nor one whose question is cancelled by words."""
    house = _asking_before_it_spawns(thread)
    stack = await start_stack(house.agent)
    await stack.client.send(thread, "go", id="m1")
    (call_id,) = await house.paused(stack, thread)
    await stack.client.deny(thread, call_id)
    assert _own_results(await stack.client.wait_settled(thread)) == ["denied"]
    await stack.client.send(thread, "go", id="m2")
    await house.paused(stack, thread)
    assert await stack.client.ask(thread, "leave it", id="m3") == "noted"
    assert await stack.client.children(thread) == ()
    assert house.model.requests_of(house.child) == []


async def test_a_child_waits_beside_a_call_that_runs(start_stack: StackFactory, thread: str) -> None:
    """A stop of the parent then reaches both: the call is interrupted, the question cancelled."""
    house = Household(thread, one=[Reply(Call("hold"), Call("pay", {"amount": 3}))])
    held = asyncio.Event()

    @house.agent.tool
    async def hold() -> str:
        """Hold on."""
        held.set()
        await asyncio.Event().wait()
        return ""

    stack = await start_stack(house.agent)
    await stack.client.ask(thread, "go", id="m1")
    await asyncio.wait_for(held.wait(), 10)
    assert await eventually(lambda: stack.client.approvals(house.child))
    await stack.client.stop(thread)

    async def is_settled() -> bool:
        turn = (await stack.client.history(house.child))[-1]
        return turn.status.reason == "cancelled" and _own_results(turn) == ["interrupted", "cancelled"]

    await eventually(is_settled)
    assert house.paid == []
    await assert_sound(stack, thread, house.child)
