"""Child threads: what they inherit, and what goes between them and their parents."""

import asyncio
from datetime import timedelta
from typing import Any

import asyncpg
import pytest
from temporalio.client import WorkflowExecutionStatus

from perdure import ids
from perdure.agent import Agent, Limits
from perdure.builtins import Threads
from perdure.messages import EventPart, ToolResultPart
from perdure.testing import Call, Reply
from tests.chaos.faults import faults
from tests.eventually import eventually
from tests.recorded import chained_runs
from tests.stack import Stack
from tests.workflows.conftest import StackFactory
from tests.workflows.family import (
    ROOT,
    Family,
    Line,
    Me,
    Role,
    Say,
    child_of,
    closed,
    closing,
    me,
    reporting,
    shown,
    spawn,
    spawning,
)
from tests.workflows.soundness import assert_sound


def family(model: Family, **options: Any) -> Agent:
    """An agent whose threads are this family."""
    return Agent("a", model=model, toolsets=[Threads(**options)])


async def reports(stack: Stack, thread: str) -> list[str]:
    """The events that a thread was told, in order, each without the line that says who reports."""
    parts = [part for message in await stack.client.history(thread) for part in message.parts]
    return [part.content.partition("\n\n")[2] for part in parts if isinstance(part, EventPart)]


async def reported(stack: Stack, thread: str, *expected: str) -> None:
    """Return when these reports are in and answered; they are all, and in this order."""

    async def are_in() -> bool:
        return len(await reports(stack, thread)) >= len(expected) and await _is_idle(stack, thread)

    await eventually(are_in, timeout=20)
    assert await reports(stack, thread) == list(expected)


async def _is_idle(stack: Stack, thread: str) -> bool:
    status = await stack.client.status(thread)
    return status.state in ("idle", "closed") and status.deferred == 0


async def results(stack: Stack, thread: str) -> list[tuple[str, str]]:
    """Outcome and words of all tool results of a thread."""
    messages = await stack.client.history(thread)
    parts = [part for message in messages for part in message.parts if isinstance(part, ToolResultPart)]
    return [(part.outcome, part.content) for part in parts]


# -- inheritance -----------------------------------------------------------------------------------------------


async def test_a_child_reads_what_its_parent_read_up_to_the_call_and_then_its_task(
    start_stack: StackFactory, thread: str
) -> None:
    """Request for request the same, so a provider's prompt cache holds; of a parallel group it sees its own call only.

    What the parent says and does later is not the child's.
    """

    def root(who: Me) -> Reply | str:
        if who.asked.user_text == "go" and not who.heard:
            calls = spawn(who, "first", "second").items
            return Reply("let me split that", Call("look", {"city": "Rome"}), *calls)
        return "yes"

    model = Family({ROOT: root})
    agent = family(model)

    @agent.tool
    async def look(city: str) -> str:
        return f"{city} is sunny"

    stack = await start_stack(agent)
    await stack.client.ask(thread, "hello", id="m1")
    await stack.client.ask(thread, "go", id="m2")
    for index, task in enumerate(("first", "second"), start=1):
        child = child_of(thread, turn=2, index=index)
        await closed(stack, child)
        (asked,) = model.requests_of(child)
        parents = shown(model.requests_of(thread)[1].messages)
        inherited, own = shown(asked.messages)[: len(parents)], asked.messages[len(parents) :]
        assert inherited == parents
        assert asked.parameters == model.requests_of(thread)[1].parameters
        said = [part for message in own for part in message.parts]
        assert [part.part_kind for part in said] == ["text", "tool-call", "tool-return"]
        assert me(asked).task == task
        assert me(asked).stack == (thread, child)
        assert faults(await stack.client.history(child)) == []


async def test_a_child_costs_rows_for_its_own_words_only(
    start_stack: StackFactory, thread: str, database_url: str
) -> None:
    """No message of the parent is copied but the call that spawned it, and no model is asked to make one."""
    model = Family({ROOT: lambda who: spawn(who, "look") if who.asked.user_text == "go" and not who.heard else "yes"})
    stack = await start_stack(family(model))
    for number in range(5):
        await stack.client.ask(thread, f"hello {number}")
    await stack.client.ask(thread, "go")
    child = child_of(thread, turn=6)
    await closed(stack, child)
    assert await _rows(database_url, child) == [("event", 2), ("assistant", 2)]
    assert len(model.requests_of(child)) == 1
    history = await stack.client.history(child)
    assert [message.thread_id for message in history[:-2]] == [thread] * 12


async def _rows(database_url: str, thread: str) -> list[tuple[str, int]]:
    """The messages that belong to a thread, by role, with the number of their parts."""
    connection: asyncpg.Connection[asyncpg.Record] = await asyncpg.connect(database_url)
    try:
        rows = await connection.fetch(
            "select m.role, count(p.*) from perdure.messages m join perdure.threads t using (thread) "
            "left join perdure.parts p on p.message_id = m.id where t.thread_id = $1 group by m.id order by m.seq",
            thread,
        )
    finally:
        await connection.close()
    return [(row[0], row[1]) for row in rows]


