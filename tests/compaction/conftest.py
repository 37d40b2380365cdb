"""The servers and stacks of the tests of workflows."""

from tests.workflows.conftest import start_stack, store, thread

__all__ = ["start_stack", "store", "thread"]
