"""The commands that carry whole conversations, over a real worker."""

import json
from pathlib import Path

import pytest

from tests.perdure.cli.desk import Desk

pytestmark = pytest.mark.slow  # each starts a stack

NEW = "perdure: The agent {} answers in the new thread.\n"


async def test_an_export_is_imported_again_with_all_branches(desk: Desk, tmp_path: Path) -> None:
    """Into a new thread, whose id is printed, or one that is there; by files or by pipes; twice is once."""
    await desk.client.ask(desk.thread, "hi")
    words, old = await desk.ids()
    new = (await desk.does("regenerate")).split()[1]
    await desk.client.wait_settled(desk.thread, new)
    file = tmp_path / "thread.json"
    assert await desk.does("export", str(file)) == f"{file} holds 3 messages.\n"
    exported = json.loads(file.read_text())
    assert [one["message"]["id"] for one in exported["messages"]] == [words, old, new]
    assert exported["headId"] == new
    assert json.loads(await desk.does("export")) == json.loads(await desk.does("export", "-")) == exported

    code, output, errors = await desk.perdure("import", str(file))
    assert (code, errors) == (0, NEW.format(exported["perdure"]["agent"]))
    copy = output.strip()
    assert copy != desk.thread
    desk.thread = copy
    assert [one["text"] for one in await desk.lines("branches")] == ["hi", "answer 1 to hi", "answer 2 to hi"]
    for told in (NEW.format(exported["perdure"]["agent"]), ""):
        piped = await desk.perdure("import", "-", f"{copy}-2", stdin=file.read_text())
        assert piped == (0, f"{copy}-2\n", told)
    desk.thread = f"{copy}-2"
    assert len(await desk.ids()) == 2
    assert json.loads(await desk.does("export"))["headId"] == new


async def test_a_new_thread_has_the_agent_of_the_file(desk: Desk, tmp_path: Path) -> None:
    """Or the one that is asked for, or the worker's first; one that nobody serves leaves no new thread behind."""
    await desk.client.start(desk.thread)
    exported = json.loads(await desk.does("export"))
    served = exported["perdure"]["agent"]
    file = tmp_path / "thread.json"
    file.write_text(json.dumps(exported | {"perdure": {"agent": "stranger"}}))
    code, output, errors = await desk.perdure("import", str(file), f"{desk.thread}-2")
    assert (code, output) == (2, "")
    assert "'stranger'" in errors
    assert "--agent" in errors
    assert served in errors
    assert await desk.perdure("import", str(file), desk.thread) == (0, f"{desk.thread}\n", ""), "it keeps its agent"
    named = await desk.perdure("import", str(file), f"{desk.thread}-3", "--agent", served)
    assert named == (0, f"{desk.thread}-3\n", NEW.format(served))
    file.write_text('{"messages": []}')
    assert await desk.perdure("import", str(file), f"{desk.thread}-4") == (0, f"{desk.thread}-4\n", NEW.format(served))
    desk.thread = f"{desk.thread}-2"
    assert "There is no thread" in await desk.fails("export")


async def test_what_is_put_right_is_said_on_stderr(desk: Desk, tmp_path: Path) -> None:
    """And the rest is taken; what cannot be is one line, and leaves no thread behind."""
    await desk.client.start(desk.thread)
    file = tmp_path / "thread.json"
    user = {"id": "u", "role": "user", "content": [{"type": "text", "text": "hi"}]}
    orphan = {"parentId": "nobody", "message": user | {"id": "o"}}
    file.write_text(json.dumps({"headId": "u", "messages": [{"parentId": None, "message": user}, orphan]}))
    code, output, errors = await desk.perdure("import", str(file), desk.thread)
    assert (code, output) == (0, f"{desk.thread}\n")
    assert errors.startswith("perdure: ")
    assert len(errors.splitlines()) == 1
    assert len(await desk.ids()) == 1
    file.write_text("[]")
    code, output, errors = await desk.perdure("import", str(file), f"{desk.thread}-2")
    assert (code, output) == (2, "")
    assert errors.startswith("perdure: The file cannot be imported")
    desk.thread = f"{desk.thread}-2"
    assert "There is no thread" in await desk.fails("export")


async def test_a_file_that_cannot_be_reached_is_one_line(desk: Desk, tmp_path: Path) -> None:
    """Neither one that is to be read nor one that is to be written."""
    nowhere = tmp_path / "nowhere" / "x.json"
    code, _, errors = await desk.perdure("import", str(nowhere))
    assert (code, errors) == (2, f"perdure: {nowhere} cannot be read: No such file or directory.\n")
    await desk.client.start(desk.thread)
    assert await desk.fails("export", str(nowhere)) == f"{nowhere} cannot be written: No such file or directory.\n"
