"""Builds .venv out of requirements.lock and puts this checkout into it; does nothing when that is done already.

`make setup` runs it with the Python that .venv shall have.
"""

import fcntl
import hashlib
import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
VENV = ROOT / ".venv"
LOCK = ROOT / "requirements.lock"
STAMP = VENV / "perdure-setup"


def main() -> int:
    """Returns the exit code."""
    # Two terminals, or `make -j`, must not install into one folder at once: the second one waits and finds it done.
    guard = os.open(ROOT, os.O_RDONLY)
    fcntl.flock(guard, fcntl.LOCK_EX)
    if _stamp() == _wanted():
        return 0
    try:
        _build()
    except subprocess.CalledProcessError as error:
        print(f"Setting up .venv failed at: {' '.join(map(str, error.cmd))}", file=sys.stderr)
        return 2
    STAMP.write_text(_wanted())
    return 0


def _build() -> None:
    # A venv holds absolute paths and links to its Python, so one that was made elsewhere is made again.
    made_here = _stamp().startswith(_place()) or not STAMP.exists()
    print("Setting up .venv ...", flush=True)
    subprocess.run([sys.executable, "-m", "venv", *([] if made_here else ["--clear"]), VENV], check=True)
    STAMP.unlink(missing_ok=True)
    pip: list[str | Path] = [VENV / "bin" / "python", "-m", "pip", "install"]
    pip += ["--disable-pip-version-check", "--quiet"]
    subprocess.run([*pip, "--require-hashes", "--requirement", LOCK], check=True)
    # Everything that the build needs is in the lock file, so nothing is resolved here.
    subprocess.run([*pip, "--no-deps", "--no-build-isolation", "--editable", ROOT], check=True)


def _stamp() -> str:
    return STAMP.read_text() if STAMP.exists() and (VENV / "bin" / "python").exists() else ""


def _wanted() -> str:
    digest = hashlib.sha256()
    for source in (LOCK, ROOT / "pyproject.toml", Path(__file__)):
        digest.update(source.read_bytes())
    return f"{_place()}{digest.hexdigest()}\n"


def _place() -> str:
    return f"{ROOT}\n{sys.version}\n"


if __name__ == "__main__":
    sys.exit(main())
