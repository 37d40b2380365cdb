"""The standard streams of a command, whatever whoever started it has made of them."""

import os
import sys
from typing import TYPE_CHECKING, Final, cast

from perdure.errors import UsageError

if TYPE_CHECKING:
    from io import TextIOWrapper

_MODES: Final = {"stdin": "r", "stdout": "w", "stderr": "w"}


def open_streams() -> None:
    """Put nothing in the place of streams that were closed, and show what an encoding lacks as a question mark.

    The first socket or file would get the number of a stream that is closed, and what is printed would go there.
    """
    for name, mode in _MODES.items():
        if getattr(sys, name) is None:  # Python's own sign for it
            setattr(sys, name, open(os.devnull, mode, encoding="utf-8"))  # noqa: SIM115  # open as long as the process
    for stream in (sys.stdin, sys.stdout):
        cast("TextIOWrapper", stream).reconfigure(errors="replace")


def read_input() -> str:
    """The whole of the standard input, for `-` in place of a text.

    Raises:
        UsageError: if it is no text, or cannot be read.
    """
    stream = cast("TextIOWrapper", sys.stdin)  # what the interpreter itself has opened, or `open_streams`
    stream.reconfigure(encoding="utf-8", errors="strict")
    try:
        return stream.read()
    except UnicodeDecodeError as error:
        raise UsageError("The standard input is not text in UTF-8; `perdure send --file` takes files.") from error
    except OSError as error:
        raise UsageError(f"The standard input cannot be read: {error.strerror}.") from error
