"""Idle threads: what each costs the worker's memory when its cache is full, and how soon the oldest ones answer."""

import argparse
import asyncio
import re
import statistics
from pathlib import Path
from typing import Final

from benchmarks.agents import WEIGH
from benchmarks.conversation import Conversation
from benchmarks.memory import ENVIRONMENT
from benchmarks.stage import Figures, Stage, quantile, rounded, run, stage
from perdure.watch import answer_text, is_settled

CACHE: Final = 50
"""Threads that the worker keeps in memory; all others are evicted."""

AT_ONCE: Final = 16
LOOKS: Final = 20
SETTLING_S: Final = 0.2


async def measure(threads: int, warm_up: int, wakes: int) -> Figures:
    """One turn in each thread, then another one in the oldest of them."""
    async with stage("idle", {"PERDURE_MAX_CACHED_WORKFLOWS": str(CACHE)} | ENVIRONMENT) as running:
        await _converse(running, "warm", range(warm_up))
        served, in_use, resident = [0], [await _weigh(running, "look")], [_rss(running.worker.pid)]
        for look in range(LOOKS):
            first, end = (threads * number // LOOKS for number in (look, look + 1))
            await _converse(running, "idle", range(first, end))
            served.append(end)
            in_use.append(await _weigh(running, f"look-{look}"))
            resident.append(_rss(running.worker.pid))
        woken = [await _wake(running, f"idle-{number}") for number in range(min(wakes, threads))]
    slope, error = _slope(served, in_use)
    rss_slope, rss_error = _slope(served, resident)
    return {
        "threads": threads,
        "cache": CACHE,
        "bytes_per_idle_thread": round(slope),
        "bytes_error": round(error),
        "rss_bytes_per_idle_thread": round(rss_slope),
        "rss_bytes_error": round(rss_error),
        "wake_p50_ms": rounded(quantile(woken, 0.5)),
        "wake_p95_ms": rounded(quantile(woken, 0.95)),
        "worker_mb": rounded(resident[-1] / 1e6),
    }


def _slope(threads: list[int], sizes: list[int]) -> tuple[float, float]:
    """Bytes that a thread adds, by the line through all looks, and the standard error of that."""
    line = statistics.linear_regression(threads, sizes)
    missed = [size - line.intercept - line.slope * count for count, size in zip(threads, sizes, strict=True)]
    spread = statistics.pvariance(threads) * len(threads)
    return line.slope, (sum(miss * miss for miss in missed) / (len(missed) - 2) / spread) ** 0.5


async def _converse(running: Stage, name: str, threads: range) -> None:
    """One turn in each thread; returns when the worker has nothing left to do for them."""
    numbers = iter(threads)

    async def take() -> None:
        for number in numbers:
            async with Conversation(running.client, f"{name}-{number}") as conversation:
                await conversation.turn()

    await asyncio.gather(*(take() for _ in range(AT_ONCE)))
    await asyncio.sleep(SETTLING_S)


async def _weigh(running: Stage, thread_id: str) -> int:
    """The bytes that the worker uses, asked of it in a thread of its own."""
    async with Conversation(running.client, thread_id) as conversation:
        return int(answer_text(await conversation.settled(await conversation.post(WEIGH))))


async def _wake(running: Stage, thread_id: str) -> float:
    async with Conversation(running.client, thread_id) as conversation:
        await conversation.until(lambda view: view.head is not None and is_settled(view.head))
        return await conversation.turn() * 1000


def _rss(pid: int) -> int:
    """The resident memory of a process in bytes."""
    found = re.search(r"VmRSS:\s+(\d+) kB", Path(f"/proc/{pid}/status").read_text())
    assert found is not None
    return int(found[1]) * 1024


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--threads", type=int, default=500)
    parser.add_argument("--warm-up", type=int, default=250, help="threads before the first look at the memory")
    parser.add_argument("--wakes", type=int, default=50, help="threads that get a second turn")
    arguments = parser.parse_args()
    run(lambda: measure(arguments.threads, arguments.warm_up, arguments.wakes))
