"""`perdure dev`: one command brings up a stack, keeps a worker alive, and leaves nothing behind."""

import json
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Generator, Mapping
from contextlib import contextmanager
from http.client import HTTPConnection
from pathlib import Path
from types import MappingProxyType
from typing import IO
from urllib.parse import urlsplit

import psutil
import pytest

from perdure.dev import process
from tests.eventually import eventually
from tests.stores.folders import new_folder

pytestmark = [pytest.mark.slow, pytest.mark.skipif(sys.platform != "linux", reason="looks at processes as Linux does")]


class Dev:
    """`perdure dev` in a folder, and what it printed."""

    def __init__(
        self, folder: Path, output: IO[str], *arguments: str, more: Mapping[str, str] = MappingProxyType({})
    ) -> None:
        self._output = output
        self.folder = folder
        self.process = subprocess.Popen(
            [sys.executable, "-m", "perdure", "dev", *arguments],
            cwd=folder,
            # A port of its own: tests of other processes start gateways on the usual one, or on the next that is free.
            env={**environment(), "PERDURE_GATEWAY_PORT": str(process.free_port()), **more},
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )

    @property
    def said(self) -> str:
        """All that it printed so far."""
        return os.pread(self._output.fileno(), 1_000_000, 0).decode()

    def serves(self) -> bool:
        """Whether a worker and a gateway serve by now; fails when it has ended instead."""
        assert self.process.poll() is None, self.said
        return "The worker serves" in self.said and "The gateway serves" in self.said

    def children(self) -> dict[str, psutil.Process]:
        """Its running children by what they are."""
        return {_kind(child): child for child in psutil.Process(self.process.pid).children()}

    def address(self, name: str) -> str:
        """An address that it left for other commands."""
        addresses: dict[str, str] = json.loads((self.folder / ".perdure" / "dev.json").read_text())
        return addresses[name]

    def perdure(self, *command: str) -> str:
        """What a command prints that runs in the same folder."""
        done = subprocess.run(
            [sys.executable, "-m", "perdure", *command],
            cwd=self.folder,
            env=environment(),
            capture_output=True,
            text=True,
        )
        assert done.returncode == 0, done.stderr
        return done.stdout


def environment() -> dict[str, str]:
    """This process's, without settings."""
    return {name: value for name, value in os.environ.items() if not name.startswith(("PERDURE_", "TEMPORAL_"))}


@pytest.fixture
def folder() -> Generator[Path]:
    """A folder in which PostgreSQL's user may read."""
    with new_folder() as folder:
        yield folder


@contextmanager
def running(folder: Path) -> Generator[Dev]:
    """`perdure dev` in a folder, as long as the block lasts."""
    with (folder / "output").open("w+") as output:
        dev = Dev(folder, output)
        try:
            yield dev
        finally:
            dev.process.terminate()  # not kill: the folder goes next, and its servers must be out of it
            dev.process.wait(30)


@pytest.fixture
def dev(folder: Path) -> Generator[Dev]:
    """`perdure dev` for a test that ends it."""
    with running(folder) as dev:
        yield dev


@pytest.fixture(scope="module")
def lasting() -> Generator[Dev]:
    """`perdure dev` for the tests that it outlasts: each start is that of five processes."""
    with new_folder() as folder, running(folder) as dev:
        yield dev


async def test_a_killed_worker_is_replaced_and_the_thread_goes_on(lasting: Dev) -> None:
    """After kill -9 of the worker another one serves, and the same thread answers again."""
    dev = lasting
    await eventually(dev.serves, timeout=60)
    assert "Paris: clouds" in dev.perdure("send", "t", "How is Paris?", "--wait")
    dev.children()["worker"].kill()
    await eventually(lambda: dev.said.count("The worker serves") == 2, timeout=60)
    assert "The worker was ended by SIGKILL; another one starts in 0.5 s." in dev.said
    assert "Oslo: snow" in dev.perdure("send", "t", "How is Oslo?", "--wait")


async def test_a_killed_gateway_is_replaced_where_it_was(lasting: Dev) -> None:
    """After kill -9 of the gateway another one serves the same URL, which is the one that the worker gives away."""
    dev = lasting
    await eventually(dev.serves, timeout=60)
    url = dev.address("gateway_url")
    assert f"Gateway       {url}\n" in dev.said
    assert dev.children()["worker"].environ()["PERDURE_GATEWAY_URL"] == url
    assert _health(url) == 200
    dev.children()["gateway"].kill()
    await eventually(lambda: dev.said.count(f"The gateway serves {url}.") == 2, timeout=60)
    assert "The gateway was ended by SIGKILL; another one starts in 0.5 s." in dev.said
    assert _health(url) == 200


async def test_a_given_gateway_port_that_is_taken_is_refused(folder: Path) -> None:
    """Whoever asks for a port gets that one, or one line and code 2."""
    with socket.create_server(("127.0.0.1", 0)) as taken, (folder / "output").open("w+") as output:
        port = taken.getsockname()[1]
        dev = Dev(folder, output, "--gateway-port", str(port))
        assert dev.process.wait(60) == 2
        assert dev.said == f"perdure: Port {port} for the gateway is taken: free it, or choose another one.\n"


async def test_an_outer_address_of_the_gateway_is_kept(folder: Path) -> None:
    """A public URL that the environment names is what the worker gives away; the gateway listens nearby."""
    port = process.free_port()
    with (folder / "output").open("w+") as output:
        given = {"PERDURE_GATEWAY_URL": "https://agents.example/", "PERDURE_GATEWAY_PORT": str(port)}
        dev = Dev(folder, output, more=given)
        try:
            await eventually(dev.serves, timeout=60)
            assert dev.address("gateway_url") == "https://agents.example"
            assert dev.children()["worker"].environ()["PERDURE_GATEWAY_URL"] == "https://agents.example"
            assert _health(f"http://127.0.0.1:{port}") == 200
        finally:
            dev.process.terminate()
            dev.process.wait(30)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
