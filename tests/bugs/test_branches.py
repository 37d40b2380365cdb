"""Edited messages: what they replace, and what they are built on."""

import pytest

from perdure.agent import Agent
from perdure.errors import UsageError
from perdure.messages import Message, TextPart
from perdure.testing import ScriptedModel
from tests.stack import Stack
from tests.workflows.conftest import StackFactory


def text_of(message: Message) -> str:
    """Its words."""
    return "".join(part.text for part in message.parts if isinstance(part, TextPart))


async def texts(stack: Stack, thread: str) -> list[str]:
    """What is shown."""
    return [text_of(message) for message in await stack.client.history(thread)]


async def test_b44_an_edited_message_is_another_one(start_stack: StackFactory, thread: str) -> None:
    """B44: also if a client sends the old id again; the old one stays readable, and all are there after a reload."""
    stack = await start_stack(Agent("a", model=ScriptedModel(lambda asked: f"re {asked.user_text}")))
    client = stack.client
    await client.ask(thread, "old", id="u1")
    old, _ = await client.history(thread)
    again = await client.edit(thread, old.id, "new", id="u1")
    assert (again.disposition, await texts(stack, thread)) == ("conflict", ["old", "re old"])
    with pytest.raises(UsageError):
        await client.edit(thread, "u1", "new")
    edited = await client.edit(thread, old.id, "new")
    await client.wait_settled(thread, edited.message_id)
    assert await texts(stack, thread) == ["new", "re new"]
    await client.switch_branch(thread, old.id)
    assert await texts(stack, thread) == ["old", "re old"]
    third = await client.edit(thread, old.id, "third")
    await client.wait_settled(thread, third.message_id)
    await stack.restart_worker()
    siblings = await client.branches(thread, old.id)
    assert [branch.text for branch in siblings] == ["old", "new", "third"]
    assert len({branch.message_id for branch in siblings}) == 3
    assert [branch.selected for branch in siblings] == [False, False, True]
    stored = [one for one in (await client.tree(thread)).messages if one.message.role == "user"]
    assert {one.parent_id for one in stored} == {None}
    assert [one.message.source_id for one in sorted(stored, key=lambda one: one.place)] == [None, old.id, old.id]
    assert await texts(stack, thread) == ["third", "re third"]


async def test_b44_an_edit_starts_from_the_branch_that_is_viewed(start_stack: StackFactory, thread: str) -> None:
    """B44: deep in the older of two branches; its ancestors are those of the branch, and the model reads no others."""
    model = ScriptedModel(lambda asked: f"re {asked.user_text}")
    stack = await start_stack(Agent("a", model=model))
    client = stack.client
    await client.ask(thread, "old")
    await client.ask(thread, "more")
    path = await client.history(thread)
    edited = await client.edit(thread, path[0].id, "new")
    await client.wait_settled(thread, edited.message_id)
    await client.ask(thread, "more of the new")
    await client.switch_branch(thread, path[0].id)
    deep = await client.edit(thread, path[2].id, "else")
    await client.wait_settled(thread, deep.message_id)
    assert await texts(stack, thread) == ["old", "re old", "else", "re else"]
    assert "new" not in str(model.requests[-1].messages)
    assert (await client.history(thread))[2].parent_id == path[1].id
