"""What is left of deleted messages in what was said about them: nothing."""

import pytest

from perdure.messages import TurnOptions
from perdure.ports import Store
from perdure.records import LoggedMessage, Summary, SummaryItem
from perdure.turn_context import ContextMessage, ProviderContext, TurnContext
from tests.stores.builders import RUNNING, settle, text
from tests.stores.secret_words import SECRET, WORDS, Deletion, Traces, secretive, ways
from tests.stores.trees import answer, conversation, delete, said, written


def spoken() -> TurnContext:
    """What a provider said with the words."""
    messages = (ContextMessage(text=WORDS),)
    return TurnContext(providers=(ProviderContext(source="memory", instructions=WORDS, messages=messages),))


@ways
async def test_options_are_gone(store: Store, traces: Traces, way: Deletion) -> None:
    """They come with the words and may hold some."""
    operation = said("s")
    options = TurnOptions(model=SECRET, settings={"text": WORDS})
    await secretive(store, traces, operation.with_(message=operation.message.with_(options=options)))
    await way(store, "s")
    assert await traces() == []


@ways
async def test_what_providers_said_is_gone(store: Store, traces: Traces, way: Deletion) -> None:
    """With the words that the turn answers, while it runs: a retry asks again. With the turn it is gone for good."""
    await conversation(store)
    question = said("s", WORDS)
    await written(store, question.with_(message=question.message.with_(turn=3)), answer("a3", 3, status=RUNNING))
    await store.put_turn_context("t", 3, 0, spoken())
    assert await traces()
    await way(store, "s")
    if "a3" in {stored.message.id for stored in (await store.load_tree("t")).messages}:
        await written(store, settle("a3"), delete("a3", input_id="the answer"))
    await store.put_turn_context("t", 3, 0, spoken())
    assert await traces() == []


@ways
async def test_logs_are_without_them(store: Store, traces: Traces, way: Deletion) -> None:
    """The words themselves, and what was said in their turn; a late writer brings neither back."""
    await secretive(store, traces, said("u3"), answer("s", 3, text(WORDS)), said("u4"))
    logged = (
        LoggedMessage(id="s", role="assistant", text=WORDS, turn=3),
        LoggedMessage(id="s:memory:0", role="user", text=WORDS, turn=3, source="memory"),
    )
    await store.append_log("t", "audit", logged)
    assert len(await store.read_log("t", "audit")) == 2
    await way(store, "s")
    await store.append_log("t", "audit", logged)
    assert await traces() == []


@ways
async def test_summaries_are_without_them(store: Store, traces: Traces, way: Deletion) -> None:
    """Of every kind; one that was void from the beginning has kept nothing either."""
    await conversation(store)
    await written(store, said("s"), answer("a3", 3), said("u4"))
    items = (SummaryItem(role="user", text=WORDS),)
    summary = Summary(id="1", thread_id="t", message_id="u4", parts=1, text=WORDS, kind="trace", items=items)
    assert await store.add_summary(summary)
    assert await traces()
    await way(store, "s")
    assert not await store.add_summary(summary.with_(id="2", shape=0))
    assert await traces() == []


@pytest.mark.parametrize("message_id", ["u1", "a2"])
async def test_of_other_messages_everything_stays(store: Store, traces: Traces, message_id: str) -> None:
    """The control: a deletion that took everything would pass all of these tests."""
    question = said("s", WORDS)
    turn = (question.with_(message=question.message.with_(turn=3)), answer("a3", 3, status=RUNNING))
    await secretive(store, traces, *turn)
    await store.put_turn_context("t", 3, 0, spoken())
    logged = (
        LoggedMessage(id="s", role="user", text=WORDS, turn=3),
        LoggedMessage(id="a3:memory:0", role="user", text=WORDS, turn=3, source="memory"),
    )
    await store.append_log("t", "audit", logged)
    await written(store, delete(message_id))
    assert await store.get_turn_context("t", 3, 0) == spoken()
    assert await store.read_log("t", "audit") == logged
