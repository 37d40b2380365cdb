"""A whole stack for one test: a worker in this process over a real Temporal server and a real store."""

import uuid
from collections.abc import Iterable
from datetime import timedelta
from typing import Any, Self

from temporalio.client import Client, WorkflowHandle
from temporalio.worker import Worker

from perdure import ids
from perdure.agent import Agent, Agents
from perdure.client import PerdureClient
from perdure.inputs import ToolResult
from perdure.ports import Store
from perdure.settings import Settings
from perdure.thread_calls import ThreadCalls
from worker import create_worker


class Stack:
    """A worker on a task queue of its own, and a client for it.

    `restart_worker` ends the worker and starts another; `stop_worker` and `start_worker` do one of the two.
    """

    def __init__(self, temporal: Client, store: Store, agents: Iterable[Agent], *, sandbox: bool = True) -> None:
        self.temporal = temporal
        self.store = store
        self.agents = Agents(agents)
        self.settings = Settings(
            database_url=None, task_queue=f"test-{uuid.uuid4()}", sandbox=sandbox, max_cached_workflows=100
        )
        self.client = PerdureClient(temporal, store, task_queue=self.settings.task_queue)
        self._worker: Worker | None = None

    async def __aenter__(self) -> Self:
        await self.start_worker()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.stop_worker()

    async def start_worker(self, **changes: Any) -> None:
        """Start a worker; `changes` are settings."""
        settings = self.settings.model_copy(update=changes)
        self._worker = create_worker(self.temporal, self.store, self.agents, settings)
        await self._worker.__aenter__()

    async def stop_worker(self) -> None:
        """Drain the worker."""
        if self._worker is not None:
            worker, self._worker = self._worker, None
            await worker.__aexit__(None, None, None)

    async def restart_worker(self, **changes: Any) -> None:
        """Another worker takes over."""
        await self.stop_worker()
        await self.start_worker(**changes)

    async def wake(self, thread_id: str, call_id: str = "call_of_nobody") -> None:
        """A result of a call that there never was comes to the thread: it wakes it, and changes nothing."""
        calls = ThreadCalls(self.temporal, self.settings.task_queue, timedelta(seconds=10))
        await calls.signal_with_start(thread_id, "tool_result", ToolResult(call_id=call_id, content="stale"))

    def handle(self, thread_id: str) -> WorkflowHandle[Any, Any]:
        """The thread's workflow."""
        return self.temporal.get_workflow_handle(ids.workflow_id(thread_id))
