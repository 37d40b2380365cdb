"""The commands that begin threads and say something to them, over a real worker."""

import asyncio
from pathlib import Path

import pytest

from perdure.cli.ending import exit_code
from perdure.cli.main import app
from perdure.cli.words import _LOOK_S, answered_by, files_typed
from perdure.compaction import Compaction
from perdure.errors import ThreadNotFound, UsageError
from perdure.messages import FilePart, TurnOptions
from perdure.records import Summary
from perdure.testing import ScriptedModel
from tests.eventually import eventually
from tests.perdure.cli.desk import Desk

PNG = b"\x89PNG\r\n\x1a\nx"


@pytest.mark.slow
async def test_files_and_how_to_answer_go_along_with_words(desk: Desk, tmp_path: Path) -> None:
    """Any number of files, shown with the words; files alone are a message too."""
    (tmp_path / "cat.png").write_bytes(PNG)
    (tmp_path / "notes.txt").write_text("hello")
    files = ["--file", str(tmp_path / "cat.png"), "--file", str(tmp_path / "notes.txt")]
    assert await desk.does("send", "look", *files, "--thinking", "low", "--wait") == "answer 1 to look\n"
    words, _ = await desk.client.history(desk.thread)
    assert words.options == TurnOptions(settings={"thinking": "low"})
    assert [(part.media_type, part.name) for part in words.parts if isinstance(part, FilePart)] == [
        ("image/png", "cat.png"),
        ("text/plain", "notes.txt"),
    ]
    assert (await desk.does("history")).splitlines()[:3] == [
        "› look",
        "▤ cat.png (image/png, 9 bytes)",
        "▤ notes.txt (text/plain, 5 bytes)",
    ]
    await desk.does("send", *files)
    alone = (await desk.client.history(desk.thread))[2]
    assert [part.kind for part in alone.parts] == ["file", "file"]
    assert "/nowhere cannot be read: No such file or directory" in await desk.fails("send", "x", "--file", "/nowhere")
    await desk.does("send", "hi", "--model", "openai:gpt-5", "--thinking", "off")
    said = [message for message in await desk.client.history(desk.thread) if message.role == "user"][-1]
    assert said.options == TurnOptions(model="openai:gpt-5", settings={"thinking": False})


@pytest.mark.slow
async def test_whoever_waits_is_told_that_a_person_is_waited_for(desk: Desk) -> None:
    """With the command that brings the result; the answer comes all the same, and alone on the standard output."""
    waiting = asyncio.create_task(desk.perdure("send", desk.thread, "ask", "--wait"))

    async def open_call() -> str:
        try:
            calls = await desk.client.open_calls(desk.thread)
        except ThreadNotFound:
            return ""
        return next((call.call_id for call in calls if call.state == "waiting"), "")

    call_id = await eventually(open_call)
    with pytest.raises(TimeoutError):
        await asyncio.wait_for(asyncio.shield(waiting), 2 * _LOOK_S)
    await desk.client.tool_result(desk.thread, call_id, "blue")
    code, output, errors = await waiting
    assert (code, output) == (0, "heard blue\n")
    assert errors == f"The turn waits for a result of ask: `perdure result {desk.thread} {call_id} TEXT`\n"


@pytest.mark.slow
async def test_a_thread_is_begun_with_a_model_and_given_another(desk: Desk) -> None:
    """It is shown, changed and left to the agent again; what cannot be is said."""
    assert await desk.does("start", "--model", "openai:gpt-5") == f"{desk.thread}\n"
    assert await desk.does("model") == "openai:gpt-5\n"
    assert await desk.does("model", "openai:gpt-5-mini") == "openai:gpt-5-mini\n"
    assert "is answered by 'openai:gpt-5-mini'" in await desk.fails("start", "--model", "openai:gpt-5")
    assert "not both" in await desk.fails("model", "x", "--default")
    assert await desk.does("model", "--default") == "The model of the agent desk.\n"


