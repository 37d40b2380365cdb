"""A PostgreSQL server of our own, for development, demos and tests: no installation, no port, no password.

It listens on a unix socket in a folder that only its user can enter, and nowhere else. A folder has one server:
who finds one running uses it, and only who has started it stops it. If the process that started it is killed, Linux
shuts the server down; whatever else happened to it, the next start recovers.

As root the server runs as another user that exists already. If that user cannot reach the wanted folder (it lies in
root's home, say), the data goes to `/var/lib/perdure`, and the wanted folder becomes a link to it: no rights of
folders that are not ours are changed.
"""

import asyncio
import ctypes
import fcntl
import hashlib
import os
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Self
from urllib.parse import quote

import asyncpg

from perdure.errors import ConfigurationError
from stores.embedded_account import Account
from stores.embedded_binaries import STATE_FOLDER, Binaries, find_binaries

PORT = 5432  # names the socket; no port of the machine is taken
SOCKET_PATH_BYTES = 107
START_TIMEOUT_S = 60.0
STOP_TIMEOUT_S = 20.0
LOG_LINES = 5

_SETTINGS = {
    "listen_addresses": "",
    "port": str(PORT),
    "unix_socket_permissions": "0700",
    "max_connections": "200",
    # One server without replicas: the log need not carry what only a replica reads.
    "wal_level": "minimal",
    "max_wal_senders": "0",
}
_FORGETFUL = {"fsync": "off", "synchronous_commit": "off", "full_page_writes": "off"}

_libc = ctypes.CDLL(None) if sys.platform == "linux" else None
_PR_SET_PDEATHSIG = 1


