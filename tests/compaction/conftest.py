"""A database for each test that wants one."""

from tests.workflows.conftest import store

__all__ = ["store"]
