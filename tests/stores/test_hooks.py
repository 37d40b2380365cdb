"""Hooks after turns: that they have run, and what providers keep, in one transaction."""

import asyncio

import asyncpg
import pytest

from perdure.errors import ThreadNotFound
from perdure.ports import Store
from perdure.records import ProviderState
from stores.postgres import PostgresStore
from tests.stores.builders import THREAD, started


def state(version: int = 0, schema_version: int = 1, **values: object) -> ProviderState:
    """A state as it was read, with other values."""
    return ProviderState(values=values, version=version, schema_version=schema_version)


async def test_a_hook_is_remembered_with_its_state(store: Store) -> None:
    """The version counts writes, whatever turn they are of; a provider without a state has none."""
    await started(store)
    assert await store.get_provider_states(THREAD) == {}
    assert await store.finish_hook(THREAD, 1, "memory", state(n=1))
    assert await store.finish_hook(THREAD, 1, "audit")
    assert await store.finish_hook(THREAD, 2, "memory", state(1, 3, n=2))
    assert await store.get_provider_states(THREAD) == {"memory": state(2, 3, n=2)}
    assert await store.finished_hooks(THREAD, 1) == ("audit", "memory")
    assert await store.finished_hooks(THREAD, 2) == ("memory",)
    assert await store.finished_hooks(THREAD, 3) == ()


async def test_a_hook_that_is_finished_writes_nothing_more(store: Store) -> None:
    """A retry after a lost reply is told that it is finished, whatever it brings."""
    await started(store)
    for values in (state(n=1), state(n=2), state(1, n=3), None):
        assert await store.finish_hook(THREAD, 1, "memory", values)
    assert await store.get_provider_states(THREAD) == {"memory": state(1, n=1)}


async def test_a_state_that_somebody_else_wrote_is_not_overwritten(store: Store) -> None:
    """And the hook is not finished: it must run on what is there now."""
    await started(store)
    await store.finish_hook(THREAD, 1, "memory", state(n=1))
    for stale in (0, 2):
        assert not await store.finish_hook(THREAD, 2, "memory", state(stale, n=9))
    assert not await store.finish_hook(THREAD, 2, "new", state(1))
    assert await store.finished_hooks(THREAD, 2) == ()
    assert await store.get_provider_states(THREAD) == {"memory": state(1, n=1)}


async def test_of_two_turns_that_end_at_once_one_must_read_again(store: Store) -> None:
    """No write of the two is lost."""
    await started(store)
    both = await asyncio.gather(*(store.finish_hook(THREAD, turn, "memory", state(turn=turn)) for turn in (1, 2)))
    assert sorted(both) == [False, True]
    (left,) = [turn for turn, finished in zip((1, 2), both, strict=True) if not finished]
    assert await store.finish_hook(THREAD, left, "memory", state(1, turn=left))
    assert await store.get_provider_states(THREAD) == {"memory": state(2, turn=left)}


async def test_the_same_hook_twice_at_once_runs_once(store: Store) -> None:
    """Both are told that it is finished, one state is kept."""
    await started(store)
    assert all(await asyncio.gather(*(store.finish_hook(THREAD, 1, "memory", state(n=n)) for n in range(8))))
    assert (await store.get_provider_states(THREAD))["memory"].version == 1


@pytest.mark.parametrize("text", ["\x00", "\ud800", '"', "ä"])
async def test_any_text_comes_back(store: Store, text: str) -> None:
    """In names and in values."""
    await started(store)
    await store.finish_hook(THREAD, 1, text, ProviderState(values={text: [text, None, 1.5]}))
    found = (await store.get_provider_states(THREAD))[text]
    assert found.values == {text: [text, None, 1.5]}
    assert await store.finished_hooks(THREAD, 1) == (text,)


async def test_what_is_read_is_the_reader_s_own(store: Store) -> None:
    """To change it changes nothing that is stored."""
    await started(store)
    given = state(names=["a"])
    await store.finish_hook(THREAD, 1, "memory", given)
    given.values["names"].append("b")
    (await store.get_provider_states(THREAD))["memory"].values["names"].append("c")
    assert (await store.get_provider_states(THREAD))["memory"].values == {"names": ["a"]}


async def test_what_has_run_is_kept_in_a_few_rows(own_database_url: str) -> None:
    """One for each provider, however many turns there are; whatever order they come in, each is known by itself.

    A turn whose hook has not run, since it waits for people or was given up, is not taken for one whose has.
    """
    turns = [turn for turn in (*range(1, 301), 9, 500, 499) if turn not in (50, 120)]
    async with await PostgresStore.connect(own_database_url) as store:
        await started(store)
        for turn in turns:
            for source in ("audit", "memory"):
                assert await store.finish_hook(THREAD, turn, source)
        known = {turn for turn in range(502) if await store.finished_hooks(THREAD, turn) == ("audit", "memory")}
        assert known == set(turns)
        assert await store.finished_hooks(THREAD, 50) == ()
        assert await store.finish_hook(THREAD, 50, "memory")
        assert await store.finished_hooks(THREAD, 50) == ("memory",)
    connection: asyncpg.Connection[asyncpg.Record] = await asyncpg.connect(own_database_url)
    try:
        rows = await connection.fetch("select source, turns::text as turns from perdure.told_turns order by source")
        assert [tuple(row) for row in rows] == [
            ('"audit"', "{[1,50),[51,120),[121,301),[499,501)}"),
            ('"memory"', "{[1,120),[121,301),[499,501)}"),
        ]
        before = await connection.fetch("select turn from perdure.finished_hooks where source = '\"audit\"'")
        assert {row["turn"] for row in before} == set(turns), "the release before reads the same"
    finally:
        await connection.close()


async def test_a_thread_that_is_not_there(store: Store) -> None:
    """Nothing has run in it, and nothing is written to it."""
    with pytest.raises(ThreadNotFound):
        await store.finish_hook("nobody", 1, "memory")
    assert await store.finished_hooks("nobody", 1) == ()
    assert await store.get_provider_states("nobody") == {}
