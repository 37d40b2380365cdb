"""What readers are told when a compaction is over."""

import asyncio
from contextlib import aclosing

from perdure.batch import AppendMessage
from perdure.messages import Message, TextPart
from perdure.reader import ThreadReader
from perdure.watch import View
from tests.compaction.driven import Talk, agent
from tests.workflows.conftest import StackFactory
from tests.workflows.test_compactions import Talker


async def test_a_watcher_is_told_while_the_conversation_goes_on(start_stack: StackFactory, thread: str) -> None:
    """As a change in its place, with all that the model reads instead; the messages of its view stay."""
    stack = await start_stack(Talker().agent)
    await stack.client.ask(thread, "one")
    view = View()
    async with aclosing(stack.client.watch(thread)) as events:
        view.apply(await anext(events))
        await stack.client.compact(thread)
        async with asyncio.timeout(30):
            while view.summary is None:
                view.apply(await anext(events))
    assert view.summary is not None
    assert "They said hello." in view.summary.text
    assert view.summary == (await stack.store.load_history_with_ancestors(thread)).summary
    assert [message.role for message in view.messages] == ["user", "assistant"]
    assert view.messages == list(await stack.client.history(thread, whole=True))


async def test_a_view_takes_the_newest_on_its_path() -> None:
    """Whatever point a reader joins at, it ends with the same; one on a branch that is not shown is not of its path."""
    talk = await Talk.begin(agent(keep=0.0))
    for number in range(3):
        await talk.user(f"u{number}", f"q{number}")
        await talk.answer(f"a{number}", f"r{number}")
    view = View()
    view.apply(await talk.store.snapshot("t"))
    await talk.compact("a0")
    await talk.compact("a2")
    for change in await talk.store.read_changes("t", view.seq):
        view.apply(change)
    assert (await talk.summary()).message_id == "a2"
    assert view.summary == await talk.summary()
    async with aclosing(ThreadReader(talk.store).watch("t")) as events:
        joined = View()
        joined.apply(await anext(events))
    assert (joined.summary, joined.messages) == (view.summary, view.messages)
    other = Message(id="u3", thread_id="t", role="user", parent_id="a0", parts=(TextPart(text="other"),))
    await talk.sync(AppendMessage(message=other, digest="u3"))
    left = View()
    left.apply(await talk.store.snapshot("t"))
    assert left.summary is not None
    assert left.summary.message_id == "a0"
    for change in await talk.store.read_changes("t", 0):
        if change.summary and change.summary.message_id == "a2":
            left.apply(change.with_(seq=left.seq + 1))
    assert left.summary.message_id == "a0"
