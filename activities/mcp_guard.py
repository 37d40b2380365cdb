"""Runs an MCP server and ends with the worker that started it; a program of its own, `mcp_guard.py COMMAND ARGS...`.

A worker that is killed closes the server's stdin, which well-behaved servers take as their end. Others would stay for
ever, and with them what they have started (`npx` and `uvx` run the server proper as a child). So the guard stands
between the two: it leads the process group that the worker made for the server, looks once a second whether the worker
still lives, and leaves nobody of the group behind. Works alike on Linux and macOS, and is not used on Windows.
"""

import os
import signal
import subprocess
import sys
import time
from types import FrameType
from typing import Final

_LOOK_S: Final = 1.0
_GRACE_S: Final = 1.5
"""Less than what the worker waits between asking the guard to end and killing it."""


class _Ended(Exception):
    """The server has ended, or is to end."""


def main(command: list[str]) -> int:
    """Run the server until it ends, or is told to, or the worker is gone; the server's exit code."""
    worker = os.getppid()
    try:
        server = subprocess.Popen(command)
    except OSError as error:
        print(f"The MCP server cannot be started: {error}", file=sys.stderr)
        return 127
    # Only the server is to hold the pipes, so that each side sees when the other closes them.
    null = os.open(os.devnull, os.O_RDWR)
    os.dup2(null, 0)
    os.dup2(null, 1)
    try:
        signal.signal(signal.SIGTERM, _raise)
        signal.signal(signal.SIGCHLD, _raise)
        while server.poll() is None and os.getppid() == worker:
            time.sleep(_LOOK_S)
    except _Ended:
        pass
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    if server.poll() is None:
        os.killpg(0, signal.SIGTERM)
        deadline = time.monotonic() + _GRACE_S
        while server.poll() is None and time.monotonic() < deadline:
            time.sleep(0.01)
    # What the server has left running, and the guard itself.
    os.killpg(0, signal.SIGKILL)
    return 0


def _raise(_signal: int, _frame: FrameType | None) -> None:
    raise _Ended


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