@pytest.mark.slow
async def test_a_closed_thread_is_not_started(desk: Desk) -> None:
    """A script that goes on with it is told before it says anything to it; one that is open is the control."""
    assert await desk.does("start") == f"{desk.thread}\n"
    assert await desk.does("start") == f"{desk.thread}\n"
    assert "Nothing was said" in await desk.fails("compact")
    await desk.does("close")
    assert "is closed and takes nothing more" in await desk.fails("start")
    assert "is closed and takes nothing more" in await desk.fails("compact")


@pytest.mark.slow
async def test_the_history_shows_what_is_summed_up(desk: Desk) -> None:
    """For people and as JSON; a conversation can be made shorter on demand, and nothing of it is lost for them."""
    await desk.client.ask(desk.thread, "one")
    await desk.client.ask(desk.thread, "two")
    _, answer_id, *_ = await desk.ids()
    summary = Summary(id=f"s-{desk.thread}", thread_id=desk.thread, message_id=answer_id, parts=1, text="So far.")
    assert await desk.client.store.add_summary(summary)
    assert (await desk.does("history")).splitlines() == [
        "› one",
        "answer 1 to one",
        "≡ Of what is above the model reads only this summary: So far.",
        "› two",
        "answer 1 to two",
    ]
    texts = [line["parts"][0]["text"] for line in await desk.lines("history")]
    assert texts == ["one", "answer 1 to one", "two", "answer 1 to two"]
    assert (await desk.does("compact", "--no-wait")).startswith("The conversation is being made shorter for the model")
    assert await desk.client.ask(desk.thread, "three") == "answer 1 to three"


@pytest.mark.slow
async def test_a_conversation_is_made_shorter_and_the_outcome_said(desk: Desk) -> None:
    """How many messages stand behind a summary by then, or that there was nothing to do; a failure is one."""
    await desk.client.ask(desk.thread, "one")
    await desk.client.ask(desk.thread, "two")
    behind = 0
    while behind < 4:
        said = await desk.does("compact")
        before, behind = behind, 4 - (await desk.client.counts(desk.thread)).visible
        assert behind > before
        assert said.startswith(f"{behind} of 4 messages now stand behind a summary for the model.")
    assert (await desk.does("compact")).startswith("Nothing was done: ")
    desk.stack.agents["desk"].compaction = Compaction(model=ScriptedModel([" "]))
    await desk.client.ask(desk.thread, "three")
    await desk.client.ask(desk.thread, "four")
    assert "was not made shorter: The summariser said nothing" in await desk.fails("compact")


@pytest.mark.parametrize(
    ("model", "thinking", "settings"),
    [(None, None, None), ("m", "high", {"thinking": "high"}), (None, "off", {"thinking": False})],
)
def test_how_words_are_answered(model: str | None, thinking: str | None, settings: object) -> None:
    """As the client takes it: what was not typed is not said."""
    assert answered_by(model, thinking) == {"model": model, "settings": settings}  # type: ignore[arg-type]  # typer checks


def test_files_are_looked_for_before_a_chat_begins(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Nothing is reached for one that is not there."""
    (tmp_path / "a").write_text("x")
    assert files_typed(tmp_path / "a", str(tmp_path / "a")) == (tmp_path / "a",) * 2
    with pytest.raises(UsageError, match="There is no file /nowhere"):
        files_typed("/nowhere")
    assert exit_code(lambda: app(["chat", "t", "--file", "/nowhere"])) == 2
    assert capsys.readouterr().err == "perdure: There is no file /nowhere.\n"


def test_a_level_that_is_none_is_told(capsys: pytest.CaptureFixture[str]) -> None:
    """With those that there are."""
    assert exit_code(lambda: app(["send", "t", "hi", "--thinking", "much"])) == 2
    said = capsys.readouterr().err
    assert "much" in said
    assert "'minimal'" in said
