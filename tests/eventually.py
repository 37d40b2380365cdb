"""Waiting for a condition instead of for a time."""

import asyncio
import inspect
from collections.abc import Awaitable, Callable
from typing import TypeVar, cast

Value = TypeVar("Value")


async def eventually(
    condition: Callable[[], Value | Awaitable[Value]], timeout: float = 10.0, interval: float = 0.01
) -> Value:
    """Ask until the answer is true, and return it; fails if it is not within `timeout` seconds."""
    deadline = asyncio.get_running_loop().time() + timeout
    while True:
        answer = condition()
        value = cast("Value", await answer if inspect.isawaitable(answer) else answer)
        if value:
            return value
        assert asyncio.get_running_loop().time() < deadline, f"not within {timeout} s: {inspect.getsource(condition)}"
        await asyncio.sleep(interval)
