"""What `perdure demo` does: servers and workers of its own, the scenes, and a verdict."""

import asyncio
import os
import signal
import tempfile
import uuid
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Final
from urllib.parse import quote

from perdure.bundle import put_runtime_on_path
from perdure.client import PerdureClient
from perdure.demo.checks import Check, check
from perdure.demo.environment import MODEL_VARIABLE, RUNS_VARIABLE
from perdure.demo.evidence import Notes, collect
from perdure.demo.report import Report, demo_console
from perdure.demo.scenes import DemoFailed, Scenes, Stage
from perdure.demo.tool_runs import ToolRuns
from perdure.dev import process
from perdure.dev import stack as dev
from perdure.dev.worker_process import WorkerProcess
from perdure.errors import ConfigurationError
from perdure.ids import workflow_id
from perdure.loader import DEMO
from perdure.settings import load_environment, without_password
from perdure.stop_signals import STOP_SIGNALS, on_stop_signal

TITLE: Final = "A durable evening"
FAILED: Final = 1
INTERRUPTED: Final = 130
_SCRIPTED_PATIENCE: Final = timedelta(seconds=30)
_MODEL_PATIENCE: Final = timedelta(minutes=3)


@dataclass(frozen=True)
class Demo:
    """How to run it.

    Attributes:
        model: a real model's name; without one the scripted model answers.
        keep: leave everything up at the end, until Ctrl-C.
        browse: open the thread in the browser at the end.
        target: the agents that the workers serve.
    """

    model: str | None = None
    keep: bool = False
    browse: bool = False
    target: str = DEMO


def run(demo: Demo) -> int:
    """Run the demo; returns the exit code: 0 if every check has passed, 1 if not, 130 after Ctrl-C.

    Raises:
        ConfigurationError: if the model cannot be used or a server not be started.
    """
    put_runtime_on_path()
    if demo.model is not None:
        from perdure import models  # not at the top: it is slow to load, and the scripted demo does without

        models.check(demo.model)
    return asyncio.run(_until_signal(demo))


async def _until_signal(demo: Demo) -> int:
    work = asyncio.ensure_future(_perform(demo))

    def stop() -> None:
        work.cancel()

    # A terminal that is closed sends SIGHUP.
    on_stop_signal(stop, (*STOP_SIGNALS, signal.SIGHUP))
    try:
        return await work
    except asyncio.CancelledError:
        return INTERRUPTED


async def _perform(demo: Demo) -> int:
    report = Report(demo_console())
    clock = asyncio.get_running_loop().time
    began = clock()
    report.say("Starting PostgreSQL, Temporal and a worker …")
    with _folder() as folder:
        async with _stage(demo, Path(folder), report) as stage:
            report.say(f"Up after {clock() - began:.1f} s.")
            scenes = Scenes(stage, report)
            try:
                await scenes.play()
            except DemoFailed as error:
                report.say(f"✗ {error} The worker's last words: {_last_line(Path(folder))}", "bold red")
                return FAILED
            report.transcript(await stage.client.store.snapshot(stage.thread_id))
            checks = await _judge(stage, scenes.notes)
            report.checks(checks)
            passed = report.verdict(checks, scripted=demo.model is None, took_s=clock() - began)
            await _linger(demo, stage, report)
            return 0 if passed else FAILED


def _folder() -> "tempfile.TemporaryDirectory[str]":
    folder = tempfile.TemporaryDirectory(prefix="perdure-demo-", ignore_cleanup_errors=True)
    os.chmod(folder.name, 0o711)  # as root, PostgreSQL runs as another user, who has to pass through
    return folder


@asynccontextmanager
async def _stage(demo: Demo, folder: Path, report: Report) -> AsyncGenerator[Stage]:
    """The servers and a worker, and a new thread; gone when the context ends."""
    from stores.postgres import PostgresStore

    thread_id = f"demo-{uuid.uuid4().hex[:8]}"
    task_queue = thread_id  # workers of others on the same server must not take part
    runs = folder / "tool_runs.jsonl"
    ports = process.free_port(), process.free_port()
    async with dev.dev_stack(load_environment(), folder / "servers", port=ports[0], ui_port=ports[1]) as servers:
        store = await PostgresStore.connect(servers.database_url)
        client = PerdureClient(servers.client, store, task_queue=task_queue)
        with (folder / "worker.log").open("ab") as log:
            worker = WorkerProcess(
                demo.target,
                database_url=servers.database_url,
                temporal_address=servers.temporal_address,
                task_queue=task_queue,
                environment={RUNS_VARIABLE: str(runs), MODEL_VARIABLE: demo.model or ""},
                output=log,
            )
            try:
                await _start(worker, client, folder)
                await client.start(thread_id, title=TITLE)
                stage = Stage(
                    client=client,
                    worker=worker,
                    runs=ToolRuns(runs),
                    thread_id=thread_id,
                    ui_url=_thread_url(servers, thread_id),
                    patience_s=(_MODEL_PATIENCE if demo.model else _SCRIPTED_PATIENCE).total_seconds(),
                )
                report.addresses(
                    {
                        "Temporal": servers.temporal_address,
                        "PostgreSQL": without_password(servers.database_url),
                        "Worker": f"process {worker.pid}, model {demo.model or 'scripted'}",
                        "Thread": stage.ui_url or workflow_id(thread_id),
                    }
                )
                yield stage
            finally:
                await worker.stop()
                await store.close()


async def _start(worker: WorkerProcess, client: PerdureClient, folder: Path) -> None:
    await worker.start()
    try:
        await worker.ready(client.temporal)
    except ConfigurationError as error:
        raise ConfigurationError(f"{error} It said: {_last_line(folder)}") from error


def _thread_url(servers: dev.Stack, thread_id: str) -> str | None:
    """The thread's page in the Temporal UI, if that is ours."""
    if servers.ui_url is None:
        return None
    namespace = quote(servers.client.namespace, safe="")
    return f"{servers.ui_url}/namespaces/{namespace}/workflows/{quote(workflow_id(thread_id), safe='')}"


async def _judge(stage: Stage, notes: Notes) -> list[Check]:
    from perdure.demo.agent import agent  # not at the top: its model library would hold up the start

    # What a tool may do after a crash is asked of the demo's own declaration, whatever the workers were made to serve.
    retry_safe = {name: tool.retry_safe for name, tool in agent.tools.items()}
    return check(await collect(stage.client, stage.thread_id, notes, stage.runs.read(), retry_safe))


async def _linger(demo: Demo, stage: Stage, report: Report) -> None:
    if stage.ui_url is None:
        report.say(f"In your Temporal UI the thread is the workflow {workflow_id(stage.thread_id)}.")
        return
    report.say(f"The thread in the Temporal UI: {stage.ui_url}")
    if demo.browse:
        import webbrowser

        webbrowser.open(stage.ui_url)
    if demo.keep:
        report.say("Everything stays up until Ctrl-C.")
        await asyncio.Event().wait()
    report.say("It goes down with this command; `perdure demo --keep` leaves it up.")


def _last_line(folder: Path) -> str:
    lines = (folder / "worker.log").read_text(errors="replace").split("\n")
    return next((line.strip() for line in reversed(lines) if line.strip()), "none.")
