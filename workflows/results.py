"""What a call's run or timer has brought, as the result that the history takes."""

from temporalio import workflow
from temporalio.api.common.v1 import Payload
from temporalio.common import RawValue
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
        case RawValue():
            return _remote_result(call_id, _text(value.payload))
        case _:
            return _remote_result(call_id, dumps(value))


def timed_out(call: LiveCall) -> ToolResult:
    """The result of a call whose time has come: a sleeper wakes, another one has waited in vain."""
    if call.outline.timer is not None:
        return ToolResult(call_id=call.call_id, content=call.outline.timer.woke)
    if call.awaits_approval:
        return nobody_approved(call.call_id)
    return ToolResult(call_id=call.call_id, outcome="expired", content="No result came in the time that was given.")


def nobody_approved(call_id: str) -> ToolResult:
    """The result of a call that nobody has decided about in time."""
    content = "Nobody had approved the call in the time that was given."
    return ToolResult(call_id=call_id, outcome="expired", content=content)


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


def _remote_result(call_id: str, text: str | None) -> ToolResult:
    if text is None:
        return _error(call_id, "The tool ran, but what it returned is neither JSON nor text.")
    encoded = text.encode("utf-8", "surrogatepass")
    if len(encoded) > REMOTE_RESULT_BYTES:
        note = f"[Cut off here; the whole result had {len(encoded)} bytes.]"
        text = f"{head(encoded, REMOTE_RESULT_BYTES)}\n\n{note}"
    return ToolResult(call_id=call_id, content=text)


def _text(payload: Payload) -> str | None:
    """What an activity of others returned: a text as it is, JSON, or whatever else can be read; None for the rest."""
    try:
        value: object = workflow.payload_converter().from_payload(payload)
        return value if isinstance(value, str) else dumps(value)
    except Exception:  # it may be anything: NaN, bytes, a message of protobuf, an encoding that is not known here
        pass
    try:
        return payload.data.decode("utf-8")
    except UnicodeDecodeError:
        return None
