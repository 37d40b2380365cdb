"""The processes of MCP servers: none outlives the worker, however that ends."""

import asyncio
import sys
from pathlib import Path

import psutil
import pytest

from tests.activities.mcp_calls import calling, stdio_toolset
from tests.eventually import eventually

ROOT = Path(__file__).parents[2]

WORKER = """
import asyncio, sys
from tests.activities.mcp_calls import calling, stdio_toolset

async def main():
    async with calling(stdio_toolset("mcp_server.py", *sys.argv[1:])) as caller:
        print((await caller.stats())["pid"], flush=True)
        await asyncio.sleep(600)

asyncio.run(main())
"""


def is_running(pid: int) -> bool:
    """Whether a process exists and is no zombie."""
    try:
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


@pytest.mark.slow
@pytest.mark.parametrize("is_stubborn", [False, True])
async def test_a_killed_worker_leaves_no_server(tmp_path: Path, is_stubborn: bool) -> None:
    """After kill -9 of the worker its server ends, also one that ignores the end of its stdin, and with its child."""
    note = tmp_path / "child"
    flags = ["stubborn", str(note)] if is_stubborn else []
    worker = await asyncio.create_subprocess_exec(
        sys.executable, "-c", WORKER, *flags, cwd=ROOT, stdout=asyncio.subprocess.PIPE
    )
    assert worker.stdout is not None
    pids = [int(await worker.stdout.readline())]
    if is_stubborn:
        pids.append(int(note.read_text(encoding="utf-8")))
    pids.append(psutil.Process(pids[0]).ppid())
    assert all(is_running(pid) for pid in pids)
    worker.kill()
    await worker.wait()
    await eventually(lambda: not any(is_running(pid) for pid in pids))


@pytest.mark.slow
async def test_close_ends_a_stubborn_server(tmp_path: Path) -> None:
    """`close` ends a server that ignores the end of its stdin and SIGTERM, and the child that it started."""
    note = tmp_path / "child"
    async with calling(stdio_toolset("mcp_server.py", "stubborn", str(note))) as caller:
        pids = [(await caller.stats())["pid"], int(note.read_text(encoding="utf-8"))]
        assert all(is_running(pid) for pid in pids)
    await eventually(lambda: not any(is_running(pid) for pid in pids))


async def test_what_a_server_leaves_running_ends_with_it(tmp_path: Path) -> None:
    """A server that ends by itself, here by dying, takes along the child that it started."""
    note = tmp_path / "child"
    async with calling(stdio_toolset("mcp_server.py", "stubborn", str(note))) as caller:
        child = int(note.read_text(encoding="utf-8"))
        assert is_running(child)
        await caller.call("die")
        await eventually(lambda: not is_running(child))


async def test_only_some_variables_reach_the_server(monkeypatch: pytest.MonkeyPatch) -> None:
    """A server gets the variables that it is given and the likes of PATH, not the worker's keys."""
    monkeypatch.setenv("WORKERS_KEY", "secret")
    async with calling(stdio_toolset("mcp_server.py")) as caller:
        server = psutil.Process((await caller.stats())["pid"])
        variables = await asyncio.to_thread(server.environ)
    assert "WORKERS_KEY" not in variables
    assert "PATH" in variables
