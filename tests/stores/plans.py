"""What statements cost: their plans, and the rows that they touch."""

import json
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager
from typing import Any

import asyncpg

from stores.database import SESSION_SETTINGS
from stores.postgres import PostgresStore


async def rows_touched(store: PostgresStore, work: Callable[[], Awaitable[None]]) -> dict[str, int]:
    """How many rows the work fetched from each table."""

    async def fetched() -> dict[str, int]:
        return {row["relname"]: row["seq_tup_read"] + (row["idx_tup_fetch"] or 0) for row in await numbers(store)}

    before = await fetched()
    await work()
    after = await fetched()
    return {name: after[name] - before[name] for name in after}


async def numbers(store: PostgresStore) -> list[asyncpg.Record]:
    """What PostgreSQL has counted. The store must have one connection, which tells its numbers only now and then."""
    pool = store._database._pool
    await pool.execute("select pg_stat_force_next_flush()")
    return await pool.fetch("select * from pg_stat_user_tables where schemaname = 'perdure'")


@asynccontextmanager
async def planner(url: str) -> AsyncGenerator[Callable[..., Any]]:
    """EXPLAIN ANALYZE as the store's connections would run it."""
    connection: asyncpg.Connection[asyncpg.Record] = await asyncpg.connect(url, server_settings=SESSION_SETTINGS)

    async def explain(statement: str, *args: object) -> Any:
        text = await connection.fetchval(f"explain (analyze, format json) {statement}", *args)
        return json.loads(text)[0]["Plan"]

    try:
        yield explain
    finally:
        await connection.close()


def nodes(plan: Any) -> Iterator[Any]:
    """All nodes of a plan."""
    yield plan
    for inner in plan.get("Plans", []):
        yield from nodes(inner)


def scans(plan: Any, *kinds: str) -> list[str]:
    """The tables that are read this way."""
    return [node["Relation Name"] for node in nodes(plan) if node["Node Type"] in kinds]


def indexes(plan: Any) -> set[str]:
    """The indexes that are used."""
    return {node["Index Name"] for node in nodes(plan) if "Index Name" in node}


def rows_read(plan: Any) -> list[float]:
    """Rows that each node of a table gave, over all its loops."""
    return [node["Actual Rows"] * node["Actual Loops"] for node in nodes(plan) if "Relation Name" in node]
