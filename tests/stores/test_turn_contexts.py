"""What context providers said for a model call: kept once, and gone with its turn."""

import asyncio

import pytest

from perdure.errors import ThreadNotFound
from perdure.ports import Store
from perdure.turn_context import ContextMessage, ProviderContext, TurnContext
from tests.stores.builders import THREAD, settle, started, write
from tests.stores.trees import answer, conversation, delete, imported, item, reset, said, written


def words(text: str) -> TurnContext:
    """What one provider said."""
    messages = (ContextMessage(text=text, role="assistant"),)
    return TurnContext(providers=(ProviderContext(source=text, instructions=text, messages=messages, problem=text),))


async def test_the_first_one_is_kept(store: Store) -> None:
    """A retry gets what the first attempt has stored; each call of a turn has its own."""
    await started(store)
    assert await store.get_turn_context(THREAD, 1, 0) is None
    assert await store.put_turn_context(THREAD, 1, 0, words("one")) == words("one")
    assert await store.put_turn_context(THREAD, 1, 0, words("two")) == words("one")
    assert await store.put_turn_context(THREAD, 1, 1, words("three")) == words("three")
    assert await store.get_turn_context(THREAD, 1, 0) == words("one")
    assert await store.get_turn_context(THREAD, 1, 1) == words("three")


async def test_of_two_at_once_both_get_the_same(store: Store) -> None:
    """Whichever comes first."""
    await started(store)
    puts = (store.put_turn_context(THREAD, 1, 0, words(f"{number}")) for number in range(8))
    found = await asyncio.gather(*puts)
    assert len({context.instructions for context in found}) == 1
    assert await store.get_turn_context(THREAD, 1, 0) == found[0]


@pytest.mark.parametrize("text", ["\x00", "\ud800", "'; drop table --", "\U0001f600"])
async def test_any_text_comes_back(store: Store, text: str) -> None:
    """To the letter."""
    await started(store)
    await store.put_turn_context(THREAD, 1, 0, words(text))
    assert await store.get_turn_context(THREAD, 1, 0) == words(text)


async def test_a_thread_that_is_not_there(store: Store) -> None:
    """Nothing is written to it, and nothing was said in it."""
    with pytest.raises(ThreadNotFound):
        await store.put_turn_context("nobody", 1, 0, words("x"))
    assert await store.get_turn_context("nobody", 1, 0) is None
    await store.drop_turn_contexts("nobody", 1)


async def test_they_are_forgotten_by_turn(store: Store) -> None:
    """Those of the turn, all of them and no others; again is no error."""
    await started(store)
    for turn, step in ((1, 0), (1, 1), (2, 0)):
        await store.put_turn_context(THREAD, turn, step, words("x"))
    for _ in range(2):
        await store.drop_turn_contexts(THREAD, 1)
    assert [await store.get_turn_context(THREAD, *at) for at in ((1, 0), (1, 1), (2, 0))] == [None, None, words("x")]


async def test_of_a_turn_that_is_over_nothing_more_is_kept(store: Store) -> None:
    """A late attempt gets what it said, or what was kept before; nobody would forget it any more."""
    await started(store)
    await store.put_turn_context(THREAD, 1, 0, words("kept"))
    await write(store, 2, settle("a"))
    assert await store.put_turn_context(THREAD, 1, 1, words("late")) == words("late")
    assert await store.get_turn_context(THREAD, 1, 1) is None
    assert await store.put_turn_context(THREAD, 1, 0, words("late")) == words("kept")


async def two_turns(store: Store) -> None:
    """u1 > a1 > u2 > a2, which runs, with a context each; the words name their turns."""
    await conversation(store)
    await written(store, said("u3"), answer("a3", 3))
    for turn in (4, 5):
        question = said(f"u{turn}")
        question = question.with_(message=question.message.with_(turn=turn))
        running = answer(f"a{turn}", turn)
        await store.put_turn_context(THREAD, turn, 0, words(f"turn {turn}"))
        await written(store, question, running)


@pytest.mark.parametrize("message_id", ["u4", "a4"])
async def test_they_go_with_their_turn(store: Store, message_id: str) -> None:
    """Whether the answer or the words that it answers are deleted: what was said may repeat either."""
    await two_turns(store)
    await written(store, delete(message_id))
    assert await store.get_turn_context(THREAD, 4, 0) is None
    assert await store.get_turn_context(THREAD, 5, 0) == words("turn 5")
    if message_id == "a4":
        await store.put_turn_context(THREAD, 4, 0, words("late"))
        assert await store.get_turn_context(THREAD, 4, 0) is None


async def test_they_go_when_all_below_goes(store: Store) -> None:
    """The deletion of many messages is one of each."""
    await two_turns(store)
    await written(store, reset("a3"))
    assert [await store.get_turn_context(THREAD, turn, 0) for turn in (4, 5)] == [None, None]


async def test_they_go_when_an_import_brings_other_content(store: Store) -> None:
    """What the message said is gone then, too."""
    await two_turns(store)
    await written(store, await imported(store, item("a4", "u4", role="assistant")))
    assert await store.get_turn_context(THREAD, 4, 0) is None
    assert await store.get_turn_context(THREAD, 5, 0) == words("turn 5")
