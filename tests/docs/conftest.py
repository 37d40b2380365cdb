"""The fixtures of the workflow tests: a documented program runs against real servers too."""

from tests.workflows.conftest import start_stack, store

__all__ = ["start_stack", "store"]
