"""What the demo's tools did is recorded whichever process ran them, and whether it was killed."""

import asyncio
import os
import sys
from pathlib import Path

import pytest

from perdure.demo.environment import RUNS_VARIABLE
from perdure.demo.tool_runs import ToolRuns

ROOT = Path(__file__).parents[3]


async def test_runs_of_several_processes_are_all_recorded(tmp_path: Path) -> None:
    """Lines of processes that write at once stay whole, and a killed run is seen as one that did not return."""
    path = tmp_path / "runs"
    program = (
        "import sys; from pathlib import Path; from perdure.demo.tool_runs import ToolRuns\n"
        "runs = ToolRuns(Path(sys.argv[1]))\n"
        "for number in range(200):\n"
        "    with runs.record('tool', number=number): pass\n"
    )
    command = [sys.executable, "-c", program, str(path)]
    processes = [await asyncio.create_subprocess_exec(*command, cwd=ROOT) for _ in range(3)]
    assert [await process.wait() for process in processes] == [0, 0, 0]
    runs = ToolRuns(path)
    with pytest.raises(RuntimeError), runs.record("killed"):
        raise RuntimeError
    assert {run.pid for run in runs.read()} == {*(process.pid for process in processes), os.getpid()}
    assert sum(run.returned for run in runs.read()) == 600
    assert [run.tool for run in runs.read() if not run.returned] == ["killed"]


def test_runs_are_kept_in_memory_without_a_file(monkeypatch: pytest.MonkeyPatch) -> None:
    """The demo agent can be served without the demo: `perdure dev` sets no file."""
    monkeypatch.delenv(RUNS_VARIABLE, raising=False)
    runs = ToolRuns.at(os.environ.get(RUNS_VARIABLE))
    with runs.record("tool", answer=42):
        assert [run.returned for run in runs.read()] == [False]
    assert [(run.tool, run.arguments, run.returned) for run in runs.read()] == [("tool", {"answer": 42}, True)]
