"""`perdure chat` as a person sees it: in a terminal of its own, against a real stack."""

import asyncio
import os
import sys
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO

import pytest

from perdure.agent import Agent
from perdure.dev.temporal_server import TemporalServer
from perdure.testing import Asked, Call, Reply, ScriptedModel, Think
from tests.eventually import eventually
from tests.fakes.screen import TerminalProgram
from tests.stack import Stack
from tests.workflows.conftest import StackFactory

pytestmark = pytest.mark.slow  # each starts a process
CTRL_C, CTRL_D = "\x03", "\x04"
EVIL = "\x1b]0;owned\x07\x1b[2J\x9b31m\u202e"


def script(asked: Asked) -> Reply:
    """Answers that the tests ask for by name."""
    if asked.results:
        return Reply(
            "It is " + " and ".join(asked.results) + ". " + "More words, for the end of the line. " * 4,
            chunk_chars=7,
            delay_s=0.01,
        )
    match asked.user_text:
        case "weather":
            cities = [Call("get_weather", {"city": city}) for city in ("Paris", "Rome")]
            return Reply(Think("Hmm."), "Let me look.", *cities, chunk_chars=5)
        case "hang":
            return Reply("one two three", chunk_chars=4, hang=True)
        case "evil":
            return Reply(EVIL + "done", chunk_chars=1)
        case text:
            return Reply(f"you said {text}")


@dataclass
class Chats:
    """Starts chats with one thread."""

    stack: Stack
    thread: str
    env: dict[str, str]

    @asynccontextmanager
    async def open(self, *options: str, width: int = 80) -> AsyncGenerator[TerminalProgram]:
        """A chat in a terminal of its own."""
        arguments = ("-m", "perdure", "chat", self.thread, *options)
        async with TerminalProgram(*arguments, env=self.env, width=width) as program:
            yield program

    async def pipe(self, stdin: int | IO[bytes], text: bytes | None = None) -> tuple[int | None, str, str]:
        """A chat whose ends are not a terminal: exit code, output and errors."""
        process = await asyncio.create_subprocess_exec(
            sys.executable,
            *("-m", "perdure", "chat", self.thread),
            env=os.environ | self.env,
            stdin=stdin,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
        )
        output, errors = await process.communicate(text)
        return process.returncode, output.decode(), errors.decode()


@pytest.fixture
async def chats(start_stack: StackFactory, database_url: str, temporal_server: TemporalServer, thread: str) -> Chats:
    """A stack whose agent has a tool that knows Paris only."""
    agent = Agent("demo", model=ScriptedModel(script))

    @agent.tool
    async def get_weather(city: str) -> str:
        """The weather in a city."""
        if city != "Paris":
            raise ValueError("no such city")
        return "sunny"

    stack = await start_stack(agent)
    return Chats(
        stack,
        thread,
        {
            "PERDURE_DATABASE_URL": database_url,
            "PERDURE_TASK_QUEUE": stack.settings.task_queue,
            "TEMPORAL_ADDRESS": temporal_server.address,
        },
    )


async def test_a_turn_with_tools_reads_from_top_to_bottom(chats: Chats) -> None:
    """Thoughts, words, calls with their arguments, results, the answer wrapped between words; nothing twice."""
    async with chats.open() as chat:
        await chat.sees("A new thread.")
        chat.types("weather\r")
        await chat.sees("words, for the end of the line.")
        await eventually(lambda: _is_idle(chats))
        chat.types(CTRL_D)
        assert await chat.ends() == 0
        assert chat.is_restored
    failed = '✗ get_weather(city="Rome") error: ValueError: no such city'
    lines = chat.screen.lines
    assert lines[:6] + lines[8:11] == [
        "A new thread. Type and press Enter; /help shows what else there is.",
        "› weather",
        "Hmm.",
        "Let me look.",
        '→ get_weather(city="Paris")',
        '→ get_weather(city="Rome")',
        "It is sunny and ValueError: no such city. More words, for the end of the line.",
        "More words, for the end of the line. More words, for the end of the line. More",
        "words, for the end of the line.",
    ]
    assert set(lines[6:8]) == {'← get_weather(city="Paris"): sunny', failed}, "they ran at once"


async def _is_idle(chats: Chats) -> bool:
    return (await chats.stack.client.status(chats.thread)).state == "idle"


async def test_ctrl_c_interrupts_the_turn_and_leaves_an_idle_thread(chats: Chats) -> None:
    """The first stops the answer where it is, and the thread goes on; the next, with nothing to stop, leaves."""
    async with chats.open() as chat:
        await chat.sees("A new thread.")
        chat.types("hang\r")
        await chat.sees("one two three")
        chat.types(CTRL_C)
        await chat.sees("■ interrupted")
        assert chat.process.returncode is None
        chat.types("go on\r")
        await chat.sees("you said go on")
        await eventually(lambda: _is_idle(chats))
        chat.types(CTRL_C)
        assert await chat.ends() == 0
        assert chat.is_restored


