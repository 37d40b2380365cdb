"""Which failures of a call to a thread pass by themselves."""

import pytest
from temporalio.service import RPCError, RPCStatusCode

from perdure.thread_calls import _is_passing

MET_A_SIGNAL = "Unable to perform workflow execution update due to unexpected workflow task failure."


@pytest.mark.parametrize(
    ("message", "status", "passing"),
    [
        ("connection refused", RPCStatusCode.UNAVAILABLE, True),
        # A run that ends while a signal comes: its last task is refused, and the updates in it with it.
        (MET_A_SIGNAL, RPCStatusCode.FAILED_PRECONDITION, True),
        ("Cannot query workflow due to Workflow Task in failed state.", RPCStatusCode.FAILED_PRECONDITION, False),
        ("no such namespace", RPCStatusCode.NOT_FOUND, False),
    ],
)
def test_what_is_tried_again(message: str, status: RPCStatusCode, passing: bool) -> None:
    """What another try may mend is tried again, within the caller's patience; all else is told at once."""
    assert _is_passing(RPCError(message, status, b"")) is passing
