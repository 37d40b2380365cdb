"""Which model a thread and its messages ask for."""

import pytest

from perdure.batch import AppendMessage
from perdure.errors import ThreadNotFound
from perdure.messages import TurnOptions
from perdure.ports import Store
from perdure.records import ThreadRecord
from tests.stores.builders import THREAD, started, user, write
from tests.stores.trees import conversation, imported, item, written

OPTIONS = TurnOptions(model="openai:gpt-5\x00\ud800", settings={"thinking": "high", "text": "\x00\ud800"})


async def test_a_thread_has_its_own_model_or_none(store: Store) -> None:
    """From its beginning, or from when it is set; every reading of its path says so."""
    await store.create_thread(ThreadRecord(thread_id=THREAD, agent="demo", model="first"))
    for model in ("first", "second", "\x00\ud800 '", None, None):
        if model != "first":
            await store.set_model(THREAD, model)
        assert (await store.get_thread(THREAD)).model == model
        assert (await store.load_history_with_ancestors(THREAD)).model == model
        assert (await store.load_tail(THREAD)).thread.model == model
        assert (await store.snapshot(THREAD)).path.model == model


async def test_the_model_is_known_whatever_is_read_of_the_path(store: Store) -> None:
    """Also when nothing is new on it; a batch leaves it as it is."""
    await started(store)
    await store.set_model(THREAD, "m")
    await write(store, 2, user("u2"))
    for known in (None, "u", "a", "u2"):
        assert (await store.load_history_with_ancestors(THREAD, known)).model == "m"
    assert (await store.load_history_with_ancestors(THREAD, None, "u")).model == "m"
    assert (await store.get_thread(THREAD)).model == "m"


async def test_a_child_has_a_model_of_its_own(store: Store) -> None:
    """What its parent asks is nothing to it."""
    await started(store)
    await store.set_model(THREAD, "m")
    child = ThreadRecord(thread_id="k", agent="demo", kind="child", parent_thread_id=THREAD, spawn_message_id="u")
    await store.create_thread(child)
    assert (await store.load_history_with_ancestors("k")).model is None
    await store.set_model("k", "other")
    assert (await store.load_history_with_ancestors("k")).model == "other"
    assert (await store.get_thread(THREAD)).model == "m"


async def test_to_set_the_model_is_no_change_for_readers(store: Store) -> None:
    """Neither a number nor a version: no writer is stale by it."""
    await started(store)
    before = await store.get_thread(THREAD)
    await store.set_model(THREAD, "m")
    assert await store.get_thread(THREAD) == before.with_(model="m")


async def test_a_thread_that_is_not_there(store: Store) -> None:
    """It is an error."""
    with pytest.raises(ThreadNotFound):
        await store.set_model("nobody", "m")


async def test_options_are_kept_with_the_words(store: Store) -> None:
    """To the letter, in every reading; other messages have none."""
    await started(store)
    operation = user("u2")
    assert isinstance(operation, AppendMessage)
    await write(store, 2, operation.with_(message=operation.message.with_(options=OPTIONS)))
    path = await store.load_history_with_ancestors(THREAD)
    assert [message.options for message in path.messages] == [None, None, OPTIONS]
    tree = {stored.message.id: stored.message.options for stored in (await store.load_tree(THREAD)).messages}
    assert tree == {"u": None, "a": None, "u2": OPTIONS}
    told = [change.message for change in await store.read_changes(THREAD, 3) if change.message]
    assert [(message.id, message.options) for message in told] == [("u2", OPTIONS)]


async def test_options_of_a_message_beside_another(store: Store) -> None:
    """However a message comes into the tree: as an edited version, or imported, and imported again."""
    await conversation(store)
    operation = user("u2b")
    assert isinstance(operation, AppendMessage)
    edited = operation.with_(message=operation.message.with_(options=OPTIONS), beside="u2")
    await written(store, edited)
    options = TurnOptions(model="m")
    brought = item("g", "u1")
    brought = brought.with_(message=brought.message.with_(options=OPTIONS))
    again = item("u1")
    again = again.with_(message=again.message.with_(options=options))
    await written(store, await imported(store, again, brought))
    tree = {one.given_id or one.message.id: one.message.options for one in (await store.load_tree(THREAD)).messages}
    assert tree == {"u1": options, "a1": None, "u2": None, "a2": None, "u2b": OPTIONS, "g": OPTIONS}
