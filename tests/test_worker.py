"""The worker's process: why it cannot start, in one line; how it ends."""

import asyncio
import os
import signal
import socket
import subprocess
import sys
import tempfile
import uuid
from collections.abc import AsyncGenerator, Mapping
from pathlib import Path
from typing import IO

import pytest
from temporalio.client import Client

from perdure import policy
from perdure.client import PerdureClient
from perdure.connection import connect_temporal
from perdure.dev.temporal_server import TemporalServer
from perdure.dev.worker_process import WorkerProcess
from stores.postgres import PostgresStore
from tests.databases import in_database
from tests.eventually import eventually

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parent.parent
AGENTS = """
import asyncio
import time
from perdure.agent import Agent
from perdure.testing import Call, Reply, ScriptedModel

demo = Agent("demo", model=ScriptedModel(["hi"]))
unknown_model = Agent("a", model="no-such-provider:best")
no_key = Agent("b", model="openai:gpt-5")
stuck = Agent("c", model=ScriptedModel([Reply(Call("sleep"))]))

@stuck.tool
def sleep() -> str:
    '''Sleep in a thread that cannot be told to stop.'''
    open("stuck", "w").close()
    time.sleep(3600)
    return ""
"""


@pytest.fixture(scope="session")
async def server() -> AsyncGenerator[TemporalServer]:
    """A Temporal server without our search attributes, as one that is not ours would be."""
    async with TemporalServer(search_attributes=()) as server:
        yield server


@pytest.fixture
async def temporal(server: TemporalServer) -> Client:
    """A client of the server."""
    return await connect_temporal({"target_host": server.address})


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A folder with a module of agents."""
    (tmp_path / "my_agents.py").write_text(AGENTS)
    return tmp_path


def environment(**changes: str) -> dict[str, str]:
    """This process's environment without settings, with changes."""
    kept = {
        name: value
        for name, value in os.environ.items()
        if not name.startswith(("PERDURE_", "TEMPORAL_", "OPENAI_", "ANTHROPIC_"))
    }
    return {**kept, **changes}


async def run(*command: str, cwd: Path, **changes: str) -> tuple[int | None, str, str]:
    """Run a command; returns its exit code and what it wrote to stdout and stderr."""
    child = await asyncio.create_subprocess_exec(
        sys.executable, *command, cwd=cwd, env=environment(**changes), stdout=subprocess.PIPE, stderr=subprocess.PIPE
    )
    out, err = await asyncio.wait_for(child.communicate(), 60)
    return child.returncode, out.decode(), err.decode()


async def test_folders_of_the_same_names_do_no_harm(folder: Path) -> None:
    """A user's own `workflows` and `activities` in the current folder are not taken for ours."""
    for name in ("workflows", "activities", "stores"):
        (folder / name).mkdir()
        (folder / name / "__init__.py").write_text("raise ImportError('not this one')")
    _, _, err = await run(*PERDURE, "my_agents:demo", cwd=folder)
    assert err.startswith("perdure: No database is known")


UNREACHABLE = "postgresql://me:secret@127.0.0.1:9/app"


PERDURE = ("-m", "perdure", "worker")
FILE = (str(ROOT / "worker.py"),)


@pytest.mark.parametrize(
    ("command", "target", "said"),
    [
        (PERDURE, "my_agents", "'my_agents' does not name agents: write module:attribute"),
        (PERDURE, "no_such_module:agent", "There is no module 'no_such_module' here"),
        (PERDURE, "my_agents:nobody", "There is no 'nobody' in module 'my_agents'"),
        (PERDURE, "my_agents:unknown_model", "Unknown model 'no-such-provider:best'"),
        (PERDURE, "my_agents:no_key", "Model 'openai:gpt-5' needs a key: set OPENAI_API_KEY"),
        (FILE, "my_agents:nobody", "There is no 'nobody' in module 'my_agents'"),
        ((*PERDURE, "--check"), "my_agents:unknown_model", "Unknown model 'no-such-provider:best'"),
        ((*PERDURE, "--check"), "my_agents:no_key", "Model 'openai:gpt-5' needs a key: set OPENAI_API_KEY"),
    ],
)
async def test_agents_that_cannot_be_served(command: tuple[str, ...], target: str, said: str, folder: Path) -> None:
    """A wrong module, attribute or model and a missing key: one line that says what to do, and exit code 2."""
    code, out, err = await run(*command, target, cwd=folder)
    assert (code, out, err.count("\n")) == (2, "", 1)
    assert err.startswith(f"perdure: {said}")


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({}, "No database is known: set PERDURE_DATABASE_URL, or run `perdure dev`"),
        ({"PERDURE_SANDBOX": "perhaps"}, "Wrong setting: PERDURE_SANDBOX: "),
        (
            {"PERDURE_DATABASE_URL": UNREACHABLE, "TEMPORAL_ADDRESS": "127.0.0.1:9"},
            "Temporal is not reachable at 127.0.0.1:9: start it with `perdure dev`, or set TEMPORAL_ADDRESS.",
        ),
        ({"PERDURE_DATABASE_URL": UNREACHABLE, "TEMPORAL_PROFILE": "none"}, "Temporal's client configuration is wrong"),
    ],
)
async def test_settings_that_lead_nowhere(changes: Mapping[str, str], said: str, folder: Path) -> None:
    """A setting that is missing or wrong, and a Temporal that is not there: one line, and exit code 2."""
    code, out, err = await run(*PERDURE, "my_agents:demo", cwd=folder, **changes)
    assert (code, out, err.count("\n")) == (2, "", 1)
    assert err.startswith(f"perdure: {said}")


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"PERDURE_DATABASE_URL": UNREACHABLE}, "127.0.0.1"),
        ({"PERDURE_DATABASE_URL": "mysql://localhost/app"}, "postgresql://"),
        ({"PERDURE_DATABASE_URL": UNREACHABLE, "TEMPORAL_NAMESPACE": "nowhere"}, "has no namespace 'nowhere'"),
    ],
)
async def test_a_database_or_namespace_that_is_not_there(
    changes: Mapping[str, str], said: str, folder: Path, server: TemporalServer
) -> None:
    """A bad database URL, a database that does not answer, a missing namespace: one line without the password."""
    code, out, err = await run(*PERDURE, "my_agents:demo", cwd=folder, TEMPORAL_ADDRESS=server.address, **changes)
    assert (code, out, err.count("\n")) == (2, "", 1)
    assert err.startswith("perdure: ")
    assert said in err
    assert "secret" not in err


