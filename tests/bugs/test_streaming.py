"""What readers put together of snapshots and changes."""

import asyncio

import pytest

from perdure.agent import Agent
from perdure.messages import Message, ToolCallPart, ToolResultPart
from perdure.records import Snapshot
from perdure.testing import Call, Reply, ScriptedModel
from perdure.watch import View
from tests.stack import Stack
from tests.workflows.conftest import StackFactory

SHAPE = ["text", "tool_call", "tool_call", "tool_result", "tool_result", "text"]


def kinds(message: Message) -> list[str]:
    """What its parts are."""
    return [part.kind for part in message.parts]


def pairs(message: Message) -> list[tuple[str, list[str]]]:
    """Each call with the contents of its results."""
    results = [part for part in message.parts if isinstance(part, ToolResultPart)]
    calls = [part for part in message.parts if isinstance(part, ToolCallPart)]
    return [(call.arguments, [one.content for one in results if one.call_id == call.call_id]) for call in calls]


@pytest.fixture
async def stack(start_stack: StackFactory) -> Stack:
    """An agent that says something, looks twice, and sums up."""
    calls = Reply("let me look", Call("look", '{"at": 1}'), Call("look", '{"at": 2}'), chunk_chars=5)
    agent = Agent("a", model=ScriptedModel([calls, Reply("sum", chunk_chars=1)]))

    @agent.tool
    async def look(at: int) -> str:
        """Look."""
        return f"saw {at}"

    return await start_stack(agent)


async def test_b45_a_reader_who_joins_anywhere_sees_the_order_of_events(stack: Stack, thread: str) -> None:
    """B45: the words before the calls, each call with one result, the sum at the end; also joined in the middle."""
    await stack.client.start(thread)
    asking = asyncio.create_task(stack.client.ask(thread, "go"))
    joined: list[Snapshot] = []
    while not asking.done():
        joined.append(await stack.store.snapshot(thread))
    await asking
    assert len({snapshot.seq for snapshot in joined}) > 2, "they join at different moments"
    stored = await stack.client.history(thread)
    assert kinds(stored[-1]) == SHAPE
    assert pairs(stored[-1]) == [('{"at": 1}', ["saw 1"]), ('{"at": 2}', ["saw 2"])]
    for snapshot in joined:
        seen = View()
        seen.apply(snapshot)
        for change in await stack.store.read_changes(thread, snapshot.seq):
            seen.apply(change)
        assert [(message.id, message.parts) for message in seen.messages] == [(m.id, m.parts) for m in stored]


async def test_b45_a_snapshot_that_is_imported_over_the_live_state_doubles_nothing(stack: Stack, thread: str) -> None:
    """B45: order and results are those of the snapshot, each once, also if its results have ids of their own."""
    await stack.client.ask(thread, "go")
    before = await stack.client.history(thread)
    file = await stack.client.export_thread(thread)
    for _ in range(2):
        await stack.client.import_thread(thread, file)
        after = await stack.client.history(thread)
        assert [message.id for message in after] == [message.id for message in before]
        assert [kinds(message) for message in after] == [["text"], SHAPE]
        assert pairs(after[-1]) == pairs(before[-1])
    assert len((await stack.client.tree(thread)).messages) == 2
