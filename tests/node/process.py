"""A Node process that runs a script of this folder: one line of JSON in, one line of JSON out."""

import json
import subprocess
from pathlib import Path
from typing import Any, Self

from tests.node.published import NODE


class NodeProcess:
    """A context; `module` is the script's argument, the module of the published package that it drives."""

    def __init__(self, script: str, module: Path) -> None:
        self._node = subprocess.Popen(
            [str(NODE), str(Path(__file__).with_name(script)), str(module)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            encoding="utf-8",
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._node.communicate(timeout=10)

    def ask(self, question: str) -> Any:
        """The script's answer to a line. Raises RuntimeError with what it has written to stderr if it has ended."""
        assert self._node.stdin is not None
        assert self._node.stdout is not None
        self._node.stdin.write(question + "\n")
        self._node.stdin.flush()
        line = self._node.stdout.readline()
        if not line:
            raise RuntimeError(f"Node has ended: {self._node.communicate(timeout=10)[1]}")
        return json.loads(line)
