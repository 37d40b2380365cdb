"""Signals that end a process: in order at first, at once when they come again."""

import asyncio
import os
import signal
from collections.abc import AsyncGenerator

import pytest

from perdure.stop_signals import on_stop_signal
from tests.eventually import eventually

SIGNALS = (signal.SIGUSR1, signal.SIGUSR2)


@pytest.fixture
def exits(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The codes with which the process would have ended."""
    found: list[int] = []
    monkeypatch.setattr(os, "_exit", found.append)
    return found


@pytest.fixture
async def asked() -> AsyncGenerator[list[str]]:
    """How often an end in order was asked for."""
    found: list[str] = []
    on_stop_signal(lambda: found.append("stop"), SIGNALS)
    yield found
    for number in SIGNALS:
        asyncio.get_running_loop().remove_signal_handler(number)


async def test_the_first_signal_asks_and_the_second_ends(asked: list[str], exits: list[int]) -> None:
    """Also if it is another one: whoever is impatient presses what is at hand."""
    os.kill(os.getpid(), signal.SIGUSR1)
    await eventually(lambda: asked == ["stop"])
    assert exits == []
    os.kill(os.getpid(), signal.SIGUSR2)
    await eventually(lambda: exits == [128 + signal.SIGUSR2])
