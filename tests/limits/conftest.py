"""The servers and stacks of the tests of workflows; sums of trees and tenants are read anew each time."""

from functools import partial

import pytest

from activities.budgets import Budgets
from tests.limits.spenders import Clock
from tests.workflows.conftest import start_stack, store, thread

__all__ = ["start_stack", "store", "thread"]


@pytest.fixture(autouse=True)
def exact_sums(monkeypatch: pytest.MonkeyPatch) -> None:
    """How old they may be is tested where a clock stands still (`tests/activities/test_budgets.py`)."""
    monkeypatch.setattr("activities.budgets.FRESH_S", 0.0)


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    """The time by which the workers of the test judge budgets."""
    clock = Clock()
    monkeypatch.setattr("activities.complete.Budgets", partial(Budgets, now=clock.now))
    return clock
