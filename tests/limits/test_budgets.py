"""Budgets of turns, threads, trees and tenants, kept through a whole stack."""

import uuid
from datetime import timedelta
from decimal import Decimal
from typing import Any

import pytest

from perdure.agent import Agent
from perdure.builtins import Threads
from perdure.limits import Budget, Limits
from perdure.messages import Status, Usage
from perdure.testing import Call, Failure, ScriptedModel
from perdure.view import view
from tests.eventually import eventually
from tests.limits.spenders import (
    CALL,
    PRICE,
    Clock,
    by_words,
    counted,
    limits,
    model_of,
    reply,
    results,
    say,
    spender,
    spent,
    streams,
)
from tests.perdure.view_rules import violations
from tests.workflows.conftest import StackFactory
from tests.workflows.family import ROOT, Family, child_of, is_idle, made, spawning

THREE: list[dict[str, Any]] = [{"model_calls": 3}, {"tokens": 221}, {"tokens": 330}, {"usd": Decimal("0.00025")}]
"""Budgets that the third call uses up: exactly, or by going over."""

TWO: list[dict[str, Any]] = [{"model_calls": 2}, {"tokens": 200}, {"usd": 0.000168}]


def refused(status: Status, scope: str, budget: dict[str, Any]) -> bool:
    """Whether a turn has ended for a budget, in a sentence that says which."""
    told = status.detail or ""
    return (status.state, status.reason) == ("incomplete", "limit") and f"Limits.{scope}.{next(iter(budget))}" in told


@pytest.mark.parametrize("budget", THREE, ids=str)
async def test_b62_a_turn_ends_with_its_budget_and_the_next_one_has_its_own(
    budget: dict[str, Any], start_stack: StackFactory, thread: str
) -> None:
    """B62: the call that crosses is the last, all results are stored, no call is open, and the next words are answered.

    The request that answers them is valid and has all results in it.
    """
    agent = spender(limits=limits("turn", **budget))
    stack = await start_stack(agent)
    assert refused(await say(stack, thread, "loop"), "turn", budget)
    turn = (await stack.client.history(thread))[1]
    assert (len(model_of(agent).requests), results(turn), turn.usage) == (3, ["seen"] * 3, CALL + CALL + CALL)
    status = await stack.client.status(thread)
    assert (status.state, status.open_calls, status.usage) == ("idle", (), CALL + CALL + CALL)
    assert (await say(stack, thread, "continue")).state == "complete"
    assert len(model_of(agent).requests) == 4
    path = await stack.store.load_history_with_ancestors(thread)
    assert violations(view(path)) == []
    assert str(model_of(agent).requests[-1].messages).count("seen") == 3


@pytest.mark.parametrize("budget", TWO, ids=str)
async def test_b62_a_thread_that_has_spent_its_budget_takes_words_and_says_why_it_does_not_answer(
    budget: dict[str, Any], start_stack: StackFactory, thread: str
) -> None:
    """Again and again, without asking the model; with a higher budget it goes on, and another thread has its own."""
    agent = spender(limits=limits("thread", **budget))
    stack = await start_stack(agent)
    assert [(await say(stack, thread, words)).state for words in ("one", "two")] == ["complete"] * 2
    for words in ("three", "four"):
        assert refused(await say(stack, thread, words), "thread", budget)
    assert len(model_of(agent).requests) == 2
    assert (await say(stack, f"t-{uuid.uuid4()}", "one")).state == "complete"
    agent.limits = limits("thread", **{name: value * 2 for name, value in budget.items()})
    assert (await say(stack, thread, "five")).state == "complete"
    assert await spent(stack, thread) == CALL + CALL + CALL


@pytest.mark.parametrize("scope", ["turn", "thread", "tree"])
async def test_time_runs_out_in_the_middle_of_a_turn(
    scope: str, start_stack: StackFactory, thread: str, clock: Clock
) -> None:
    """Waits included: the tool's hour counts, its result is stored, and the model is not asked again.

    The next turn has its own hour; a thread has not.
    """
    agent = spender(
        lambda asked: reply(Call("nap") if asked.user_text == "nap" else "hello"),
        limits(scope, time=timedelta(hours=1)),
    )

    @agent.tool
    async def nap() -> str:
        """Take an hour."""
        clock.ahead += 3_600
        return "slept"

    stack = await start_stack(agent)
    status = await say(stack, thread, "nap")
    assert refused(status, scope, {"time": 1})
    assert "lasted 1:00:0" in (status.detail or "")
    assert results((await stack.client.history(thread))[1]) == ["slept"]
    assert len(model_of(agent).requests) == 1
    if scope == "turn":
        clock.ahead = 0
    after = await say(stack, thread, "hi")
    assert (after.state == "complete") is (scope == "turn")


async def test_a_tree_spends_one_budget(start_stack: StackFactory, thread: str) -> None:
    """Parent and child are refused for what both have spent; the control: a budget of the thread is not crossed."""
    model = Family({ROOT: [spawning("dig"), "dug", "more"], "dig": ["digging"]})
    agent = Agent("a", model=model, toolsets=[Threads()], compaction=None)
    stack = await start_stack(agent)
    assert await stack.client.ask(thread, "go") == "dug"
    child = child_of(thread)
    await made(stack, child)

    async def both_rest() -> bool:
        return (await spent(stack, child)).requests == 1 and await is_idle(stack, child)

    await eventually(both_rest)
    agent.limits = limits("tree", model_calls=3)
    for of_tree in (thread, child):
        status = await say(stack, of_tree, "more")
        assert refused(status, "tree", {"model_calls": 3})
        assert "have made 3 model calls" in (status.detail or "")
    tree = (await stack.store.get_spending(child)).tree.usage
    assert tree == await spent(stack, thread) + await spent(stack, child)
    agent.limits = limits("thread", model_calls=3)
    assert (await say(stack, child, "more")).state == "complete"


