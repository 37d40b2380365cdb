"""PostgreSQL for tests: one server for the run, a database of its own for each test."""

import os
import shutil
import tempfile
from collections.abc import AsyncGenerator
from pathlib import Path

import pytest_asyncio

from stores.embedded import EmbeddedPostgres
from stores.migrate import migrate
from tests.databases import execute, in_database, new_database


@pytest_asyncio.fixture(scope="session", loop_scope="session")
async def postgres_url() -> AsyncGenerator[str]:
    """A server that forgets at a power cut; the one of PERDURE_TEST_DATABASE_URL if that is set."""
    given = os.environ.get("PERDURE_TEST_DATABASE_URL")
    if given:
        yield given
        return
    # pytest's own folders are closed to the user that runs PostgreSQL when the tests run as root.
    folder = Path(tempfile.gettempdir()) / f"perdure-tests-{os.getpid()}"
    async with EmbeddedPostgres(folder, durable=False) as server:
        yield server.url
    shutil.rmtree(folder)


@pytest_asyncio.fixture(scope="session", loop_scope="session")
async def template_database(postgres_url: str) -> AsyncGenerator[str]:
    """The name of a migrated database that nobody connects to, so that it can be copied."""
    name = f"perdure_template_{os.getpid()}"
    await execute(postgres_url, f"create database {name}")
    await migrate(in_database(postgres_url, name))
    yield name
    await execute(postgres_url, f"drop database {name}")


@pytest_asyncio.fixture(loop_scope="session")
async def database_url(postgres_url: str, template_database: str) -> AsyncGenerator[str]:
    """A fresh database with the tables of this release."""
    async with new_database(postgres_url, template_database) as url:
        yield url
