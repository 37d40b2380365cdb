"""A Node process with the published repository."""

from collections.abc import Generator

import pytest

from tests.node.published import PACKAGE, VERSION, CannotInstall, installed
from tests.node.repositories import Repositories


@pytest.fixture(scope="session")
def repositories() -> Generator[Repositories]:
    """For all tests of the run."""
    try:
        module = installed()
    except CannotInstall as error:
        pytest.skip(f"{PACKAGE} {VERSION} cannot be installed here, so nothing is compared with it: {error}")
    with Repositories(module) as running:
        yield running
