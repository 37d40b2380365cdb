"""Names of models as they are typed."""

import subprocess
import sys

import pytest

from perdure.cli.ending import exit_code
from perdure.cli.main import app
from perdure.cli.model_names import model_typed
from perdure.errors import UsageError
from tests.perdure.cli.desk import Desk

HOW = "name it provider:model, for instance openai:gpt-5"


@pytest.fixture(autouse=True)
def _nowhere(monkeypatch: pytest.MonkeyPatch) -> None:
    """No server is there to ask: whoever asks one fails with other words."""
    monkeypatch.setenv("PERDURE_DATABASE_URL", "postgresql://nobody@127.0.0.1:1/none")


def ended(command: list[str]) -> int:
    """The exit code of a command."""
    return exit_code(lambda: app(command))


@pytest.mark.parametrize(
    "command",
    [("model", "t"), ("start", "t", "--model"), ("send", "t", "hi", "--model"), ("chat", "t", "--model")],
    ids=lambda command: command[0],
)
def test_a_name_that_is_none_is_refused_before_anything_is_reached(
    command: tuple[str, ...], capsys: pytest.CaptureFixture[str]
) -> None:
    """By every command that takes one, with code 2 and one line that says what to do; a good one is the control."""
    for name, said in (
        ("nonsense:model", f"Unknown model 'nonsense:model': {HOW} (--unchecked takes"),
        ("openia:gpt-5", "Unknown model 'openia:gpt-5': did you mean openai:gpt-5? (--unchecked takes"),
        ("gpt-5", f"Unknown model 'gpt-5': {HOW} (--unchecked takes"),
        (" ", f"The model's name is empty: {HOW}."),
    ):
        assert ended([*command, name]) == 2
        output, errors = capsys.readouterr()
        assert output == ""
        assert errors.startswith(f"perdure: {said}")
        assert len(errors.splitlines()) == 1
    for good in (["openai:gpt-5"], ["llama3:8b", "--unchecked"]):
        assert ended([*command, *good]) == 2
        assert "database" in capsys.readouterr().err


def test_a_long_name_is_clipped() -> None:
    """What was pasted by mistake does not fill the terminal."""
    with pytest.raises(UsageError) as caught:
        model_typed("x" * 5_000)
    assert len(str(caught.value)) < 250


def test_no_name_needs_no_model_library() -> None:
    """A command that names no model does not wait for the import of one; one that names one is the control."""
    code = (
        "import sys\nfrom perdure.cli.model_names import model_typed\n"
        "for name in (None, 'openai:gpt-5'):\n    model_typed(name)\n    print('pydantic_ai' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["False", "True"]


@pytest.mark.slow
async def test_a_thread_keeps_its_model_when_another_is_refused(desk: Desk) -> None:
    """Nothing is begun, said or changed; `--unchecked` takes a name that only the agent's own server knows."""
    assert "Unknown model" in await desk.fails("start", "--model", "nonsense:model")
    assert "There is no thread" in await desk.fails("history")
    assert await desk.does("start", "--model", "openai:gpt-5") == f"{desk.thread}\n"
    assert "Unknown model" in await desk.fails("model", "nonsense:model")
    assert "Unknown model" in await desk.fails("send", "hi", "--model", "nonsense:model")
    assert await desk.does("model") == "openai:gpt-5\n"
    assert await desk.does("history") == "Nothing was said yet.\n"
    assert await desk.does("model", "llama3:8b", "--unchecked") == "llama3:8b\n"
