"""Files of histories mean to the published local runtime what they mean here; and where they do not, that is told."""

from collections.abc import Generator, Mapping
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given

from perdure.codec import dumps
from tests.node.process import NodeProcess
from tests.node.published import CannotInstall, installed
from tests.perdure.client_files import CANCELLED, DENIED, DONE, INTERRUPTED, PAUSED, RUNNING, Json, client_files, read
from tests.perdure.exported_trees import Stored, again, encoded, imported, stored_trees
from tests.perdure.tree_operations import PHASES
from tests.properties import settings

pytestmark = pytest.mark.node


class Runtime(NodeProcess):
    """One process in which the published runtime loads files."""

    def __init__(self, module: Path) -> None:
        super().__init__("histories.mjs", module)

    def load(self, file: Mapping[str, Any]) -> Json:
        """What it holds then: ids that it dropped, the path that it shows, and its export."""
        answer: Json = self.ask(dumps(file))
        assert "error" not in answer, answer["error"]
        return answer


@pytest.fixture(scope="module")
def runtime() -> Generator[Runtime]:
    """For the tests of this file."""
    try:
        module = installed()
    except CannotInstall as error:
        pytest.skip(f"The published runtime cannot be installed here, so nothing is compared with it: {error}")
    with Runtime(module) as running:
        yield running


def shapes(export: Json) -> list[tuple[object, ...]]:
    """What must be alike in two exports whatever JavaScript does to numbers and times."""
    return [
        (
            item["parentId"],
            item["message"]["id"],
            item["message"]["role"],
            item["message"].get("status"),
            [(entry["type"], entry.get("text"), entry.get("argsText")) for entry in item["message"]["content"]],
        )
        for item in export["messages"]
    ]


@settings(phases=PHASES)
@given(stored=stored_trees(at_rest=True))
def test_the_published_runtime_loads_our_exports(runtime: Runtime, stored: Stored) -> None:
    """It takes every message for one of its own, shows the same path, and holds the same tree without changing it."""
    export = stored.export()
    answer = runtime.load(export)
    assert answer["dropped"] == []
    assert shapes(answer["export"]) == shapes(export)
    parents = {one.message.id: one.parent_id for one in stored.tree.messages}
    path: list[str] = []
    name = stored.tree.head_id
    while name is not None:
        path.insert(0, name)
        name = parents[name]
    assert answer["path"] == path


def test_what_is_ours_survives_the_published_runtime(runtime: Runtime) -> None:
    """What it has loaded and exports again is read as what we had exported."""
    made: Json = {"type": "tool-call", "toolCallId": "c", "toolName": "t", "args": {}, "argsText": " {}", "result": {}}
    own: Json = {"step": 2, "provider": {"name": "p"}, "result": {"content": "{ }", "outcome": "interrupted"}}
    message: Json = {"id": "a", "role": "assistant", "content": [{**made, "isError": True, "perdure": own}]}
    status: Json = {"type": "incomplete", "reason": "cancelled"}
    told: Json = {"source_id": "s", "status": {"state": "incomplete", "reason": "steered"}}
    message |= {"status": status, "createdAt": "2026-03-01T12:00:00.000Z", "perdure": told}
    export = imported(read({"parentId": None, "message": message}, head="a")).export()
    assert encoded(again(runtime.load(export)["export"])) == encoded(export)
    (there,) = export["messages"]
    assert there["message"]["perdure"] == told
    assert there["message"]["content"][0]["perdure"]["result"] == own["result"]


def is_open(entry: Json) -> bool:
    """Whether an entry is a call that a result can still come for."""
    return entry["type"] == "tool-call" and "result" not in entry and entry.get("approval") != DENIED


def settled(message: Json, given: Json | None) -> Json:
    """Where a turn stands here that stands there as it does; `given` is its status in the file."""
    open_entries = [entry for entry in message["content"] if is_open(entry)]
    status: Json = message["status"]
    if status == RUNNING:
        return PAUSED if open_entries else CANCELLED
    if status == PAUSED and not open_entries:
        return CANCELLED if given == PAUSED else DONE
    if status == INTERRUPTED and not any("interrupt" in entry for entry in open_entries):
        return PAUSED if open_entries else DONE
    return status


@settings(phases=PHASES)
@given(items=client_files(wild=False))
def test_the_rules_of_the_published_runtime_are_ours(runtime: Runtime, items: list[Json]) -> None:
    """The same messages are dropped, and turns stand where they stand there.

    But for those that nobody could ever go on with: what ran, or waits though nothing is open, is settled here, or
    waits for its calls. And a call that was decided against has its result here.
    """
    file = {"headId": None, "messages": items}
    there = {item["message"]["id"]: item["message"] for item in runtime.load(file)["export"]["messages"]}
    ours = {item["message"]["id"]: item["message"] for item in imported(read(*items)).export()["messages"]}
    assert there.keys() == ours.keys()
    given = {item["message"]["id"]: item["message"].get("status") for item in items}
    for name, message in there.items():
        if message["role"] == "assistant":
            assert ours[name]["status"] == settled(message, given[name])
            for entry, own in zip(message["content"], ours[name]["content"], strict=True):
                resolution = entry.get("approval", {}).get("resolution")
                assert resolution in (None, own.get("approval", {}).get("resolution"))
                assert own.get("interrupt") == entry.get("interrupt")
