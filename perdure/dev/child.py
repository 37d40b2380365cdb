"""A command of ours in a process of its own, and what keeps it running."""

import asyncio
import itertools
import os
import signal
import sys
import time
from abc import ABC, abstractmethod
from asyncio.subprocess import Process
from collections.abc import Awaitable, Callable, Mapping, Sequence
from datetime import timedelta
from typing import IO, ClassVar, Final

from temporalio.client import Client
from temporalio.service import RPCError

from perdure.cli.ending import FAILED
from perdure.dev import process
from perdure.errors import ConfigurationError

_UP: Final = timedelta(seconds=60)
_FIRST_DELAY: Final = timedelta(seconds=0.5)
_LAST_DELAY: Final = timedelta(seconds=15)
_LONG_LIFE: Final = timedelta(seconds=30)


class Child(ABC):
    """`perdure COMMAND` as a child. It may be started again after it has ended.

    It is told of the servers by its environment, which is the parent's with `environment` added. Its output goes to
    `output`, or where the parent's goes. It is killed if it takes longer than `drain` to stop.
    """

    kind: ClassVar[str]
    """What it is, in a sentence."""

    def __init__(
        self,
        command: Sequence[str],
        drain: timedelta,
        *,
        database_url: str,
        temporal_address: str,
        task_queue: str,
        environment: Mapping[str, str] | None,
        output: IO[bytes] | None,
    ) -> None:
        self._command = [sys.executable, "-m", "perdure", *command]
        servers = {
            "PERDURE_DATABASE_URL": database_url,
            "PERDURE_TASK_QUEUE": task_queue,
            "TEMPORAL_ADDRESS": temporal_address,
        }
        self._environment = {**os.environ, **servers, **(environment or {})}
        self._output = output
        self._drain = drain
        self._process: Process | None = None

    @property
    def pid(self) -> int:
        """The process id of the last start."""
        return self._started().pid

    @property
    @abstractmethod
    def greeting(self) -> str:
        """What to say when it serves."""

    async def start(self) -> None:
        """Start the process; it serves when `ready` returns."""
        self._process = await process.spawn(self._command, output=self._output, env=self._environment)

    async def ready(self, client: Client) -> None:
        """Wait until it serves.

        Raises:
            ConfigurationError: if it ends instead, or does not serve after 60 s.
        """
        child = self._started()
        try:
            async with asyncio.timeout(_UP.total_seconds()):
                while not await self._serves(client, child):
                    if child.returncode is not None:
                        raise ConfigurationError(f"The {self.kind} {describe_end(child.returncode)} before it served.")
                    await asyncio.sleep(0.05)
        except TimeoutError as error:
            raise ConfigurationError(f"The {self.kind} does not serve after {_UP.total_seconds():g} s.") from error

    async def stop(self) -> None:
        """Have it finish what runs; kill it when that takes longer than it may. Safe to repeat."""
        if self._process is not None:
            await process.stop(self._process, self._drain)

    async def kill(self) -> None:
        """Kill it, as `kill -9` does. Safe to repeat."""
        if self._process is not None:
            await process.kill(self._process)

    async def wait(self) -> int:
        """Wait until it ends; returns the exit code, negative for a signal."""
        return await self._started().wait()

    @abstractmethod
    async def _serves(self, client: Client, child: Process) -> bool:
        """Whether it serves now."""

    def _started(self) -> Process:
        if self._process is None:
            raise ConfigurationError(f"The {self.kind} process was not started.")
        return self._process


async def keep_running(
    child: Child,
    client: Client,
    say: Callable[[str], None],
    *,
    sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
    clock: Callable[[], float] = time.monotonic,
) -> int:
    """Start the child, and again whenever it ends; returns only when it cannot start at all, with its exit code.

    The pause between starts doubles up to 15 s while they fail, and is short again after a child that lived long.
    """
    delay = _FIRST_DELAY
    for start in itertools.count():
        started = clock()
        code = await _live(child, client, say)
        if start == 0 and code == FAILED:
            return code  # it has said why, and nothing has changed since
        if clock() - started > _LONG_LIFE.total_seconds():
            delay = _FIRST_DELAY
        say(f"The {child.kind} {describe_end(code)}; another one starts in {delay.total_seconds():g} s.")
        await sleep(delay.total_seconds())
        delay = min(delay * 2, _LAST_DELAY)
    raise AssertionError("bug: counting has ended")


async def _live(child: Child, client: Client, say: Callable[[str], None]) -> int:
    await child.start()
    greeting = asyncio.create_task(_greet(child, client, say))
    try:
        return await child.wait()
    finally:
        greeting.cancel()


async def _greet(child: Child, client: Client, say: Callable[[str], None]) -> None:
    try:
        await child.ready(client)
    except (ConfigurationError, RPCError) as error:
        say(str(error))  # not the end: if it lives it may yet serve, and if not that is told too
    else:
        say(child.greeting)


def describe_end(code: int) -> str:
    """An exit code in words."""
    if code < 0:
        return f"was ended by {signal.Signals(-code).name}"
    return f"ended with exit code {code}"
