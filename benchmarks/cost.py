"""What a run costs: processor time by process, Temporal history, PostgreSQL's tables and log.

Processor time is user and system time from `/proc`, of a process and all its children, also of those that have ended
since (PostgreSQL starts one for each connection). Its unit is a clock tick, 10 ms.
"""

import os
import time
from collections import defaultdict
from collections.abc import AsyncGenerator, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Self

import asyncpg
from temporalio.api.enums.v1 import EventType
from temporalio.api.history.v1 import HistoryEvent
from temporalio.client import Client

from benchmarks.stage import Stage, rounded
from perdure import ids

_TICK_MS: Final = 1000 / os.sysconf("SC_CLK_TCK")

_OURS: Final = ("worker", "server", "postgres", "client")

_PG_BYTES: Final = """
select sum(pg_total_relation_size(c.oid))::bigint as tables,
       pg_wal_lsn_diff(pg_current_wal_insert_lsn(), '0/0')::bigint as wal
from pg_class c join pg_namespace n on n.oid = c.relnamespace where n.nspname = 'perdure' and c.relkind = 'r'
"""


@dataclass(frozen=True)
class Cpu:
    """Processor time in milliseconds."""

    worker: float
    server: float
    postgres: float
    client: float
    machine: float
    """All processes of the machine, ours or not."""

    @classmethod
    def now(cls, stage: Stage) -> Self:
        """What has been used up to now."""
        assert stage.server.pid is not None
        return cls(
            worker=_tree_ms(stage.worker.pid),
            server=_tree_ms(stage.server.pid),
            postgres=_tree_ms(stage.postgres_pid),
            client=time.process_time() * 1000,
            machine=_machine_ms(),
        )

    def per_turn(self, since: "Cpu", turns: int) -> dict[str, float]:
        """The mean over some turns, by process and in total."""
        parts = {name: (getattr(self, name) - getattr(since, name)) / turns for name in _OURS}
        return {name: rounded(value) for name, value in {**parts, "total": sum(parts.values())}.items()}

    def others(self, since: "Cpu", took_s: float) -> float:
        """How many processors other programs kept busy: figures are to be trusted only if it is small."""
        ours = sum(getattr(self, name) - getattr(since, name) for name in _OURS)
        return rounded((self.machine - since.machine - ours) / (took_s * 1000))


@dataclass(frozen=True)
class PostgresBytes:
    """Bytes of all tables with their indexes and TOAST, as they are on disk, and of write-ahead log since the start."""

    tables: int
    wal: int

    @classmethod
    async def now(cls, stage: Stage) -> Self:
        """What is there now."""
        connection: Any = await asyncpg.connect(stage.database_url)
        try:
            row = await connection.fetchrow(_PG_BYTES)
        finally:
            await connection.close()
        return cls(tables=row["tables"], wal=row["wal"])


@dataclass(frozen=True)
class Run:
    """One run of a thread's workflow: its events, and their size as the server counts it."""

    events: tuple[HistoryEvent, ...]
    bytes: int


async def runs(client: Client, thread_id: str) -> AsyncGenerator[Run]:
    """All runs of a thread that followed each other by continue-as-new, oldest first."""
    workflow_id = ids.workflow_id(thread_id)
    run_id = (
        await client.get_workflow_handle(workflow_id).describe()
    ).raw_description.workflow_execution_info.first_run_id
    while run_id:
        handle = client.get_workflow_handle(workflow_id, run_id=run_id)
        info = (await handle.describe()).raw_description.workflow_execution_info
        history = await handle.fetch_history()
        yield Run(tuple(history.events), info.history_size_bytes)
        last = history.events[-1]
        run_id = last.workflow_execution_continued_as_new_event_attributes.new_execution_run_id


def explain(events: Iterable[HistoryEvent], turns: int) -> str:
    """A table of what the events of some turns weigh, heaviest first."""
    counts: defaultdict[str, list[int]] = defaultdict(list)
    for event in events:
        name = EventType.Name(event.event_type).removeprefix("EVENT_TYPE_").lower()
        counts[name].append(event.ByteSize())
    lines = [f"{'event':44}{'a turn':>8}{'bytes each':>12}{'bytes a turn':>14}"]
    for name, sizes in sorted(counts.items(), key=lambda item: -sum(item[1])):
        each = sum(sizes) / len(sizes)
        lines.append(f"{name:44}{len(sizes) / turns:8.2f}{each:12.0f}{sum(sizes) / turns:14.0f}")
    return "\n".join(lines)


def _tree_ms(pid: int) -> float:
    """The time of a process and its descendants; what those that have ended used stands with their parent."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        tasks = list(Path(f"/proc/{pid}/task").iterdir())
        children = {int(child) for task in tasks for child in (task / "children").read_text().split()}
    except (FileNotFoundError, ProcessLookupError):  # it has ended since we looked: its parent has its time
        return 0
    # user and system time, its own and that of children it has waited for: fields 14 to 17 of proc(5)
    return sum(map(int, fields[11:15])) * _TICK_MS + sum(_tree_ms(child) for child in children)


def _machine_ms() -> float:
    """User, nice, system and interrupt time of all processors since the start of the machine: see `stat` in proc(5)."""
    user, nice, system, _, _, irq, softirq = map(int, Path("/proc/stat").read_text().split(maxsplit=8)[1:8])
    return (user + nice + system + irq + softirq) * _TICK_MS
