"""PostgreSQL goes away and comes back: errors meanwhile, the same store afterwards, nothing lost."""

import asyncio
from collections.abc import AsyncGenerator

import pytest
import pytest_asyncio

from perdure.errors import StoreUnavailable
from stores.embedded import EmbeddedPostgres
from stores.migrate import migrate
from stores.postgres import PostgresStore
from tests.eventually import eventually
from tests.stores.builders import THREAD, delta, started, texts, user, write
from tests.stores.folders import new_folder

pytestmark = pytest.mark.slow


@pytest_asyncio.fixture(loop_scope="session")
async def server() -> AsyncGenerator[EmbeddedPostgres]:
    """A migrated server that the test may stop; what it has committed survives a crash."""
    with new_folder() as folder:
        async with EmbeddedPostgres(folder / "postgres", durable=True) as server:
            await migrate(server.url)
            yield server


@pytest.mark.parametrize("end", ["stop", "kill"])
async def test_a_store_goes_on_after_an_outage(server: EmbeddedPostgres, end: str) -> None:
    """Every call fails at once with one sentence while the server is away; then the pool connects again by itself."""
    async with await PostgresStore.connect(server.url) as store:
        await started(store)
        await (server.stop() if end == "stop" else server.kill())
        for _ in range(3):
            async with asyncio.timeout(5):
                with pytest.raises(StoreUnavailable, match=r"database 'postgres' at .* cannot be reached"):
                    await store.load_history_with_ancestors(THREAD)
                with pytest.raises(StoreUnavailable):
                    await write(store, 2, user("u2", "second"))
        await server.start()
        await write(store, 2, user("u2", "second"))
        assert await texts(store) == ["hi", "second"]


async def test_a_store_closes_while_the_server_is_away(server: EmbeddedPostgres) -> None:
    """A process that ends need not wait for a database that is gone."""
    store = await PostgresStore.connect(server.url)
    await started(store)
    await anext(store.listen(THREAD))
    await server.kill()
    async with asyncio.timeout(5):
        await store.close()


async def test_a_reader_is_woken_when_the_server_is_back(server: EmbeddedPostgres) -> None:
    """It may have missed something, so it is told to look."""
    async with await PostgresStore.connect(server.url) as store:
        await started(store)
        hints = store.listen(THREAD)
        await anext(hints)
        await server.stop()
        await server.start()
        seen = (await store.get_thread(THREAD)).seq
        await store.append_chunks(THREAD, 1, 0, 1, [delta("x")])

        async def caught_up() -> bool:
            await anext(hints)
            return bool(await store.read_changes(THREAD, seen))

        await eventually(caught_up)
        await hints.aclose()


async def test_a_batch_whose_reply_was_lost_is_applied_once(server: EmbeddedPostgres) -> None:
    """The server dies in the middle: whether the first call was committed or not, the second one makes it so, once."""
    async with await PostgresStore.connect(server.url) as store:
        await started(store)
        for number in range(2, 7):
            first = asyncio.create_task(write(store, number, user(f"m{number}", f"m{number}")))
            await asyncio.sleep(0)
            await server.kill()
            await asyncio.wait([first])
            await server.start()
            await eventually_written(store, number)
        assert await texts(store) == ["hi", "m2", "m3", "m4", "m5", "m6"]


async def eventually_written(store: PostgresStore, number: int) -> None:
    """Send the same batch until it is through."""

    async def written() -> bool:
        try:
            return (await write(store, number, user(f"m{number}", f"m{number}"))).number == number
        except StoreUnavailable:
            return False

    await eventually(written)
