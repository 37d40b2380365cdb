"""Programs and commands of the README and the documentation."""

import re
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest
from typer import Context
from typer.main import get_group
from typer.testing import CliRunner

from perdure.agent import Agent
from perdure.cli.main import app
from perdure.dev.temporal_server import TemporalServer
from tests.workflows.conftest import StackFactory

ROOT = Path(__file__).parents[2]
PAGES = sorted([*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")])
_BLOCK = re.compile(r"^```(\w+)\n(.*?)^```$", re.MULTILINE | re.DOTALL)


def blocks(page: Path, language: str) -> list[str]:
    """The code blocks of a page in one language."""
    return [code for found, code in _BLOCK.findall(page.read_text(encoding="utf-8")) if found == language]


def with_programs() -> list[Path]:
    """The pages that hold Python programs."""
    return [page for page in PAGES if blocks(page, "python")]


def commands() -> list[tuple[str, str]]:
    """Every command line of every page, with the page's name."""
    return [
        (str(page.relative_to(ROOT)), line.strip())
        for page in PAGES
        for code in blocks(page, "bash")
        for line in code.splitlines()
        if line.strip() and not line.lstrip().startswith("#")
    ]


@pytest.mark.parametrize("page", with_programs(), ids=lambda page: page.name)
async def test_the_programs_of_a_page_run(
    page: Path,
    start_stack: StackFactory,
    temporal_server: TemporalServer,
    database_url: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The blocks of a page run one after the other; an `agent` gets a worker, and a `main` is awaited."""
    names: dict[str, Any] = {"__name__": "page"}
    for code in blocks(page, "python"):
        exec(compile(code, str(page), "exec"), names)  # the program under test
        main: Callable[[], Awaitable[None]] | None = names.pop("main", None)
        if main is not None:
            agent = names["agent"]
            assert isinstance(agent, Agent)
            stack = await start_stack(agent)
            monkeypatch.setenv("TEMPORAL_ADDRESS", temporal_server.address)
            monkeypatch.setenv("PERDURE_DATABASE_URL", database_url)
            monkeypatch.setenv("PERDURE_TASK_QUEUE", stack.settings.task_queue)
            await main()


@pytest.mark.parametrize(("page", "line"), commands())
def test_a_documented_command_exists(page: str, line: str) -> None:
    """`make` targets are in the Makefile, `perdure` commands have a help page, scripts are files."""
    words = line.split()
    match words[0]:
        case "make":
            targets = re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(encoding="utf-8"), re.MULTILINE)
            assert words[1] in targets, f"{page}: {line}"
        case "perdure":
            group = get_group(app)
            assert words[1] in group.list_commands(Context(group)), f"{page}: {line}"
            assert CliRunner().invoke(app, [words[1], "--help"]).exit_code == 0, f"{page}: {line}"
        case "python" | ".venv/bin/python":
            script = next(word for word in words[1:] if not word.startswith("-"))
            assert (ROOT / script).exists() or "-m" in words, f"{page}: {line}"
        case _:
            assert words[0] in ("temporal", "git", "cd", "export", "pip", "curl", ".venv/bin/pytest"), f"{page}: {line}"
