"""Secrets of the installation: made once, the same ever after."""

import asyncio

from perdure.ports import Store
from stores.postgres import PostgresStore
from tests.eventually import eventually
from tests.stores.postgres_eye import connected, waiting


async def test_a_key_is_made_once(store: Store) -> None:
    """32 bytes that are always the same, and others under another name."""
    name = "callbacks \x01 é '"
    key = await store.get_key(name)
    assert len(key) == 32
    assert await store.get_key(name) == key
    assert await store.get_key("other") not in (key, bytes(32))


async def test_who_asks_at_once_gets_the_same_key(store: Store) -> None:
    """Also when nobody has asked before."""
    assert len(set(await asyncio.gather(*(store.get_key("at once") for _ in range(8))))) == 1


async def test_two_stores_of_a_database_have_the_same_key(own_database_url: str, postgres: PostgresStore) -> None:
    """A token made by one process is good in another, and in no other installation."""
    async with (
        await PostgresStore.connect(own_database_url) as one,
        await PostgresStore.connect(own_database_url) as two,
    ):
        assert await one.get_key("callbacks") == await two.get_key("callbacks") != await postgres.get_key("callbacks")


async def test_who_comes_second_gets_the_key_of_the_first(own_database_url: str) -> None:
    """Two that find no key both make one; the second waits for the first and takes over its key."""
    async with (
        await PostgresStore.connect(own_database_url) as store,
        connected(own_database_url) as first,
        connected(own_database_url) as eye,
    ):
        async with first.transaction():
            await first.execute("insert into perdure.keys values ('callbacks', $1)", b"k" * 32)
            second = asyncio.create_task(store.get_key("callbacks"))
            await eventually(lambda: waiting(eye))
        assert await second == b"k" * 32
