"""A worker in a process of its own."""

import os
import sys
from asyncio.subprocess import Process
from collections.abc import Mapping
from datetime import timedelta
from typing import IO, Final

from temporalio.api.enums.v1 import TaskQueueType
from temporalio.api.taskqueue.v1 import TaskQueue
from temporalio.api.workflowservice.v1 import DescribeTaskQueueRequest
from temporalio.client import Client

from perdure import policy
from perdure.contract import DEFAULT_TASK_QUEUE
from perdure.dev import process
from perdure.dev.child import Child
from perdure.loader import DEMO

_DRAIN: Final = policy.GRACEFUL_SHUTDOWN + timedelta(seconds=3)


class WorkerProcess(Child):
    """`perdure worker TARGET` as a child.

    Attributes:
        target: what it serves.
    """

    kind = "worker"

    def __init__(
        self,
        target: str = DEMO,
        *,
        database_url: str,
        temporal_address: str,
        task_queue: str = DEFAULT_TASK_QUEUE,
        environment: Mapping[str, str] | None = None,
        output: IO[bytes] | None = None,
    ) -> None:
        super().__init__(
            ["worker", target],
            _DRAIN,
            database_url=database_url,
            temporal_address=temporal_address,
            task_queue=task_queue,
            environment=environment,
            output=output,
        )
        self.target = target
        self._task_queue = task_queue

    @property
    def greeting(self) -> str:
        """See `Child`."""
        return f"The worker serves {self.target}."

    async def _serves(self, client: Client, child: Process) -> bool:
        # Workflow tasks are asked for first, so a poller for activities means that both are served.
        answer = await client.workflow_service.describe_task_queue(
            DescribeTaskQueueRequest(
                namespace=client.namespace,
                task_queue=TaskQueue(name=self._task_queue),
                task_queue_type=TaskQueueType.TASK_QUEUE_TYPE_ACTIVITY,
            )
        )
        return any(poller.identity.startswith(f"{child.pid}@") for poller in answer.pollers)


async def check_agents(target: str, environment: Mapping[str, str]) -> int:
    """Find out whether a worker could load these agents: 0, or the exit code of a process that has said why it cannot.

    Not in this process: what a module starts when it is imported, a server of its figures for one, would stay and be in
    the way of the worker.
    """
    command = [sys.executable, "-m", "perdure", "worker", target, "--check"]
    child = await process.spawn(command, env={**os.environ, **environment})
    try:
        return await child.wait()
    finally:
        await process.kill(child)
