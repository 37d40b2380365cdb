"""What a call's run or timer has brought, as the result that the history takes."""

from typing import Any

from temporalio import workflow
from temporalio.exceptions import ActivityError

with workflow.unsafe.imports_passed_through():
    from perdure.codec import clip, dumps, head
    from perdure.contract import DispatchResult, SpawnResult
    from perdure.history_state import LiveCall
    from perdure.inputs import ToolResult
    from perdure.policy import REMOTE_RESULT_BYTES
    from workflows.calls import Handle
    from workflows.failure import sentence


def result_of(call_id: str, handle: Handle) -> tuple[ToolResult | None, DispatchResult]:
    """The result of a run that has ended, None if it comes from outside; and what `dispatch` says of it, if it ran."""
    try:
        value: object = handle.result()
    except ActivityError as error:
        return _error(call_id, sentence(error, "The tool could not be run")), DispatchResult()
    if isinstance(value, DispatchResult):
        return None if value.outcome == "pending" else ToolResult(call_id=call_id, staged=True), value
    return _result(call_id, value), DispatchResult()


def _result(call_id: str, value: object) -> ToolResult:
    match value:
        case SpawnResult(error=None):
            return ToolResult(call_id=call_id, content=value.content)
        case SpawnResult():
            return _error(call_id, value.error or "")
        case _:
            return ToolResult(call_id=call_id, content=_remote_text(value))


def timed_out(call: LiveCall) -> ToolResult:
    """The result of a call whose time has come: a sleeper wakes, another one has waited in vain."""
    if call.outline.timer is not None:
        return ToolResult(call_id=call.call_id, content=call.outline.timer.woke)
    return ToolResult(call_id=call.call_id, outcome="expired", content="No result came in the time that was given.")


def slept_already(call: LiveCall) -> ToolResult:
    """The result of a sleep until a time that is past."""
    timer = call.outline.timer
    return ToolResult(call_id=call.call_id, content=(timer.past or timer.woke) if timer else "")


def cancelled(call: LiveCall, subscription: str) -> ToolResult:
    """The result of ending a subscription."""
    return ToolResult(call_id=call.call_id, content=f"The subscription {subscription} is cancelled.")


def not_subscribed(call: LiveCall, subscription: str) -> ToolResult:
    """The result of ending a subscription that is not one, or no longer."""
    content = f"Error: {clip(subscription, 100)!r} is no active subscription of this thread."
    return _error(call.call_id, content)


def _error(call_id: str, content: str) -> ToolResult:
    return ToolResult(call_id=call_id, outcome="error", content=content)


def _remote_text(value: Any) -> str:
    text = value if isinstance(value, str) else dumps(value)
    encoded = text.encode("utf-8", "surrogatepass")
    if len(encoded) <= REMOTE_RESULT_BYTES:
        return text
    return f"{head(encoded, REMOTE_RESULT_BYTES)}\n\n[Cut off here; the whole result had {len(encoded)} bytes.]"
