"""Records a history of every run of every path, on servers of its own: `python -m tests.histories.record [PATH...]`."""

import asyncio
import json
import re
import socket
import sys
import tempfile
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any, cast

from temporalio.client import Client, WorkflowExecutionStatus, WorkflowHistory

from perdure import ids
from perdure.connection import connect_temporal
from perdure.dev.temporal_server import TemporalServer
from stores.embedded import EmbeddedPostgres
from stores.migrate import migrate
from tests.eventually import eventually
from tests.histories.agents import agents
from tests.histories.paths import PATHS
from tests.histories.walk import FickleStore, Walk
from tests.stack import Stack

FOLDER = Path(__file__).parent
_names = ((re.compile(r"\d+@[\w.-]+"), "1@worker"), (re.compile(r"test-[0-9a-f-]{36}"), "perdure"))
"""Identities of workers and clients, with those of their queues, and the task queue of the recording."""

_own = frozenset({"stackTrace", "workerVersion", "binaryChecksum", "requestId"})
"""What differs from one machine to the next, and what a replay does not look at."""


async def record(names: list[str]) -> None:
    """Walk the paths of these names, all if there are none, and write what Temporal has recorded of them."""
    with tempfile.TemporaryDirectory() as folder:
        async with EmbeddedPostgres(Path(folder) / "postgres", durable=False) as postgres, TemporalServer() as server:
            await migrate(postgres.url)
            temporal = await connect_temporal({"target_host": server.address})
            async with (
                await FickleStore.connect(postgres.url) as store,
                Stack(temporal, store, agents(), sandbox=True) as stack,
            ):
                for path in PATHS:
                    name = path.__name__
                    if names and name not in names:
                        continue
                    if name in stack.agents:
                        await stack.client.start(name, agent=name)
                    await path(Walk(name, stack, store))
                    await _write(name, stack)


async def _write(name: str, stack: Stack) -> None:
    for old in FOLDER.glob(f"{name}-*.json"):
        old.unlink()
    # The last run may be about to end a task; what follows the answer belongs to the path as well.
    await eventually(lambda: _is_quiet(name, stack))
    number = 0
    async for history in _runs(stack.temporal, name):
        number += 1
        (FOLDER / f"{name}-{number}.json").write_text(portable(history), encoding="ascii")
    print(name, number, "runs")


async def _is_quiet(name: str, stack: Stack) -> bool:
    described = await stack.handle(name).describe()
    pending = described.raw_description
    is_waiting = not pending.HasField("pending_workflow_task") and not pending.pending_activities
    return is_waiting or described.status != WorkflowExecutionStatus.RUNNING


async def _runs(temporal: Client, name: str) -> AsyncIterator[WorkflowHistory]:
    workflow_id = ids.workflow_id(name)
    last = (await temporal.get_workflow_handle(workflow_id).describe()).run_id

    async def listed() -> list[Any]:
        # The list of workflows lags behind.
        found = [run async for run in temporal.list_workflows(f"WorkflowId = '{workflow_id}'")]
        running = [run for run in found if run.status == WorkflowExecutionStatus.RUNNING and run.run_id != last]
        return found if any(run.run_id == last for run in found) and not running else []

    for run in sorted(await eventually(listed), key=lambda run: run.start_time):
        yield await temporal.get_workflow_handle(workflow_id, run_id=run.run_id).fetch_history()


def portable(history: WorkflowHistory) -> str:
    """A history as JSON, one event a line, without what tells where it was recorded."""
    events: list[Any] = json.loads(history.to_json())["events"]
    lines = [json.dumps(_without_own(event), ensure_ascii=True, separators=(",", ":")) for event in events]
    text = '{"events":[\n' + ",\n".join(lines) + "\n]}\n"
    for pattern, name in _names:
        text = pattern.sub(name, text)
    return text.replace(socket.gethostname(), "host")


def _without_own(value: Any) -> Any:
    match value:
        case dict():
            items = cast("dict[str, Any]", value).items()
            return {key: _without_own(item) for key, item in items if key not in _own}
        case list():
            return [_without_own(item) for item in cast("list[object]", value)]
        case _:
            return value


if __name__ == "__main__":
    asyncio.run(record(sys.argv[1:]))
