"""What goes between threads: reports to parents, wherever those are, and messages to children."""

import asyncio
from datetime import timedelta

import pytest
from temporalio.client import WorkflowExecutionStatus

from perdure import ids
from perdure.agent import Agent
from perdure.builtins import Threads
from perdure.limits import Limits
from perdure.messages import EventPart, ToolResultPart
from perdure.testing import Call, Reply
from tests.chaos.faults import faults
from tests.eventually import eventually
from tests.recorded import chained_runs
from tests.workflows.conftest import StackFactory
from tests.workflows.family import (
    ROOT,
    Family,
    Line,
    Me,
    Role,
    child_of,
    closing,
    family,
    is_idle,
    reported,
    reporting,
    reports,
    results,
    spawn,
    with_work,
)
from tests.workflows.soundness import assert_sound


def _root(who: Me) -> Reply | str:
    return spawn(who, "one") if who.answered == 0 else "noted"


FIVE = [f"report {number}" for number in range(5)]


async def test_reports_reach_an_idle_parent_in_order(start_stack: StackFactory, thread: str) -> None:
    """One after the other and several of one step, the last with the end of the child."""
    child: list[Line] = [reporting("a"), reporting("b"), reporting("c", "d", "e", "f"), closing("g")]
    model = Family({ROOT: _root, "one": child})
    stack = await start_stack(family(model))
    await stack.client.send(thread, "go", id="m1")
    await reported(stack, thread, *"abcdefg")
    assert faults(await stack.client.history(thread)) == []
    await assert_sound(stack, thread, child_of(thread))


async def test_a_report_and_the_end_in_one_step_arrive_in_order(start_stack: StackFactory, thread: str) -> None:
    """What a child says before it closes is not overtaken by the news that it is closed."""

    def child(who: Me) -> Reply:
        close = Call("close_thread", {"thread_id": who.id, "report_to_parent": "b"})
        return Reply(Call("report_to_parent", {"report": "a"}), close)

    model = Family({ROOT: _root, "one": [child]})
    stack = await start_stack(family(model))
    await stack.client.send(thread, "go", id="m1")
    await reported(stack, thread, "a", "b")


async def test_reports_wait_for_a_busy_parent(start_stack: StackFactory, thread: str) -> None:
    """While a tool of the parent runs they are deferred, in order; none of them interrupts it."""
    finish = asyncio.Event()
    model = Family(
        {
            ROOT: lambda who: Reply(Call("work"), *spawn(who, "one").items) if who.answered == 0 else "noted",
            "one": [*map(reporting, FIVE), closing()],
        }
    )
    agent = with_work(family(model), finish)
    stack = await start_stack(agent)
    accepted = await stack.client.send(thread, "go", id="m1")

    async def deferred() -> bool:
        return (await stack.client.status(thread)).deferred == 6

    await eventually(deferred)
    assert await reports(stack, thread) == []
    finish.set()
    await reported(stack, thread, *FIVE, "")
    turn = await stack.client.wait_settled(thread, accepted.message_id)
    assert [part.outcome for part in turn.parts if isinstance(part, ToolResultPart)] == ["ok", "ok"]
    assert faults(await stack.client.history(thread)) == []
    await assert_sound(stack, thread)


async def test_reports_wake_a_parent_that_hibernates(start_stack: StackFactory, thread: str) -> None:
    """Its workflow has ended while the child worked; each report comes once."""
    report = asyncio.Event()

    def child(who: Me) -> Reply | str:
        return Reply(Call("work")) if who.answered == 0 else reporting(*FIVE) if who.answered == 1 else "done"

    model = Family({ROOT: _root, "one": child})
    agent = with_work(Agent("a", model=model, toolsets=[Threads()], limits=Limits(idle=timedelta(seconds=0.3))), report)
    stack = await start_stack(agent)
    await stack.client.send(thread, "go", id="m1")

    async def hibernates() -> bool:
        return (await stack.handle(thread).describe()).status == WorkflowExecutionStatus.COMPLETED

    await eventually(hibernates)
    report.set()
    await reported(stack, thread, *FIVE)


async def test_whoever_has_asked_gets_the_answer_after_a_report_that_came_in_between(
    start_stack: StackFactory, thread: str
) -> None:
    """The report ends the turn between two steps and opens another one; the question is answered there."""
    finish = asyncio.Event()
    model = Family(
        {ROOT: lambda who: Reply(Call("work"), *spawn(who, "one").items) if who.answered == 0 else who.heard}
    )
    agent = with_work(family(model), finish)
    stack = await start_stack(agent)
    asking = asyncio.create_task(stack.client.ask(thread, "go", id="m1"))

    async def deferred() -> bool:
        return bool(model.requests) and (await stack.client.status(thread)).deferred == 1

    await eventually(deferred)
    finish.set()
    assert (await asking).endswith("report of one")
    steered = (await stack.client.history(thread))[1]
    assert (steered.status.state, steered.status.reason) == ("incomplete", "steered")


