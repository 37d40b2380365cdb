"""How a run of the tests ends."""

from typing import Final

import pytest

from perdure.cli.ending import leave

_EXIT_CODE: Final = pytest.StashKey[int]()


def pytest_sessionfinish(session: pytest.Session, exitstatus: int) -> None:
    """Keep the code with which pytest is going to end."""
    session.config.stash[_EXIT_CODE] = int(exitstatus)


@pytest.hookimpl(trylast=True)
def pytest_unconfigure(config: pytest.Config) -> None:
    """End as our commands do, once all is reported: a crash at exit would turn passed tests into a failure."""
    if _EXIT_CODE in config.stash:
        leave(config.stash[_EXIT_CODE])
