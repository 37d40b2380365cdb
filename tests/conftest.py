"""The servers of a run: one PostgreSQL, with a database for each test, and one Temporal.

They are here and nowhere else since a fixture that is imported by several conftest modules is several fixtures to
pytest: each would start a server of its own, and keep it to the end of the run.
"""

import os
import shutil
import tempfile
from collections.abc import AsyncGenerator
from pathlib import Path

import pytest_asyncio
from temporalio.client import Client

from perdure.connection import connect_temporal
from perdure.dev.temporal_server import TemporalServer
from stores.embedded import EmbeddedPostgres
from stores.migrate import migrate
from tests.databases import Databases, execute, in_database


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


@pytest_asyncio.fixture(scope="session", loop_scope="session")
async def databases(postgres_url: str, template_database: str) -> AsyncGenerator[Databases]:
    """Those that the tests of the run hand on."""
    async with Databases(postgres_url, template_database) as databases:
        yield databases


@pytest_asyncio.fixture(loop_scope="session")
async def database_url(databases: Databases) -> AsyncGenerator[str]:
    """An empty database with the tables of this release; a test that changes more than rows makes one of its own."""
    async with databases.lend() as url:
        yield url


@pytest_asyncio.fixture(scope="session", loop_scope="session")
async def temporal_server() -> AsyncGenerator[TemporalServer]:
    """The server that all tests of the run share; on it a thread's next run begins as soon as the last one has ended.

    By default Temporal makes it wait until the last one is a second old. `tests/workflows/test_run_end.py` has a server
    that does.
    """
    async with TemporalServer(dynamic_config=['history.workflowIdReuseMinimalInterval="0s"']) as server:
        yield server


@pytest_asyncio.fixture(scope="session", loop_scope="session")
async def temporal(temporal_server: TemporalServer) -> Client:
    """A client with our data converter."""
    return await connect_temporal({"target_host": temporal_server.address})
