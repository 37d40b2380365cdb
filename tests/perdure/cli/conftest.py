"""A desk for each test that needs one."""

import pytest

from perdure.dev.temporal_server import TemporalServer
from tests.perdure.cli.desk import Desk, desk_agent
from tests.workflows.conftest import StackFactory


@pytest.fixture
async def desk(
    start_stack: StackFactory,
    database_url: str,
    temporal_server: TemporalServer,
    thread: str,
    monkeypatch: pytest.MonkeyPatch,
) -> Desk:
    """Commands over a stack of its own."""
    stack = await start_stack(desk_agent())
    env = {
        "PERDURE_DATABASE_URL": database_url,
        "PERDURE_TASK_QUEUE": stack.settings.task_queue,
        "TEMPORAL_ADDRESS": temporal_server.address,
    }
    for name, value in env.items():
        monkeypatch.setenv(name, value)
    return Desk(stack, thread, env)
