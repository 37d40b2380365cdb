"""The stack of the workflow tests, for what is built on top of threads: the client, the chat, the shell."""

from tests.workflows.conftest import start_stack, store, temporal, temporal_server, thread

__all__ = ["start_stack", "store", "temporal", "temporal_server", "thread"]
