"""Waiting for a condition instead of for a time."""

import asyncio
import inspect
from collections.abc import Awaitable, Callable
from typing import Any, TypeVar, overload

Value = TypeVar("Value")


@overload
async def eventually(
    condition: Callable[[], Awaitable[Value]], timeout: float = 10.0, interval: float = 0.01
) -> Value: ...
@overload
async def eventually(condition: Callable[[], Value], timeout: float = 10.0, interval: float = 0.01) -> Value: ...
async def eventually(condition: Callable[[], Any], timeout: float = 10.0, interval: float = 0.01) -> Any:
    """Ask until the answer is true, and return it; fails if it is not within `timeout` seconds.

    It asks every `interval` seconds at first, and up to five times less often when it takes long: most questions go to
    a server or a worker, and a hundred a second keep both from what is waited for. It is noticed a twentieth later.
    """
    began = asyncio.get_running_loop().time()
    while True:
        answer = condition()
        if inspect.isawaitable(answer):
            answer = await answer
        if answer:
            return answer
        waited = asyncio.get_running_loop().time() - began
        assert waited < timeout, f"not within {timeout} s: {inspect.getsource(condition)}"
        await asyncio.sleep(max(interval, min(waited / 20, 5 * interval)))
