"""What `perdure dev` does: the servers, a worker that is started again when it dies, and an end in order."""

import asyncio
import os
import signal
from pathlib import Path

from rich.console import Console

from perdure.dev.stack import Stack, dev_stack
from perdure.dev.worker_process import WorkerProcess, describe_end, keep_running
from perdure.errors import ConfigurationError
from perdure.settings import load_environment, without_password

_console = Console(highlight=False, soft_wrap=True)


def run(target: str, data_dir: Path, *, port: int | None = None, ui_port: int | None = None) -> int:
    """Run until Ctrl-C or SIGTERM; returns the exit code. A second signal ends it without waiting."""
    return asyncio.run(_until_signal(target, data_dir, port, ui_port))


async def _until_signal(target: str, data_dir: Path, port: int | None, ui_port: int | None) -> int:
    work = asyncio.ensure_future(_run(target, data_dir, port, ui_port))

    def on_signal(number: int) -> None:
        if work.cancelling():
            os._exit(128 + number)  # on Linux the children go with us
        _console.print("Stopping; once more to end at once.")
        work.cancel()

    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        asyncio.get_running_loop().add_signal_handler(number, on_signal, number)
    try:
        return await work
    except asyncio.CancelledError:
        _console.print("Stopped.")
        return 0


async def _run(target: str, data_dir: Path, port: int | None, ui_port: int | None) -> int:
    settings = load_environment()
    async with dev_stack(settings, data_dir, port=port, ui_port=ui_port) as stack:
        worker = WorkerProcess(
            target,
            database_url=stack.database_url,
            temporal_address=stack.temporal_address,
            task_queue=settings.task_queue,
        )
        _greet(stack)
        try:
            return await _watch(stack, worker)
        finally:
            await worker.stop()


async def _watch(stack: Stack, worker: WorkerProcess) -> int:
    """Returns the exit code when the worker cannot start, and raises when Temporal ends."""
    watching = {asyncio.create_task(keep_running(worker, stack.client, _console.print), name="worker")}
    if stack.temporal_server is not None:
        watching.add(asyncio.create_task(stack.temporal_server.wait(), name="Temporal"))
    try:
        done, _ = await asyncio.wait(watching, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for task in watching:
            task.cancel()
    ended = done.pop()
    if ended.get_name() == "worker":
        return ended.result()
    raise ConfigurationError(f"The Temporal dev server {describe_end(ended.result())}; see temporal.log.")


def _greet(stack: Stack) -> None:
    _say("Temporal", stack.temporal_address)
    if stack.ui_url:
        _say("Temporal UI", stack.ui_url)
    _say("PostgreSQL", without_password(stack.database_url))
    _say("Try", "perdure chat hello")


def _say(name: str, value: str) -> None:
    _console.print(f"{name:<14}{value}", markup=False)
