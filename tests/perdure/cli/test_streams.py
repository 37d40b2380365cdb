"""The standard streams of a command that was started with strange ones. Each is a process of its own."""

import subprocess
import sys
from pathlib import Path

import pytest

NOWHERE = "postgresql://nobody@127.0.0.1:1/none"


def shell(line: str, stdin: bytes = b"", **env: str) -> tuple[int, str, str]:
    """What a line of a shell does with `perdure`: exit code, output and errors."""
    done = subprocess.run(
        ["sh", "-c", f'perdure() {{ "$0" -m perdure "$@"; }}; {line}', sys.executable],
        input=stdin,
        capture_output=True,
        env={"PERDURE_DATABASE_URL": NOWHERE, "PATH": "/usr/bin:/bin"} | env,
    )
    return done.returncode, done.stdout.decode(), done.stderr.decode()


@pytest.mark.parametrize("closed", ["<&-", ">&-", "<&- >&-"])
def test_a_closed_stream_does_no_harm(closed: str) -> None:
    """What would be printed goes nowhere, and what would be read is empty; an open output is the control."""
    assert shell("perdure --version")[1].startswith("perdure ")
    code, output, errors = shell(f"perdure --version {closed}")
    assert (code, errors) == (0, "")
    assert (output == "") == (">" in closed)
    code, output, errors = shell(f"perdure status t {closed}")
    assert (code, output) == (2, "")
    assert errors.startswith("perdure: PostgreSQL ")
    assert len(errors.splitlines()) == 1


def test_a_command_without_any_stream_still_ends_with_its_code() -> None:
    """There is nobody to tell, so the code is all there is."""
    assert shell("perdure status t <&- >&- 2>&-") == (2, "", "")


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="only Linux has a device that is always full")
def test_a_disk_that_is_full_is_one_line() -> None:
    """What was printed is lost, so the command did not do what it was asked."""
    said = "perdure: The output cannot be written: No space left on device.\n"
    assert shell("perdure --version > /dev/full") == (2, "", said)


def test_a_reader_who_leaves_is_no_news() -> None:
    """`perdure ... | head` says nothing of the pipe that broke."""
    code, output, errors = shell("{ perdure --help; echo $? >&2; } | true")
    assert (code, output) == (0, "")
    assert errors in ("0\n", "1\n")  # whether it still wrote before the reader left


@pytest.mark.parametrize("command", ["send t -", "edit t m -", "result t c -"])
def test_an_input_that_is_no_text_is_refused(command: str) -> None:
    """In one line, before anything is reached; text in UTF-8 is the control, in whatever locale."""
    for locale in ("C", "C.UTF-8"):
        code, output, errors = shell(f"perdure {command}", b"\x00\xff\xfe", LC_ALL=locale)
        assert (code, output) == (2, "")
        assert errors == "perdure: The standard input is not text in UTF-8; `perdure send --file` takes files.\n"
        assert "PostgreSQL" in shell(f"perdure {command}", "ü".encode(), LC_ALL=locale)[2]


def test_what_an_encoding_lacks_is_shown_otherwise() -> None:
    """No text of a conversation ends a command on an old terminal. Python's own way is the control."""
    code = "import sys\nfrom perdure.cli.streams import open_streams\n{}print('› ü')"
    for opened, (status, output) in {"": (1, b""), "open_streams()\n": (0, b"? ?\n")}.items():
        done = subprocess.run(
            [sys.executable, "-c", code.format(opened)],
            capture_output=True,
            env={"PYTHONIOENCODING": "ascii"},
        )
        assert (done.returncode, done.stdout) == (status, output)
