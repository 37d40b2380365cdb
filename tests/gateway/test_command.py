"""`perdure gateway`: one process that serves until it is told to stop, or one line that says why it cannot."""

import json
import os
import signal
import socket
import subprocess
import sys
import uuid
from collections.abc import Generator
from pathlib import Path
from typing import IO

import httpx2
import pytest
from temporalio.client import Client

from perdure.dev import process
from perdure.dev.temporal_server import TemporalServer
from perdure.rap.token import CALLBACK_KEY, callback_token, callback_url
from stores.postgres import PostgresStore
from tests.eventually import eventually
from tests.gateway.waiting import WaitingThread

pytestmark = [pytest.mark.slow]

NOWHERE = "postgresql://nobody@127.0.0.1:1/none"


def environment(**settings: str) -> dict[str, str]:
    """This process's, with these settings and no others."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("PERDURE_", "TEMPORAL_"))}
    return kept | settings


class Gateway:
    """`perdure gateway`, and what it wrote."""

    def __init__(self, output: IO[str], port: int, settings: dict[str, str]) -> None:
        self._output = output
        self.url = f"http://127.0.0.1:{port}"
        self.process = subprocess.Popen(
            [sys.executable, "-m", "perdure", "gateway", "--port", str(port)],
            env=environment(**settings),
            stdout=output,
            stderr=subprocess.STDOUT,
        )

    @property
    def wrote(self) -> str:
        """All that it wrote so far."""
        return os.pread(self._output.fileno(), 1_000_000, 0).decode()

    async def serves(self) -> bool:
        """Whether it serves by now; fails when it has ended instead."""
        assert self.process.poll() is None, self.wrote
        async with httpx2.AsyncClient() as http:
            try:
                return (await http.get(f"{self.url}/health")).status_code == 200
            except httpx2.TransportError:
                return False


@pytest.fixture
def gateway(database_url: str, temporal_server: TemporalServer, tmp_path: Path) -> Generator[Gateway]:
    """A gateway on a database of its own."""
    settings = {
        "PERDURE_DATABASE_URL": database_url,
        "TEMPORAL_ADDRESS": temporal_server.address,
        "PERDURE_LOG_FORMAT": "json",
        "PERDURE_LOG_LEVEL": "debug",
        "PERDURE_CALLBACK_BYTES": "2000",
    }
    with (tmp_path / "output").open("w+") as output:
        gateway = Gateway(output, process.free_port(), settings)
        yield gateway
        if gateway.process.poll() is None:
            gateway.process.kill()
        gateway.process.wait()


def failed(*arguments: str, **settings: str) -> str:
    """What a gateway says that cannot start."""
    done = subprocess.run(
        [sys.executable, "-m", "perdure", "gateway", *arguments],
        env=environment(**settings),
        capture_output=True,
        text=True,
    )
    assert done.returncode == 2, done.stderr
    assert done.stderr.count("\n") == 1
    assert done.stdout == ""
    return done.stderr


async def test_it_serves_until_sigterm(gateway: Gateway, database_url: str, temporal: Client) -> None:
    """A callback reaches Temporal, the limit of the settings holds, and SIGTERM ends it with 0. Logs hold no token."""
    await eventually(gateway.serves, timeout=60)
    async with await PostgresStore.connect(database_url) as store, httpx2.AsyncClient() as http:
        waiting = await WaitingThread.stored(store, f"t-{uuid.uuid4()}")
        (call_id,) = waiting.calls
        token = callback_token(await store.get_key(CALLBACK_KEY), waiting.thread_id, call_id)
        url = callback_url(gateway.url, waiting.thread_id, call_id, token)
        body = {"type": "tool_result", "group_id": waiting.thread_id, "id": call_id, "text": "x" * 3000}
        assert (await http.post(url, json=body)).status_code == 413
        assert (await http.post(url, json=body | {"text": "the-words"})).status_code == 200
        assert (await http.post(url + "x", json=body)).status_code == 403
    description = await temporal.get_workflow_handle(f"thread:{waiting.thread_id}").describe()
    assert description.task_queue == "perdure"
    gateway.process.send_signal(signal.SIGTERM)
    assert gateway.process.wait(30) == 0
    records = [json.loads(line) for line in gateway.wrote.splitlines()]
    told = [record["event"] for record in records]
    assert "gateway started" in told
    assert told[-1] == "gateway stopped"
    assert told.count("callback refused") == 2
    assert token not in gateway.wrote
    assert "the-words" not in gateway.wrote


async def test_ctrl_c_ends_it_in_order(gateway: Gateway) -> None:
    """SIGINT means the same as SIGTERM."""
    await eventually(gateway.serves, timeout=60)
    gateway.process.send_signal(signal.SIGINT)
    assert gateway.process.wait(30) == 0


def test_without_a_database_it_says_what_to_set(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """One line that names the variable, and code 2."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PYTHONPATH", str(Path(__file__).parents[2]))
    assert "set PERDURE_DATABASE_URL" in failed()


def test_a_taken_port_is_named() -> None:
    """One line that names the port and the options, and code 2."""
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        said = failed("--port", str(port), PERDURE_DATABASE_URL=NOWHERE)
    assert said == (
        f"perdure: The gateway cannot listen on port {port} of 127.0.0.1 (Address already in use): free it, or choose "
        "others with --port and --host.\n"
    )


def test_a_port_that_cannot_be_is_named() -> None:
    """One line for a number that is no port, and code 2."""
    assert "PERDURE_GATEWAY_PORT" in failed(PERDURE_GATEWAY_PORT="99999", PERDURE_DATABASE_URL=NOWHERE)


def test_a_host_of_another_machine_is_named() -> None:
    """One line for an address that is not this machine's, and code 2."""
    port = str(process.free_port())
    assert "192.0.2.1" in failed("--host", "192.0.2.1", "--port", port, PERDURE_DATABASE_URL=NOWHERE)


async def test_a_temporal_that_is_away_is_named(database_url: str) -> None:
    """One line with the address, and code 2."""
    port = str(process.free_port())
    settings = {"PERDURE_DATABASE_URL": database_url, "TEMPORAL_ADDRESS": "127.0.0.1:1"}
    assert "Temporal is not reachable at 127.0.0.1:1" in failed("--port", port, **settings)


def test_a_database_that_is_away_is_named(temporal_server: TemporalServer) -> None:
    """One line with its place, and code 2."""
    port = str(process.free_port())
    settings = {"PERDURE_DATABASE_URL": NOWHERE, "TEMPORAL_ADDRESS": temporal_server.address}
    assert "127.0.0.1:1" in failed("--port", port, **settings)
