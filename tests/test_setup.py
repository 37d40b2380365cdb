"""The set-up: what it needs, what it pins, and that it may be repeated and run twice at once."""

import os
import re
import shutil
import subprocess
import sys
import tomllib
from importlib.metadata import requires
from pathlib import Path
from typing import Any

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).parent.parent
PINNED = re.compile(r"^([A-Za-z0-9._-]+)==\S+(?: ; .*)? \\$")


def lock_lines() -> list[str]:
    """The lock file without its comments."""
    return [line for line in (ROOT / "requirements.lock").read_text().splitlines() if not line.startswith("#")]


def pyproject() -> dict[str, Any]:
    """The project's declaration."""
    return tomllib.loads((ROOT / "pyproject.toml").read_text())


def test_all_that_is_declared_is_locked() -> None:
    """Every dependency, those of development and of the build included, has its line in the lock file."""
    project = pyproject()
    declared = (
        *project["project"]["dependencies"],
        *project["dependency-groups"]["dev"],
        *project["build-system"]["requires"],
    )
    locked = {canonicalize_name(found[1]) for line in lock_lines() if (found := PINNED.match(line))}
    assert {canonicalize_name(Requirement(text).name) for text in declared} <= locked


def test_the_lock_file_pins_versions_and_contents_and_names_no_place() -> None:
    """Every line is an exact version or a hash, so nothing says where packages come from."""
    for line in lock_lines():
        assert PINNED.match(line) or re.match(r"^    --hash=sha256:[0-9a-f]{64}( \\)?$", line), line


def test_every_target_is_explained() -> None:
    """`make help` lists each target with its meaning, and every target has one."""
    makefile = (ROOT / "Makefile").read_text()
    targets = {name for line in re.findall(r"^\.PHONY:(.*)$", makefile, re.MULTILINE) for name in line.split()}
    # Without what a make around the tests hands on: it would have this one talk of the folder that it is in.
    env = {name: value for name, value in os.environ.items() if name not in ("MAKEFLAGS", "MAKELEVEL", "MFLAGS")}
    shown = subprocess.run(["make", "help"], cwd=ROOT, env=env, capture_output=True, text=True, check=True).stdout
    explained = {line.split()[0] for line in shown.splitlines() if len(line.split()) > 1}
    assert {"setup", "demo", "test", "test-fast", "check", "help"} <= targets
    assert explained == targets


@pytest.fixture
def path_with_old_python(tmp_path: Path) -> Path:
    """A PATH on which `python3` fails every question about its version with no."""
    folder = tmp_path / "bin"
    folder.mkdir()
    (folder / "python3").write_text("#!/bin/sh\nexit 1\n")
    (folder / "python3").chmod(0o755)
    (folder / "dirname").symlink_to(shutil.which("dirname") or "/usr/bin/dirname")
    return folder


def run_setup(root: Path, path: Path | str) -> subprocess.CompletedProcess[str]:
    """Run the set-up of a checkout with this PATH."""
    environment = {name: value for name, value in os.environ.items() if name != "PYTHON"}
    return subprocess.run(
        [root / "scripts" / "setup"], env={**environment, "PATH": str(path)}, capture_output=True, text=True
    )


def test_an_old_python_is_refused(path_with_old_python: Path) -> None:
    """Without Python 3.11 the set-up ends with code 2 and says what it needs and how to name it."""
    done = run_setup(ROOT, path_with_old_python)
    assert done.returncode == 2
    assert done.stderr.startswith("Perdure needs Python 3.11 or newer; tried: python3 ")
    assert "make PYTHON=/path/to/python3.12 setup" in done.stderr


def test_a_newer_python_beside_an_old_one_is_found(path_with_old_python: Path, tmp_path: Path) -> None:
    """When `python3` is too old, a newer one under its own name is used."""
    (path_with_old_python / "python3.12").symlink_to(sys.executable)
    checkout = tmp_path / "checkout"
    shutil.copytree(ROOT / "scripts", checkout / "scripts")
    (checkout / "scripts" / "venv.py").write_text("print('chosen')\n")
    done = run_setup(checkout, path_with_old_python)
    assert (done.returncode, done.stdout) == (0, "chosen\n")


@pytest.mark.slow
def test_two_at_once_build_one_environment_and_a_third_does_nothing(tmp_path: Path) -> None:
    """Of two set-ups at once one builds and the other waits; afterwards there is nothing to do, until a pin changes."""
    checkout = small_checkout(tmp_path / "checkout")
    both = [subprocess.Popen([checkout / "scripts" / "setup"], stdout=subprocess.PIPE, text=True) for _ in range(2)]
    said = [process.communicate()[0] for process in both]
    assert [process.returncode for process in both] == [0, 0]
    assert sorted(said) == ["", "Setting up .venv ...\n"]

    where = "import perdure, workflows; print(perdure.__file__, workflows.__file__)"
    found = subprocess.run(
        [checkout / ".venv" / "bin" / "python", "-c", where], cwd=tmp_path, capture_output=True, text=True, check=True
    ).stdout
    assert found.split() == [str(checkout / name / "__init__.py") for name in ("perdure", "workflows")]

    assert run_setup(checkout, os.environ["PATH"]).stdout == ""
    with (checkout / "requirements.lock").open("a") as lock:
        lock.write("# changed\n")
    assert run_setup(checkout, os.environ["PATH"]).stdout == "Setting up .venv ...\n"


@pytest.mark.slow
def test_a_package_with_other_contents_is_refused(tmp_path: Path) -> None:
    """A package with other contents than the lock file's is not installed, and the set-up is not taken for done."""
    checkout = small_checkout(tmp_path / "checkout")
    lock = checkout / "requirements.lock"
    lock.write_text(re.sub(r"sha256:[0-9a-f]{64}", f"sha256:{'0' * 64}", lock.read_text()))
    for _ in range(2):
        done = run_setup(checkout, os.environ["PATH"])
        assert done.returncode == 2
        assert "Setting up .venv failed at: " in done.stderr


def small_checkout(folder: Path) -> Path:
    """A checkout that needs only what builds it, with the pins and hashes of the real lock file."""
    folder.mkdir()
    for name in ("scripts", "perdure", "workflows"):
        shutil.copytree(ROOT / name, folder / name, ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copy(ROOT / "pyproject.toml", folder)
    (folder / "README.md").touch()
    wanted = {"hatchling", *(canonicalize_name(Requirement(text).name) for text in requires("hatchling") or ())}
    kept: list[str] = []
    wanted_now = False
    for line in lock_lines():
        if found := PINNED.match(line):
            wanted_now = canonicalize_name(found[1]) in wanted
        if wanted_now:
            kept.append(line)
    (folder / "requirements.lock").write_text("\n".join(kept) + "\n")
    return folder