@pytest.mark.slow
async def test_reports_reach_a_parent_that_goes_from_run_to_run(start_stack: StackFactory, thread: str) -> None:
    """None is lost or doubled where one run ends and the next begins, and each child's stay in their order."""
    tasks = ["one", "two", "three"]
    roles: dict[str, Role] = {
        task: [*(reporting(f"{task} {number}") for number in range(6)), closing(f"{task} end")] for task in tasks
    }
    model = Family({ROOT: lambda who: spawn(who, *tasks) if who.answered == 0 else "noted", **roles})
    limits = Limits(history_events=20)
    stack = await start_stack(Agent("a", model=model, toolsets=[Threads()], limits=limits))
    await stack.client.send(thread, "go", id="m1")

    async def all_in() -> bool:
        return len(await reports(stack, thread)) >= 21 and await is_idle(stack, thread)

    await eventually(all_in, timeout=30)
    found = await reports(stack, thread)
    for task in tasks:
        assert [report for report in found if report.startswith(task)] == [
            *(f"{task} {number}" for number in range(6)),
            f"{task} end",
        ]
    assert len(await chained_runs(stack.temporal, thread)) > 2
    assert faults(await stack.client.history(thread)) == []
    await assert_sound(stack, thread)


async def test_the_root_has_nobody_to_report_to(start_stack: StackFactory, thread: str) -> None:
    """The model is told, and goes on."""
    model = Family({ROOT: [reporting("hello?"), "I see"]})
    stack = await start_stack(family(model))
    assert await stack.client.ask(thread, "go", id="m1") == "I see"
    ((outcome, words),) = await results(stack, thread)
    assert outcome == "error"
    assert "no parent" in words


# -- messages --------------------------------------------------------------------------------------------------


def telling(child: str, message: str) -> Reply:
    """Send a message to a child."""
    return Reply(Call("send_message_to_child", {"thread_id": child, "message": message}))


async def test_a_parent_talks_with_its_child(start_stack: StackFactory, thread: str) -> None:
    """Each message starts a turn of the child that idles, once, and goes back to the call that spawned it."""
    child = child_of(thread)

    def root(who: Me) -> Reply | str:
        if who.heard:
            return "noted"
        return spawn(who, "one") if who.asked.user_text == "go" else telling(child, who.asked.user_text)

    def answer(who: Me) -> Reply | str:
        return reporting(f"heard {who.heard[-5:]}") if "from your parent" in who.heard else "I wait"

    model = Family({ROOT: root, "one": answer})
    stack = await start_stack(family(model))
    await stack.client.ask(thread, "go", id="m1")
    await stack.client.send(thread, "first", id="m2")
    await reported(stack, thread, "heard first")
    await stack.client.send(thread, "again", id="m3")
    await reported(stack, thread, "heard first", "heard again")
    events = [part for message in await stack.client.history(child) for part in message.parts]
    told = [part for part in events if isinstance(part, EventPart)]
    assert [part.content[-5:] for part in told] == ["first", "again"]
    assert {(part.origin_tool, part.origin_call_id) for part in told} == {
        ("spawn_thread", ids.call_id(thread, 1, 0, 0))
    }
    await assert_sound(stack, thread, child)


async def test_messages_go_to_children_of_ones_own_only(start_stack: StackFactory, thread: str) -> None:
    """An unknown thread, a grandchild, the thread itself and a child that is closed get nothing; the model is told."""
    one = child_of(thread)
    two = child_of(one)
    others = ["nobody", thread, two]

    def root(who: Me) -> Reply | str:
        if who.heard:
            return "noted"
        if who.asked.user_text == "go":
            return spawn(who, "one")
        return Reply(*(item for other in (*others, one) for item in telling(other, "hello").items))

    release = asyncio.Event()
    model = Family(
        {
            ROOT: root,
            "one": [lambda who: Reply(*spawn(who, "two").items, Call("work")), closing("over")],
            "two": ["I idle"],
        }
    )
    agent = with_work(family(model), release)
    stack = await start_stack(agent)
    await stack.client.ask(thread, "go", id="m1")
    release.set()
    await reported(stack, thread, "over")
    await stack.client.ask(thread, "tell them", id="m2")
    answers = (await results(stack, thread))[1:]
    assert answers[:3] == [("error", f"This thread has no child {other!r}.") for other in others]
    assert answers[3] == ("error", f"The child {one} is closed and reads nothing any more.")
    assert len(await reports(stack, two)) == 0
