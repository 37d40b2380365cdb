"""The stack of the workflow tests, for what is built on top of threads: the client, the chat, the shell."""

import pytest

from perdure.agent import Agent
from perdure.testing import ScriptedModel
from tests.perdure.echo import echo
from tests.stack import Stack
from tests.workflows.conftest import StackFactory, start_stack, store, thread

__all__ = ["start_stack", "store", "thread"]


@pytest.fixture
async def stack(start_stack: StackFactory) -> Stack:
    """A stack with an agent that echoes."""
    return await start_stack(Agent("echo", model=ScriptedModel(echo)))
