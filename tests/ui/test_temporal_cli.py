"""Threads from Temporal's own command line: what a person types as plain JSON is enough."""

import asyncio
import json
from asyncio.subprocess import PIPE
from collections.abc import AsyncGenerator
from dataclasses import dataclass
from typing import Any

import pytest

from perdure import ids
from perdure.agent import Agent
from perdure.connection import connect_temporal
from perdure.dev.temporal_server import TemporalServer, temporal_binary
from perdure.errors import ThreadNotFound
from perdure.testing import Asked, Call, Reply, ScriptedModel
from perdure.watch import answer_text
from stores.memory import MemoryStore
from tests.eventually import eventually
from tests.stack import Stack

pytestmark = pytest.mark.slow


def script(asked: Asked) -> Reply:
    """Ask the user's side, tell for ever, or repeat the words."""
    if asked.results:
        return Reply(f"You chose {asked.results[0]}.")
    match asked.user_text:
        case "ask me":
            return Reply(Call("choose", {}))
        case "tell me":
            return Reply("Once upon a time", hang=True)
        case words:
            return Reply(f"you said {words}")


def parrot() -> Agent:
    """An agent with a tool whose result comes from outside."""
    agent = Agent("parrot", model=ScriptedModel(script))

    @agent.tool(kind="client")
    async def choose() -> str:
        raise AssertionError("it is not for a worker to run")

    return agent


@dataclass(frozen=True)
class Answer:
    """What a command said, and how it ended."""

    code: int
    output: str
    errors: str

    @property
    def json(self) -> Any:
        """The output, decoded."""
        assert self.code == 0, self
        return json.loads(self.output)


class CommandLine:
    """The program `temporal`, spoken to a stack."""

    def __init__(self, stack: Stack) -> None:
        self._stack = stack
        self._begins = ["--type", "ThreadWorkflow", "--task-queue", stack.settings.task_queue]

    async def workflow(self, *arguments: str, thread: str = "cli") -> Answer:
        """`temporal workflow ...`, for one thread."""
        return await self.run("workflow", *arguments, "--workflow-id", ids.workflow_id(thread))

    async def run(self, *arguments: str) -> Answer:
        """`temporal ...`."""
        address = self._stack.temporal.service_client.config.target_host
        process = await asyncio.create_subprocess_exec(
            temporal_binary(),
            *(*arguments, "--address", address, "-o", "json"),
            stdout=PIPE,
            stderr=PIPE,
            env={},  # what a developer has set for Temporal is not for this server
        )
        output, errors = await process.communicate()
        assert process.returncode is not None
        return Answer(process.returncode, output.decode(), errors.decode())

    async def start(self, *arguments: str, thread: str = "cli") -> Answer:
        """`temporal workflow start`."""
        return await self.workflow("start", *self._begins, *arguments, thread=thread)

    async def signal(self, name: str, *content: str) -> None:
        """`temporal workflow signal`, with or without input."""
        inputs = [word for text in content for word in ("--input", text)]
        answer = await self.workflow("signal", "--name", name, *inputs)
        assert answer.code == 0, answer

    async def query(self, name: str) -> Any:
        """`temporal workflow query`: the result."""
        answer = await self.workflow("query", "--type", name)
        return answer.json["queryResult"][0]

    async def update(self, name: str, *content: str) -> Answer:
        """`temporal workflow update execute`."""
        inputs = [word for text in content for word in ("--input", text)]
        return await self.workflow("update", "execute", "--name", name, *inputs)

    async def signal_with_start(self, name: str, content: str, thread: str) -> Answer:
        """`temporal workflow signal-with-start`."""
        signal = ("--signal-name", name, "--signal-input", content)
        return await self.workflow("signal-with-start", *self._begins, *signal, thread=thread)

    async def answer(self, input_id: str, thread: str = "cli") -> str:
        """The words of the answer to a message, once its thread is there."""
        await eventually(lambda: self._is_stored(thread))
        message = await self._stack.client.wait_settled(thread, ids.input_message_id(thread, input_id))
        return answer_text(message)

    async def _is_stored(self, thread: str) -> bool:
        try:
            await self._stack.store.get_thread(thread)
        except ThreadNotFound:
            return False
        return True


@pytest.fixture
async def stack(ui_server: TemporalServer) -> AsyncGenerator[Stack]:
    """A stack on the server, with a store of its own."""
    temporal = await connect_temporal({"target_host": ui_server.address})
    async with Stack(temporal, MemoryStore(), [parrot()]) as stack:
        yield stack
        # The next test begins its threads anew.
        async for workflow in temporal.list_workflows("ExecutionStatus = 'Running'"):
            await temporal.get_workflow_handle(workflow.id).terminate()


@pytest.fixture
def command_line(stack: Stack) -> CommandLine:
    """The command line over the stack."""
    return CommandLine(stack)


