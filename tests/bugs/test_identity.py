"""Ids: those of providers repeat, those of ours do not."""

import pytest

from perdure.agent import Agent
from perdure.messages import TextPart, ToolCallPart, ToolResultPart
from perdure.testing import Call, Reply, ScriptedModel
from tests.chaos.faults import faults
from tests.workflows.conftest import StackFactory


@pytest.mark.parametrize("given", [("", ""), ("dup", "dup"), ("a", "a", "")], ids=["blank", "repeated", "mixed"])
async def test_b10_every_call_runs_whatever_its_provider_calls_it(
    given: tuple[str, ...], start_stack: StackFactory, thread: str
) -> None:
    """B10: once each and in order; their results are paired in that order, and the ids are the same after a reload."""
    words = [chr(ord("x") + at) for at in range(len(given))]
    calls = Reply(*(Call("search", {"q": q}, id=call_id) for q, call_id in zip(words, given, strict=True)))
    model = ScriptedModel(lambda asked: Reply("done") if asked.results else calls)
    agent, ran = Agent("a", model=model), list[str]()

    @agent.tool
    async def search(q: str) -> str:
        """Search."""
        ran.append(q)
        return f"found {q}"

    stack = await start_stack(agent)
    for turn in (1, 2):
        # The same ids come again in the next turn.
        assert await stack.client.ask(thread, "go") == "done"
        assert sorted(ran) == sorted(words * turn)
        assert model.requests[-1].results == tuple(f"found {q}" for q in words)
    messages = await stack.client.history(thread)
    called = [part.call_id for message in messages for part in message.parts if isinstance(part, ToolCallPart)]
    answered = [part.call_id for message in messages for part in message.parts if isinstance(part, ToolResultPart)]
    assert called == answered
    assert all(called)
    assert len(set(called)) == 2 * len(given)
    await stack.restart_worker()
    assert await stack.client.history(thread) == messages
    assert faults(messages) == []


async def test_b35_ids_of_a_provider_are_extra_data(start_stack: StackFactory, thread: str) -> None:
    """B35: one that calls every reply `txt-0`; two messages of ours, whose ids are the same after reload and merge."""
    model = ScriptedModel([Reply("one", part_id="txt-0"), Reply("two", part_id="txt-0")])
    stack = await start_stack(Agent("a", model=model))
    for _ in range(2):
        await stack.client.ask(thread, "go")
    messages = await stack.client.history(thread)
    answers = [message for message in messages if message.role == "assistant"]
    texts = [part for message in answers for part in message.parts if isinstance(part, TextPart)]
    assert [part.text for part in texts] == ["one", "two"]
    assert [part.provider.id if part.provider else None for part in texts] == ["txt-0", "txt-0"]
    assert len({message.id for message in messages}) == 4
    await stack.restart_worker()
    assert await stack.client.history(thread) == messages
    # A list that was carried away is merged with what is live: each message is one.
    await stack.client.import_thread(thread, await stack.client.export_thread(thread))
    tree = await stack.client.tree(thread)
    assert sorted(one.message.id for one in tree.messages) == sorted(message.id for message in messages)


async def test_b35_ids_of_a_file_do_not_meet_those_of_another_thread(start_stack: StackFactory, thread: str) -> None:
    """B35: ids such as `msg_1` come from everywhere; in each thread they are messages of its own."""
    stack = await start_stack(Agent("a", model=ScriptedModel(lambda asked: "ok")))
    file = {
        "messages": [
            {"parentId": None, "message": {"id": "msg_1", "role": "user", "content": "hello"}},
            {"parentId": "msg_1", "message": {"id": "msg_2", "role": "assistant", "content": "hi"}},
        ]
    }
    seen: set[str] = set()
    for name in (f"{thread}-1", f"{thread}-2"):
        await stack.client.start(name)
        await stack.client.import_thread(name, file)
        await stack.client.ask(name, "go on")
        exported = await stack.client.export_thread(name)
        assert [one["message"]["id"] for one in exported["messages"]][:2] == ["msg_1", "msg_2"]
        seen |= {one.message.id for one in (await stack.client.tree(name)).messages}
    assert len(seen) == 8
