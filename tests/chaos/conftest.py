"""The same servers and stacks as the tests of the workflows have."""

from tests.workflows.conftest import server, start_stack, store, thread

__all__ = ["server", "start_stack", "store", "thread"]