async def test_ctrl_c_twice_leaves_whatever_the_thread_does(chats: Chats) -> None:
    """Without a worker nothing can be interrupted, yet nobody is held; what is being sent is shown as such."""
    async with chats.open() as chat:
        await chat.sees("A new thread.")
        await chats.stack.stop_worker()
        chat.types("hello?\r")
        await chat.sees("… hello?")
        chat.types(CTRL_C)
        await chat.sees("Interrupting; Ctrl-C again leaves.")
        chat.types(CTRL_C)
        assert await chat.ends() == 0
        assert chat.is_restored
        assert chat.screen.lines[-2].startswith("The turn goes on; `perdure chat t-")


async def test_what_is_typed_while_an_answer_streams(chats: Chats) -> None:
    """It stays on its line below the answer; it interrupts, or waits with /queue, in the order of typing."""
    async with chats.open() as chat:
        await chat.sees("A new thread.")
        chat.types("hang\r")
        await chat.sees("one two three")
        chat.types("insted\x7f\x7fead")
        await chat.sees("› instead")
        chat.types("\r")
        await chat.sees("you said instead")
        chat.types("hang\r")
        await eventually(lambda: chat.screen.lines.count("one two three") == 2)
        chat.types("/queue later\r")
        await chat.sees("… later")
        chat.types("/stop\r")
        await chat.sees("you said later")
        # That the turn is stopped is told by the answer to the stop as well, and either may come first.
        shown = [line for line in chat.screen.lines if "later" in line or line.startswith("■")]
        assert shown[:2] == ["■ interrupted", "■ interrupted"]
        assert shown.index("› later") < shown.index("you said later")
        assert "… later" not in shown


async def test_the_commands(chats: Chats) -> None:
    """Help, status, stop, steer; what is no command is said and not sent; two slashes say one."""
    async with chats.open() as chat:
        await chat.sees("A new thread.")
        for typed, answer in [
            ("/help", "/queue TEXT"),
            ("/stop", "Nothing was running."),
            ("/status", "idle · agent demo · turn 0"),
            ("/nonsense", "/nonsense is not known, or lacks its text"),
            ("/queue", "/queue is not known, or lacks its text"),
            ("//hi", "you said /hi"),
            ("/steer there", "you said there"),
        ]:
            chat.types(typed + "\r")
            await chat.sees(answer)
        chat.types("/quit\r")
        assert await chat.ends() == 0
    assert len(await chats.stack.client.history(chats.thread)) == 4


async def test_a_thread_is_taken_up_with_its_history_even_in_mid_answer(chats: Chats) -> None:
    """Who comes back sees what was said and what streams now; two terminals show the same."""
    await chats.stack.client.ask(chats.thread, "earlier")
    await chats.stack.client.send(chats.thread, "hang")
    async with chats.open() as first, chats.open() as second:
        for chat in (first, second):
            await chat.sees("one two three")
            assert chat.screen.lines[:4] == ["› earlier", "you said earlier", "› hang", "one two three"]
        first.types("both\r")
        for chat in (first, second):
            await chat.sees("you said both")
            assert chat.screen.lines[4:7] == ["■ interrupted", "› both", "you said both"]


async def test_nothing_that_a_model_writes_is_obeyed(chats: Chats) -> None:
    """The terminal of this test fails on any sequence that is not our own."""
    async with chats.open() as chat:
        await chat.sees("A new thread.")
        chat.types("evil\r")
        await chat.sees("␛]0;owned␇␛[2J")
        await chat.sees("done")


async def test_a_paste_is_sent_as_one_message(chats: Chats) -> None:
    """Its line ends are shown while it is typed, and stay in the message."""
    async with chats.open() as chat:
        await chat.sees("A new thread.")
        chat.types("\x1b[200~two\rlines\x1b[201~")
        await chat.sees("two␊lines")
        chat.types("\r")
        await chat.sees("you said two")
    texts = [message.parts for message in await chats.stack.client.history(chats.thread)]
    assert getattr(texts[0][0], "text", None) == "two\nlines"


@pytest.mark.parametrize("kind", ["pipe", "file"])
async def test_without_a_terminal_each_line_is_answered_in_turn(chats: Chats, kind: str, tmp_path: Path) -> None:
    """A script can talk: no line interrupts the answer to the one before, and the end of the input ends the chat."""
    text = b"weather\n\nagain\n/status\n"
    (tmp_path / "lines").write_bytes(text)
    with (tmp_path / "lines").open("rb") as file:
        ends = (asyncio.subprocess.PIPE, text) if kind == "pipe" else (file, None)
        code, output, errors = await chats.pipe(*ends)
    assert (code, errors) == (0, "")
    assert "\x1b" not in output
    lines = [line for line in output.split("\n") if line]
    assert lines[0] == "› weather"
    assert lines[7].startswith("It is sunny and ValueError: no such city. More words")
    assert lines[8:11] == ["› again", "you said again", "idle · agent demo · turn 2"]


async def test_what_is_wrong_is_said_in_one_line(chats: Chats) -> None:
    """An unknown agent ends the chat before it begins, with exit code 2 and the terminal as it was."""
    async with chats.open("--agent", "typo") as chat:
        assert await chat.ends() == 2
        await chat.sees("perdure: There is no agent 'typo' on this worker; it serves demo.")
        assert len(chat.screen.lines) == 1
        assert chat.is_restored
