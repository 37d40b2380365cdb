"""How a command fails: errors of ours are one line on stderr and exit code 2, everything else is a bug."""

import sys
from collections.abc import Generator
from contextlib import contextmanager
from typing import Final

from perdure.errors import PerdureError

EXIT_CODE: Final = 2


@contextmanager
def one_line_errors() -> Generator[None]:
    """End the process with one clear line instead of a traceback when what runs inside raises an error of ours."""
    try:
        yield
    except PerdureError as error:
        print(f"perdure: {' '.join(str(error).split())}", file=sys.stderr)
        sys.exit(EXIT_CODE)
