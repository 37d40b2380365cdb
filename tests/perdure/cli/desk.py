"""A person's desk: the commands and the chat over a real worker, about one thread.

The commands run in a thread of this process, which is much faster than a process for each; the chat has one of its own.
"""

import asyncio
import io
import json
import os
import sys
from collections import Counter
from contextlib import AbstractAsyncContextManager, redirect_stderr, redirect_stdout
from typing import Any
from unittest import mock

from perdure.agent import Agent
from perdure.approval import ApprovalOption, ApprovalQuestion, ApprovalRequest
from perdure.cli.ending import exit_code
from perdure.cli.main import app
from perdure.testing import Asked, Call, Reply, ScriptedModel
from tests.eventually import eventually
from tests.fakes.screen import TerminalProgram
from tests.stack import Stack

PICK = ApprovalRequest(
    prompt="Which one?",
    display="select",
    options=(
        ApprovalOption(id="red", label="The red one"),
        ApprovalOption(id="all", label="Both, always", kind="allow_always"),
        ApprovalOption(id="none", label="None", kind="reject_once"),
    ),
)
QUIZ = ApprovalRequest(
    prompt="Two things first.",
    display="questions",
    questions=(
        ApprovalQuestion(
            id="size", prompt="How big?", options=(ApprovalOption(id="s", label="small"), ApprovalOption(id="l"))
        ),
        ApprovalQuestion(id="name", prompt="Whose name?"),
    ),
)
CALLS = {
    "pay": Call("pay", {"amount": 3}),
    "pick": Call("pick", {"of": "two"}),
    "quiz": Call("quiz"),
    "ask": Call("ask", {"question": "Which colour?"}),
    "sign": Call("sign"),
}


class Desk:
    """The thread, and the programs over it."""

    def __init__(self, stack: Stack, thread: str, env: dict[str, str]) -> None:
        self.stack = stack
        self.client = stack.client
        self.thread = thread
        self._env = env

    def chat(self) -> AbstractAsyncContextManager[TerminalProgram]:
        """A chat in a terminal of its own."""
        return self.terminal("chat", self.thread)

    def terminal(self, *arguments: str) -> AbstractAsyncContextManager[TerminalProgram]:
        """Any command in a terminal of its own."""
        return TerminalProgram("-m", "perdure", *arguments, env=self._env, width=120)

    async def perdure(self, *arguments: str, stdin: str = "") -> tuple[int, str, str]:
        """A command: exit code, output and errors."""

        def run() -> int:
            return exit_code(lambda: app(arguments, prog_name="perdure"))

        output, errors = io.StringIO(), io.StringIO()
        given = io.TextIOWrapper(io.BytesIO(stdin.encode()))
        with redirect_stdout(output), redirect_stderr(errors), mock.patch("sys.stdin", given):
            code = await asyncio.to_thread(run)
        return code, output.getvalue(), errors.getvalue()

    async def script(self, *lines: str) -> list[str]:
        """What a chat without a terminal writes that is given these lines."""
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "perdure", "chat", self.thread),
            env=os.environ | self._env,
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.STDOUT,
        )
        output, _ = await process.communicate("\n".join(lines).encode())
        assert process.returncode == 0, output
        return [line for line in output.decode().split("\n") if line]

    async def does(self, command: str, *arguments: str, stdin: str = "") -> str:
        """What a command about the thread prints, which has to go well and say nothing else."""
        code, output, errors = await self.perdure(command, self.thread, *arguments, stdin=stdin)
        assert (code, errors) == (0, ""), (output, errors)
        return output

    async def fails(self, command: str, *arguments: str, code: int = 2, stdin: str = "") -> str:
        """What a command about the thread says on stderr, which has to end with this code and print nothing."""
        found, output, errors = await self.perdure(command, self.thread, *arguments, stdin=stdin)
        assert (found, output) == (code, ""), (output, errors)
        return errors.removeprefix("perdure: ")

    async def lines(self, command: str, *arguments: str) -> list[dict[str, Any]]:
        """What a command prints as JSON."""
        return [json.loads(line) for line in (await self.does(command, *arguments, "--json")).splitlines()]

    async def ids(self) -> list[str]:
        """The messages that are shown."""
        return [message.id for message in await self.client.history(self.thread)]

    async def approval(self) -> str:
        """The call that waits for approval, once one does and the turn rests for it."""

        async def waiting() -> list[str]:
            status = await self.client.status(self.thread)
            return [call.call_id for call in status.open_calls if call.state == "approval"]

        (call_id,) = await eventually(waiting)
        await eventually(lambda: self.client.approvals(self.thread))
        return call_id


def desk_agent() -> Agent:
    """An agent with tools that people have to approve in each way, and one whose calls they carry out."""
    said: Counter[str] = Counter()

    def script(asked: Asked) -> Reply:
        words = asked.user_text
        if asked.results and "did not run" not in asked.results[-1]:
            return Reply(f"heard {asked.results[-1]}")
        if words == "hang":
            return Reply("one two three", chunk_chars=4, hang=True)
        said[words] += 1
        if words == "both":
            return Reply(CALLS["pay"], CALLS["sign"])
        return Reply(CALLS[words]) if words in CALLS else Reply(f"answer {said[words]} to {words}")

    agent = Agent("desk", model=ScriptedModel(script))

    @agent.tool(approval="always")
    async def pay(amount: int) -> str:
        """Pay."""
        return f"paid {amount}"

    @agent.tool(approval=lambda _: PICK)
    async def pick(of: str) -> str:
        """Pick one."""
        return f"picked of {of}"

    @agent.tool(approval=lambda _: QUIZ)
    async def quiz() -> str:
        """Ask first."""
        return "asked"

    @agent.tool(kind="client")
    def ask(question: str) -> str:
        """Ask the person."""
        raise AssertionError("runs on the person's side")

    agent.client_tool("sign", description="Sign.", parameters={"type": "object"}, approval="always")
    return agent
