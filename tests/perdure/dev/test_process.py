"""Children: they end with their parent, are asked before they are killed, and get ports nobody has."""

import asyncio
import os
import signal
import socket
import sys
import tempfile
from datetime import timedelta
from pathlib import Path

import pytest

from perdure.dev import process
from tests.eventually import eventually

PATIENT = timedelta(seconds=10)
PARENT = """
import asyncio, sys
from perdure.dev import process

async def main():
    child = await process.spawn([sys.executable, "-c", "import time; time.sleep(600)"])
    print(child.pid, flush=True)
    await asyncio.sleep(600)

asyncio.run(main())
"""


def is_alive(pid: int) -> bool:
    """Whether a process runs; a zombie does not."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux ends children with their parent")
async def test_a_child_ends_with_its_killed_parent() -> None:
    """When the parent is killed with SIGKILL the child is gone too."""
    parent = await asyncio.create_subprocess_exec(sys.executable, "-c", PARENT, stdout=asyncio.subprocess.PIPE)
    try:
        assert parent.stdout is not None
        child = int(await parent.stdout.readline())
        assert is_alive(child)
    finally:
        parent.kill()
        await parent.wait()
    await eventually(lambda: not is_alive(child), timeout=10)


async def test_a_terminals_ctrl_c_does_not_reach_a_child() -> None:
    """A child is in a process group of its own, so that only the parent gets the terminal's signals."""
    child = await process.spawn([sys.executable, "-c", "import time; time.sleep(600)"])
    try:
        assert os.getpgid(child.pid) == child.pid
    finally:
        await process.kill(child)


async def test_a_child_is_asked_to_end() -> None:
    """`stop` lets a child clean up after itself."""
    with tempfile.TemporaryFile() as output:
        child = await process.spawn(
            ["sh", "-c", "trap 'echo bye; exit 3' TERM; echo up; sleep 600 & wait"], output=output
        )
        await eventually(lambda: _content(output.fileno()) == b"up\n", timeout=10)
        await process.stop(child, PATIENT)
        assert child.returncode == 3
        assert _content(output.fileno()) == b"up\nbye\n"


async def test_a_deaf_child_is_killed() -> None:
    """`stop` kills a child that does not end in time."""
    with tempfile.TemporaryFile() as output:
        child = await process.spawn(["sh", "-c", "trap '' TERM; echo up; while :; do sleep 1; done"], output=output)
        await eventually(lambda: _content(output.fileno()) == b"up\n", timeout=10)
        await process.stop(child, timedelta(seconds=0.05))
        assert child.returncode == -signal.SIGKILL


async def test_ending_a_child_may_be_repeated() -> None:
    """A child that is gone can be stopped and killed again, and keeps the exit code that it had."""
    child = await process.spawn([sys.executable, "-c", ""])
    await child.wait()
    for _ in range(2):
        await process.stop(child, PATIENT)
        await process.kill(child)
    assert child.returncode == 0


def test_a_port_in_use_is_not_free() -> None:
    """A port is free until somebody listens on it, and free again afterwards."""
    port = process.free_port()
    assert process.port_is_free(port)
    with socket.create_server(("127.0.0.1", port)):
        assert not process.port_is_free(port)
    assert process.port_is_free(port)


@pytest.mark.skipif(sys.platform != "linux", reason="reads the kernel's setting from /proc")
def test_free_ports_are_no_source_ports() -> None:
    """A port for a server is never one that the kernel may give to a connection that tries to reach it."""
    first, last = map(int, Path("/proc/sys/net/ipv4/ip_local_port_range").read_text().split())
    assert all(not first <= process.free_port() <= last for _ in range(100))


def _content(descriptor: int) -> bytes:
    return os.pread(descriptor, 1_000, 0)
