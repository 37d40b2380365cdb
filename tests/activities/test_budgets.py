"""Budgets, looked at before each model call."""

import asyncio
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest
from pydantic_ai.models.openai import OpenAIChatModel
from pydantic_ai.providers.openai import OpenAIProvider

from activities.budgets import FRESH_S, Budgets
from activities.lost_calls import LostCalls
from perdure.agent import Agent
from perdure.contract import CompleteRequest
from perdure.errors import ConfigurationError, StoreUnavailable
from perdure.limits import Budget, Limits, Price
from perdure.messages import Usage
from perdure.records import Spending, ThreadRecord
from perdure.testing import ScriptedModel
from stores.memory import MemoryStore

PARENT, CHILD, OTHER = "parent", "child", "other"


class CountedStore(MemoryStore):
    """Counts what is read of what was spent: `narrow`, or with the sum of a `tree` or a `tenant`."""

    def __init__(self) -> None:
        super().__init__()
        self.reads: list[str] = []
        self.threads_read = 0

    async def get_spending(
        self, thread_id: str, turn: int | None = None, *, tree: bool = True, tenant: bool = True
    ) -> Spending:
        """See the class."""
        self.reads.append("tree" * tree + "tenant" * tenant or "narrow")
        await asyncio.sleep(0)
        return await super().get_spending(thread_id, turn, tree=tree, tenant=tenant)

    async def get_thread(self, thread_id: str) -> ThreadRecord:
        """See the class."""
        self.threads_read += 1
        return await super().get_thread(thread_id)


class Family:
    """A parent and its child, and another thread of their tenant; the clocks stand still until they are set.

    Attributes:
        now: of both clocks, in seconds since the threads were made.
    """

    def __init__(self, store: CountedStore) -> None:
        self.store = store
        self.now = 0.0
        self.beginning = 0.0
        self.lost = LostCalls(store)
        self.budgets = Budgets(store, self.lost, now=lambda: self.beginning + self.now, clock=lambda: self.now)
        self._calls = 0

    @classmethod
    async def start(cls) -> "Family":
        """The threads."""
        store = CountedStore()
        for thread in (
            ThreadRecord(thread_id=PARENT, agent="a", tenant="acme"),
            ThreadRecord(
                thread_id=CHILD, agent="a", tenant="acme", parent_thread_id=PARENT, root_thread_id=PARENT, kind="child"
            ),
            ThreadRecord(thread_id=OTHER, agent="a", tenant="acme"),
        ):
            await store.create_thread(thread)
        family = cls(store)
        family.beginning = (await store.get_spending(PARENT)).thread.since or 0.0
        store.reads.clear()
        return family

    async def spends(self, thread_id: str, **usage: int) -> None:
        """A thread makes a model call."""
        self._calls += 1
        await self.store.add_usage(thread_id, 1, self._calls, 1, Usage(requests=1, **usage))

    async def crossed(self, limits: Limits, thread_id: str = PARENT, step: int = 0) -> str | None:
        """What stands against the thread's next call."""
        request = CompleteRequest(thread_id=thread_id, agent="a", turn=1, step=step)
        return await self.budgets.crossed(Agent("a", model=ScriptedModel([]), limits=limits), request)


async def test_an_agent_without_budgets_costs_no_statement() -> None:
    """The control: one with a budget costs one."""
    family = await Family.start()
    assert await family.crossed(Limits()) is None
    assert (family.store.reads, family.store.threads_read) == ([], 0)
    assert await family.crossed(Limits(thread=Budget(tokens=1))) is None
    assert family.store.reads == ["narrow"]


async def test_the_step_limit_says_what_to_do() -> None:
    """It is the turn's, so the next message is free of it."""
    family = await Family.start()
    limits = Limits(steps=3)
    assert await family.crossed(limits, step=2) is None
    assert await family.crossed(limits, step=3) == (
        "The turn reached its limit of 3 model calls. "
        "The next message begins a new turn; for longer ones raise Limits.steps."
    )


async def test_a_narrow_budget_sums_up_nobody_else() -> None:
    """What other threads of the tenant have spent is not even read."""
    family = await Family.start()
    limits = Limits(turn=Budget(tokens=5), thread=Budget(tokens=10))
    await family.spends(OTHER, input_tokens=100)
    assert await family.crossed(limits) is None
    await family.spends(PARENT, input_tokens=10)
    assert "The thread has used 10 tokens" in (await family.crossed(limits) or "")
    assert family.store.reads == ["narrow", "narrow"]
    assert family.store.threads_read == 0


@pytest.mark.parametrize(
    ("spender", "limits", "crosses"),
    [
        (CHILD, Limits(tree=Budget(tokens=10)), True),
        (OTHER, Limits(tree=Budget(tokens=10)), False),
        (OTHER, Limits(tenant=Budget(tokens=10)), True),
        (CHILD, Limits(thread=Budget(tokens=10)), False),
    ],
)
async def test_a_tree_is_a_root_and_all_below_it_and_a_tenant_all_its_threads(
    spender: str, limits: Limits, crosses: bool
) -> None:
    """What others in them spend counts for each, and for nobody outside."""
    family = await Family.start()
    await family.spends(spender, input_tokens=10)
    assert (await family.crossed(limits) is not None) is crosses


async def test_a_child_spends_the_trees_budget_and_the_parent_its_child_s() -> None:
    """Both ways: the child is refused for what the parent has spent."""
    family = await Family.start()
    await family.spends(PARENT, input_tokens=10)
    assert "child threads together have used 10 tokens" in (
        await family.crossed(Limits(tree=Budget(tokens=10)), CHILD) or ""
    )


