"""Child processes that never outlive their parent, and ports for them.

A child gets its own process group, so that a terminal's Ctrl-C reaches only the parent, which then stops its children
in order. If the parent is killed, Linux kills the child (PR_SET_PDEATHSIG); elsewhere a child of a killed parent stays.
"""

import asyncio
import contextlib
import ctypes
import os
import random
import signal
import socket
import sys
from asyncio.subprocess import Process
from collections.abc import Callable, Mapping, Sequence
from datetime import timedelta
from pathlib import Path
from typing import IO, Final

from perdure.errors import ConfigurationError

_PR_SET_PDEATHSIG: Final = 1
# Loaded before any fork: between fork and exec only async-signal-safe work is allowed, and loading a library is not.
_libc: ctypes.CDLL | None = ctypes.CDLL(None) if sys.platform == "linux" else None

# Below the range from which the kernel takes the source ports of connections: a client that keeps trying to reach a
# stopped server would otherwise now and then connect to itself and hold the port of the server that is to return.
_PORTS: Final = range(20_000, 32_000)


def free_port(ip: str = "127.0.0.1") -> int:
    """A TCP port that nothing listens on now; the caller must be ready for somebody else being quicker."""
    for port in random.sample(_PORTS, 200):
        if port_is_free(port, ip):
            return port
    raise ConfigurationError(f"No free TCP port was found on {ip} among 200 that were tried.")


def port_is_free(port: int, ip: str = "127.0.0.1") -> bool:
    """Whether a server could listen on this port now."""
    with socket.socket() as probe:
        # As servers do: connections of the last server that are still in TIME_WAIT do not count.
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((ip, port))
            probe.listen(1)
        except OSError:
            return False
        return True


async def spawn(
    command: Sequence[str | Path],
    *,
    output: IO[bytes] | None = None,
    env: Mapping[str, str] | None = None,
    cwd: Path | None = None,
) -> Process:
    """Start a child. Its output goes to the open file `output`, or where the parent's goes.

    Call it from a thread that lives as long as the child should: Linux ties the child to the thread that forked it.
    """
    return await asyncio.create_subprocess_exec(
        *map(str, command),
        stdin=asyncio.subprocess.DEVNULL,
        stdout=output,
        stderr=output,
        env=env,
        cwd=cwd,
        start_new_session=True,
        preexec_fn=_die_with(os.getpid()),
    )


async def stop(process: Process, patience: timedelta, signal_number: int = signal.SIGTERM) -> None:
    """Ask the child to end, kill it when it has not after `patience`, and wait until it is gone. Safe to repeat."""
    if process.returncode is None:
        _send(process, signal_number)
        try:
            await asyncio.wait_for(process.wait(), patience.total_seconds())
        except TimeoutError:
            _send(process, signal.SIGKILL)
    await process.wait()


async def kill(process: Process) -> None:
    """Kill the child at once, as `kill -9` would, and wait until it is gone. Safe to repeat."""
    if process.returncode is None:
        _send(process, signal.SIGKILL)
    await process.wait()


def _send(process: Process, signal_number: int) -> None:
    with contextlib.suppress(ProcessLookupError):  # it has ended since we looked
        process.send_signal(signal_number)


def _die_with(parent: int) -> Callable[[], None] | None:
    if _libc is None:
        return None
    prctl = _libc.prctl

    def ask() -> None:
        prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
        # The parent may have died before the line above; nobody would tell us any more.
        if os.getppid() != parent:
            os._exit(1)

    return ask
