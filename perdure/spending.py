"""What was spent, against what may be: which budget is used up, in a sentence for people. Pure."""

from datetime import timedelta
from typing import Final, Literal

from perdure.limits import Budget, Limits, nano_usd
from perdure.messages import Usage
from perdure.quantity import dollars, quantity
from perdure.records import Spending, Spent

Scope = Literal["turn", "thread", "tree", "tenant"]

SCOPES: Final[tuple[Scope, ...]] = ("turn", "thread", "tree", "tenant")
WIDE: Final[tuple[Scope, ...]] = ("tree", "tenant")
"""Budgets that other threads spend as well."""

_SPENDERS: Final[dict[Scope, str]] = {
    "turn": "The turn has",
    "thread": "The thread has",
    "tree": "The thread, its parents and all child threads together have",
    "tenant": "The tenant's threads together have",
}


def bounded(limits: Limits) -> tuple[Scope, ...]:
    """The scopes in which there is something to look at before a model call."""
    return tuple(scope for scope in SCOPES if budget_of(limits, scope).is_bounded)


def budget_of(limits: Limits, scope: Scope) -> Budget:
    """The budget of a scope."""
    budget: Budget = getattr(limits, scope)
    return budget


def spent_in(spending: Spending, scope: Scope) -> Spent:
    """What was spent in a scope."""
    spent: Spent = getattr(spending, scope)
    return spent


def bounds_money(limits: Limits) -> tuple[Scope, ...]:
    """The scopes with a budget of money, which asks for models whose price is known."""
    return tuple(scope for scope in SCOPES if budget_of(limits, scope).usd is not None)


def crossed(limits: Limits, spending: Spending, now: float) -> str | None:
    """Why nothing more may be spent: the first budget that is used up, narrow ones first; None if none is.

    A budget is used up when all of it was spent, so the model call that crosses it is the last one. `now` is in
    seconds since 1970.
    """
    for scope in SCOPES:
        used_up = _used_up(budget_of(limits, scope), spent_in(spending, scope), now)
        if used_up is not None:
            name, sentence = used_up
            return f"{_SPENDERS[scope]} {sentence}. {advice(scope, f'Limits.{scope}.{name}')}"
    return None


def advice(scope: Scope, limit: str) -> str:
    """What to do about a limit that is reached."""
    if scope == "turn":
        return f"The next message begins a new turn; for longer ones raise {limit}."
    return f"Raise {limit} of the agent to go on."


def since(usage: Usage, earlier: Usage) -> Usage:
    """What has been added to a sum."""
    return Usage(**{name: getattr(usage, name) - getattr(earlier, name) for name in Usage.model_fields})


def added(spending: Spending, usage: Usage) -> Spending:
    """The sums with what the turn has taken besides, which is in all of them."""
    sums = {scope: spent_in(spending, scope) for scope in SCOPES}
    return Spending(**{scope: spent.with_(usage=spent.usage + usage) for scope, spent in sums.items()})


def usage_words(usage: Usage) -> list[str]:
    """Model calls, tokens and money, for people."""
    words = [
        quantity(usage.requests, "model call"),
        f"{quantity(usage.input_tokens, 'token')} in",
        f"{usage.output_tokens:,} out",
    ]
    if usage.cached_tokens:
        words[1] += f" ({usage.cached_tokens:,} cached)"
    if usage.nano_usd:
        words.append(dollars(usage.nano_usd))
    if usage.unpriced:
        words.append(f"{quantity(usage.unpriced, 'call')} without an exact price")
    return words


def _used_up(budget: Budget, spent: Spent, now: float) -> tuple[str, str] | None:
    """The name of the first bound that is reached, and what was spent of it."""
    usage = spent.usage
    if budget.model_calls is not None and usage.requests >= budget.model_calls:
        made = quantity(usage.requests, "model call")
        return "model_calls", f"made {made}; the budget is {budget.model_calls:,}"
    if budget.tokens is not None and usage.tokens >= budget.tokens:
        return "tokens", f"used {quantity(usage.tokens, 'token')}; the budget is {budget.tokens:,}"
    if budget.usd is not None and usage.nano_usd >= (limit := nano_usd(budget.usd)):
        return "usd", f"spent {dollars(usage.nano_usd)}; the budget is {dollars(limit)}"
    if budget.time is not None and spent.since is not None and now - spent.since >= budget.time.total_seconds():
        lasted = timedelta(seconds=int(now - spent.since))
        return "time", f"lasted {lasted}; the budget is {budget.time}"
    return None