async def test_several_children_of_one_step(start_stack: StackFactory, thread: str) -> None:
    """Each is started once and told its task, the results name them in call order, and all report."""
    tasks = [f"task {number}" for number in range(5)]
    model = Family({ROOT: lambda who: spawn(who, *tasks) if who.answered == 0 else "noted"})
    stack = await start_stack(family(model))
    await stack.client.send(thread, "go", id="m1")
    await eventually(lambda: _all_in(stack, thread, {f"report of {task}" for task in tasks}))
    children = [child_of(thread, index=index) for index in range(5)]
    told = await results(stack, thread)
    assert [(outcome, child in words) for (outcome, words), child in zip(told, children, strict=True)] == [
        ("ok", True)
    ] * 5
    for child in children:
        await closed(stack, child)
        assert len(model.requests_of(child)) == 1
    assert await stack.store.get_children(thread) == ()
    await assert_sound(stack, thread, *children)


async def _all_in(stack: Stack, thread: str, expected: set[str]) -> bool:
    found = await reports(stack, thread)
    assert len(found) == len(set(found))
    return set(found) == expected


async def test_a_child_of_a_child_of_a_child(start_stack: StackFactory, thread: str) -> None:
    """Every level knows its stack, spawns with it, and hears from the one below it."""

    def middle(below: str) -> Say:
        def say(who: Me) -> Reply | str:
            if who.answered == 0:
                return spawn(who, below)
            return closing(f"report of {who.task}")(who) if f"report of {below}" in who.heard else "I wait"

        return say

    model = Family({ROOT: _root, "one": middle("two"), "two": middle("three")})
    stack = await start_stack(family(model))
    await stack.client.send(thread, "go", id="m1")
    await reported(stack, thread, "report of one")
    one = child_of(thread)
    two = child_of(one)
    three = child_of(two)
    assert me(model.requests_of(three)[0]).stack == (thread, one, two, three)
    assert [record.thread_id for record in await stack.store.get_ancestor_chain(three)] == [thread, one, two, three]
    assert (await stack.store.get_thread(three)).root_thread_id == thread
    assert await reports(stack, two) == ["report of three"]
    await assert_sound(stack, thread, one, two, three)


def _root(who: Me) -> Reply | str:
    return spawn(who, "one") if who.answered == 0 else "noted"


# -- refusals --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("given", [None, [], ["other"], "root", [1], ["t", "child"]])
async def test_the_wrong_stack_spawns_nothing(given: object, start_stack: StackFactory, thread: str) -> None:
    """The error shows the stack that was given and the real one, and the model goes on."""
    arguments = {"instructions": "look", **({} if given is None else {"child_of": given})}
    model = Family({ROOT: [Reply(Call("spawn_thread", arguments)), "I see"]})
    stack = await start_stack(family(model))
    assert await stack.client.ask(thread, "go", id="m1") == "I see"
    ((outcome, words),) = await results(stack, thread)
    assert outcome == "error"
    shown_stack = '["other"]' if given == ["other"] else '["t", "child"]' if given == ["t", "child"] else "[]"
    assert f"`child_of` was {shown_stack}" in words
    assert f'["{thread}"]' in words
    assert await stack.store.get_children(thread) == ()
    assert len(model.requests) == 2
    await assert_sound(stack, thread)


@pytest.mark.parametrize("arguments", [{}, {"instructions": "  "}, {"instructions": 7}])
async def test_a_child_without_a_task_is_not_made(
    arguments: dict[str, object], start_stack: StackFactory, thread: str
) -> None:
    """The arguments are checked before anything is done."""
    model = Family({ROOT: [lambda who: Reply(Call("spawn_thread", {**arguments, "child_of": [who.id]})), "I see"]})
    stack = await start_stack(family(model))
    assert await stack.client.ask(thread, "go", id="m1") == "I see"
    assert [outcome for outcome, _ in await results(stack, thread)] == ["error"]
    assert await stack.store.get_children(thread) == ()


async def test_there_are_only_so_many_levels(start_stack: StackFactory, thread: str) -> None:
    """The last level that is allowed spawns nothing, is told so, and goes on."""
    model = Family({ROOT: _root, "one": [spawning("two"), closing("too deep")]})
    stack = await start_stack(family(model, max_depth=1))
    await stack.client.send(thread, "go", id="m1")
    await reported(stack, thread, "too deep")
    one = child_of(thread)
    (*_, refused, _) = await results(stack, one)
    assert refused == ("error", "No thread was spawned: at most 1 levels of child threads are allowed.")
    assert await stack.store.get_children(one) == ()


# -- reports ---------------------------------------------------------------------------------------------------

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
    agent = family(model)

    @agent.tool
    async def work() -> str:
        await finish.wait()
        return "worked"

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
    agent = Agent("a", model=model, toolsets=[Threads()], limits=Limits(idle=timedelta(seconds=0.3)))

    @agent.tool
    async def work() -> str:
        await report.wait()
        return "worked"

    stack = await start_stack(agent)
    await stack.client.send(thread, "go", id="m1")

    async def hibernates() -> bool:
        return (await stack.handle(thread).describe()).status == WorkflowExecutionStatus.COMPLETED

    await eventually(hibernates)
    report.set()
    await reported(stack, thread, *FIVE)


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
        return len(await reports(stack, thread)) >= 21

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
    agent = family(model)

    @agent.tool
    async def work() -> str:
        await release.wait()
        return "worked"

    stack = await start_stack(agent)
    await stack.client.ask(thread, "go", id="m1")
    release.set()
    await reported(stack, thread, "over")
    await stack.client.ask(thread, "tell them", id="m2")
    answers = (await results(stack, thread))[1:]
    assert answers[:3] == [("error", f"This thread has no child {other!r}.") for other in others]
    assert answers[3] == ("error", f"The child {one} is closed and reads nothing any more.")
    assert len(await reports(stack, two)) == 0
