"""The recorded histories, and what comes of replaying one."""

from pathlib import Path

from temporalio.client import WorkflowHistory
from temporalio.worker import Replayer

from perdure import ids
from perdure.converter import data_converter
from perdure.settings import Settings
from worker import _runner
from workflows.thread import ThreadWorkflow

FOLDER = Path(__file__).parent
FILES = sorted(FOLDER.glob("*.json"))


def load(file: Path) -> WorkflowHistory:
    """A recorded history. Its workflow is named after its path."""
    return WorkflowHistory.from_json(ids.workflow_id(file.stem.rpartition("-")[0]), file.read_text())


async def replay(history: WorkflowHistory, workflow: type = ThreadWorkflow) -> Exception | None:
    """Replay in the sandbox, as tests and careful workers run; returns what went wrong."""
    replayer = Replayer(
        workflows=[workflow], workflow_runner=_runner(Settings(sandbox=True)), data_converter=data_converter
    )
    result = await replayer.replay_workflow(history, raise_on_replay_failure=False)
    return result.replay_failure
