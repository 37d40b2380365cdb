"""Turns a second, latency, processor time and bytes of many conversations at once, in a closed loop."""

import argparse
import asyncio
import sys

from benchmarks.conversation import Conversation
from benchmarks.cost import Cpu, PostgresBytes, Run, explain, runs
from benchmarks.stage import Figures, Stage, quantile, rounded, run, stage

SETTLING_S = 0.5
"""After the last answer: what the servers still do for it belongs to its cost."""


async def measure(arguments: argparse.Namespace) -> Figures:
    """Run the conversations, each one turn after the other."""
    async with stage(arguments.work) as running:
        cpu_before, bytes_before = Cpu.now(running), await PostgresBytes.now(running)
        clock = asyncio.get_running_loop().time
        began = clock()
        latencies = await asyncio.gather(
            *(_converse(running, f"t{number}", arguments.turns) for number in range(arguments.conversations))
        )
        took_s = clock() - began
        await asyncio.sleep(SETTLING_S)
        turns = arguments.conversations * arguments.turns
        cpu_after = Cpu.now(running)
        others_cores = cpu_after.others(cpu_before, clock() - began)
        bytes_after = await PostgresBytes.now(running)
        histories = [
            history
            for number in range(arguments.conversations)
            async for history in runs(running.client.temporal, f"t{number}")
        ]
    if arguments.explain:
        print(explain((event for history in histories for event in history.events), turns), file=sys.stderr)
    return {
        "work": arguments.work,
        "conversations": arguments.conversations,
        "turns": arguments.turns,
        "turns_per_s": rounded(turns / took_s),
        **_latencies(latencies),
        "cpu_ms_per_turn": cpu_after.per_turn(cpu_before, turns),
        **_temporal(histories, turns),
        "pg_bytes_per_turn": round((bytes_after.tables - bytes_before.tables) / turns),
        "pg_wal_bytes_per_turn": round((bytes_after.wal - bytes_before.wal) / turns),
        "others_cores": others_cores,
    }


async def _converse(running: Stage, thread_id: str, turns: int) -> list[float]:
    async with Conversation(running.client, thread_id) as conversation:
        return [await conversation.turn() for _ in range(turns)]


def _latencies(latencies: list[list[float]]) -> Figures:
    """The first turn of a conversation also starts its workflow, so it stands by itself where there are others."""
    first = [turns[0] * 1000 for turns in latencies]
    later = [latency * 1000 for turns in latencies for latency in turns[1:]] or first
    return {
        "p50_ms": rounded(quantile(later, 0.5)),
        "p95_ms": rounded(quantile(later, 0.95)),
        "first_p50_ms": rounded(quantile(first, 0.5)),
    }


def _temporal(histories: list[Run], turns: int) -> Figures:
    return {
        "temporal_events_per_turn": rounded(sum(len(history.events) for history in histories) / turns),
        "temporal_bytes_per_turn": round(sum(history.bytes for history in histories) / turns),
    }


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument(
        "--work", choices=("chat", "tools"), default="chat", help="one model call, or two and two tools"
    )
    parser.add_argument("--conversations", type=int, default=50)
    parser.add_argument("--turns", type=int, default=6, help="of each conversation")
    parser.add_argument("--explain", action="store_true", help="print what the Temporal events weigh to stderr")
    return parser.parse_args()


if __name__ == "__main__":
    arguments = _arguments()
    run(lambda: measure(arguments))