async def test_a_missing_database_is_named(folder: Path, server: TemporalServer, postgres_url: str) -> None:
    """A PostgreSQL without the database of the URL: one line, and exit code 2."""
    code, _, err = await run(
        *PERDURE,
        "my_agents:demo",
        cwd=folder,
        TEMPORAL_ADDRESS=server.address,
        PERDURE_DATABASE_URL=in_database(postgres_url, "no_such_database"),
    )
    assert (code, err.count("\n")) == (2, 1)
    assert "no_such_database" in err


@pytest.mark.parametrize("option", ["--port", "--ui-port"])
async def test_a_taken_port(option: str, folder: Path, postgres_url: str) -> None:
    """`perdure dev` with a port that is taken: one line, exit code 2, and nothing is left running."""
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = str(taken.getsockname()[1])
        code, _, err = await run("-m", "perdure", "dev", option, port, cwd=folder, PERDURE_DATABASE_URL=postgres_url)
    assert (code, err.count("\n")) == (2, 1)
    assert err.startswith(f"perdure: Port {port} for Temporal")
    assert not (folder / ".perdure" / "dev.json").exists()


async def test_migrate_prepares_both_servers(postgres_url: str, server: TemporalServer, tmp_path: Path) -> None:
    """`perdure migrate` may be repeated, and the second time finds all in place."""
    changes = {"TEMPORAL_ADDRESS": server.address, "PERDURE_DATABASE_URL": postgres_url}
    first = await run("-m", "perdure", "migrate", cwd=tmp_path, **changes)
    again = await run("-m", "perdure", "migrate", cwd=tmp_path, **changes)
    assert (first[0], again[0]) == (0, 0)
    assert "Database: up to date." in first[1]
    assert "Temporal: all search attributes are registered." in again[1]


class Served:
    """A worker process for one test, a client for it, and what it wrote."""

    def __init__(self, worker: WorkerProcess, client: PerdureClient, output: IO[bytes]) -> None:
        self.worker = worker
        self.client = client
        self._output = output

    @property
    def said(self) -> str:
        """All that it wrote."""
        return os.pread(self._output.fileno(), 1_000_000, 0).decode()

    def signal(self, number: signal.Signals) -> None:
        """Send it a signal."""
        os.kill(self.worker.pid, number)


@pytest.fixture
async def served(
    temporal: Client, server: TemporalServer, database_url: str, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> AsyncGenerator[Served]:
    """A worker process that serves the agent whose tool gets stuck."""
    monkeypatch.chdir(folder)
    task_queue = f"worker-{uuid.uuid4()}"
    with tempfile.TemporaryFile() as output:
        worker = WorkerProcess(
            "my_agents:stuck",
            database_url=database_url,
            temporal_address=server.address,
            task_queue=task_queue,
            output=output,
        )
        await worker.start()
        await worker.ready(temporal)
        async with await PostgresStore.connect(database_url) as store:
            yield Served(worker, PerdureClient(temporal, store, task_queue=task_queue), output)
        await worker.kill()


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
async def test_a_signal_ends_a_worker_in_order(served: Served, number: signal.Signals) -> None:
    """SIGTERM and SIGINT drain the worker, which ends with code 0 and no traceback."""
    served.signal(number)
    assert await asyncio.wait_for(served.worker.wait(), 10) == 0
    assert "worker stopped" in served.said
    assert "Traceback" not in served.said


async def test_a_stuck_tool_does_not_keep_a_worker(served: Served, folder: Path) -> None:
    """A synchronous tool that never returns delays the end of a draining worker by no more than the time to drain."""
    await served.client.post(str(uuid.uuid4()), "go")
    await eventually(lambda: (folder / "stuck").exists())
    served.signal(signal.SIGTERM)
    assert await asyncio.wait_for(served.worker.wait(), policy.GRACEFUL_SHUTDOWN.total_seconds() + 3) == 0


async def test_a_second_signal_ends_a_draining_worker_at_once(served: Served, folder: Path) -> None:
    """Who does not want to wait for the drain signals again, and the process is gone."""
    await served.client.post(str(uuid.uuid4()), "go")
    await eventually(lambda: (folder / "stuck").exists())
    served.signal(signal.SIGTERM)
    await eventually(lambda: "worker draining" in served.said)
    served.signal(signal.SIGTERM)
    assert await asyncio.wait_for(served.worker.wait(), 2) == 128 + signal.SIGTERM
