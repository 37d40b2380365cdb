"""Files, settings and compaction in the chat: a terminal of its own over a real worker."""

from pathlib import Path

import pytest

from perdure.messages import FilePart, TurnOptions
from tests.perdure.cli.desk import Desk

pytestmark = pytest.mark.slow  # each starts processes


async def test_files_go_along_with_the_next_words_of_a_chat(desk: Desk, tmp_path: Path) -> None:
    """Those that were named with the command or in the chat; once, with all that is said answered as it was asked."""
    for name in ("a.txt", "b.txt"):
        (tmp_path / name).write_text(name)
    async with desk.terminal("chat", desk.thread, "--file", str(tmp_path / "a.txt"), "--thinking", "low") as chat:
        await chat.sees("A new thread.")
        chat.types("/compact\r")
        await chat.sees("✗ Nothing was said yet, so there is nothing to make shorter.")
        chat.types(f"/file {tmp_path}/none.txt\r")
        await chat.sees("✗ There is no file")
        chat.types(f"/file {tmp_path}/b.txt\r")
        await chat.sees("▤ With your next words: a.txt, b.txt")
        chat.types("look\r")
        await chat.sees("answer 1 to look")
        await chat.sees("▤ b.txt (text/plain, 5 bytes)")
        chat.types("and?\r")
        await chat.sees("answer 1 to and?")
        chat.types("/compact\r/help\r")
        await chat.sees("≡ It is being made shorter for the model")
        await chat.sees("/file PATH   goes along with your next words")
    first, _, second, _ = await desk.client.history(desk.thread)
    assert [part.name for part in first.parts if isinstance(part, FilePart)] == ["a.txt", "b.txt"]
    assert [part.kind for part in second.parts] == ["text"]
    assert first.options == second.options == TurnOptions(settings={"thinking": "low"})
