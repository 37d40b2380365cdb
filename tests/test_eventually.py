"""Waiting for a condition: it is asked often at first, then less often, and not for ever."""

import pytest

from tests import eventually as module
from tests.eventually import eventually


class Clock:
    """Time that passes only when somebody sleeps; it stands in for asyncio and its loop."""

    def __init__(self) -> None:
        self.now = 0.0
        self.slept: list[float] = []

    def get_running_loop(self) -> "Clock":
        """The loop that has this time."""
        return self

    def time(self) -> float:
        """Seconds."""
        return self.now

    async def sleep(self, seconds: float) -> None:
        """Pass the time."""
        self.slept.append(seconds)
        self.now += seconds


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    """The time by which conditions are asked."""
    clock = Clock()
    monkeypatch.setattr(module, "asyncio", clock)
    return clock


@pytest.mark.parametrize("due", [0.05, 0.5, 5.0])
async def test_what_comes_is_noticed_soon(due: float, clock: Clock) -> None:
    """A twentieth of the wait too late, or one interval."""
    assert await eventually(lambda: clock.now >= due)
    assert due <= clock.now <= due * 1.05 + 0.01


async def test_it_asks_often_at_first_and_less_often_later(clock: Clock) -> None:
    """Five times less often at most; all at the first interval would be a hundred questions a second."""
    await eventually(lambda: clock.now >= 5)
    assert clock.slept[0] == 0.01
    assert max(clock.slept) == 0.05
    assert len(clock.slept) < 150


async def test_a_shorter_interval_is_kept_to(clock: Clock) -> None:
    """Who has to see something brief asks more often, also after a long wait."""
    await eventually(lambda: clock.now >= 5, interval=0.001)
    assert max(clock.slept) == 0.005


async def test_what_does_not_come_fails(clock: Clock) -> None:
    """When the time is up; the failure shows what was waited for."""
    with pytest.raises(AssertionError, match=r"not within 2 s: .*clock\.now < 0"):
        await eventually(lambda: clock.now < 0, timeout=2)
    assert 2 <= clock.now <= 2.05
