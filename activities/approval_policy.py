"""Which calls of an answer people are asked about, by the policy of each tool or that of the agent; and the last check.

Asked once, when the answer is complete: what comes of it is stored with the step, so a retry that finds the step done
reads it there. When in doubt people are asked: whatever goes wrong in a policy must not let a call run.
"""

import asyncio
import inspect
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, Final

from temporalio import activity
from temporalio.exceptions import ApplicationError

from activities.catalog import Catalog
from activities.tool_thread import in_thread
from perdure.agent import Agent
from perdure.approval import ApprovalOption, ApprovalRequest, Grant, check_request
from perdure.codec import clip, dumps, loads, loads_object
from perdure.messages import Part, ToolCallPart
from perdure.policy import ErrorType
from perdure.records import OpenCall
from perdure.tools import ApprovalRule, Tool

POLICY_S: Final = 30.0
"""How long a policy may take; then people are asked. The model's answer waits for it."""

ARGUMENT_CHARS: Final = 500
"""How much of a call's arguments stands in the question; the whole of them is in the call itself."""

FAILED: Final = "Whether to ask could not be decided, since the approval policy failed ({reason})."

UNAPPROVED: Final = "bug: this call was to be carried out before anybody had approved it. It was not."


def check_approved(call: OpenCall) -> None:
    """Whether the call may run, by what is stored: no word of whoever has it run is taken for that.

    It is refused without being answered, so it can still be approved if it was not the thread that had it run.

    Raises:
        ApplicationError: if people have to approve the call and nobody has.
    """
    if call.approval is not None and (call.decision is None or call.decision.approved is not True):
        raise ApplicationError(UNAPPROVED, type=ErrorType.BUG, non_retryable=True)


async def with_approvals(parts: tuple[Part, ...], agent: Agent, catalog: Catalog) -> tuple[Part, ...]:
    """The parts, with a request in each call that people have to approve. Calls that must not run need none."""
    return tuple(await asyncio.gather(*(_with_approval(part, agent, catalog) for part in parts)))


async def _with_approval(part: Part, agent: Agent, catalog: Catalog) -> Part:
    if not isinstance(part, ToolCallPart) or part.error is not None:
        return part
    tool = catalog.tools[part.tool]
    policy = _policy(tool, agent)
    if tool.passive or policy == "never":
        return part
    if isinstance(policy, str):
        return part.with_(approval=_request(part, "tool"))
    try:
        said = await _said(policy, tool, part.arguments)
    except (Exception, asyncio.CancelledError, SystemExit) as error:  # a policy is code of the agent's author
        if (task := asyncio.current_task()) is not None and task.cancelling():
            raise
        activity.logger.warning("an approval policy failed", extra={"tool": tool.name, "error": clip(repr(error), 200)})
        reason = FAILED.format(reason=type(error).__name__)
        return part.with_(approval=_request(part, "arguments", reason))
    return part if said is False else part.with_(approval=_completed(said, part))


def _policy(tool: Tool, agent: Agent) -> ApprovalRule:
    """The tool's own, or else the agent's for a tool of this name."""
    if tool.approval is not None:
        return tool.approval
    policy = agent.approval
    return partial(policy, tool.name) if callable(policy) else policy


async def _said(policy: Callable[[Mapping[str, Any]], Any], tool: Tool, arguments: str) -> ApprovalRequest | bool:
    """What the policy says of the arguments as the tool gets them. Raises whatever it raises, and TypeError."""
    seen = tool.validate(arguments)
    async with asyncio.timeout(POLICY_S):
        if inspect.iscoroutinefunction(policy):
            said = await policy(seen)
        else:
            said = await in_thread(policy, seen)
            if inspect.isawaitable(said):
                said = await said
    if isinstance(said, bool):
        return said
    if not isinstance(said, ApprovalRequest):
        raise TypeError(f"it returned {type(said).__name__}, neither a bool nor an ApprovalRequest")
    # Through the codec, since a policy may have filled it with what no store can hold; as read it is checked as well.
    request = ApprovalRequest.model_validate(loads(dumps(said)))
    check_request(request)
    return request


def _completed(said: ApprovalRequest | bool, call: ToolCallPart) -> ApprovalRequest:
    """A request with what its author has left out."""
    plain = _request(call, "arguments")
    if isinstance(said, bool):
        return plain
    options = said.options or (plain.options if said.display == "decision" else ())
    return said.with_(prompt=said.prompt if said.prompt.strip() else plain.prompt, options=options)


def _request(call: ToolCallPart, grants: Grant, reason: str = "") -> ApprovalRequest:
    """The plain question. What was decided by the arguments is granted for these alone, and for no others."""
    always = f"Always allow {call.tool}" if grants == "tool" else f"Always allow {call.tool} with these arguments"
    return ApprovalRequest(
        prompt=" ".join(filter(None, (f"Run {call.tool}({_arguments(call.arguments)})?", reason))),
        options=(
            ApprovalOption(id="allow_once", kind="allow_once", label="Allow once"),
            ApprovalOption(id="allow_always", kind="allow_always", label=always, grants=grants),
            ApprovalOption(id="reject_once", kind="reject_once", label="Reject"),
        ),
    )


def plain_request(call: ToolCallPart) -> ApprovalRequest:
    """The plain question about a call that no policy has seen, remembered at most for its arguments."""
    return _request(call, "arguments")


def _arguments(text: str) -> str:
    try:
        values: Mapping[str, Any] = loads_object(text)
    except ValueError:
        return clip(text, ARGUMENT_CHARS)
    return clip(", ".join(f"{name}={dumps(value)}" for name, value in values.items()), ARGUMENT_CHARS)
