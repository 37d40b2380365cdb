"""Folders for servers. Those of pytest are closed to the user that runs PostgreSQL when the tests run as root."""

import shutil
import tempfile
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path


@contextmanager
def new_folder() -> Generator[Path]:
    """A folder that every user may pass through, for as long as the block."""
    folder = Path(tempfile.mkdtemp(prefix="perdure-test-"))
    folder.chmod(0o755)
    try:
        yield folder
    finally:
        shutil.rmtree(folder)