async def test_a_thread_is_started_and_talked_to(stack: Stack, command_line: CommandLine) -> None:
    """Start, signals with an object, with words alone and without an id, and the queries."""
    started = await command_line.start("--input", '{"agent":"parrot","title":"From the shell"}')
    assert started.json["workflowId"] == "thread:cli"
    await command_line.signal("user_message", '{"id":"m1","text":"hi"}')
    assert await command_line.answer("m1") == "you said hi"
    assert (await stack.store.get_thread("cli")).title == "From the shell"
    described = (await command_line.workflow("describe")).json
    assert described["workflowExecutionInfo"]["memo"]["fields"]["title"] == "From the shell"
    await command_line.signal("user_message", '"just words"')
    await command_line.signal("user_message", '{"text":"no id","mode":"queue"}')
    await eventually(lambda: _is_said(command_line, "Assistant: you said no id"))
    transcript = await command_line.query("transcript")
    assert transcript.splitlines() == [
        "User: hi",
        "Assistant: you said hi",
        "User: just words",
        "Assistant: you said just words",
        "User: no id",
        "Assistant: you said no id",
    ]
    status = await command_line.query("status")
    assert (status["agent"], status["state"], status["turn"]) == ("parrot", "idle", 3)
    assert not await command_line.query("open_calls")  # of an empty list the program makes null


async def _is_said(command_line: CommandLine, words: str) -> bool:
    return words in str(await command_line.query("transcript"))


async def test_nothing_is_needed_to_start(command_line: CommandLine) -> None:
    """A start without input gives the worker's first agent; signal-with-start begins a thread with its first words."""
    assert (await command_line.start(thread="plain")).code == 0
    await command_line.signal_with_start("user_message", '{"id":"m1","text":"hi"}', "plain")
    assert await command_line.answer("m1", "plain") == "you said hi"
    await command_line.signal_with_start("user_message", '{"id":"m1","text":"hello"}', "new")
    assert await command_line.answer("m1", "new") == "you said hello"


async def test_updates_answer(command_line: CommandLine) -> None:
    """`send` tells the message's id and disposition, `stop` the turn that it stopped."""
    await command_line.start()
    sent = (await command_line.update("send", '{"id":"m1","text":"tell me"}')).json
    assert sent["result"] == {"message_id": ids.input_message_id("cli", "m1"), "disposition": "started"}
    again = (await command_line.update("send", '{"id":"m1","text":"tell me"}')).json
    assert again["result"]["disposition"] == "duplicate"
    assert (await command_line.update("stop")).json["result"] == {"turn": 1}
    assert (await command_line.update("stop")).json["result"] == {}


async def test_a_turn_is_interrupted_and_a_call_is_answered(stack: Stack, command_line: CommandLine) -> None:
    """`interrupt` needs no input; `tool_result` settles the call that `open_calls` shows."""
    await command_line.start()
    await command_line.signal("user_message", '{"id":"m1","text":"tell me"}')
    await command_line.signal("interrupt")
    await command_line.answer("m1")
    assert (await stack.client.history("cli"))[1].status.reason == "cancelled"
    assert await command_line.query("transcript") == "User: tell me\nAssistant: (stopped)"
    await command_line.signal("user_message", '{"id":"m2","text":"ask me"}')
    call = await eventually(lambda: _waiting_call(command_line))
    await command_line.signal("tool_result", json.dumps({"call_id": call, "content": "red"}))
    assert await command_line.answer("m2") == "You chose red."


async def _waiting_call(command_line: CommandLine) -> str | None:
    calls = await command_line.query("open_calls")
    return next((call["call_id"] for call in calls or () if call["tool"] == "choose"), None)


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        ('{"id":"m1","txet":"hi"}', "txet"),
        ('{"id":"m1","text":""}', "its text is empty"),
        ('{"id":"m1","text":5}', "text"),
        ("[1]", "user_message"),
    ],
)
async def test_what_was_typed_wrong_is_said(command_line: CommandLine, content: str, reason: str) -> None:
    """An update is refused with the reason; a signal's reason is among the problems of the status."""
    await command_line.start()
    refused = await command_line.update("send", content)
    assert refused.code == 1
    assert reason in refused.errors
    await command_line.signal("user_message", content)
    problems = (await command_line.query("status"))["problems"]
    assert len(problems) == 1
    assert reason in problems[0]


async def test_threads_are_listed_by_agent(command_line: CommandLine) -> None:
    """`temporal workflow list` finds them by their search attributes."""
    await command_line.start()
    await command_line.update("send", '{"id":"m1","text":"hi"}')
    found = await eventually(lambda: _listed(command_line))
    assert found[0]["type"]["name"] == "ThreadWorkflow"


async def _listed(command_line: CommandLine) -> Any:
    query = "PerdureAgent = 'parrot' AND WorkflowId = 'thread:cli' AND ExecutionStatus = 'Running'"
    return (await command_line.run("workflow", "list", "--query", query)).json
