"""Child threads: how soon hundreds of them have all reported, and whether spawning costs more under a long parent."""

import argparse
import asyncio
from collections import Counter
from typing import Final

from temporalio.api.enums.v1 import EventType
from temporalio.api.history.v1 import HistoryEvent

from benchmarks.agents import ANSWER, CHILDREN, QUESTION
from benchmarks.cost import Cpu, runs
from benchmarks.stage import Figures, Stage, quantile, rounded, run, stage
from perdure import ids
from perdure.batch import AppendMessage, SyncBatch
from perdure.contract import SPAWN
from perdure.messages import EventPart, Message, Role, TextPart
from perdure.records import ThreadRecord
from perdure.thread_texts import child_report

SHORT, LONG = 10, 2_000
"""Messages of the two parents that are compared."""

PATIENCE_S: Final = 300
_POLL_S: Final = 0.05


async def measure(children: int, spawns: int) -> Figures:
    """Spawn many at once under one parent, then one after the other under a short and a long one."""
    async with stage("children") as running:
        cpu_before, clock = Cpu.now(running), asyncio.get_running_loop().time
        await running.client.start("many")
        began = clock()
        await running.client.post("many", f"many {children}")
        await _reported(running, "many", children)
        seconds = clock() - began
        others_cores = Cpu.now(running).others(cpu_before, seconds)
        histories = [history async for history in runs(running.client.temporal, "many")]
        told = Counter(part.content for part in await _reports(running, "many"))
        expected = {child_report(child, ANSWER, closed=True) for child in _children(children)}
        times = await _compared(running, spawns)
    return {
        "children": children,
        "seconds": rounded(seconds),
        "children_per_s": rounded(children / seconds),
        "lost": len(expected - told.keys()),
        "doubled": sum(told.values()) - len(told),
        "parent_temporal_bytes": sum(history.bytes for history in histories),
        "parent_temporal_events": sum(len(history.events) for history in histories),
        "parent_runs": len(histories),
        "spawns": spawns,
        f"spawn_p50_ms_{SHORT}": rounded(quantile(times[SHORT], 0.5)),
        f"spawn_p50_ms_{LONG}": rounded(quantile(times[LONG], 0.5)),
        f"spawn_ratio_{LONG}_to_{SHORT}": rounded(quantile(times[LONG], 0.5) / quantile(times[SHORT], 0.5)),
        "others_cores": others_cores,
    }


def _children(count: int) -> list[str]:
    return [ids.child_thread_id("many", ids.call_id("many", 1, 0, index)) for index in range(count)]


async def _reported(running: Stage, thread_id: str, reports: int) -> None:
    """Wait until the thread has so many reports, and has answered them all."""
    store = running.client.store
    async with asyncio.timeout(PATIENCE_S):
        while True:
            if (await store.get_message_counts(thread_id)).event >= reports:
                break
            await asyncio.sleep(_POLL_S)
        await running.client.wait_settled(thread_id)


async def _reports(running: Stage, thread_id: str) -> list[EventPart]:
    parts = [part for message in await running.client.history(thread_id) for part in message.parts]
    return [part for part in parts if isinstance(part, EventPart)]


async def _compared(running: Stage, spawns: int) -> dict[int, list[float]]:
    """Milliseconds of each spawn by the length of its parent; in turns, so that both see the same machine."""
    parents = {length: f"parent-{length}" for length in (SHORT, LONG)}
    for length, parent in parents.items():
        await _write(running, parent, length)
    for number in range(spawns):
        for parent in parents.values():
            await running.client.post(parent, f"{parent} 1")
            await _reported(running, parent, number + 1)
    times: dict[int, list[float]] = {}
    for length, parent in parents.items():
        events = [event async for history in runs(running.client.temporal, parent) for event in history.events]
        times[length] = _spawn_times_ms(events)
        if len(times[length]) != spawns:
            raise RuntimeError(f"{parent} has spawned {len(times[length])} times, not {spawns}")
    return times


async def _write(running: Stage, thread_id: str, messages: int) -> None:
    """A conversation of so many messages, as if it had been held."""
    store = running.client.store
    await store.create_thread(ThreadRecord(thread_id=thread_id, agent="children"))
    appended = tuple(AppendMessage(message=_message(thread_id, number)) for number in range(messages))
    await store.append_messages(SyncBatch(thread_id=thread_id, number=1, sync_id="write", operations=appended))


def _message(thread_id: str, number: int) -> Message:
    role: Role = "assistant" if number % 2 else "user"
    text = ANSWER if number % 2 else QUESTION
    return Message(id=f"{thread_id}-{number}", thread_id=thread_id, role=role, parts=(TextPart(text=text),))


def _spawn_times_ms(events: list[HistoryEvent]) -> list[float]:
    """From the moment at which each spawn was scheduled to the one at which its child had started."""
    began: list[int] = []
    ended: list[int] = []
    for event in events:
        at = event.event_time.ToNanoseconds()
        if event.event_type == EventType.EVENT_TYPE_CHILD_WORKFLOW_EXECUTION_STARTED:
            ended.append(at)
        elif event.activity_task_scheduled_event_attributes.activity_type.name == SPAWN:
            began.append(at)
    return [(end - begin) / 1e6 for begin, end in zip(began, ended, strict=True)]


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--children", type=int, default=100, help=f"at once, at most {CHILDREN:,}")
    parser.add_argument("--spawns", type=int, default=15, help="under each of the two parents")
    arguments = parser.parse_args()
    run(lambda: measure(arguments.children, arguments.spawns))
