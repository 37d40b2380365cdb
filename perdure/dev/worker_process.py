"""A worker in a process of its own, and what keeps one running."""

import asyncio
import itertools
import os
import signal
import sys
import time
from asyncio.subprocess import Process
from collections.abc import Awaitable, Callable, Mapping
from datetime import timedelta
from typing import IO, Final

from temporalio.api.enums.v1 import TaskQueueType
from temporalio.api.taskqueue.v1 import TaskQueue
from temporalio.api.workflowservice.v1 import DescribeTaskQueueRequest
from temporalio.client import Client
from temporalio.service import RPCError

from perdure import policy
from perdure.cli.ending import FAILED
from perdure.contract import DEFAULT_TASK_QUEUE
from perdure.dev import process
from perdure.errors import ConfigurationError
from perdure.loader import DEMO

_UP: Final = timedelta(seconds=60)
_DOWN: Final = policy.GRACEFUL_SHUTDOWN + timedelta(seconds=3)
_FIRST_DELAY: Final = timedelta(seconds=0.5)
_LAST_DELAY: Final = timedelta(seconds=15)
_LONG_LIFE: Final = timedelta(seconds=30)


class WorkerProcess:
    """`perdure worker TARGET` as a child. It may be started again after it has ended.

    Its output goes to `output`, or where the parent's goes. `environment` is added to the parent's.

    Attributes:
        target: what it serves.
    """

    def __init__(
        self,
        target: str = DEMO,
        *,
        database_url: str,
        temporal_address: str,
        task_queue: str = DEFAULT_TASK_QUEUE,
        environment: Mapping[str, str] | None = None,
        output: IO[bytes] | None = None,
    ) -> None:
        self.target = target
        self._task_queue = task_queue
        self._environment = {
            **os.environ,
            "PERDURE_DATABASE_URL": database_url,
            "PERDURE_TASK_QUEUE": task_queue,
            "TEMPORAL_ADDRESS": temporal_address,
            **(environment or {}),
        }
        self._output = output
        self._process: Process | None = None

    @property
    def pid(self) -> int:
        """The process id of the last start."""
        return self._started().pid

    async def start(self) -> None:
        """Start the process; it serves when `ready` returns."""
        command = [sys.executable, "-m", "perdure", "worker", self.target]
        self._process = await process.spawn(command, output=self._output, env=self._environment)

    async def ready(self, client: Client) -> None:
        """Wait until the worker asks Temporal for work.

        Raises:
            ConfigurationError: if it ends instead, or is not there after 30 s.
        """
        child = self._started()
        try:
            async with asyncio.timeout(_UP.total_seconds()):
                while not await self._polls(client, child):
                    if child.returncode is not None:
                        raise ConfigurationError(f"The worker {describe_end(child.returncode)} before it served.")
                    await asyncio.sleep(0.05)
        except TimeoutError as error:
            raise ConfigurationError(f"The worker does not serve after {_UP.total_seconds():g} s.") from error

    async def stop(self) -> None:
        """Have it drain; kill it when that takes longer than a worker may take. Safe to repeat."""
        if self._process is not None:
            await process.stop(self._process, _DOWN)

    async def kill(self) -> None:
        """Kill it, as `kill -9` does. Safe to repeat."""
        if self._process is not None:
            await process.kill(self._process)

    async def wait(self) -> int:
        """Wait until it ends; returns the exit code, negative for a signal."""
        return await self._started().wait()

    def _started(self) -> Process:
        if self._process is None:
            raise ConfigurationError("The worker process was not started.")
        return self._process

    async def _polls(self, client: Client, child: Process) -> bool:
        # Workflow tasks are asked for first, so a poller for activities means that both are served.
        answer = await client.workflow_service.describe_task_queue(
            DescribeTaskQueueRequest(
                namespace=client.namespace,
                task_queue=TaskQueue(name=self._task_queue),
                task_queue_type=TaskQueueType.TASK_QUEUE_TYPE_ACTIVITY,
            )
        )
        return any(poller.identity.startswith(f"{child.pid}@") for poller in answer.pollers)


async def keep_running(
    worker: WorkerProcess,
    client: Client,
    say: Callable[[str], None],
    *,
    sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
    clock: Callable[[], float] = time.monotonic,
) -> int:
    """Start the worker, and again whenever it ends; returns only when it cannot start at all, with its exit code.

    The pause between starts doubles up to 15 s while they fail, and is short again after a worker that lived long.
    """
    delay = _FIRST_DELAY
    for start in itertools.count():
        started = clock()
        code = await _live(worker, client, say)
        if start == 0 and code == FAILED:
            return code  # it has said why, and nothing has changed since
        if clock() - started > _LONG_LIFE.total_seconds():
            delay = _FIRST_DELAY
        say(f"The worker {describe_end(code)}; another one starts in {delay.total_seconds():g} s.")
        await sleep(delay.total_seconds())
        delay = min(delay * 2, _LAST_DELAY)
    raise AssertionError("bug: counting has ended")


async def _live(worker: WorkerProcess, client: Client, say: Callable[[str], None]) -> int:
    await worker.start()
    greeting = asyncio.create_task(_greet(worker, client, say))
    try:
        return await worker.wait()
    finally:
        greeting.cancel()


async def _greet(worker: WorkerProcess, client: Client, say: Callable[[str], None]) -> None:
    try:
        await worker.ready(client)
    except (ConfigurationError, RPCError) as error:
        say(str(error))  # not the end: if the worker lives it may yet serve, and if not that is told too
    else:
        say(f"The worker serves {worker.target}.")


def describe_end(code: int) -> str:
    """An exit code in words."""
    if code < 0:
        return f"was ended by {signal.Signals(-code).name}"
    return f"ended with exit code {code}"
