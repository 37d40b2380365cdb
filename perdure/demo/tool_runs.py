"""What the demo's tools did in the world, one line each, whichever process ran them.

A tool that is killed cannot report, so a run is written down twice: when it begins to have an effect and when it
returns. Lines are appended in a single write with O_APPEND, which the kernel keeps whole between processes.
"""

import os
import uuid
from collections.abc import Generator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, Self

from perdure.codec import Wire, dumps, loads


class _Line(Wire):
    run: str
    event: Literal["began", "returned"]
    pid: int
    tool: str
    arguments: dict[str, Any]


@dataclass(frozen=True)
class ToolRun:
    """One run of a tool in the process `pid`; `returned` is False if it still runs or was killed."""

    tool: str
    arguments: dict[str, Any]
    pid: int
    returned: bool


class ToolRuns:
    """The record, in a file that processes share, or in memory."""

    def __init__(self, path: Path | None = None) -> None:
        self._path = path
        self._lines: list[_Line] = []

    @classmethod
    def at(cls, path: str | None) -> Self:
        """The record in the file of this name; without one it is this process's own."""
        return cls(Path(path) if path else None)

    @contextmanager
    def record(self, tool: str, **arguments: Any) -> Generator[None]:
        """Write down that a run begins, and that it has returned unless it raises."""
        line = _Line(run=uuid.uuid4().hex, event="began", pid=os.getpid(), tool=tool, arguments=arguments)
        self._append(line)
        yield
        self._append(line.with_(event="returned"))

    def read(self) -> list[ToolRun]:
        """All runs, in the order in which they began."""
        lines = self._read_lines()
        returned = {line.run for line in lines if line.event == "returned"}
        return [
            ToolRun(line.tool, line.arguments, line.pid, line.run in returned)
            for line in lines
            if line.event == "began"
        ]

    def _append(self, line: _Line) -> None:
        if self._path is None:
            self._lines.append(line)
            return
        descriptor = os.open(self._path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
        try:
            os.write(descriptor, dumps(line).encode() + b"\n")
        finally:
            os.close(descriptor)

    def _read_lines(self) -> list[_Line]:
        if self._path is None:
            return self._lines
        if not self._path.exists():
            return []
        return [_Line.model_validate(loads(line)) for line in self._path.read_bytes().splitlines()]
