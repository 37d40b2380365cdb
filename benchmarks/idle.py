"""Idle threads: what each costs the worker's memory when its cache is full, and how soon the oldest ones answer."""

import argparse
import asyncio
import re
from pathlib import Path
from typing import Final

from benchmarks.conversation import Conversation
from benchmarks.stage import Figures, Stage, quantile, rounded, run, stage
from perdure.watch import is_settled

CACHE: Final = 50
"""Threads that the worker keeps in memory; all others are evicted."""

AT_ONCE: Final = 16
SETTLING_S: Final = 0.5


async def measure(threads: int, warm_up: int, wakes: int) -> Figures:
    """One turn in each thread, then another one in the oldest of them."""
    async with stage("chat", {"PERDURE_MAX_CACHED_WORKFLOWS": str(CACHE)}) as running:
        await _converse(running, "warm", warm_up)
        before = _rss(running.worker.pid)
        await _converse(running, "idle", threads)
        after = _rss(running.worker.pid)
        woken = [await _wake(running, f"idle-{number}") for number in range(min(wakes, threads))]
    return {
        "threads": threads,
        "cache": CACHE,
        "bytes_per_idle_thread": round((after - before) / threads),
        "wake_p50_ms": rounded(quantile(woken, 0.5)),
        "wake_p95_ms": rounded(quantile(woken, 0.95)),
        "worker_mb": rounded(after / 1e6),
    }


async def _converse(running: Stage, name: str, threads: int) -> None:
    """One turn in each thread; returns when the worker has nothing left to do for them."""
    numbers = iter(range(threads))

    async def take() -> None:
        for number in numbers:
            async with Conversation(running.client, f"{name}-{number}") as conversation:
                await conversation.turn()

    await asyncio.gather(*(take() for _ in range(AT_ONCE)))
    await asyncio.sleep(SETTLING_S)


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
    parser.add_argument("--threads", type=int, default=1000)
    parser.add_argument("--warm-up", type=int, default=300, help="threads before the first look at the memory")
    parser.add_argument("--wakes", type=int, default=50, help="threads that get a second turn")
    arguments = parser.parse_args()
    run(lambda: measure(arguments.threads, arguments.warm_up, arguments.wakes))