class EmbeddedPostgres:
    """A server on a data folder. `async with EmbeddedPostgres(folder) as server: connect(server.url)`.

    Args:
        data_dir: the folder; made if it is not there.
        durable: whether committed data survives a power cut. Off it is faster, for tests.
    """

    def __init__(self, data_dir: Path, *, durable: bool = True) -> None:
        self._wanted = Path(os.path.abspath(data_dir))
        self._durable = durable
        self._process: subprocess.Popen[bytes] | None = None
        self._url: str | None = None
        self._sockets: Path | None = None

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.stop()

    @property
    def url(self) -> str:
        """The URL of its database `postgres`, once it was started."""
        if self._url is None:
            raise ConfigurationError("bug: the embedded PostgreSQL was not started")
        return self._url

    @property
    def started_here(self) -> bool:
        """Whether the server is a child of this process, which will stop it."""
        return self._process is not None

    async def start(self) -> None:
        """Start the server, or find the one that runs on the folder. Returns when it answers.

        Raises:
            ConfigurationError: if it cannot start; the text has the end of its log.
        """
        folder, account = _home(self._wanted)
        sockets = self._sockets = _socket_folder(folder, account)
        self._url = f"postgresql://postgres@/postgres?host={quote(str(sockets))}&port={PORT}"
        async with _alone(folder):
            if await _answers(self._url):
                return
            data = folder / "data"
            binaries = find_binaries(account, _major(data))
            if not data.exists():
                await asyncio.to_thread(_init, binaries, data, account, self._durable)
            _drop_stale_pid(data)
            self._process = _launch(binaries, data, sockets, account, self._durable)
            await self._until_ready(folder / LOG)

    async def stop(self) -> None:
        """Shut down the server if it was started here; clients are disconnected. Safe to repeat."""
        await self._end(signal.SIGINT)

    async def kill(self) -> None:
        """End it without a word to clients or to the disk, as a crash does; for tests. The next start recovers."""
        await self._end(signal.SIGQUIT)

    async def _until_ready(self, log: Path) -> None:
        process = self._process
        assert process is not None
        loop = asyncio.get_running_loop()
        deadline = loop.time() + START_TIMEOUT_S
        while process.poll() is None:
            if await _answers(self.url):
                return
            if loop.time() > deadline:
                await self._end(signal.SIGQUIT)
                raise ConfigurationError(f"PostgreSQL did not answer within {START_TIMEOUT_S:.0f} s. {_end_of(log)}")
            await asyncio.sleep(0.01)
        self._process = None
        raise ConfigurationError(f"PostgreSQL could not start (exit code {process.returncode}). {_end_of(log)}")

    async def _end(self, how: signal.Signals) -> None:
        process, self._process = self._process, None
        if process is None:
            return
        process.send_signal(how)
        try:
            await asyncio.to_thread(process.wait, STOP_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            process.send_signal(signal.SIGQUIT)  # a client or a disk holds it up; the next start recovers
            await asyncio.to_thread(process.wait)
        if self._sockets and self._sockets.parent == Path(tempfile.gettempdir()):
            with suppress(OSError):  # it is in use again
                self._sockets.rmdir()


LOG = "postgres.log"


def _home(wanted: Path) -> tuple[Path, Account]:
    """The folder to use, which exists, and the user to run as."""
    folder = wanted.resolve()
    account = Account.for_folder(folder)
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        if not account.reaches(folder.parent):
            folder = _elsewhere(wanted)
        account.own(folder)
    except OSError as error:
        raise ConfigurationError(f"The data folder {wanted} cannot be used: {error}.") from error
    return folder, account


def _elsewhere(wanted: Path) -> Path:
    """A folder that other users reach, with `wanted` as a link to it."""
    if wanted.exists() and any(wanted.iterdir()):
        raise ConfigurationError(
            f"The data folder {wanted} holds data, but the user that PostgreSQL runs as cannot reach it. Move it to a "
            "folder that all users may pass through, or start as the user it belongs to."
        )
    if wanted.is_dir():
        wanted.rmdir()
    STATE_FOLDER.mkdir(mode=0o755, parents=True, exist_ok=True)
    folder = STATE_FOLDER / _short_name(wanted)
    wanted.symlink_to(folder)
    return folder


def _socket_folder(folder: Path, account: Account) -> Path:
    """The data folder itself, or one with a simple name if its path is too long or would be read as a list of paths."""
    short = len(os.fsencode(folder / f".s.PGSQL.{PORT}")) <= SOCKET_PATH_BYTES
    if short and not set(',"') & set(str(folder)):
        return folder
    sockets = Path(tempfile.gettempdir()) / _short_name(folder)
    account.own(sockets)
    if sockets.lstat().st_mode & 0o077:
        raise ConfigurationError(f"{sockets} is needed for the socket of PostgreSQL, but others may enter it.")
    return sockets


def _short_name(path: Path) -> str:
    return f"perdure-{hashlib.sha256(os.fsencode(path)).hexdigest()[:12]}"


@asynccontextmanager
async def _alone(folder: Path) -> AsyncGenerator[None]:
    """Of several processes that start on one folder, one does and the others find its server."""
    with (folder / "lock").open("w") as lock:
        await asyncio.to_thread(fcntl.flock, lock, fcntl.LOCK_EX)
        yield


async def _answers(url: str) -> bool:
    try:
        connection: asyncpg.Connection[asyncpg.Record] = await asyncpg.connect(url, timeout=START_TIMEOUT_S)
    except (OSError, asyncpg.CannotConnectNowError, asyncpg.ConnectionDoesNotExistError):
        return False  # nobody listens, or it is on its way up or down
    await connection.close()
    return True


def _major(data: Path) -> int | None:
    version = data / "PG_VERSION"
    return int(version.read_text()) if version.exists() else None


def _init(binaries: Binaries, data: Path, account: Account, durable: bool) -> None:
    """Make the data folder under another name first, so that one is whole or not there."""
    draft = data.with_name("data.new")
    shutil.rmtree(draft, ignore_errors=True)
    options = ["--username=postgres", "--auth=trust", "--encoding=UTF8", "--locale=C", "--no-instructions"]
    command: list[str | Path] = [binaries.folder / "initdb", "-D", draft, *options, *([] if durable else ["--no-sync"])]
    done = subprocess.run(command, capture_output=True, text=True, env=_environment(), cwd="/", **account.options)
    if done.returncode:
        last = " ".join(done.stderr.split()) or f"exit code {done.returncode}"
        raise ConfigurationError(f"PostgreSQL could not make the data folder {data}: {last}")
    draft.rename(data)


def _launch(binaries: Binaries, data: Path, sockets: Path, account: Account, durable: bool) -> subprocess.Popen[bytes]:
    settings = {**_SETTINGS, "unix_socket_directories": str(sockets), **({} if durable else _FORGETFUL)}
    options = [word for name, value in settings.items() for word in ("-c", f"{name}={value}")]
    command: list[str | Path] = [binaries.folder / "postgres", "-D", data, *options]
    with (data.parent / LOG).open("ab") as log:
        return subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            env=_environment(),
            cwd="/",
            start_new_session=True,  # a terminal's Ctrl-C must not reach it before those who use it have ended
            preexec_fn=_end_with_parent,
            **account.options,
        )


def _end_with_parent() -> None:
    # To the kernel the parent is the thread that started it, here the one of the event loop.
    if _libc:
        _libc.prctl(_PR_SET_PDEATHSIG, signal.SIGINT)


def _environment() -> dict[str, str]:
    # PGPORT, PGDATA and their like would win over what we want.
    return {**{name: value for name, value in os.environ.items() if not name.startswith("PG")}, "LC_ALL": "C"}


def _drop_stale_pid(data: Path) -> None:
    """After a power cut the number in the file may be another program's, and PostgreSQL would not start beside it."""
    pid_file = data / "postmaster.pid"
    if pid_file.exists():
        pid = pid_file.read_text().split("\n", 1)[0]
        if "postgres" not in _program(pid):
            pid_file.unlink()


def _program(pid: str) -> str:
    """The name of a running program, empty if there is none. Small Linux images have no `ps`."""
    if sys.platform == "linux":
        name = Path("/proc", pid, "comm")
        return name.read_text() if name.exists() else ""
    return subprocess.run(["ps", "-p", pid, "-o", "comm="], capture_output=True, text=True, check=False).stdout


def _end_of(log: Path) -> str:
    lines = log.read_text(errors="replace").splitlines()[-LOG_LINES:]
    return f"Its log {log} ends with: {' | '.join(lines)}"
