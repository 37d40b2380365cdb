"""The tool calls of an answer: which of them may be carried out, and what the workflow needs to know of each.

A call that must not run keeps its place with an `error`, a sentence for the model, which then gets another round.
Nothing is guessed: arguments that were cut off are not completed, unknown names are not matched to known ones.
"""

from collections.abc import Mapping
from typing import Any

from activities.catalog import Catalog
from activities.final_result import answered, asked_again, given_up, objection
from perdure.agent import Agent
from perdure.approval import ApprovalRequest, arguments_digest
from perdure.builtins import TIMED
from perdure.codec import clip, dumps, loads_object
from perdure.contract import PREVIEW_CHARS, CallOutline, CompleteResult
from perdure.inputs import INLINE_BYTES
from perdure.messages import Part, ReasoningPart, TextPart, ToolCallPart
from perdure.output import FINAL_RESULT
from perdure.records import Path, StepOutcome
from perdure.schema import check_arguments
from perdure.subscriptions import ARGUMENT_CHARS
from perdure.timer import Timer, timer
from perdure.tools import Tool
from perdure.turn_buffer import trim_reasoning

CUT_OFF = "The answer was cut off by the output limit in the middle of this call, so it was not run."
CUT_OFF_AGAIN = "The answer was cut off by the output limit in the middle of a call, twice in a row."
TOOL_CHARS = 64
"""A tool's name has no more; what a model makes up may."""
_SHORTER = "Make the call shorter, for instance by splitting it up."


def judge(
    parts: tuple[Part, ...],
    outcome: StepOutcome,
    agent: Agent,
    catalog: Catalog,
    path: Path,
    settings: Mapping[str, Any],
) -> tuple[tuple[Part, ...], StepOutcome]:
    """Mark the calls that must not run, and say how the step ends.

    A first cut-off gives the model one more round. A second one in a row ends the turn as `length`, since with the
    same limit it would only go on like that (case B31); its calls are left out, as are those of a filtered answer:
    a turn ends on words, or with the output that the agent declares. One whose answers never fit ends as `error`, which
    every client shows with its detail.
    """
    has_calls = any(isinstance(part, ToolCallPart) for part in parts)
    cut = outcome.finish == "length" or (has_calls and _used_up(outcome, settings))
    if agent.output is not None and not cut and outcome.finish != "content_filter":
        if (final := answered(parts, agent.output)) is not None:
            return final, outcome
        if (why := given_up(parts, path, agent.output)) is not None:
            return _without_calls(parts), outcome.with_(finish="error", detail=why)
        if not has_calls:
            return asked_again(parts, path), outcome.with_(finish="tool_calls")
    if not has_calls:
        return parts, outcome
    if outcome.finish == "content_filter":
        return _without_calls(parts), outcome
    judged = _judge_each(parts, agent, catalog, cut)
    cut_call = any(isinstance(part, ToolCallPart) and _was_cut(part) for part in judged)
    if cut_call and _cut_before(path):
        return _without_calls(parts), outcome.with_(finish="length", detail=CUT_OFF_AGAIN)
    return judged, outcome.with_(finish="tool_calls", detail=CUT_OFF if cut_call else None)


def outline(parts: tuple[Part, ...], outcome: StepOutcome, catalog: Catalog) -> CompleteResult:
    """What the workflow gets to see of a step that is done."""
    places = [position for position, part in enumerate(parts) if isinstance(part, ToolCallPart)]
    calls = [part for part in parts if isinstance(part, ToolCallPart)]
    texts = [part.text for part in parts if isinstance(part, TextPart)]
    return CompleteResult(
        parts=len(parts),
        first_call=places[0] if places else 0,
        trailing_reasoning=len(parts) - len(trim_reasoning(parts)),
        calls=tuple(_call_outline(index, call, catalog) for index, call in enumerate(calls)),
        finish=outcome.finish,
        usage=outcome.usage,
        model=outcome.model,
        preview=clip(texts[-1], PREVIEW_CHARS) if texts else "",
        detail=outcome.detail,
        problems=catalog.problems,
        compact=outcome.compact,
    )


def _judge_each(parts: tuple[Part, ...], agent: Agent, catalog: Catalog, cut: bool) -> tuple[Part, ...]:
    judged: list[Part] = []
    index = 0
    # A trailing thought says nothing about whether the call before it was complete, so it is looked through.
    last = next((part for part in reversed(parts) if not isinstance(part, ReasoningPart)), None)
    for part in parts:
        if isinstance(part, ToolCallPart):
            error = _objection(part, index, parts, agent, catalog, cut, is_last=part is last)
            part = part if error is None else part.with_(error=error)
            index += 1
        judged.append(part)
    return tuple(judged)


