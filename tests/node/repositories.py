"""The published message repository, driven in Node by `repository.mjs`."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.node.process import NodeProcess
from tests.perdure.tree_operations import Operation, Shown, wire


@dataclass
class Answer:
    """What became of an operation. `unselected` and `leftovers` are what `repository.mjs` had to put right."""

    refused: bool
    shown: Shown
    unselected: bool = False
    leftovers: bool = False


class Repositories(NodeProcess):
    """One process that runs operations, each list of them on a repository of its own."""

    def __init__(self, module: Path) -> None:
        super().__init__("repository.mjs", module)

    def run(self, operations: Sequence[Operation | Mapping[str, Any]]) -> list[Answer]:
        """The operations on a new repository, one answer each."""
        encoded = [operation if isinstance(operation, Mapping) else wire(operation) for operation in operations]
        return [_answer(**answer) for answer in self.ask(json.dumps(encoded))]


def _answer(*, shown: dict[str, Any], **rest: bool) -> Answer:
    shown["messages"] = [tuple(message) for message in shown["messages"]]
    return Answer(shown=Shown(**shown), **rest)
