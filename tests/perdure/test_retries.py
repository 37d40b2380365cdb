"""Tries of a call by a policy of Temporal: how often, how long between them, and which failures end it."""

import asyncio
from collections.abc import Awaitable, Callable
from datetime import timedelta

import pytest
from temporalio.common import RetryPolicy
from temporalio.exceptions import ApplicationError

from perdure.retries import retried


@pytest.fixture
def pauses(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """The pauses between tries in seconds; none of them is waited for."""
    found: list[float] = []

    async def sleep(seconds: float) -> None:
        found.append(seconds)

    monkeypatch.setattr(asyncio, "sleep", sleep)
    return found


def failing(*errors: Exception) -> Callable[[], Awaitable[str]]:
    """A call that fails like this, one after the other, and then works."""
    left = iter(errors)

    async def call() -> str:
        if (error := next(left, None)) is not None:
            raise error
        return "done"

    return call


def passing(next_retry_delay: timedelta | None = None) -> ApplicationError:
    """A failure that another try may help."""
    return ApplicationError("away", next_retry_delay=next_retry_delay)


async def test_pauses_grow_up_to_the_longest(pauses: list[float]) -> None:
    """From the initial interval on, each twice as long as the one before."""
    policy = RetryPolicy(initial_interval=timedelta(seconds=1), maximum_interval=timedelta(seconds=5))
    assert await retried(failing(*(passing() for _ in range(5))), policy) == "done"
    assert pauses == [1, 2, 4, 5, 5]


async def test_a_failure_may_say_when_the_next_try_helps(pauses: list[float]) -> None:
    """It goes before the policy's pause, and no further than the longest."""
    policy = RetryPolicy(initial_interval=timedelta(seconds=1), maximum_interval=timedelta(seconds=5))
    assert await retried(failing(passing(timedelta(seconds=3)), passing(timedelta(hours=1))), policy) == "done"
    assert pauses == [3, 5]


async def test_a_policy_without_a_longest_pause_has_none(pauses: list[float]) -> None:
    """What the failure says is waited for."""
    assert await retried(failing(passing(timedelta(hours=1))), RetryPolicy()) == "done"
    assert pauses == [3_600]


@pytest.mark.parametrize("attempts", [1, 3])
async def test_it_is_tried_so_often_and_no_more(attempts: int, pauses: list[float]) -> None:
    """The last failure is raised."""
    errors = [passing() for _ in range(attempts + 1)]
    with pytest.raises(ApplicationError) as raised:
        await retried(failing(*errors), RetryPolicy(maximum_attempts=attempts))
    assert raised.value is errors[attempts - 1]
    assert len(pauses) == attempts - 1


@pytest.mark.parametrize("error", [ApplicationError("no", non_retryable=True), ValueError("bug")])
async def test_what_no_try_helps_ends_it_at_once(error: Exception, pauses: list[float]) -> None:
    """A failure that says so, and whatever is no failure of an activity."""
    with pytest.raises(type(error)) as raised:
        await retried(failing(passing(), error), RetryPolicy())
    assert raised.value is error
    assert len(pauses) == 1
