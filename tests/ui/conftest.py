"""A Temporal server with its UI, and a browser to look at it."""

from collections.abc import AsyncGenerator

import pytest

from perdure.dev.temporal_server import TemporalServer
from tests.ui.chromium import Chromium, find_chromium


@pytest.fixture(scope="session")
async def ui_server() -> AsyncGenerator[TemporalServer]:
    """A server with its UI, for all tests of the run."""
    async with TemporalServer(ui=True) as server:
        yield server


@pytest.fixture(scope="session")
async def chromium() -> AsyncGenerator[Chromium]:
    """A browser for all tests of the run."""
    program = find_chromium()
    if program is None:
        pytest.skip("Chromium is not on this machine: install it to have the Temporal UI looked at")
    async with Chromium(program) as browser:
        yield browser
