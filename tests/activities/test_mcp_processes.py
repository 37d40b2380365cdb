"""The processes of MCP servers: none outlives the worker, however that ends."""

import asyncio
import json
import sys
from pathlib import Path

import psutil
import pytest

from tests.activities.mcp_calls import calling, stdio_toolset
from tests.eventually import eventually
from tests.fakes.mcp_tools import tool

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


async def test_a_server_may_tidy_up(tmp_path: Path) -> None:
    """`close` gives a server the time to end by itself when its stdin has ended."""
    done = tmp_path / "done"
    async with calling(stdio_toolset("mcp_server.py", "tidy", str(done))) as caller:
        await caller.stats()
    assert done.exists()


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


@pytest.mark.parametrize("flag", ["shut", "deaf"])
async def test_a_server_that_takes_nothing_any_more_is_started_again(tmp_path: Path, flag: str) -> None:
    """A server lives and has closed its stdin, before or after it took the call.

    Either way the call ends soon with an error, and the next connection is one to a new process.
    """
    page = tmp_path / "page.json"
    page.write_text(json.dumps([tool("echo")]), encoding="utf-8")
    async with calling(stdio_toolset("mcp_server.py", "page", str(page), flag)) as caller:
        cut = await caller.call("echo", {"text": "a"}, timeout_s=20)
        assert "its outcome is unknown" in cut.content
        again = await caller.call("echo", {"text": "b"}, timeout_s=20)
        assert again.outcome == "ok" if flag == "shut" else "its outcome is unknown" in again.content


async def test_a_line_above_the_limit_ends_the_connection(monkeypatch: pytest.MonkeyPatch) -> None:
    """An answer that is longer than what is read: the call does not wait for its timeout, and the next one works."""
    monkeypatch.setattr("activities.mcp_process.LINE_BYTES", 1_000_000)
    async with calling(stdio_toolset("mcp_server.py")) as caller:
        assert "its outcome is unknown" in (await caller.call("huge", timeout_s=20)).content
        assert (await caller.call("echo", {"text": "b"})).outcome == "ok"
