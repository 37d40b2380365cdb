"""Which budget is used up, and what people read of that."""

from datetime import timedelta
from decimal import Decimal
from typing import Any

import pytest

from perdure.limits import Budget, Limits
from perdure.messages import Usage
from perdure.records import Spending, Spent
from perdure.spending import SCOPES, Scope, bounded, bounds_money, crossed, since, usage_words

NOW = 1_000_000.0
SPENT = Spent(
    usage=Usage(requests=3, input_tokens=9_000, output_tokens=1_412, nano_usd=1_031_200_000), since=NOW - 3_600
)


def limited(scope: Scope, budget: dict[str, Any]) -> Limits:
    """Limits with one budget."""
    budgets: dict[str, Any] = {scope: Budget(**budget)}
    return Limits(**budgets)


BUDGETS: list[tuple[dict[str, Any], dict[str, Any], str]] = [
    ({"model_calls": 3}, {"model_calls": 4}, "made 3 model calls; the budget is 3."),
    ({"tokens": 10_000}, {"tokens": 10_413}, "used 10,412 tokens; the budget is 10,000."),
    ({"usd": 1}, {"usd": 1.04}, "spent $1.0312; the budget is $1.00."),
    ({"time": timedelta(hours=1)}, {"time": timedelta(hours=2)}, "lasted 1:00:00; the budget is 1:00:00."),
]


@pytest.mark.parametrize(
    ("scope", "reached", "more", "words"),
    [(scope, *budget) for scope in SCOPES for budget in BUDGETS if (scope, *budget[0]) != ("tenant", "time")],
)
def test_a_budget_is_used_up_when_all_of_it_was_spent(
    scope: Scope, reached: dict[str, Any], more: dict[str, Any], words: str
) -> None:
    """In each scope, with what was spent, the budget, and which one to raise. The control: with more there is room."""
    spending = Spending(**{scope: SPENT})
    sentence = crossed(limited(scope, reached), spending, NOW)
    assert sentence is not None
    assert words in sentence
    assert f"Limits.{scope}.{next(iter(reached))}" in sentence
    assert crossed(limited(scope, more), spending, NOW) is None


def test_exactly_the_budget_is_used_up_and_a_billionth_less_is_not() -> None:
    """So the call that crosses a budget is the last one."""
    limits = Limits(thread=Budget(usd=Decimal("0.5")))
    at, below = (Spending(thread=Spent(usage=Usage(nano_usd=nano))) for nano in (500_000_000, 499_999_999))
    assert crossed(limits, at, NOW) is not None
    assert crossed(limits, below, NOW) is None


def test_what_others_spend_is_no_matter_of_another_scope() -> None:
    """A thread's budget is judged by the thread alone, whatever its tree has spent."""
    assert crossed(Limits(thread=Budget(model_calls=1)), Spending(tree=SPENT, tenant=SPENT, turn=SPENT), NOW) is None


def test_the_narrowest_budget_is_told_first() -> None:
    """It is the one that the next message may be free of."""
    limits = Limits(turn=Budget(tokens=1), tenant=Budget(tokens=1))
    sentence = crossed(limits, Spending(turn=SPENT, tenant=SPENT), NOW)
    assert sentence is not None
    assert sentence.startswith("The turn has used")
    assert "The next message begins a new turn" in sentence


def test_a_time_without_a_beginning_is_not_over() -> None:
    """A turn that is not stored yet has only begun."""
    assert crossed(Limits(turn=Budget(time=timedelta(microseconds=1))), Spending(), NOW) is None


def test_only_what_is_bounded_is_looked_at() -> None:
    """Agents without budgets cost no statement, and only money asks for prices."""
    assert bounded(Limits()) == ()
    limits = Limits(turn=Budget(usd=1), tree=Budget(tokens=1))
    assert (bounded(limits), bounds_money(limits)) == (("turn", "tree"), ("turn",))


def test_a_difference_of_sums() -> None:
    """Field by field: added to the earlier sum it is the later one."""
    earlier = Usage(requests=1, input_tokens=2, nano_usd=3)
    later = Usage(requests=4, input_tokens=5, output_tokens=6, cached_tokens=1, nano_usd=7, unpriced=8)
    assert earlier + since(later, earlier) == later


def test_usage_in_words() -> None:
    """What is not there is not said, and what is not known exactly is."""
    assert usage_words(Usage()) == ["0 model calls", "0 tokens in", "0 out"]
    used = Usage(requests=2, input_tokens=1_200, output_tokens=5, cached_tokens=1_000, nano_usd=12_340_000, unpriced=1)
    assert ", ".join(usage_words(used)) == (
        "2 model calls, 1,200 tokens in (1,000 cached), 5 out, $0.0123, 1 call without an exact price"
    )
