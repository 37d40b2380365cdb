"""Content that is too large for Temporal's payloads, and conversations too long for its histories."""

import hashlib

import asyncpg
import pytest
from temporalio.client import WorkflowHandle

from perdure import ids
from perdure.agent import Agent
from perdure.errors import UsageError
from perdure.large_text import TEXT_BYTES
from perdure.limits import Limits
from perdure.messages import TextPart, ToolResultPart
from perdure.testing import Asked, Call, Reply, ScriptedModel
from tests.chaos.faults import faults
from tests.recorded import chain
from tests.workflows.conftest import StackFactory

TOO_LARGE = 4_194_474


async def test_b28_a_large_tool_result_is_kept_elsewhere(start_stack: StackFactory, thread: str) -> None:
    """B28: the tool runs once, its bytes come back whole, and Temporal holds none of them."""
    text = "".join(chr(97 + n % 26) for n in range(TOO_LARGE))
    agent = Agent("a", model=ScriptedModel([Reply(Call("dump", {})), "done"]))
    runs = 0

    @agent.tool
    async def dump() -> str:
        nonlocal runs
        runs += 1
        return text

    stack = await start_stack(agent)
    assert await stack.client.ask(thread, "go") == "done"
    (result,) = (p for p in (await stack.client.history(thread))[-1].parts if isinstance(p, ToolResultPart))
    assert (result.outcome, result.size_bytes, runs) == ("ok", TOO_LARGE, 1)
    assert result.blob is not None
    stored = await stack.store.get_blob(thread, result.blob)
    assert hashlib.sha256(stored).digest() == hashlib.sha256(text.encode()).digest()
    assert sum(event.ByteSize() for event in await chain(stack.temporal, thread)) < 50_000


async def test_b28_a_large_answer_is_stored_whole(start_stack: StackFactory, thread: str) -> None:
    """B28: a reply of the model above Temporal's limit goes to the store only."""
    stack = await start_stack(Agent("a", model=ScriptedModel([Reply("x" * TOO_LARGE, chunk_chars=100_000)])))
    assert await stack.client.ask(thread, "go") == "x" * TOO_LARGE
    assert sum(event.ByteSize() for event in await chain(stack.temporal, thread)) < 50_000


async def test_b28_a_large_message_of_the_user_arrives_or_is_refused(start_stack: StackFactory, thread: str) -> None:
    """B28: 3 MB arrive; above the limit the sender gets an error; sent around the client, it hurts nobody else."""
    stack = await start_stack(Agent("a", model=ScriptedModel(lambda asked: f"{len(asked.user_text)}")))
    accepted = await stack.client.send(thread, "x" * 3_000_000)
    await stack.client.wait_settled(thread, accepted.message_id)
    said = [p for m in await stack.client.history(thread) for p in m.parts if isinstance(p, TextPart)]
    assert said[0].text == "x" * 3_000_000
    with pytest.raises(UsageError, match="bytes"):
        await stack.client.send(thread, "x" * (TEXT_BYTES + 1))
    handle: WorkflowHandle[object, object] = stack.temporal.get_workflow_handle(ids.workflow_id(thread))
    with pytest.raises(Exception, match=r"(?i)size|limit|large"):
        await handle.signal("user_message", {"id": "raw", "text": "x" * 3_000_000})
    assert await stack.client.ask(thread, "still there?") == str(len("still there?"))


@pytest.mark.slow
async def test_b29_no_model_call_carries_the_conversation(
    start_stack: StackFactory, database_url: str, thread: str
) -> None:
    """B29: a hundred calls of 5 KB on top of 0.8 MB: inputs stay small, and the database grows in proportion."""

    def script(asked: Asked) -> Reply:
        """As many calls as the user asks for, one in each step."""
        if not asked.user_text.isdigit():
            return Reply("noted")
        made = len([m for m in asked.messages[-2 * int(asked.user_text) - 1 :] if _calls(m)])
        return Reply("done") if made >= int(asked.user_text) else Reply(Call("page", {"n": made}))

    def _calls(message: object) -> bool:
        return any(getattr(part, "part_kind", "") == "tool-call" for part in getattr(message, "parts", ()))

    agent = Agent("a", model=ScriptedModel(script), limits=Limits(steps=200))

    @agent.tool
    async def page(n: int) -> str:
        return hashlib.sha512(str(n).encode()).hexdigest() * 40

    stack = await start_stack(agent)
    grown: dict[str, int] = {}
    connection = await asyncpg.connect(database_url)
    try:
        for calls in ("50", "100"):
            name = f"{thread}-{calls}"
            for part in range(8):
                await stack.client.ask(name, f"{part} " + "lorem ipsum " * 8_400)
            before = await _stored_bytes(connection)
            assert await stack.client.ask(name, calls) == "done"
            grown[calls] = await _stored_bytes(connection) - before
            messages = await stack.client.history(name)
            results = [part for part in messages[-1].parts if isinstance(part, ToolResultPart)]
            assert [part.outcome for part in results] == ["ok"] * int(calls)
            assert faults(messages) == []
    finally:
        await connection.close()
    events = await chain(stack.temporal, f"{thread}-100")
    inputs = [event.activity_task_scheduled_event_attributes.input.ByteSize() for event in events]
    assert 0 < max(inputs) < 1_000
    assert sum(event.ByteSize() for event in events) < 1_000_000
    assert grown["100"] <= 2.5 * grown["50"]


async def _stored_bytes(connection: "asyncpg.Connection[asyncpg.Record]") -> int:
    """What the rows of the conversation take, without the room that the tables keep for later."""
    stored: int = await connection.fetchval("select coalesce(sum(pg_column_size(parts.*)), 0) from perdure.parts")
    buffered: int = await connection.fetchval("select coalesce(sum(pg_column_size(steps.*)), 0) from perdure.steps")
    return stored + buffered