@pytest.mark.parametrize("budget", TWO, ids=str)
async def test_threads_of_a_tenant_spend_one_budget(
    budget: dict[str, Any], start_stack: StackFactory, thread: str
) -> None:
    """What two of them have spent is refused to a third; the control: another tenant has its own."""
    agent = spender(limits=limits("tenant", **budget))
    stack = await start_stack(agent)
    tenant = f"tenant-{uuid.uuid4()}"
    threads = [f"{thread}-{number}" for number in range(3)]
    for number, of_tenant in enumerate(threads):
        await stack.client.start(of_tenant, tenant=tenant)
        status = await say(stack, of_tenant, "hi")
        assert refused(status, "tenant", budget) is (number == 2)
    assert (await say(stack, f"{thread}-other", "hi")).state == "complete"
    assert await stack.store.get_tenant_usage(tenant) == CALL + CALL


async def test_retries_spend_the_budget_too(start_stack: StackFactory, thread: str) -> None:
    """A provider that fails cannot be asked for ever: the retry is refused, not the turn after its success."""
    agent = spender(limits=limits("turn", model_calls=2))
    stack = await start_stack(agent)
    assert refused(await say(stack, thread, "shaky"), "turn", {"model_calls": 2})
    assert len(model_of(agent).requests) == 2
    agent.limits = limits("turn", model_calls=4)
    assert (await say(stack, thread, "loop")).reason == "limit"
    assert (await spent(stack, thread)).requests == 2 + 4


@pytest.mark.parametrize("scope", ["turn", "thread", "tree", "tenant"])
async def test_a_fallback_is_not_asked_once_the_models_before_it_have_used_the_budget_up(
    scope: str, start_stack: StackFactory, thread: str
) -> None:
    """What failed before it in the same call is counted, once; the control: a budget with room lets it answer."""
    fallback = ScriptedModel(by_words, name="second")
    failing = [reply("no", failures=[Failure(500)])] * 2
    agent = spender(lambda _: failing.pop(), limits(scope, model_calls=1), fallbacks=[fallback])
    stack = await start_stack(agent)
    await stack.client.start(thread, tenant=f"tenant-{uuid.uuid4()}")
    assert refused(await say(stack, thread, "hi"), scope, {"model_calls": 1})
    assert fallback.requests == []
    await counted(stack, thread, 1)
    agent.limits = limits(scope, model_calls=3)
    assert (await say(stack, thread, "ho")).state == "complete"
    assert len(fallback.requests) == 1
    assert await spent(stack, thread) == Usage(requests=2) + CALL


async def test_stops_spend_the_budget_too(start_stack: StackFactory, thread: str) -> None:
    """Whoever stops every answer in the middle has had it written: the third is refused.

    A stop does not wait for its worker, which hears of it with its next heartbeat, and counts then.
    """
    agent = spender(limits=limits("thread", model_calls=2))
    stack = await start_stack(agent)
    for number in range(2):
        await stack.client.send(thread, "hang")
        await eventually(lambda: streams(stack, thread, "one two"))
        await stack.client.stop(thread)
        await counted(stack, thread, number + 1)
    assert refused(await say(stack, thread, "hi"), "thread", {"model_calls": 2})


async def test_a_hidden_branch_has_spent_what_it_has(start_stack: StackFactory, thread: str) -> None:
    """Words that are said anew, answers that are asked for anew: all of them are paid for. Deleted ones as well."""
    agent = spender(limits=limits("thread", model_calls=3))
    stack = await start_stack(agent)
    await say(stack, thread, "one")
    _, answer = await stack.client.history(thread)
    again = await stack.client.regenerate(thread, answer.id)
    assert (await stack.client.wait_settled(thread, again.message_id)).status.state == "complete"
    await stack.client.delete_message(thread, answer.id)
    assert (await say(stack, thread, "two")).state == "complete"
    assert refused(await say(stack, thread, "three"), "thread", {"model_calls": 3})
    assert await spent(stack, thread) == CALL + CALL + CALL


async def test_a_budget_of_money_is_refused_for_a_model_without_a_price(start_stack: StackFactory, thread: str) -> None:
    """At the first call, with what to do; nobody is asked. With a price, and with a budget of tokens, it goes on."""
    agent = spender(limits=limits("thread", usd=1), price=None)
    stack = await start_stack(agent)
    status = await say(stack, thread, "hi")
    assert (status.state, status.reason) == ("incomplete", "error")
    assert "Limits.thread.usd cannot be kept: nobody knows what the model 'scripted' costs." in (status.detail or "")
    assert model_of(agent).requests == []
    agent.price = PRICE
    assert (await say(stack, thread, "hi")).state == "complete"
    agent.price, agent.limits = None, limits("thread", tokens=1_000)
    assert (await say(stack, thread, "hi")).state == "complete"
    assert (await spent(stack, thread)).unpriced == 1


async def test_the_narrowest_budget_speaks(start_stack: StackFactory, thread: str) -> None:
    """All four at once: each is judged by its own sum."""
    bounds = Limits(
        turn=Budget(model_calls=2),
        thread=Budget(model_calls=4),
        tree=Budget(model_calls=6),
        tenant=Budget(model_calls=8),
    )
    agent = spender(limits=bounds)
    stack = await start_stack(agent)
    assert refused(await say(stack, thread, "loop"), "turn", {"model_calls": 2})
    assert refused(await say(stack, thread, "loop"), "turn", {"model_calls": 2})
    assert refused(await say(stack, thread, "loop"), "thread", {"model_calls": 4})
    assert (await spent(stack, thread)).requests == 4
