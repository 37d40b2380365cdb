"""Child threads: what they inherit, and what goes between them and their parents."""

import asyncpg
import pytest

from perdure.agent import Agent
from perdure.builtins import Threads
from perdure.inputs import INLINE_BYTES
from perdure.limits import Limits
from perdure.testing import Call, Reply
from tests.chaos.faults import faults
from tests.eventually import eventually
from tests.recorded import chained_runs
from tests.stack import Stack
from tests.workflows.conftest import StackFactory
from tests.workflows.family import (
    ROOT,
    Family,
    Me,
    Say,
    child_of,
    closed,
    closing,
    family,
    me,
    reported,
    reports,
    results,
    shown,
    spawn,
    spawning,
)
from tests.workflows.soundness import assert_sound

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


async def test_a_child_is_cut_off_in_the_middle_of_its_parents_message(start_stack: StackFactory, thread: str) -> None:
    """A step before the one that spawns is inherited with its results, and so are the words before the call."""

    def root(who: Me) -> Reply | str:
        if who.answered == 0:
            return Reply("first I look", Call("look", {"city": "Rome"}))
        return Reply("and now", *spawn(who, "one").items) if who.answered == 1 else "noted"

    model = Family({ROOT: root, "one": [spawning("two"), "I wait"]})
    agent = family(model)

    @agent.tool
    async def look(city: str) -> str:
        return f"{city} is sunny"

    stack = await start_stack(agent)
    await stack.client.send(thread, "go", id="m1")
    one = child_of(thread, step=1)
    two = child_of(one)
    await closed(stack, two)
    roots, ones, twos = (shown(model.requests_of(name)[at].messages) for name, at in ((thread, 1), (one, 0), (two, 0)))
    assert ones[: len(roots)] == roots
    assert twos[: len(ones)] == ones
    said = [part.get("content") for message in ones[len(roots) :] for part in message["parts"]]
    assert said[0] == "and now"
    assert faults(await stack.client.history(two)) == []


async def test_a_child_reads_large_words_of_its_parent(start_stack: StackFactory, thread: str) -> None:
    """They are in a blob of the parent, and the child reads them whole; a large report comes whole as well."""
    words = "go " + "w" * INLINE_BYTES
    report = "r" * (INLINE_BYTES - 100) + " the end"
    model = Family({ROOT: _root, "one": [closing(report)]})
    stack = await start_stack(family(model))
    await stack.client.send(thread, words, id="m1")
    await reported(stack, thread, report)
    (asked,) = model.requests_of(child_of(thread))
    assert asked.user_text == words
    assert any(asked.results and report in asked.results[-1] for asked in model.requests_of(thread))


@pytest.mark.slow
async def test_the_run_of_a_parent_of_many_ends_in_time(start_stack: StackFactory, thread: str) -> None:
    """What children leave in their parent's history counts, also what comes by itself: their starts and ends."""
    spawns = 12

    def root(who: Me) -> Reply | str:
        return spawn(who, f"task {who.asked.user_text}") if not who.heard else "noted"

    limits = Limits(history_events=100)
    stack = await start_stack(Agent("a", model=Family({ROOT: root}), toolsets=[Threads()], limits=limits))
    for number in range(spawns):
        await stack.client.send(thread, str(number), id=f"m{number}")
        await reported(stack, thread, *(f"report of task {before}" for before in range(number + 1)))
    runs = await chained_runs(stack.temporal, thread)
    assert len(runs) > 2
    assert max(len(run) for run in runs) < 130
    await assert_sound(stack, thread)


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

    async def refused() -> object:
        # The report goes out before the results of its group are committed.
        return next((result for result in await results(stack, one) if result[0] == "error"), None)

    assert await eventually(refused) == (
        "error",
        "No thread was spawned: threads may be nested only 1 deep, and this one is that deep already.",
    )
    assert await stack.store.get_children(one) == ()
