"""The wheel: one import name, everything that runs inside, and nothing needed but what it declares."""

import importlib
import importlib.metadata
import os
import re
import signal
import subprocess
import sys
import zipfile
from collections.abc import Generator
from pathlib import Path

import pytest

from tests.stores.folders import new_folder

ROOT = Path(__file__).parent.parent
RUNTIME = ("workflows", "activities", "stores", "gateway", "worker")


def build(source: Path, target: Path, kind: str) -> Path:
    """Build a wheel or an sdist out of a checkout or an unpacked sdist."""
    command = [sys.executable, "-m", "hatchling", "build", "--target", kind, "--directory", str(target)]
    subprocess.run(command, cwd=source, check=True, capture_output=True)
    (built,) = target.iterdir()
    return built


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The wheel of this checkout."""
    return build(ROOT, tmp_path_factory.mktemp("wheel"), "wheel")


def names(archive: Path) -> set[str]:
    """The files in a wheel."""
    with zipfile.ZipFile(archive) as content:
        return set(content.namelist())


@pytest.mark.parametrize("name", RUNTIME)
def test_nobody_else_owns_the_names_of_the_runtime(name: str) -> None:
    """No installed project brings a package of that name, and what is imported lies in this checkout."""
    assert importlib.metadata.packages_distributions().get(name, []) in ([], ["perdure"])
    file = importlib.import_module(name).__file__
    assert file is not None
    assert Path(file).is_relative_to(ROOT)


def test_the_wheel_has_one_import_name(wheel: Path) -> None:
    """`perdure` is the only top-level name besides the wheel's own metadata."""
    assert {name.partition("/")[0] for name in names(wheel) if ".dist-info/" not in name} == {"perdure"}


def test_the_wheel_holds_all_that_runs(wheel: Path) -> None:
    """Every file of the runtime that git would keep is in the wheel, SQL included, and nothing else is."""
    kept = subprocess.run(
        ["git", "ls-files", "--cached", "--others", "--exclude-standard", "perdure", *RUNTIME[:-1], "worker.py"],
        cwd=ROOT,
        check=True,
        capture_output=True,
        text=True,
    ).stdout.splitlines()
    expected = {name if name.startswith("perdure/") else f"perdure/_runtime/{name}" for name in kept}
    assert {name for name in names(wheel) if ".dist-info/" not in name} == expected
    assert any(name.endswith(".sql") for name in expected)


def test_the_wheel_of_the_sdist_is_the_same(wheel: Path, tmp_path: Path) -> None:
    """What pip builds from the sdist holds the same files as the wheel."""
    sdist = build(ROOT, tmp_path / "sdist", "sdist")
    unpacked = tmp_path / "unpacked"
    unpacked.mkdir()
    subprocess.run(["tar", "xzf", sdist, "--strip-components=1", "-C", unpacked], check=True)
    assert names(build(unpacked, tmp_path / "again", "wheel")) == names(wheel)


@pytest.fixture(scope="module")
def installed(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The `bin` of an environment into which the wheel was installed, with what it declares and no more."""
    folder = tmp_path_factory.mktemp("installed")
    pins = re.findall(r"^(\S+==\S+)(?: ; .*)? \\$", (ROOT / "requirements.lock").read_text(), re.MULTILINE)
    (folder / "constraints.txt").write_text("\n".join(pins))
    # Without a pip of its own, and without code for what nobody imports: both would take longer than all else.
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", folder / "venv"], check=True)
    python = folder / "venv" / "bin" / "python"
    install: list[str | Path] = [sys.executable, "-m", "pip", "--python", python, "install", "--quiet", "--no-compile"]
    subprocess.run([*install, "--constraint", folder / "constraints.txt", wheel], check=True)
    return python.parent


@pytest.fixture
def bare_environment(installed: Path) -> dict[str, str]:
    """An environment that knows nothing of this checkout or of servers."""
    kept = {name: os.environ[name] for name in ("HOME", "LANG", "TMPDIR") if name in os.environ}
    return {**kept, "PATH": f"{installed}:/usr/bin:/bin"}


@pytest.fixture
def folder() -> Generator[Path]:
    """An empty folder in which PostgreSQL's user may read."""
    with new_folder() as folder:
        yield folder


@pytest.fixture
def dev(installed: Path, bare_environment: dict[str, str], folder: Path) -> Generator["subprocess.Popen[str]"]:
    """`perdure dev` in an empty folder; stopped in the end if it still runs."""
    process = subprocess.Popen(
        [installed / "perdure", "dev"],
        cwd=folder,
        env=bare_environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    yield process
    process.terminate()  # not kill: the folder goes next, and its servers must be out of it
    process.communicate(timeout=30)


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_the_installed_wheel_imports_only_what_it_declares(
    installed: Path, bare_environment: dict[str, str], tmp_path: Path
) -> None:
    """Every module of the wheel can be imported where only its declared dependencies are installed."""
    code = (
        "import importlib, pkgutil, perdure, perdure.bundle as bundle\n"
        "bundle.put_runtime_on_path()\n"
        "import activities, gateway, stores, workflows, worker\n"
        "for package in (perdure, activities, gateway, stores, workflows):\n"
        "    for module in pkgutil.walk_packages(package.__path__, package.__name__ + '.'):\n"
        "        if '._runtime' not in module.name and not module.name.endswith('__main__'):\n"
        "            importlib.import_module(module.name)\n"
        "print(worker.__file__)"
    )
    done = subprocess.run(
        [installed / "python", "-c", code], cwd=tmp_path, env=bare_environment, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip().endswith("perdure/_runtime/worker.py")


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_the_installed_wheel_holds_a_conversation(
    dev: "subprocess.Popen[str]", installed: Path, bare_environment: dict[str, str], folder: Path
) -> None:
    """From another folder `perdure dev` serves, a message is answered, and SIGTERM ends everything with code 0."""
    assert dev.stdout is not None
    said = ""
    while "The worker serves" not in said:
        line = dev.stdout.readline()
        assert line, said
        said += line
    answer = subprocess.run(
        [installed / "perdure", "send", "first", "How is Paris?", "--wait"],
        cwd=folder,
        env=bare_environment,
        capture_output=True,
        text=True,
    )
    assert answer.returncode == 0, answer.stderr
    assert "Paris: clouds" in answer.stdout
    dev.send_signal(signal.SIGTERM)
    assert dev.wait(30) == 0


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_the_installed_wheel_runs_the_demo(installed: Path, bare_environment: dict[str, str], folder: Path) -> None:
    """From another folder `perdure demo` passes all its checks."""
    demo = subprocess.run(
        [installed / "perdure", "demo"], cwd=folder, env=bare_environment, capture_output=True, text=True
    )
    assert demo.returncode == 0, demo.stdout + demo.stderr
