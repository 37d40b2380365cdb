"""How a run of the tests begins: long files first where several processes take them, and little for the collector."""

import gc
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import cast

import pytest

from conftest import pytest_collection_modifyitems


@dataclass(frozen=True)
class Process:
    """The configuration of a process that xdist started."""

    workerinput: dict[str, str] = field(default_factory=dict[str, str])


@dataclass(frozen=True)
class Alone:
    """The configuration of the only process of a run."""


@dataclass(frozen=True)
class Item:
    """A test of a file."""

    path: Path
    name: str
    slow: bool = False

    def get_closest_marker(self, name: str) -> object:
        """Whether it is slow."""
        return self if self.slow and name == "slow" else None


COLLECTED = (
    Item(Path("a"), "a1"),
    Item(Path("a"), "a2"),
    Item(Path("b"), "b1"),
    Item(Path("b"), "b2", slow=True),
    Item(Path("c"), "c1", slow=True),
    Item(Path("c"), "c2", slow=True),
    Item(Path("d"), "d1"),
)


def ordered(config: object, items: Sequence[Item]) -> list[str]:
    """The names in the order in which they run."""
    changed = list(items)
    pytest_collection_modifyitems(cast(pytest.Config, config), cast(list[pytest.Item], changed))
    return [item.name for item in changed]


def test_files_with_the_most_slow_tests_come_first() -> None:
    """Whole files, each with its tests in their order, and files without a slow test in theirs."""
    assert ordered(Process(), COLLECTED) == ["c1", "c2", "b1", "b2", "a1", "a2", "d1"]


def test_one_process_keeps_the_order_of_the_files() -> None:
    """Whoever runs some tests sees them in the order in which they are named."""
    assert ordered(Alone(), COLLECTED) == [item.name for item in COLLECTED]


def test_the_collector_leaves_out_what_stays() -> None:
    """The pytest that runs this, its own test among it, is not walked through again; what a test makes is."""
    made = [object()]
    tracked = {id(each) for each in gc.get_objects()}
    assert id(test_the_collector_leaves_out_what_stays) not in tracked
    assert id(made) in tracked
