"""Compactions over PostgreSQL: the same cuts, texts and views as in memory."""

import asyncio

import pytest

from perdure.batch import DeleteMessage, TrackSubscription
from perdure.messages import ToolCallPart, ToolResultPart
from perdure.summary_text import body, carried
from perdure.view import UserText
from stores.memory import MemoryStore
from stores.postgres import PostgresStore
from tests.compaction.driven import Held, Talk, agent
from tests.compaction.paths import RUNNING, call, result, text
from tests.perdure.view_rules import items, violations


async def conversation(talk: Talk) -> None:
    """Three turns with tools and odd characters, and one that runs."""
    for number in range(3):
        await talk.user(f"u{number}", f"question {number} \x00 \ud83d")
        await talk.answer(f"a{number}", call(f"c{number}"), result(f"c{number}", "\udfff\x00"), text("so \x00", 1))
    await talk.user("u3", "and then?")
    await talk.answer("a3", call("c3"), result("c3"), call("c4", 1), result("c4", step=1), status=RUNNING)
    await talk.sync(TrackSubscription(call_id="c0", tool="watch"))


@pytest.mark.parametrize("strategy", ["summary", "trace", "window"])
@pytest.mark.parametrize("keep", [0.0, 0.3])
async def test_both_stores_give_the_same(store: PostgresStore, strategy: str, keep: float) -> None:
    """Twice in a row, in the middle of a turn, with characters that a database cannot hold."""
    talks = [await Talk.begin(agent(strategy=strategy, keep=keep), one) for one in (store, MemoryStore())]
    seen: list[object] = []
    for talk in talks:
        await conversation(talk)
        assert (await talk.compact("a1")).outcome == "done"
        first = await talk.view()
        assert (await talk.compact("a3", 4)).outcome == "done"
        summary = await talk.summary()
        assert violations(await talk.view()) == []
        seen.append((first, await talk.view(), summary.with_(shape=None, usage=None), await talk.kept()))
        assert (await talk.whole()).summary is None
        assert len(await talk.ids()) == 8
    assert seen[0] == seen[1]


async def test_b02_over_postgresql(store: PostgresStore) -> None:
    """What is stored while the summariser works is there once, after what the summary stands for."""
    held = Held()
    talk = await Talk.begin(agent(model=held.model, keep=0.3), store)
    await talk.user("a", "a" * 100)
    await talk.answer("b", "b")
    await talk.user("c", "c")
    compacting = asyncio.create_task(talk.compact("c"))
    await held.reached.wait()
    await talk.answer("r", "r")
    await talk.user("d", "d")
    held.release.set()
    assert (await compacting).outcome == "done"
    assert await talk.ids() == ["a", "b", "c", "r", "d"]
    assert await talk.kept() == ["b", "c", "r", "d"]


async def test_a_child_is_compacted_at_its_own_first_message(store: PostgresStore) -> None:
    """A summary of no part of a message stands for all before it; the parent's path is as it was."""
    talk = await Talk.begin(agent(keep=0.4), store)
    await talk.user("u0", "question " + "x" * 500)
    await talk.answer("a0", "answer")
    child = await Talk.begin(
        talk.agent,
        store,
        thread_id="child",
        kind="child",
        parent_thread_id="t",
        root_thread_id="t",
        spawn_message_id="a0",
    )
    seed = (ToolCallPart(call_id="spawn", tool="spawn_thread"), ToolResultPart(call_id="spawn", content="You are."))
    await child.add("seed", "event", seed, input_id="seed")
    await child.answer("ca", "counting")
    before = await talk.view()
    assert (await child.compact("ca")).outcome == "done"
    summary = await child.summary()
    assert (summary.message_id, summary.parts) == ("seed", 0)
    assert await child.kept() == ["seed", "ca"]
    assert await talk.view() == before
    child.agent = agent(keep=0.0)
    child.compactions = 5
    assert (await child.compact("ca")).outcome == "done"
    assert carried((await child.summary()).text).task == "You are."


async def test_what_a_deletion_voids_is_read_again(store: PostgresStore) -> None:
    """The summary of a message that was deleted goes with it; a second deletion cannot bring it back."""
    talk = await Talk.begin(agent(keep=0.0), store)
    for number in range(2):
        await talk.user(f"u{number}", f"secret {number}")
        await talk.answer(f"a{number}", "ok")
    await talk.compact("a1")
    assert "secret 0" in body((await talk.summary()).text)
    await talk.sync(DeleteMessage(message_id="u0", input_id="gone", digest=""))
    path = await talk.path()
    assert path.summary is None
    assert [message.id for message in path.messages] == ["a0", "u1", "a1"]
    assert (await talk.compact("a1")).outcome == "done"
    shown = "".join(item.text for item in items(await talk.view()) if isinstance(item, UserText))
    assert "secret 0" not in shown
    assert "secret 1" in shown
