"""Budgets: whether a thread may spend any more, looked at before each model call.

What the turn and the thread have spent is read each time. What all threads of a tree or a tenant have is a sum over
many rows, so it is kept for a moment for all threads of the worker: see `FRESH_S`.
"""

import asyncio
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any
from weakref import WeakValueDictionary

from pydantic_ai.models import Model

from activities.lost_calls import LostCalls
from activities.prices import has_price
from perdure.agent import Agent
from perdure.contract import CompleteRequest
from perdure.errors import ConfigurationError
from perdure.limits import Limits
from perdure.messages import Usage
from perdure.ports import Store
from perdure.quantity import quantity
from perdure.records import Spent
from perdure.spending import WIDE, Scope, added, advice, bounded, bounds_money, crossed, since, spent_in

FRESH_S = 2.0
"""How old the sum of a tree or a tenant may be: what other threads have spent since then is not in it.

So a tree or a tenant can go over its budget by what its threads spend within this time, besides the calls that are
under way. What the asking thread itself has spent counts at once.
"""

KNOWN_THREADS = 10_000
"""Threads of which is remembered where they belong."""

NOTHING = Usage()


@dataclass
class _Sum:
    """What a tree or a tenant had spent at a moment, and of threads that ask what they had at their first question."""

    spent: Spent
    read_at: float
    asked: dict[str, Usage] = field(default_factory=dict[str, Usage])

    def for_thread(self, thread_id: str, usage: Usage) -> Spent:
        own = since(usage, self.asked.setdefault(thread_id, usage))
        return self.spent.with_(usage=self.spent.usage + own)


class Budgets:
    """Reads what was spent, for agents that bound it. Others cost no statement.

    Args:
        store: where the sums are.
        lost: calls that are being counted, which a budget waits for.
        now: seconds since 1970.
        clock: seconds, for how old a sum is.
    """

    def __init__(
        self,
        store: Store,
        lost: LostCalls | None = None,
        *,
        now: Callable[[], float] = time.time,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._store = store
        self._lost = lost
        self._now = now
        self._clock = clock
        self._belongs: dict[str, tuple[str, str]] = {}
        self._sums: dict[tuple[Scope, str], _Sum] = {}
        self._reading: WeakValueDictionary[tuple[Scope, str], asyncio.Lock] = WeakValueDictionary()

    async def crossed(self, agent: Agent, request: CompleteRequest, lost: Usage = NOTHING) -> str | None:
        """Why no model may be asked, in a sentence for people; None if one may.

        `lost` is what models have taken that were asked in vain in the same call: it is counted when that is over.
        """
        if request.step >= agent.limits.steps:
            limit = quantity(agent.limits.steps, "model call")
            return f"The turn reached its limit of {limit}. {advice('turn', 'Limits.steps')}"
        return await self._used_up(agent.limits, request.thread_id, request.turn, lost)

    async def crossed_by_thread(self, agent: Agent, thread_id: str) -> str | None:
        """The same of a call that belongs to no turn, a summary for one: the turn's budget does not bound it."""
        return await self._used_up(agent.limits, thread_id, None, NOTHING)

    def check_prices(self, agent: Agent, models: Iterable[Model[Any]]) -> None:
        """See that a budget of money can be kept: one that cannot must not be pretended.

        Raises:
            ConfigurationError: if nobody knows what one of the models costs that may be asked.
        """
        for scope in bounds_money(agent.limits)[:1]:
            for model in models:
                if not has_price(model, agent.price):
                    raise ConfigurationError(
                        f"Limits.{scope}.usd cannot be kept: nobody knows what the model {model.model_name!r} costs. "
                        "Give the agent price=Price(...), another model, or a budget of tokens instead."
                    )

    async def _used_up(self, limits: Limits, thread_id: str, turn: int | None, lost: Usage) -> str | None:
        if not (scopes := bounded(limits)):
            return None
        if self._lost is not None:
            await self._lost.counted(thread_id)
        sums = {scope: await self._sum(scope, thread_id) for scope in scopes if scope in WIDE}
        spending = await self._store.get_spending(thread_id, turn, tree=False, tenant=False)
        usage = spending.thread.usage
        spending = spending.with_(**{str(scope): known.for_thread(thread_id, usage) for scope, known in sums.items()})
        return crossed(limits, added(spending, lost), self._now())

    async def _sum(self, scope: Scope, thread_id: str) -> _Sum:
        """The thread's tree or tenant, as it was a moment ago."""
        circle = scope, (await self._belonging(thread_id))[WIDE.index(scope)]
        # One reads for all that ask at the same time.
        async with self._reading.setdefault(circle, asyncio.Lock()):
            known = self._sums.get(circle)
            if known is None or self._is_old(known):
                spending = await self._store.get_spending(thread_id, tree=scope == "tree", tenant=scope == "tenant")
                known = _Sum(spent_in(spending, scope), self._clock(), {thread_id: spending.thread.usage})
                self._sums = {of: one for of, one in self._sums.items() if not self._is_old(one)} | {circle: known}
            return known

    def _is_old(self, known: _Sum) -> bool:
        return self._clock() - known.read_at >= FRESH_S

    async def _belonging(self, thread_id: str) -> tuple[str, str]:
        """The root and the tenant of a thread, which never change."""
        if (known := self._belongs.get(thread_id)) is not None:
            return known
        thread = await self._store.get_thread(thread_id)
        if len(self._belongs) >= KNOWN_THREADS:
            self._belongs.clear()
        self._belongs[thread_id] = thread.root_thread_id or thread_id, thread.tenant
        return self._belongs[thread_id]