def _objection(
    call: ToolCallPart,
    index: int,
    parts: tuple[Part, ...],
    agent: Agent,
    catalog: Catalog,
    cut: bool,
    *,
    is_last: bool,
) -> str | None:
    if cut and is_last:
        return f"{CUT_OFF} {_SHORTER}"
    try:
        arguments = loads_object(call.arguments)
    except ValueError as error:
        if cut:
            return f"{CUT_OFF} {_SHORTER}"
        return f"The arguments are not a JSON object ({clip(str(error), 200)}), so the call was not run."
    if agent.output is not None and call.tool == FINAL_RESULT:
        # One that fits comes here only if something after it was cut off.
        return objection(call, parts, agent.output) or f"{CUT_OFF} {_SHORTER}"
    tool = catalog.tools.get(call.tool)
    if tool is None:
        names = ", ".join(catalog.tools) or "none"
        return f"There is no tool {clip(call.tool, TOOL_CHARS)!r}. The tools are: {names}."
    if index >= agent.limits.parallel_calls:
        return f"At most {agent.limits.parallel_calls} calls are run at once; make this one again later."
    try:
        _check(tool, call.arguments, arguments, catalog)
    except Exception as error:  # validators of the user's types may raise anything, and the model is told
        return clip(str(error) or type(error).__name__, 2_000)
    return None


def _check(tool: Tool, text: str, arguments: dict[str, Any], catalog: Catalog) -> None:
    tool.validate(text)
    if tool.function is None and tool.arguments is None:
        check_arguments(tool.parameters, arguments)
    if tool.kind == "activity" and len(text) > INLINE_BYTES:
        raise ValueError(f"The arguments are above {INLINE_BYTES:,} characters; pass a reference to what is long.")
    _timer(tool, arguments, catalog)


def _timer(tool: Tool, arguments: dict[str, Any], catalog: Catalog) -> Timer | None:
    is_timed = tool.kind == "workflow" and tool.operation in TIMED
    return timer(tool.operation or tool.name, arguments, catalog.zone) if is_timed else None


def _without_calls(parts: tuple[Part, ...]) -> tuple[Part, ...]:
    return trim_reasoning(tuple(part for part in parts if not isinstance(part, ToolCallPart)))


def _used_up(outcome: StepOutcome, settings: Mapping[str, Any]) -> bool:
    """Some providers say `tool_calls` although the answer ran into the limit; the count of tokens tells."""
    limit = settings.get("max_tokens")
    return isinstance(limit, int) and outcome.usage.output_tokens >= limit


def _was_cut(call: ToolCallPart) -> bool:
    return call.error is not None and call.error.startswith(CUT_OFF)


def _cut_before(path: Path) -> bool:
    """Whether the step before this one was cut off in a call; that step's parts are the last ones of the path."""
    if not path.messages or path.messages[-1].role != "assistant":
        return False
    parts = path.messages[-1].parts
    step = max((part.step for part in parts), default=0)
    return any(isinstance(part, ToolCallPart) and part.step == step and _was_cut(part) for part in parts)


def _call_outline(index: int, call: ToolCallPart, catalog: Catalog) -> CallOutline:
    outlined = CallOutline(
        index=index,
        tool=clip(call.tool, TOOL_CHARS),
        preview=preview(call.arguments),
        error=call.error,
        **asking(call.approval, call.arguments),
    )
    tool = catalog.tools.get(call.tool)
    return outlined if tool is None or call.error else outlined.with_(**dispatching(tool, call.arguments, catalog))


def dispatching(tool: Tool, arguments: str, catalog: Catalog) -> dict[str, Any]:
    """What a workflow needs to know to dispatch a call: of an outline, and of an open call that is loaded."""
    known: dict[str, Any] = {
        "kind": tool.kind,
        "passive": tool.passive,
        "timeout_s": tool.timeout.total_seconds(),
        "operation": tool.operation,
    }
    match tool.kind:
        case "activity":
            return {**known, "arguments": arguments, "task_queue": tool.task_queue, "retry_safe": tool.retry_safe}
        case "workflow":
            return {**known, "arguments": arguments, "timer": _timer(tool, loads_object(arguments), catalog)}
        case "rap":
            return {**known, "arguments": arguments if len(arguments) <= ARGUMENT_CHARS else "{}"}
        case _:
            return known


def asking(approval: ApprovalRequest | None, arguments: str) -> dict[str, Any]:
    """What a workflow needs to know of the question about a call: of an outline, and of an open call that is loaded.

    Arguments that are no object, which only a call from outside can have, are the same as no others.
    """
    if approval is None:
        return {}
    try:
        arguments_sha = arguments_digest(loads_object(arguments))
    except ValueError:
        arguments_sha = None
    return {"approval": approval.without_words(), "arguments_digest": arguments_sha}


def preview(text: str) -> str:
    """The arguments of a call as a person reads them: `city="Paris", days=2`."""
    try:
        arguments = loads_object(text)
    except ValueError:
        return clip(text, PREVIEW_CHARS)
    return clip(", ".join(f"{name}={dumps(value)}" for name, value in arguments.items()), PREVIEW_CHARS)
