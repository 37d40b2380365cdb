"""Databases that tests hand on: each gets an empty one, and one that somebody still uses is given to nobody."""

import asyncpg
import pytest

from tests.databases import Databases, execute, new_database
from tests.stores.postgres_eye import connected

_HANG_ON = """
    with recursive emptied(name) as (
        select unnest(array['perdure.threads', 'perdure.keys']::regclass[])
        union
        select conrelid::regclass from pg_constraint join emptied on confrelid = name where confdeltype = 'c'
    )
    select relname from pg_class where relnamespace = 'perdure'::regnamespace and relkind = 'r'
    and oid not in (select name from emptied) order by relname
"""


@pytest.fixture
async def fresh(postgres_url: str, template_database: str) -> Databases:
    """None was lent so far."""
    return Databases(postgres_url, template_database)


async def test_a_database_is_handed_on_empty(fresh: Databases) -> None:
    """The next test has the same one without the rows of the test before it."""
    async with fresh:
        async with fresh.lend() as first:
            await execute(first, "insert into perdure.keys values ('k', 'secret')")
            async with connected(first) as eye:
                assert await eye.fetchval("select count(*) from perdure.keys") == 1
        async with fresh.lend() as second:
            assert second == first
            async with connected(second) as eye:
                assert await eye.fetchval("select count(*) from perdure.keys") == 0


async def test_no_table_is_left_out(database_url: str) -> None:
    """Every row goes with those that are deleted, but for the record of migrations; a table by itself is found."""
    async with connected(database_url) as eye:
        assert [row["relname"] for row in await eye.fetch(_HANG_ON)] == ["schema_version"]


async def test_a_table_by_itself_is_found(postgres_url: str, template_database: str) -> None:
    """The control: rows of such a table would go from test to test."""
    async with new_database(postgres_url, template_database) as url:
        await execute(url, "create table perdure.alone (name text)")
        async with connected(url) as eye:
            assert [row["relname"] for row in await eye.fetch(_HANG_ON)] == ["alone", "schema_version"]


async def test_two_at_once_are_two(fresh: Databases) -> None:
    """A lent one is lent to nobody else."""
    async with fresh, fresh.lend() as one, fresh.lend() as other:
        assert one != other


async def test_what_is_still_used_is_given_to_nobody(fresh: Databases) -> None:
    """Whoever a test left connected might write, so the next test has another database."""
    async with fresh:
        async with fresh.lend() as first:
            left: asyncpg.Connection[asyncpg.Record] = await asyncpg.connect(first)
        async with fresh.lend() as second:
            assert second != first
        await left.close()
