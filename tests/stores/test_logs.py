"""Logs of history providers: each message once, in order, and gone with the message of the conversation."""

import asyncio

import pytest

from perdure.batch import Operation
from perdure.errors import ThreadNotFound
from perdure.ports import Store
from perdure.records import LoggedMessage
from stores.postgres import PostgresStore
from tests.eventually import eventually
from tests.stores.builders import THREAD
from tests.stores.postgres_eye import connected, waiting
from tests.stores.trees import conversation, delete, reset, written


def logged(message_id: str, text: str = "words", turn: int = 0) -> LoggedMessage:
    """A message of the conversation."""
    return LoggedMessage(id=message_id, role="user", text=text, turn=turn)


def context(turn: int, text: str = "a hint") -> LoggedMessage:
    """What a provider said in a turn."""
    return LoggedMessage(id=f"turn {turn}", role="user", text=text, turn=turn, source="memory")


async def ids(store: Store, source: str = "audit") -> list[str]:
    """What is in the log."""
    return [message.id for message in await store.read_log(THREAD, source)]


async def test_messages_are_logged_once_and_in_order(store: Store) -> None:
    """In the order of writing; one that comes again stays as it was, and the others of its batch are added."""
    await conversation(store)
    first = (logged("u2", "second"), logged("u1", "first"), context(1))
    await store.append_log(THREAD, "audit", first)
    await store.append_log(THREAD, "audit", (logged("u1", "other"), logged("a1"), logged("a1", "twice")))
    assert await store.read_log(THREAD, "audit") == (*first, logged("a1"))
    await store.append_log(THREAD, "audit", ())
    assert len(await ids(store)) == 4


async def test_each_provider_has_its_own(store: Store) -> None:
    """The same message may be in several."""
    await conversation(store)
    await store.append_log(THREAD, "audit", (logged("u1"),))
    await store.append_log(THREAD, "other", (logged("u1"), logged("a1")))
    assert (await ids(store), await ids(store, "other"), await ids(store, "none")) == (["u1"], ["u1", "a1"], [])


async def test_two_who_log_the_same_at_once(store: Store) -> None:
    """A turn that is told twice is in it once."""
    await conversation(store)
    messages = tuple(map(logged, ("u1", "a1", "u2", "a2")))
    await asyncio.gather(*(store.append_log(THREAD, "audit", messages) for _ in range(6)))
    assert await ids(store) == ["u1", "a1", "u2", "a2"]


@pytest.mark.parametrize("text", ["\x00", "\ud800", "'", "ä"])
async def test_any_text_comes_back(store: Store, text: str) -> None:
    """In words, in names, and in the ids of what is no message."""
    await conversation(store)
    said = (logged("u1", text), LoggedMessage(id=text, role="event", text=text, turn=1, source=text))
    await store.append_log(THREAD, text, said)
    assert await store.read_log(THREAD, text) == said


async def test_what_the_conversation_does_not_have_is_left_out(store: Store) -> None:
    """A message by its id, what was said by its turn; nothing of what is deleted is brought back by a late writer."""
    await conversation(store)
    await written(store, delete("u2"), delete("a2", input_id="delete-2"))
    await store.append_log(THREAD, "audit", tuple(map(logged, ("u1", "u2", "a2", "\x00", "\ud800"))))
    await store.append_log(THREAD, "audit", (context(1), context(2)))
    assert await ids(store) == ["u1", "turn 1"]


@pytest.mark.parametrize(
    ("operations", "left"),
    [
        ((delete("u2"),), ["u1", "a1", "turn 1", "a2", "turn 2"]),
        ((delete("a2"),), ["u1", "a1", "turn 1", "u2"]),
        ((reset("u1"),), ["u1"]),
    ],
)
async def test_deleted_messages_go_from_all_logs(
    store: Store, operations: tuple[Operation, ...], left: list[str]
) -> None:
    """With what was said in their turns, since that may repeat their words."""
    await conversation(store)
    messages = (logged("u1"), logged("a1", turn=1), context(1), logged("u2"), logged("a2", turn=2), context(2))
    for source in ("audit", "other"):
        await store.append_log(THREAD, source, messages)
    await written(store, *operations)
    assert await ids(store) == await ids(store, "other") == left


async def test_a_writer_that_waits_for_a_deletion_brings_nothing_back(
    postgres: PostgresStore, database_url: str
) -> None:
    """It had begun before the deletion was through."""
    await conversation(postgres)
    async with connected(database_url) as first, connected(database_url) as eye:
        async with first.transaction():
            await first.fetch("select * from perdure.threads where thread_id = $1 for no key update", THREAD)
            deletion = asyncio.create_task(written(postgres, delete("u2")))
            await eventually(lambda: waiting(eye))
            late = asyncio.create_task(postgres.append_log(THREAD, "audit", (logged("u1"), logged("u2"))))

            async def both() -> bool:
                return await waiting(eye) == 2

            await eventually(both)
        await asyncio.gather(deletion, late)
    assert await ids(postgres) == ["u1"]


async def test_a_thread_that_is_not_there(store: Store) -> None:
    """It has no log, and gets none."""
    with pytest.raises(ThreadNotFound):
        await store.append_log("nobody", "audit", (logged("u1"),))
    assert await store.read_log("nobody", "audit") == ()
