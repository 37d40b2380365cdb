"""The open turn: what its steps, calls and results become. Pure: values go in, values come out."""

from perdure import ids
from perdure.approval import Decision
from perdure.batch import CommitResults, CommitStep
from perdure.codec import clip, dumps
from perdure.contract import PREVIEW_CHARS, CallOutline, CompleteResult
from perdure.history_state import LiveCall, OpenTurn
from perdure.inputs import ToolResult
from perdure.messages import Part, Status, ToolCallPart, ToolResultPart

INTERRUPTED = "The call was interrupted before it returned; whether it took effect is not known."
UNDECIDED = "The call did not run: nobody had approved it when the turn ended."
DENIED = "The call was not approved."
FOLLOWED = "Another message followed before this turn could go on."
WOKEN = "The wait was cut short: something came, or it was stopped."


def stamped(thread_id: str, turn: OpenTurn, parts: tuple[Part, ...]) -> tuple[Part, ...]:
    """The parts as those of the turn's step. Calls get ids of ours: a provider's may be blank or repeat (case B10)."""
    own: list[Part] = []
    calls = 0
    for part in parts:
        if isinstance(part, ToolCallPart):
            part = part.with_(call_id=ids.call_id(thread_id, turn.turn, turn.step, calls))
            calls += 1
        own.append(part.with_(step=turn.step))
    return tuple(own)


def outline_of(parts: tuple[Part, ...]) -> CompleteResult:
    """The outline of a step that streamed through the manager."""
    calls = [(position, part) for position, part in enumerate(parts) if isinstance(part, ToolCallPart)]
    return CompleteResult(
        parts=len(parts),
        first_call=calls[0][0] if calls else 0,
        calls=tuple(
            CallOutline(index=index, tool=part.tool, preview=clip(part.arguments, PREVIEW_CHARS), error=part.error)
            for index, (_, part) in enumerate(calls)
        ),
    )


def live_calls(thread_id: str, turn: OpenTurn, outline: CompleteResult) -> tuple[LiveCall, ...]:
    """The calls of a step, in call order. One that must not be executed is answered at once, with the reason."""
    call_ids = [ids.call_id(thread_id, turn.turn, turn.step, call.index) for call in outline.calls]
    return tuple(_live_call(call_id, call, turn.step) for call_id, call in zip(call_ids, outline.calls, strict=True))


def _live_call(call_id: str, outline: CallOutline, step: int) -> LiveCall:
    if outline.error is None:
        return LiveCall(call_id=call_id, outline=outline)
    refusal = ToolResultPart(call_id=call_id, outcome="error", content=outline.error, step=step)
    return LiveCall(call_id=call_id, outline=outline, settled=True, result=refusal)


def interrupted(call: LiveCall, step: int) -> LiveCall:
    """The call, answered with the fact that nobody waited for it. A result that is staged already goes before this."""
    if call.settled:
        return call
    if call.awaits_approval:
        result = ToolResultPart(call_id=call.call_id, outcome="cancelled", content=UNDECIDED, step=step)
    else:
        content = WOKEN if call.outline.passive else INTERRUPTED
        result = ToolResultPart(call_id=call.call_id, outcome="interrupted", content=content, step=step)
    return call.with_(settled=True, result=result)


def denied(call: LiveCall, decision: Decision, step: int) -> ToolResultPart:
    """The answer to a call that somebody has said no to; its shape is that of assistant-ui's local runtime."""
    content = dumps({"error": decision.reason or decision.text or DENIED})
    size = len(content.encode("utf-8", "surrogatepass"))
    return ToolResultPart(call_id=call.call_id, outcome="denied", content=content, size_bytes=size, step=step)


def waits_for_people(turn: OpenTurn) -> bool:
    """Whether all that the turn's calls lack is people. Then it rests, until they decide or give a result."""
    unsettled = [call for call in turn.calls if not call.settled]
    return bool(unsettled) and all(call.awaits_person for call in unsettled)


def result_part(result: ToolResult, step: int) -> ToolResultPart:
    """A result from outside as the answer to its call."""
    return ToolResultPart(
        call_id=result.call_id,
        outcome=result.outcome,
        content=result.content,
        blob=result.blob,
        size_bytes=result.size_bytes or len(result.content.encode("utf-8", "surrogatepass")),
        files=result.files,
        display=result.display,
        step=step,
    )


def commit_step(turn: OpenTurn) -> CommitStep:
    """What the store's turn buffer holds for the turn's step goes to the end of its message."""
    return CommitStep(message_id=turn.message_id, start=turn.parts, turn=turn.turn, step=turn.step)


def commit_results(turn: OpenTurn) -> CommitResults:
    """The results of the whole group go to the end of the message, in call order."""
    return CommitResults(
        message_id=turn.message_id,
        start=turn.parts,
        call_ids=tuple(call.call_id for call in turn.calls),
        results=tuple(call.result for call in turn.calls if call.result),
    )


def final_status(outline: CompleteResult) -> Status:
    """How a turn ends whose last step made no calls."""
    match outline.finish:
        case "length" | "content_filter" | "limit" | "error":
            return Status(state="incomplete", reason=outline.finish, detail=outline.detail)
        case "stop" | "tool_calls":
            return Status()
