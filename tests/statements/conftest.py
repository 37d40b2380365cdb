"""The same servers and stacks as the tests of the workflows have."""

from tests.workflows.conftest import start_stack, store, thread

__all__ = ["start_stack", "store", "thread"]
