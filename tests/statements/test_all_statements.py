"""None of the 52 statements is forgotten."""

import re
from pathlib import Path

ROOT = Path(__file__).parents[2]
STATEMENTS = frozenset(range(1, 53))
_test = re.compile(r"def test_s(\d\d)_")
_row = re.compile(r"^\| (\d+) \| .+? \| (.+) \|$", re.MULTILINE)


def named(path: Path) -> frozenset[int]:
    """The statements that the tests in a file or a folder are named after."""
    files = path.rglob("test_*.py") if path.is_dir() else [path]
    return frozenset(int(number) for file in files for number in _test.findall(file.read_text(encoding="utf-8")))


def listed() -> dict[int, str]:
    """Each statement of the page, with the place where its test is said to be."""
    page = (ROOT / "docs" / "reference" / "context-statements.md").read_text(encoding="utf-8")
    return {int(number): place for number, place in _row.findall(page)}


def test_every_statement_is_on_the_page_once() -> None:
    """In order."""
    assert list(listed()) == sorted(STATEMENTS)


def test_every_statement_is_tested_where_the_page_says() -> None:
    """By a test that carries its number."""
    missing: dict[int, str] = {}
    for number, place in listed().items():
        first = place.split("`")[1]
        path = ROOT / first if first.startswith("tests/") else ROOT / "tests" / "statements" / first
        if number not in named(path):
            missing[number] = place
    assert missing == {}