async def test_what_others_spend_counts_within_its_bound() -> None:
    """Sums of others are as old as FRESH_S at most. The control: what the thread itself spends counts at once."""
    family = await Family.start()
    limits = Limits(tenant=Budget(tokens=10))
    assert await family.crossed(limits) is None
    await family.spends(OTHER, input_tokens=9)
    family.now = FRESH_S - 0.01
    assert await family.crossed(limits) is None
    await family.spends(PARENT, input_tokens=1)
    assert await family.crossed(limits) is None
    family.now = FRESH_S
    assert await family.crossed(limits) is not None
    assert family.store.reads == ["tenant", "narrow", "narrow", "narrow", "tenant", "narrow"]
    assert family.store.threads_read == 1

    family = await Family.start()
    assert await family.crossed(limits) is None
    await family.spends(PARENT, input_tokens=10)
    assert await family.crossed(limits) is not None
    assert family.store.reads == ["tenant", "narrow", "narrow"]


async def test_threads_of_a_worker_share_the_sums() -> None:
    """A hundred of them that ask at once read one sum of the tenant, and each what it has spent itself."""
    family = await Family.start()
    limits = Limits(tenant=Budget(tokens=10))
    for number in range(100):
        await family.store.create_thread(ThreadRecord(thread_id=f"t{number}", agent="a", tenant="acme"))
    await asyncio.gather(*(family.crossed(limits, f"t{number}") for number in range(100)))
    assert family.store.reads.count("tenant") == 1
    await family.spends(PARENT, input_tokens=9)
    family.now = FRESH_S
    assert await family.crossed(limits, OTHER) is None
    await family.spends(OTHER, input_tokens=1)
    assert await family.crossed(limits, OTHER) is not None


async def test_sums_that_nobody_asks_for_are_forgotten() -> None:
    """A worker that serves a million tenants does not keep them all."""
    family = await Family.start()
    for number in range(50):
        await family.store.create_thread(ThreadRecord(thread_id=f"t{number}", agent="a", tenant=f"tenant-{number}"))
        family.now += FRESH_S
        await family.crossed(Limits(tenant=Budget(tokens=10)), f"t{number}")
    assert len(family.budgets._sums) == 1


async def test_time_runs_while_nothing_is_spent() -> None:
    """Since the thread's beginning, and for a child since that of the root."""
    family = await Family.start()
    limits = Limits(thread=Budget(time=timedelta(minutes=1)))
    family.now = 59
    assert await family.crossed(limits) is None
    family.now = 60
    assert "The thread has lasted 0:01:00" in (await family.crossed(limits) or "")
    assert "child threads together have lasted" in (
        await family.crossed(Limits(tree=Budget(time=timedelta(minutes=1))), CHILD) or ""
    )


async def test_a_stopped_call_counts_before_the_next_is_judged() -> None:
    """Although it is counted beside the work: the judge waits for it."""
    family = await Family.start()
    request = CompleteRequest(thread_id=PARENT, agent="a", turn=1)
    family.lost.count(request, 1, Usage(requests=1, input_tokens=10))
    assert await family.crossed(Limits(thread=Budget(tokens=10))) is not None


async def test_a_summary_is_not_bound_by_a_turn() -> None:
    """But by the thread that it belongs to."""
    family = await Family.start()
    await family.spends(PARENT, input_tokens=10)

    async def crossed(limits: Limits) -> str | None:
        return await family.budgets.crossed_by_thread(Agent("a", model=ScriptedModel([]), limits=limits), PARENT)

    assert await crossed(Limits(turn=Budget(tokens=1))) is None
    assert await crossed(Limits(thread=Budget(tokens=10))) is not None


async def test_a_failed_read_is_an_error_and_no_permission(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nobody is asked while it is not known what was spent; afterwards all goes on."""
    family = await Family.start()
    limits = Limits(tenant=Budget(tokens=10))

    async def away(*_: Any, **__: Any) -> Spending:
        raise StoreUnavailable("The database cannot be reached.")

    with monkeypatch.context() as patch:
        patch.setattr(family.store, "get_spending", away)
        with pytest.raises(StoreUnavailable):
            await family.crossed(limits)
    assert await family.crossed(limits) is None


def priced(name: str) -> Callable[[], OpenAIChatModel]:
    """A model of OpenAI's, made when the test runs."""
    return lambda: OpenAIChatModel(name, provider=OpenAIProvider(api_key="none"))


@pytest.mark.parametrize(
    ("limits", "price", "model", "refused"),
    [
        (Limits(thread=Budget(usd=1)), None, priced("unheard-of"), True),
        (Limits(thread=Budget(usd=1)), None, priced("gpt-5"), False),
        (Limits(thread=Budget(usd=1)), Price(input=1, output=1), priced("unheard-of"), False),
        (Limits(thread=Budget(tokens=1)), None, priced("unheard-of"), False),
        (Limits(), None, priced("unheard-of"), False),
    ],
    ids=["unknown", "known", "own price", "tokens only", "no budget"],
)
def test_a_budget_of_money_that_cannot_be_kept_is_refused(
    limits: Limits, price: Price | None, model: Callable[[], OpenAIChatModel], refused: bool
) -> None:
    """Before the first call, in a sentence that says which budget, which model and what to do."""
    agent = Agent("a", model=ScriptedModel([]), limits=limits, price=price)
    budgets = Budgets(MemoryStore())
    if not refused:
        budgets.check_prices(agent, [model()])
        return
    with pytest.raises(ConfigurationError, match=r"Limits\.thread\.usd cannot be kept.*'unheard-of'.*price=Price"):
        budgets.check_prices(agent, [model()])
    with pytest.raises(ConfigurationError):
        budgets.check_prices(agent, [priced("gpt-5")(), model()])
