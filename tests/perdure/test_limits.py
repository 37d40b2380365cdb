"""Budgets and prices as they are declared."""

from datetime import timedelta
from decimal import Decimal
from typing import Any

import pytest

from perdure.errors import ConfigurationError
from perdure.limits import Budget, Limits, Price, nano_usd


@pytest.mark.parametrize(
    "wrong",
    [
        {"model_calls": 0},
        {"tokens": -1},
        {"usd": 0},
        {"usd": Decimal("NaN")},
        {"usd": float("inf")},
        {"time": timedelta()},
        {"time": 5},
        {"tokens": "many"},
    ],
)
def test_a_budget_that_nothing_fits_into_is_refused(wrong: dict[str, Any]) -> None:
    """When it is declared, and not when the first turn is refused; the sentence names the field."""
    with pytest.raises(ConfigurationError, match=rf"Budget\({next(iter(wrong))}="):
        Budget(**wrong)


def test_a_time_is_a_timedelta() -> None:
    """A number could be seconds or minutes; the sentence says what to write."""
    with pytest.raises(ConfigurationError, match=r"^Budget\(time=5\): give a timedelta"):
        Budget(time=5)  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]  what is refused


@pytest.mark.parametrize("scope", ["turn", "thread", "tree", "tenant"])
def test_limits_take_budgets(scope: str) -> None:
    """A number does not say what may be spent."""
    wrong: dict[str, Any] = {scope: 5}
    with pytest.raises(ConfigurationError, match=rf"^Limits\({scope}=5\): give a Budget"):
        Limits(**wrong)


def test_an_empty_budget_bounds_nothing() -> None:
    """The control: one bound is a bound."""
    assert not Budget().is_bounded
    assert Budget(tokens=1).is_bounded


def test_a_tenant_has_no_beginning() -> None:
    """So a time means nothing for it."""
    with pytest.raises(ConfigurationError, match="tenant has no beginning"):
        Limits(tenant=Budget(time=timedelta(days=1)))


@pytest.mark.parametrize(
    ("usd", "nano"),
    [
        (1, 1_000_000_000),
        (0.1, 100_000_000),
        (Decimal("0.0000000005"), 1),
        (Decimal("0.0000000004"), 0),
        (Decimal("0.0000000025"), 3),
        (1.1 + 2.2, 3_300_000_000),
    ],
)
def test_money_is_rounded_half_up_to_billionths(usd: Decimal | float, nano: int) -> None:
    """Not to even, and a float is read as it is written."""
    assert nano_usd(usd) == nano


def test_the_price_of_a_call_is_exact() -> None:
    """In decimals: what floats would make of it is another number of billionths."""
    price = Price(input=1.25, output=10, cached_input=0.125)
    assert price.nano_usd(1_000, 500, 100) == 6_137_500
    assert Price(input=1.25, output=10).nano_usd(1_000, 500, 100) == 6_250_000
    assert Price(input=0.1, output=0).nano_usd(3, 0, 0) == 300
    assert Price(input=Decimal("0.0005"), output=0).nano_usd(1, 0, 0) == 1
    huge = Price(input=Decimal("0.3"), output=Decimal("0.7"))
    assert huge.nano_usd(10**15, 10**15, 0) == 10**15 * 1_000


@pytest.mark.parametrize("wrong", [{"input": -1}, {"output": float("nan")}, {"cached_input": -0.1}])
def test_what_is_no_price_is_refused(wrong: dict[str, float]) -> None:
    """The control: a model of one's own may cost nothing."""
    with pytest.raises(ConfigurationError, match=r"Price\("):
        Price(**{"input": 1.0, "output": 1.0} | wrong)
    assert Price(input=0, output=0).nano_usd(5, 5, 5) == 0
