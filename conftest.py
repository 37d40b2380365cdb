"""How a run of the tests begins and ends, in which order they run side by side, and what is reported of it."""

import gc
from collections import Counter
from collections.abc import Generator
from typing import Final

import pytest

from perdure.cli.ending import leave

_EXIT_CODE: Final = pytest.StashKey[int]()


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Where several processes take file after file, those with the most slow tests come first.

    Otherwise a long file is begun when all others are done, and the other processes have nothing left to do.
    """
    if hasattr(config, "workerinput"):
        slow = Counter(item.path for item in items if item.get_closest_marker("slow"))
        items.sort(key=lambda item: -slow[item.path])


def pytest_collection_finish() -> None:
    """The tests and all that they import stay to the end, so the collector need not walk through them again.

    It takes half a second for it; on a busy machine the Temporal SDK then thinks that a workflow hangs.
    """
    gc.collect()
    gc.freeze()


def pytest_sessionfinish(session: pytest.Session, exitstatus: int) -> None:
    """Keep the code with which pytest is going to end."""
    session.config.stash[_EXIT_CODE] = int(exitstatus)


@pytest.hookimpl(trylast=True)
def pytest_unconfigure(config: pytest.Config) -> None:
    """End as our commands do, once all is reported: a crash at exit would turn passed tests into a failure."""
    if _EXIT_CODE in config.stash:
        leave(config.stash[_EXIT_CODE])


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport() -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Reports travel between processes as UTF-8, and tests of hostile text log and compare what cannot be that."""
    report = yield
    report.sections = [(name, _encodable(text)) for name, text in report.sections]
    if report.longrepr is not None and (told := str(report.longrepr)) != _encodable(told):
        report.longrepr = _encodable(told)
    return report


def _encodable(text: str) -> str:
    return text.encode("utf-8", "backslashreplace").decode("utf-8")
