"""The same servers and stacks as the tests of the workflows have, and workers to kill."""

from pathlib import Path

import pytest
from temporalio.client import Client

from perdure.dev.temporal_server import TemporalServer
from stores.postgres import PostgresStore
from tests.chaos.crashes import Crashes
from tests.chaos.doomed_worker import Place
from tests.workflows.conftest import server, start_stack, store, thread

__all__ = ["server", "start_stack", "store", "thread"]


@pytest.fixture
def crashes(
    temporal_server: TemporalServer,
    temporal: Client,
    store: PostgresStore,
    database_url: str,
    thread: str,
    tmp_path: Path,
) -> Crashes:
    """Crashes over the database of the test."""
    return Crashes(temporal, store, Place(temporal_server.address, database_url, "", tmp_path), thread)
