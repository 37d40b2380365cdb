"""Recorded histories replay: a worker of this release goes on where one of the release that recorded them stopped."""

import base64
import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any, cast

import pytest
from temporalio.client import WorkflowHistory

from tests.histories.paths import PATHS
from tests.histories.replay import FILES, FOLDER, load, replay
from tests.workflows.early_dispatch import EarlyDispatch

MACHINE = re.compile(r"/(home|root|tmp|work|usr|Users)/|\d@(?!worker)[a-z]")
"""Folders, and identities other than the one that stands for all."""


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.stem)
async def test_recorded_history_replays(file: Path) -> None:
    """Every task of it makes the commands that were recorded."""
    assert await replay(load(file)) is None


def test_every_path_is_recorded() -> None:
    """A path without a history would be checked by nothing."""
    recorded = {file.stem.rpartition("-")[0] for file in FILES}
    assert recorded == {path.__name__ for path in PATHS}


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.stem)
async def test_history_with_another_command_does_not_replay(file: Path) -> None:
    """The control: whichever path it is, another last local activity is noticed, or where there is none another end."""
    events = cast("list[dict[str, Any]]", json.loads(file.read_text())["events"])
    markers = [event["markerRecordedEventAttributes"] for event in events if "markerRecordedEventAttributes" in event]
    if markers:
        payload = markers[-1]["details"]["data"]["payloads"][0]
        data = json.loads(base64.b64decode(payload["data"])) | {"activity_type": "another"}
        payload["data"] = base64.b64encode(json.dumps(data).encode()).decode()
    else:
        failed = events[-1].pop("workflowExecutionFailedEventAttributes")
        task = {"workflowTaskCompletedEventId": failed["workflowTaskCompletedEventId"]}
        events[-1].update(
            eventType="EVENT_TYPE_WORKFLOW_EXECUTION_COMPLETED", workflowExecutionCompletedEventAttributes=task
        )
    wrong = WorkflowHistory.from_json(load(file).workflow_id, {"events": events})
    assert await replay(wrong) is not None


async def test_workflow_with_another_order_does_not_replay() -> None:
    """The control of the other side: the recorded history is right, and a workflow that dispatches early is not."""
    history = load(FOLDER / "tools-1.json")
    assert await replay(history, EarlyDispatch) is not None


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.stem)
def test_no_history_names_a_machine(file: Path) -> None:
    """Identities, folders and stack traces are taken out, in payloads too."""
    text = file.read_text()
    for found in (text, *_payloads(json.loads(text))):
        assert MACHINE.search(found) is None
    assert "stackTrace" not in text


def _payloads(value: object) -> Iterator[str]:
    match value:
        case {"data": str(data)}:
            yield base64.b64decode(data).decode()
        case dict():
            for item in cast("dict[str, object]", value).values():
                yield from _payloads(item)
        case list():
            for item in cast("list[object]", value):
                yield from _payloads(item)
        case _:
            pass
