"""How a command ends: an error of ours is one line on stderr and an exit code, everything else is a bug."""

import atexit
import errno
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

INTERRUPTED: Final = 130
"""Ctrl-C ended it, before it was done."""

_NO_ROOM: Final = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO})
"""What a disk says that takes nothing more. Any other error of a file that nobody has put in words is a bug."""


def exit_code(command: Callable[[], object]) -> int:
    """Run a command; returns the exit code of its process, having said on stderr why it failed if it did."""
    try:
        command()
    except PerdureError as error:
        print(f"perdure: {' '.join(str(error).split())}", file=sys.stderr)
        return NOT_DONE if isinstance(error, NotTaken | TurnFailed) else FAILED
    except OSError as error:
        if error.errno not in _NO_ROOM:
            raise
        print(_not_written(error), file=sys.stderr)
        return FAILED
    except KeyboardInterrupt:
        return INTERRUPTED
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
            code = code or NOT_DONE
        except OSError as error:
            # Said already, if it was met before: then what is buffered is what could not be written.
            if code == 0 and stream is sys.stdout:
                print(_not_written(error), file=sys.stderr)
            code = code or FAILED
    os._exit(code)


def _not_written(error: OSError) -> str:
    return f"perdure: The output cannot be written: {error.strerror}."
