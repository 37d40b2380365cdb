"""The activity `dispatch`: runs one durable tool call, once.

The call and its arguments are read from the store, where `sync` put them before this was scheduled. Its result is
staged there under the call's id before it is reported, so a second run of this activity (a lost reply, a dead worker)
returns the staged result instead of running the tool again. What cannot be told is whether a tool whose worker died in
the middle took effect: it runs again only if it is declared `retry_safe`, otherwise the model is told just that.
"""

import asyncio
import functools
import inspect
from typing import Any

from temporalio import activity
from temporalio.exceptions import ApplicationError

from activities.heartbeat import heartbeating
from activities.sync import store_call
from activities.tool_output import ToolOutput, error_output, tool_output
from perdure.agent import Agents
from perdure.codec import clip
from perdure.contract import DISPATCH, PREVIEW_CHARS, DispatchRequest, DispatchResult
from perdure.errors import StoreError, StoreUnavailable, ToolError, UsageError
from perdure.inputs import INLINE_BYTES
from perdure.messages import ToolResultPart
from perdure.policy import ErrorType
from perdure.ports import OpenCall, Store
from perdure.tools import Tool

OUTCOME_UNKNOWN = (
    "The worker that ran this call died before it returned, so its outcome is unknown. It was not run again. "
    "Check whether it took effect before you repeat it."
)


class DispatchActivities:
    """Runs the tools of the agents that a worker serves."""

    def __init__(self, store: Store, agents: Agents) -> None:
        self._store = store
        self._agents = agents

    @activity.defn(name=DISPATCH)
    async def dispatch(self, request: DispatchRequest) -> DispatchResult:
        """Run the call and stage its result. Safe to run again: see the module's docstring."""
        async with heartbeating():
            try:
                return await self.execute(request)
            except asyncio.CancelledError:
                details = activity.cancellation_details()
                if details is not None and details.worker_shutdown:
                    # Nobody asked for a stop: another worker takes the call over.
                    raise ApplicationError(
                        "The worker is shutting down; another one takes the call over.", type=ErrorType.WORKER_SHUTDOWN
                    ) from None
                raise

    async def execute(self, request: DispatchRequest) -> DispatchResult:
        """The same outside of an activity, for callers that drive the loop themselves."""
        try:
            call = await store_call(self._store.start_call(request.thread_id, request.call_id))
        except StoreError as error:
            raise ApplicationError(str(error), type=ErrorType.BUG, non_retryable=True) from error
        if call.result is not None:
            return _result(call.result)
        try:
            tool = self._agents[request.agent].tools[call.tool]
        except (UsageError, KeyError):
            return await self._stage(request, call, error_output(f"There is no tool {call.tool!r} any more."))
        if tool.kind == "client":
            return DispatchResult(outcome="pending")
        if call.started > 1 and not tool.retry_safe:
            return await self._stage(request, call, error_output(OUTCOME_UNKNOWN))
        return await self._stage(request, call, await _run(tool, call))

    async def _stage(self, request: DispatchRequest, call: OpenCall, output: ToolOutput) -> DispatchResult:
        """Keep trying: the tool has run, and only this process knows what it returned."""
        delay_s = 0.2
        while True:
            try:
                return await self._stage_once(request, call, output)
            except StoreUnavailable:
                activity.logger.warning("tool result not staged yet", extra={"call_id": call.call_id})
                await asyncio.sleep(delay_s)
                delay_s = min(delay_s * 2, 5.0)
            except StoreError as error:
                # The call was settled while the tool ran: a stop, or a result from outside. The first one counts.
                raise ApplicationError(str(error), type=ErrorType.SEALED, non_retryable=True) from error

    async def _stage_once(self, request: DispatchRequest, call: OpenCall, output: ToolOutput) -> DispatchResult:
        encoded = output.content.encode("utf-8", "surrogatepass")
        blob, content = None, output.content
        if len(encoded) > INLINE_BYTES:
            blob = await self._store.put_blob(request.thread_id, encoded)
            content = encoded[:INLINE_BYTES].decode("utf-8", "ignore")
        part = ToolResultPart(
            call_id=call.call_id,
            outcome=output.outcome,
            content=content,
            size_bytes=len(encoded),
            blob=blob,
            step=call.step,
        )
        return _result(await self._store.stage_result(request.thread_id, part))


async def _run(tool: Tool, call: OpenCall) -> ToolOutput:
    assert tool.function is not None
    try:
        arguments = tool.validate(call.arguments)
    except ValueError as error:
        return error_output(str(error))
    deadline = asyncio.timeout(tool.timeout.total_seconds())
    try:
        async with deadline:
            return tool_output(await _call(tool, arguments))
    except ToolError as error:
        return error_output(str(error) or "The tool failed.")
    except asyncio.CancelledError:
        if _is_cancelled():
            raise
        return error_output(f"{tool.name} cancelled itself (CancelledError).")
    except Exception as error:  # whatever a tool raises is the model's to know and never ends the turn
        if deadline.expired():
            return error_output(f"{tool.name} did not return within {tool.timeout.total_seconds():g} s.")
        return error_output(f"{type(error).__name__}: {error}".removesuffix(": "))


async def _call(tool: Tool, arguments: dict[str, Any]) -> object:
    assert tool.function is not None
    if inspect.iscoroutinefunction(tool.function):
        return await tool.function(**arguments)
    returned = await asyncio.to_thread(functools.partial(tool.function, **arguments))
    return await returned if inspect.isawaitable(returned) else returned


def _is_cancelled() -> bool:
    task = asyncio.current_task()
    return task is not None and task.cancelling() > 0


def _result(part: ToolResultPart) -> DispatchResult:
    return DispatchResult(
        outcome="ok" if part.outcome == "ok" else "error",
        preview=clip(part.content, PREVIEW_CHARS),
        size_bytes=part.size_bytes,
    )
