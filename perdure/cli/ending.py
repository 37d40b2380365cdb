"""How a command ends: an error of ours is one line on stderr and an exit code, everything else is a bug."""

import atexit
import logging
import os
import sys
from collections.abc import Callable
from typing import Final, NoReturn

from perdure.errors import NotTaken, PerdureError, TurnFailed

FAILED: Final = 2
"""The command could not be carried out as it was given, or nobody was there to do it."""

NOT_DONE: Final = 1
"""The command was right, and the thread did not do it: a message that was not taken, a turn that failed."""


def exit_code(command: Callable[[], object]) -> int:
    """Run a command; returns the exit code of its process, having said on stderr why it failed if it did."""
    try:
        command()
    except PerdureError as error:
        print(f"perdure: {' '.join(str(error).split())}", file=sys.stderr)
        return NOT_DONE if isinstance(error, NotTaken | TurnFailed) else FAILED
    except SystemExit as ended:
        if ended.code is None or isinstance(ended.code, int):
            return ended.code or 0
        print(ended.code, file=sys.stderr)
        return 1
    return 0


def leave(code: int = 0) -> NoReturn:
    """End the process without the interpreter's own clean-up.

    The threads of the Temporal SDK outlive its clients and workers, and now and then they crash an interpreter that
    cleans up under them: 12 of 90 processes that had done all their work ended with SIGABRT or SIGSEGV.
    """
    atexit._run_exitfuncs()  # exporters of traces and the like flush here
    logging.shutdown()
    for stream in (sys.stdout, sys.stderr):
        try:
            stream.flush()
        except BrokenPipeError:  # whoever read it has gone
            code = code or 1
    os._exit(code)
