"""What the pages say of commands is what the commands have."""

import re
from functools import cache
from pathlib import Path
from typing import Any, cast

import pytest
import typer

from perdure.cli.main import COMMANDS, app

ROOT = Path(__file__).parents[3]
PAGES = sorted([ROOT / "README.md", *(ROOT / "docs").rglob("*.md")])
_SPAN = re.compile(r"`(perdure [^`]+)`")
_ROW = re.compile(r"^\| `perdure ([a-z]+)")
_OPTION = re.compile(r"(?<![\w-])--[a-z][a-z-]*")


@cache
def parameters(command: str) -> tuple[Any, ...]:
    """The arguments and options of a command. Typer brings a click of its own, which has no types."""
    return tuple(cast("Any", typer.main.get_command(app)).get_command(None, command).params)


def options(command: str) -> set[str]:
    """The options of a command, by all their names."""
    return {name for parameter in parameters(command) for name in parameter.opts} | {"--help"}


def mentions(text: str) -> list[tuple[str, str]]:
    """Each command that a page names, with the words in which it does: spans, lines of blocks, rows of a table."""
    lines = text.splitlines()
    rows = [(row.group(1), line) for line in lines if (row := _ROW.match(line))]
    said = [*_SPAN.findall(text), *(line.partition("#")[0] for line in lines if line.startswith("perdure "))]
    return rows + [(words.split()[1], words) for words in said]


def unknown(text: str) -> list[str]:
    """What a page says of commands that is not so."""
    wrong: list[str] = []
    for command, words in mentions(text):
        if command in COMMANDS:
            wrong += [f"{command} {name}" for name in _OPTION.findall(words) if name not in options(command)]
        elif command.isalpha() and command.islower():
            wrong.append(command)
    return wrong


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_a_page_names_commands_and_options_that_exist(page: Path) -> None:
    """In its sentences, its tables and its blocks."""
    assert unknown(page.read_text(encoding="utf-8")) == []


def test_what_does_not_exist_is_found() -> None:
    """The control: a command and an option that there never were, in each of the three places."""
    page = "Say `perdure frobnicate`.\n\n| `perdure send T` | `--id`; `--loud` |\n\nperdure stop t --hard  # now\n"
    assert sorted(unknown(page)) == ["frobnicate", "send --loud", "stop --hard"]


def test_the_readme_has_a_row_for_each_command() -> None:
    """Nobody has to find a command by chance."""
    rows = {command for command, _ in mentions((ROOT / "README.md").read_text(encoding="utf-8"))}
    assert set(COMMANDS) <= rows


@pytest.mark.parametrize("command", COMMANDS)
def test_each_argument_and_option_says_what_it_is_for(command: str) -> None:
    """In a sentence, of which `--help` makes a table."""
    helps = {parameter.name: parameter.help for parameter in parameters(command)}
    assert {name: said for name, said in helps.items() if not (said or "").endswith((".", "`"))} == {}
