"""Calls to threads: which failures pass by themselves, and how long one is waited for."""

import asyncio
from datetime import timedelta
from typing import Any, cast

import pytest
from temporalio.client import Client, WorkflowExecutionStatus, WorkflowQueryRejectedError
from temporalio.service import RPCError, RPCStatusCode

from perdure.errors import Unreachable
from perdure.inputs import Accepted
from perdure.thread_calls import NoRunningWorkflow, ThreadCalls, _is_passing

MET_A_SIGNAL = "Unable to perform workflow execution update due to unexpected workflow task failure."


@pytest.mark.parametrize(
    ("message", "status", "passing"),
    [
        ("connection refused", RPCStatusCode.UNAVAILABLE, True),
        # A run that ends while a signal comes: its last task is refused, and the updates in it with it.
        (MET_A_SIGNAL, RPCStatusCode.FAILED_PRECONDITION, True),
        ("no poller seen for task queue recently, worker may be down", RPCStatusCode.FAILED_PRECONDITION, True),
        # A busy worker that did not finish a task in time, three times in a row.
        ("Unable to query workflow due to Workflow Task in failed state.", RPCStatusCode.FAILED_PRECONDITION, True),
        ("Unable to query workflow: its history is gone.", RPCStatusCode.FAILED_PRECONDITION, False),
        ("no such namespace", RPCStatusCode.NOT_FOUND, False),
    ],
)
def test_what_is_tried_again(message: str, status: RPCStatusCode, passing: bool) -> None:
    """What another try may mend is tried again, within the caller's patience; all else is told at once."""
    assert _is_passing(RPCError(message, status, b"")) is passing


class EndlessHandle:
    """A workflow whose updates no worker takes, asked by an SDK that asks again and again, whatever its own limit."""

    async def execute_update(self, *_: Any, **__: Any) -> None:
        """Never answered."""
        await asyncio.Event().wait()


class EndlessClient:
    """A client of Temporal that leads to it."""

    def get_workflow_handle(self, _: str) -> EndlessHandle:
        """Whichever workflow is asked for."""
        return EndlessHandle()


async def test_an_update_that_no_worker_takes_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    """The SDK's limit is one for each of its requests, and it makes one after the other."""
    monkeypatch.setattr("perdure.thread_calls._GRACE_S", 0.1)
    calls = ThreadCalls(cast("Client", EndlessClient()), "tasks", timedelta(seconds=0.2))
    with pytest.raises(Unreachable, match="No worker answered within"):
        await asyncio.wait_for(calls.update("t", "stop", Accepted), 10)


class HandingOver:
    """A workflow whose run has just ended when it is asked: `ends` says how, as often as it is listed."""

    def __init__(self, *ends: WorkflowExecutionStatus) -> None:
        self._ends = list(ends)

    def get_workflow_handle(self, *_: object, **__: object) -> "HandingOver":
        """Itself."""
        return self

    async def query(self, *_: object, **__: object) -> str:
        """The answer of the run that is there by then."""
        if self._ends:
            raise WorkflowQueryRejectedError(self._ends.pop())
        return "the new run"

    async def describe(self) -> "HandingOver":
        """It has not failed."""
        return self

    status = WorkflowExecutionStatus.COMPLETED


async def test_a_query_that_meets_a_run_handing_over_is_asked_again() -> None:
    """The next run is there in a moment; it is not said to be none, which would show a thread at work as idle."""
    handing_over = HandingOver(*[WorkflowExecutionStatus.CONTINUED_AS_NEW] * 2)
    calls = ThreadCalls(cast("Client", handing_over), "queue", timedelta(seconds=10))
    assert await calls.query("t1", "status", str) == "the new run"


async def test_a_query_of_a_run_that_is_over_finds_none() -> None:
    """Control: one that hibernates is not asked again and again."""
    handing_over = HandingOver(WorkflowExecutionStatus.COMPLETED)
    calls = ThreadCalls(cast("Client", handing_over), "queue", timedelta(seconds=10))
    with pytest.raises(NoRunningWorkflow):
        await calls.query("t1", "status", str)