async def test_a_signal_stops_all_that_was_started(dev: Dev, number: signal.Signals, folder: Path) -> None:
    """Ctrl-C or SIGTERM ends it with code 0; its children and the address file are gone, the data stays."""
    await eventually(dev.serves, timeout=60)
    children = dev.children()
    assert children.keys() == {"postgres", "temporal", "worker", "gateway"}
    dev.process.send_signal(number)
    assert dev.process.wait(30) == 0
    assert not any(child.is_running() for child in children.values())
    assert not (folder / ".perdure" / "dev.json").exists()
    assert (folder / ".perdure" / "temporal.db").exists()


async def test_a_kill_leaves_no_process_and_the_next_start_goes_on(dev: Dev, folder: Path) -> None:
    """When it is killed itself its children end too, and the next start has the conversation."""
    await eventually(dev.serves, timeout=60)
    dev.perdure("send", "t", "How is Paris?", "--wait")
    children = dev.children()
    dev.process.kill()
    dev.process.wait()
    await eventually(lambda: not any(_runs(child) for child in children.values()))
    with (folder / "again").open("w+") as output:
        again = Dev(folder, output)
        try:
            await eventually(again.serves, timeout=60)
            assert "Paris: clouds" in again.perdure("history", "t")
        finally:
            again.process.terminate()
            again.process.wait(30)


async def test_a_second_one_in_the_same_folder_is_refused(lasting: Dev) -> None:
    """Two stacks on one folder would spoil its data: the second ends with one line and code 2."""
    await eventually(lasting.serves, timeout=60)
    with (lasting.folder / "second").open("w+") as output:
        second = Dev(lasting.folder, output)
        assert second.process.wait(30) == 2
        assert second.said.startswith("perdure: `perdure dev` runs here already")
        assert second.said.count("\n") == 1


async def test_a_worker_that_cannot_start_ends_it(folder: Path) -> None:
    """When agents that were there when it looked cannot be loaded, it says why once, stops the servers; code 2."""
    (folder / "mine.py").write_text(
        "from pathlib import Path\nfrom perdure.agent import Agent\nfrom perdure.testing import Reply, ScriptedModel\n"
        "Path('looked').mkdir()\n"
        "agent = Agent('mine', model=ScriptedModel(lambda asked: Reply('hello')))\n"
    )
    with (folder / "output").open("w+") as output:
        dev = Dev(folder, output, "mine:agent")
        assert dev.process.wait(60) == 2
        assert dev.said.count("perdure: 'mine' cannot be imported: FileExistsError") == 1
        assert "Temporal " in dev.said


@pytest.mark.parametrize("target", ["no_such_module:agent", "json:loads", "no colon"])
async def test_agents_that_are_not_there_are_found_out_before_anything_starts(folder: Path, target: str) -> None:
    """One line says what is wrong, with code 2, and no server was started for it."""
    with (folder / "output").open("w+") as output:
        dev = Dev(folder, output, target)
        assert dev.process.wait(60) == 2
        assert dev.said.startswith("perdure: ")
        assert dev.said.count("\n") == 1
        assert not (folder / ".perdure").exists()


async def test_agents_that_are_there_are_served(folder: Path) -> None:
    """The user's own module, checked first and then served."""
    (folder / "mine.py").write_text(
        "from perdure.agent import Agent\nfrom perdure.testing import Reply, ScriptedModel\n"
        "agent = Agent('mine', model=ScriptedModel(lambda asked: Reply('hello')))\n"
    )
    with (folder / "output").open("w+") as output:
        dev = Dev(folder, output, "mine:agent")
        try:
            await eventually(dev.serves, timeout=60)
            assert dev.perdure("send", "t", "hi", "--wait") == "hello\n"
        finally:
            dev.process.terminate()
            dev.process.wait(30)


async def test_a_data_folder_that_cannot_be_is_refused(folder: Path) -> None:
    """One line and code 2, not a traceback."""
    (folder / "file").write_text("in the way")
    with (folder / "output").open("w+") as output:
        dev = Dev(folder, output, "--data-dir", "file")
        assert dev.process.wait(60) == 2
        assert dev.said == "perdure: The data cannot be kept in file (File exists): choose another --data-dir.\n"


async def test_usual_ports_that_are_taken_are_no_obstacle(lasting: Dev, folder: Path) -> None:
    """A second stack, in another folder, takes free ports when nobody asked for some."""
    await eventually(lasting.serves, timeout=60)
    with running(folder) as second:
        await eventually(second.serves, timeout=60)
        addresses = [each.address("temporal_address") for each in (lasting, second)]
        assert len(set(addresses)) == 2
        assert len({each.address("gateway_url") for each in (lasting, second)}) == 2
        assert not process.port_is_free(int(addresses[1].partition(":")[2]))


def _kind(child: psutil.Process) -> str:
    if child.name() in ("postgres", "temporal"):
        return child.name()
    return "gateway" if "gateway" in child.cmdline() else "worker"


def _health(url: str) -> int:
    connection = HTTPConnection(urlsplit(url).netloc, timeout=10)
    connection.request("GET", "/health")
    status = connection.getresponse().status
    connection.close()
    return status


def _runs(child: psutil.Process) -> bool:
    return bool(child.is_running() and child.status() != psutil.STATUS_ZOMBIE)
