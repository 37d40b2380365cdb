"""The command line: every command explains itself, starts quickly, and fails in one line."""

import subprocess
import sys
from importlib import metadata
from pathlib import Path
from typing import NoReturn

import pytest
from typer.testing import CliRunner

from perdure.cli.ending import exit_code
from perdure.cli.main import COMMANDS, app
from perdure.errors import NotTaken, PerdureError, TurnFailed, UsageError
from perdure.messages import Status


def help_of(*command: str) -> str:
    """What `--help` shows on a wide terminal."""
    result = CliRunner().invoke(app, [*command, "--help"], env={"COLUMNS": "200", "TERM": "dumb"})
    assert result.exit_code == 0
    return result.output


def test_help_lists_every_command() -> None:
    """`perdure --help` has a line for each command, which says what it does."""
    lines = [line.strip("│ ").split(maxsplit=1) for line in help_of().splitlines()]
    explained = {line[0] for line in lines if len(line) == 2 and line[1].endswith(".")}
    assert set(COMMANDS) <= explained


@pytest.mark.parametrize("command", COMMANDS)
def test_every_command_explains_itself(command: str) -> None:
    """Each command has help of its own, and help for each of its options and arguments."""
    shown = help_of(command)
    assert f"perdure {command}" in shown or f"root {command}" in shown
    rows = [line.strip("│ ") for line in shown.splitlines() if line.startswith("│")]
    bare = [row for row in rows if row.startswith(("--", "*")) and len(row.split()) < 3]
    assert not bare


def test_an_unknown_command_is_refused() -> None:
    """A command that does not exist ends with exit code 2 and is named."""
    done = CliRunner().invoke(app, ["nonsense"])
    assert done.exit_code == 2
    assert "nonsense" in done.output


def test_a_command_is_imported_only_when_it_is_asked_for() -> None:
    """Finding out that a command does not exist imports neither Temporal nor a model library."""
    code = (
        "import sys\nfrom perdure.cli.ending import exit_code\nfrom perdure.cli.main import app\n"
        "print(exit_code(lambda: app(['nonsense'])), *{'temporalio', 'pydantic_ai'} & sys.modules.keys())"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "2\n"


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("gateway", "--port", "x"), "'x' is no port: give a number from 1 to 65535."),
        (("gateway", "--port", "99999"), "'99999' is no port: give a number from 1 to 65535."),
        (("dev", "--ui-port", "0"), "'0' is no port: give a number from 1 to 65535."),
        (("edit", "t", "m", "hi", "--mode", "loud"), "'loud' is not one of 'interrupt', 'queue', 'steer', 'reject'."),
        (("send", "t", "hi", "--mode", "loud"), "'loud' is not one of 'interrupt', 'queue', 'steer', 'reject'."),
        (("gateway", "--host", " "), "it is empty: give an address, 0.0.0.0 for all there are."),
        (("approvals", "t", "--withdraw", "x"), "'x' is no number: give one from 1 on."),
        (("approvals", "t", "--withdraw", "0"), "'0' is no number: give one from 1 on."),
        (("result", "t", "c", "x", "--outcome", "fine"), "'fine' is not one of 'ok', 'error', 'denied'."),
    ],
)
def test_a_wrong_value_is_said_in_plain_words(arguments: tuple[str, ...], said: str) -> None:
    """What may be given instead, with the name of the option, and no word of the libraries that found it; code 2."""
    done = CliRunner().invoke(app, list(arguments), env={"COLUMNS": "200", "TERM": "dumb"})
    assert done.exit_code == 2
    assert f"Invalid value for '{arguments[-2]}': {said}" in done.output


@pytest.mark.parametrize("command", [("worker", "--check"), ("dev",)], ids=lambda command: command[0])
def test_an_empty_name_of_agents_is_not_the_demo(command: tuple[str, ...], capfd: pytest.CaptureFixture[str]) -> None:
    """A script whose variable is empty is told so, and serves no agents that it does not know."""
    assert exit_code(lambda: app([*command, ""])) == 2
    assert capfd.readouterr().err.startswith("perdure: '' does not name agents: write module:attribute")


def test_the_version_is_told() -> None:
    """`perdure --version` names the release that is installed."""
    done = CliRunner().invoke(app, ["--version"])
    assert (done.exit_code, done.output) == (0, f"perdure {metadata.version('perdure')}\n")


def fail() -> NoReturn:
    """A command that is used in a wrong way."""
    raise UsageError("It went wrong\n  in two lines.")


def test_an_error_of_ours_is_one_line_and_exit_code_2(capsys: pytest.CaptureFixture[str]) -> None:
    """Whatever the error's text holds, one line comes out of it, on stderr."""
    assert exit_code(fail) == 2
    assert capsys.readouterr() == ("", "perdure: It went wrong in two lines.\n")


@pytest.mark.parametrize(
    "error",
    [NotTaken("conflict"), TurnFailed("The model failed.", Status(state="incomplete", reason="error"))],
    ids=["not taken", "turn failed"],
)
def test_what_the_thread_did_not_do_is_exit_code_1(error: PerdureError, capsys: pytest.CaptureFixture[str]) -> None:
    """The command was right, so a script can tell this from a mistake of its own."""

    def refuse() -> NoReturn:
        raise error

    assert exit_code(refuse) == 1
    assert capsys.readouterr() == ("", f"perdure: {error}\n")


@pytest.mark.parametrize(
    ("argument", "code", "said"), [(None, 0, ""), (0, 0, ""), (3, 3, ""), ("No more paper.", 1, "No more paper.\n")]
)
def test_a_command_may_end_itself(argument: object, code: int, said: str, capsys: pytest.CaptureFixture[str]) -> None:
    """`sys.exit` in a command means what it means in any program."""
    assert exit_code(lambda: sys.exit(argument)) == code  # type: ignore[arg-type]  # None, a number or a text
    assert capsys.readouterr().err == said


def test_ctrl_c_is_exit_code_130(capsys: pytest.CaptureFixture[str]) -> None:
    """As shells have it, and without a word, also before the command has begun."""

    def interrupted() -> NoReturn:
        raise KeyboardInterrupt

    assert exit_code(interrupted) == 130
    assert capsys.readouterr() == ("", "")


def test_an_error_of_a_file_that_nobody_foresaw_keeps_its_traceback() -> None:
    """Only what a full disk says is told in a line: it comes from wherever something is printed."""
    with pytest.raises(FileNotFoundError):
        exit_code(lambda: Path("/nowhere").read_text())


def test_any_other_error_keeps_its_traceback() -> None:
    """A bug is not dressed up as a usage error."""
    with pytest.raises(ZeroDivisionError):
        exit_code(lambda: 1 / 0)


def test_what_is_left_to_do_at_the_end_is_done() -> None:
    """Leaving runs exit handlers and writes out what is buffered, without the interpreter's own clean-up."""
    code = (
        "import atexit, logging.handlers, sys\nfrom perdure.cli.ending import leave\n"
        "class Cleaned:\n    def __del__(self): print('cleaned up')\n"
        "kept = Cleaned()\natexit.register(lambda: print('handler', end=''))\nprint('text,', end=' ')\nleave(7)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert (done.returncode, done.stdout) == (7, "text, handler")


def test_python_m_perdure_is_the_command() -> None:
    """`python -m perdure` does what `perdure` does, from any folder."""
    done = subprocess.run([sys.executable, "-m", "perdure", "--help"], cwd=Path("/"), capture_output=True, text=True)
    assert done.returncode == 0
    assert "Usage: perdure " in done.stdout
