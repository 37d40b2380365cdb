"""One long conversation: what a turn costs at its beginning and at its end."""

import argparse
from collections.abc import Sequence
from typing import Final

from temporalio.api.enums.v1 import EventType
from temporalio.api.history.v1 import HistoryEvent

from benchmarks.conversation import Conversation
from benchmarks.cost import Cpu, PostgresBytes, runs
from benchmarks.stage import Figures, quantile, rounded, run, stage

MARKS: Final = (10, 100)
WINDOW: Final = 10
"""Turns around a mark over which its figures are taken."""


class Measured:
    """The whole conversation; `cpu` and `postgres` hold what had been used before a turn, by the turn's number."""

    def __init__(self) -> None:
        self.latencies_ms: list[float] = []
        self.cpu: list[Cpu] = []
        self.postgres: dict[int, PostgresBytes] = {}
        self.events: list[list[HistoryEvent]] = []


async def measure(turns: int) -> Figures:
    """Converse, then take the figures at each mark."""
    marks = [mark for mark in MARKS if mark < turns] + [turns]
    edges = {edge for mark in marks for edge in _window(mark, turns)}
    measured = Measured()
    async with stage("chat") as running:
        async with Conversation(running.client, "long") as conversation:
            for turn in range(turns + 1):
                measured.cpu.append(Cpu.now(running))
                if turn in edges:
                    measured.postgres[turn] = await PostgresBytes.now(running)
                if turn < turns:
                    measured.latencies_ms.append(await conversation.turn() * 1000)
        histories = [history async for history in runs(running.client.temporal, "long")]
    measured.events = _by_turn([event for history in histories for event in history.events])
    figures = {mark: _at(mark, measured) for mark in marks}
    first, last = figures[marks[0]], figures[marks[-1]]
    between = f"ratio_{marks[-1]}_to_{marks[0]}"
    return {
        "turns": turns,
        f"bytes_{between}": _ratio(last, first, "temporal_bytes_per_turn"),
        f"bytes_so_far_{between}": _ratio(last, first, "temporal_bytes_per_turn_so_far"),
        f"latency_{between}": _ratio(last, first, "p50_ms"),
        f"cpu_{between}": round(last["cpu_ms_per_turn"]["total"] / first["cpu_ms_per_turn"]["total"], 3),
        "temporal_runs": len(histories),
        "temporal_bytes": sum(history.bytes for history in histories),
        "marks": {str(mark): figures[mark] for mark in marks},
    }


def _window(mark: int, turns: int) -> tuple[int, int]:
    """The turns around a mark, counted from 0, as a half-open range."""
    end = min(mark + WINDOW // 2, turns)
    return max(end - WINDOW, 0), end


def _by_turn(events: Sequence[HistoryEvent]) -> list[list[HistoryEvent]]:
    """The events of each turn: from the signal that brings its words to the next one. The first turn has the start."""
    found: list[list[HistoryEvent]] = []
    start: list[HistoryEvent] = []
    for event in events:
        if event.event_type == EventType.EVENT_TYPE_WORKFLOW_EXECUTION_SIGNALED:
            found.append(start)
            start = []
        (found[-1] if found else start).append(event)
    return found


def _at(mark: int, measured: Measured) -> Figures:
    start, end = _window(mark, len(measured.latencies_ms))
    latencies = measured.latencies_ms[start:end]
    sizes = [sum(event.ByteSize() for event in events) for events in measured.events]
    tables = measured.postgres[end].tables - measured.postgres[start].tables
    return {
        "turns_per_s": rounded(1000 * len(latencies) / sum(latencies)),
        "p50_ms": rounded(quantile(latencies, 0.5)),
        "p95_ms": rounded(quantile(latencies, 0.95)),
        "cpu_ms_per_turn": measured.cpu[end].per_turn(measured.cpu[start], end - start),
        "temporal_events_per_turn": rounded(quantile([len(events) for events in measured.events[start:end]], 0.5)),
        "temporal_bytes_per_turn": round(quantile(list(map(float, sizes[start:end])), 0.5)),
        # All turns up to the mark, so the start of the thread and every continue-as-new are in it.
        "temporal_bytes_per_turn_so_far": round(sum(sizes[:mark]) / mark),
        "pg_bytes_per_turn": round(tables / (end - start)),
    }


def _ratio(last: Figures, first: Figures, name: str) -> float:
    return round(float(last[name]) / float(first[name]), 3)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--turns", type=int, default=300)
    arguments = parser.parse_args()
    run(lambda: measure(arguments.turns))
