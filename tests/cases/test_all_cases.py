"""None of the 84 cases is forgotten."""

import re
from pathlib import Path

ROOT = Path(__file__).parents[2]
CASES = frozenset(range(1, 85))
_test = re.compile(r"def test_case_((?:\d+_)+)")
_row = re.compile(r"^\| ([\d, ]+) \|", re.MULTILINE)


def named() -> frozenset[int]:
    """The cases that tests are named after."""
    names = (name for path in (ROOT / "tests").rglob("test_*.py") for name in _test.findall(path.read_text()))
    return frozenset(int(number) for name in names for number in name.strip("_").split("_"))


def left_out() -> frozenset[int]:
    """Those that the page says cannot exist: its first table."""
    page = (ROOT / "docs" / "reference" / "cases.md").read_text()
    table = page[: page.index("Some have a meaning of their own")]
    return frozenset(int(number) for row in _row.findall(table) for number in row.split(","))


def test_every_case_is_a_test_or_left_out_for_a_reason() -> None:
    """And none is both."""
    assert named() | left_out() == CASES
    assert not named() & left_out()
