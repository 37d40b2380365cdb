"""Tools of MCP servers with the whole stack: the server is a process, the user speaks in the middle of calls."""

import json

import pytest
from pydantic_ai.messages import UserPromptPart

from perdure.agent import Agent
from perdure.messages import ToolResultPart
from perdure.testing import Asked, Call, Reply, ScriptedModel
from tests.activities.mcp_calls import stdio_toolset
from tests.chaos.faults import faults
from tests.eventually import eventually
from tests.fakes.mcp_tools import BIG, PIXEL
from tests.workflows.conftest import StackFactory


def call_what_the_user_says(asked: Asked) -> Reply:
    """Call the tool that the user names, with the arguments that follow; then say what it returned."""
    # What was interrupted comes with the new words; what returned comes alone.
    if asked.results and not any(isinstance(part, UserPromptPart) for part in asked.messages[-1].parts):
        return Reply(asked.results[-1])
    name, _, arguments = asked.user_text.partition(" ")
    return Reply(Call(name, arguments or "{}"))


@pytest.mark.slow
async def test_b65_the_user_speaks_during_calls(start_stack: StackFactory, thread: str) -> None:
    """B65: calls that the user cuts off stop on the server, the conversation is sound, and the next call works."""
    stack = await start_stack(
        Agent("a", model=ScriptedModel(call_what_the_user_says), toolsets=[stdio_toolset("mcp_server.py")])
    )
    seen = json.loads(await stack.client.ask(thread, "stats"))
    for number in range(10):
        await stack.client.send(thread, "sleep", id=f"s{number}")

        async def runs() -> bool:
            return any(call.state == "running" for call in await stack.client.open_calls(thread))

        await eventually(runs)

    async def told() -> dict[str, int]:
        found: dict[str, int] = json.loads(await stack.client.ask(thread, "stats"))
        return found if found["running"] == 0 else {}

    after = await eventually(told)
    assert after["pid"] == seen["pid"]
    # A call that was cut off before it reached the server is not told to it.
    assert after["cancelled"] == after["calls"]
    assert after["calls"] > 0
    assert await stack.client.ask(thread, f'echo {{"text": "x", "id": {BIG}}}') == f'{{"text": "x", "id": {BIG}}}'
    assert faults(await stack.client.history(thread)) == []


async def test_files_and_errors_are_stored(start_stack: StackFactory, thread: str) -> None:
    """An image of a result is a blob of the thread; the error of a tool is an error result."""
    stack = await start_stack(
        Agent("a", model=ScriptedModel(call_what_the_user_says), toolsets=[stdio_toolset("mcp_server.py")])
    )
    await stack.client.ask(thread, "items")
    await stack.client.ask(thread, "wrong")
    parts = [part for message in await stack.client.history(thread) for part in message.parts]
    items, wrong = [part for part in parts if isinstance(part, ToolResultPart)]
    assert [file.media_type for file in items.files] == ["image/png", "audio/wav", "application/octet-stream"]
    assert await stack.store.get_blob(thread, items.files[0].blob) == PIXEL
    assert (wrong.outcome, wrong.content) == ("error", "It went wrong.")


async def test_a_server_that_cannot_be_started_leaves_the_agent_its_own_tools(
    start_stack: StackFactory, thread: str
) -> None:
    """The agent answers without the tools of a server that is not there, and the status says so."""
    model = ScriptedModel(["hello"])
    stack = await start_stack(Agent("a", model=model, toolsets=[stdio_toolset("no_such_program.py")]))
    assert await stack.client.ask(thread, "hi") == "hello"
    assert model.requests[0].tools == ()
    assert "MCP server 'fake' ended before it answered" in "".join((await stack.client.status(thread)).problems)
