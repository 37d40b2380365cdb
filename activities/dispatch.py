"""The activity `dispatch`: runs one durable tool call, once.

The call and its arguments are read from the store, where `sync` put them before this was scheduled. Its result is
staged there under the call's id before it is reported, so a second run of this activity (a lost reply, a dead worker)
returns the staged result instead of running the tool again. What cannot be told is whether a tool whose worker died in
the middle took effect: it runs again only if it is declared `retry_safe`, otherwise the model is told just that.

Temporal may give up an attempt whose tool runs on, when it was away itself or the store is. The run stays for as long
as its call is open, and an attempt that comes to the same worker waits for it instead of taking it for lost.
"""

import asyncio
import math
import time
import uuid
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from datetime import timedelta
from typing import Literal, TypeVar

from temporalio import activity
from temporalio.exceptions import ApplicationError, ApplicationErrorCategory

from activities.approval_policy import check_approved
from activities.catalog import ToolCatalog
from activities.heartbeat import heartbeating
from activities.store_call import store_call
from activities.thread_tools import ThreadTools
from activities.tool_output import Pending, ToolFile, ToolOutput, error_output
from activities.tool_run import run_tool
from perdure.agent import Agent, Agents
from perdure.builtins import CLOSE_THREAD
from perdure.codec import clip, head
from perdure.contract import DISPATCH, PREVIEW_CHARS, DispatchRequest, DispatchResult
from perdure.errors import CallNotOpen, StoreError, StoreUnavailable, UsageError
from perdure.inputs import INLINE_BYTES
from perdure.messages import FileRef, ToolResultPart
from perdure.policy import ErrorType
from perdure.ports import Store
from perdure.records import OpenCall
from perdure.tools import Tool

OUTCOME_UNKNOWN = (
    "This call was cut off before it returned, so its outcome is unknown. It was not run again. "
    "Check whether it took effect before you repeat it."
)

HAND_OVER_DELAY = timedelta(milliseconds=1)
"""Another worker starts at once. Temporal reads zero as "not set"."""

_RETRY_S, _RETRY_MAX_S = 0.2, 5.0
_START_PATIENCE_S = 60.0
"""How long a start is asked for again here; after that another worker may have a better way to the store."""

_ABANDONED_S = 10.0
"""How often a run for which no attempt waits is looked at. Temporal makes the next attempt within a second unless it is
away itself: the SDK gives up an attempt whose heartbeats go unanswered, and the outage may last much longer."""

Answer = TypeVar("Answer")


@dataclass
class _Run:
    """A call that runs in this process, how many attempts wait for it, and when its time ends by the loop's clock."""

    task: asyncio.Task[DispatchResult]
    ends: float
    attempts: int = 0
    watch: asyncio.Task[None] | None = None


class DispatchActivities:
    """Runs the tools of the agents that a worker serves."""

    def __init__(
        self,
        store: Store,
        agents: Agents,
        catalog: ToolCatalog | None = None,
        threads: ThreadTools | None = None,
    ) -> None:
        self._store = store
        self._agents = agents
        self._catalog = catalog or ToolCatalog(store, agents)
        self._threads = threads
        self._runs: dict[tuple[str, str], _Run] = {}

    @activity.defn(name=DISPATCH)
    async def dispatch(self, request: DispatchRequest) -> DispatchResult:
        """Run the call and stage its result. Safe to run again: see the module's docstring.

        A worker that shuts down lets its tools run for the time of its grace; what is cancelled after that is handed
        over, which is never taken for a stop (case B58).
        """
        run = self._run(request)
        run.attempts += 1
        try:
            async with heartbeating():
                return await asyncio.shield(run.task)
        except asyncio.CancelledError:
            details = activity.cancellation_details()
            if details is not None and not details.cancel_requested:
                if details.not_found or details.timed_out:
                    run.watch = run.watch or asyncio.create_task(self._watch_abandoned(request, run))
                    raise
                if details.worker_shutdown:
                    await _stopped(run.task)
                    raise _handed_over() from None
            await _stopped(run.task)
            raise
        finally:
            run.attempts -= 1

    def _run(self, request: DispatchRequest) -> _Run:
        """The run of this call: the one that goes on here already, or a new one."""
        place = request.thread_id, request.call_id
        run = self._runs.get(place)
        if run is None:
            limit = activity.info().start_to_close_timeout
            ends = asyncio.get_running_loop().time() + (limit.total_seconds() if limit else math.inf)
            run = self._runs[place] = _Run(asyncio.create_task(self.execute(request)), ends)
            run.task.add_done_callback(lambda task: self._ended(place, task))
        return run

    async def _watch_abandoned(self, request: DispatchRequest, run: _Run) -> None:
        """Stop a run when nobody can want it any more: its call is settled, or its time is over.

        Not before: the attempt that will wait for it comes when Temporal is back.
        """
        loop = asyncio.get_running_loop()
        while not run.task.done():
            await asyncio.wait({run.task}, timeout=_ABANDONED_S)
            if run.attempts == 0 and (loop.time() >= run.ends or not await self._is_wanted(request)):
                run.task.cancel()
                return

    async def _is_wanted(self, request: DispatchRequest) -> bool:
        try:
            return (await self._store.get_call(request.thread_id, request.call_id)).result is None
        except CallNotOpen:
            return False
        except StoreUnavailable:
            return True

    def _ended(self, place: tuple[str, str], task: asyncio.Task[DispatchResult]) -> None:
        del self._runs[place]
        # Nobody may wait for its failure any more, and asyncio complains of failures that nobody has looked at.
        if not task.cancelled():
            task.exception()

    async def execute(self, request: DispatchRequest) -> DispatchResult:
        """The same outside of an activity, for callers that drive the loop themselves."""
        # Before the start is counted: a worker that does not know the agent must not make the outcome unknown.
        agent = self._agent(request.agent)
        tools = (await self._catalog.of(agent, request.thread_id)).tools
        if _may_not_start(agent, tools):
            waiting = await store_call(self._store.get_call(request.thread_id, request.call_id))
            if waiting.result is None:
                check_approved(waiting)
                if (known := tools.get(waiting.tool)) is not None and known.kind == "client":
                    return DispatchResult(outcome="pending")
        call = await self._start(request)
        if call.tool not in tools:
            # The model was offered it, if not by this worker.
            tools = (await self._catalog.kept(agent, request.thread_id)).tools
        tool = tools.get(call.tool)
        if call.result is not None:
            return _result(call.result, tool)
        check_approved(call)
        if tool is None:
            return await self._stage(request, call, error_output(f"There is no tool {call.tool!r} any more."))
        return await self._run_tool(request, agent, tool, call)

    async def _run_tool(self, request: DispatchRequest, agent: Agent, tool: Tool, call: OpenCall) -> DispatchResult:
        if tool.kind == "rap":
            # What an earlier start has sent is the client's to judge: the result may still come.
            output = await self._catalog.client(agent, tool).call(tool, call, request)
        elif call.started > 1 and not tool.retry_safe:
            output = error_output(OUTCOME_UNKNOWN)
        elif tool.kind == "mcp":
            output = await self._catalog.client(agent, tool).call(tool, call, request)
        elif tool.kind == "thread" and self._threads is not None:
            output = await self._threads.run(tool, call, request.thread_id)
        elif tool.kind == "function":
            output = await run_tool(tool, call.arguments)
        else:
            output = error_output(f"{tool.name} is carried out by the thread's workflow, and here is none.")
        if isinstance(output, Pending):
            return DispatchResult(outcome="pending", expires_s=output.expires_s)
        return await self._stage(request, call, output, tool)

    async def _start(self, request: DispatchRequest) -> OpenCall:
        """Ask again under the same name: a start whose reply was lost is no other run of the tool."""
        owner = uuid.uuid4().hex
        patience = time.monotonic() + _START_PATIENCE_S
        return await store_call(
            _answered(lambda: self._store.start_call(request.thread_id, request.call_id, owner), request, patience)
        )

    def _agent(self, name: str) -> Agent:
        try:
            return self._agents[name]
        except UsageError as error:
            raise ApplicationError(str(error), type=ErrorType.USAGE, non_retryable=True) from error

    async def _stage(
        self, request: DispatchRequest, call: OpenCall, output: ToolOutput, tool: Tool | None = None
    ) -> DispatchResult:
        """Keep trying: the tool has run, and only this process knows what it returned."""
        try:
            staged = await _answered(lambda: self._stage_once(request, call, output), request)
            return _result(staged, tool)
        except StoreError as error:
            # The call was settled while the tool ran: a stop, or a result from outside. The first one counts.
            raise ApplicationError(
                str(error), type=ErrorType.SEALED, non_retryable=True, category=ApplicationErrorCategory.BENIGN
            ) from error

    async def _stage_once(self, request: DispatchRequest, call: OpenCall, output: ToolOutput) -> ToolResultPart:
        encoded = output.content.encode("utf-8", "surrogatepass")
        is_large = len(encoded) > INLINE_BYTES
        part = ToolResultPart(
            call_id=call.call_id,
            outcome=output.outcome,
            content=head(encoded, INLINE_BYTES) if is_large else output.content,
            size_bytes=len(encoded),
            blob=await self._store.put_blob(request.thread_id, encoded) if is_large else None,
            files=tuple([await self._put_file(request.thread_id, file) for file in output.files]),
            step=call.step,
        )
        return await self._store.stage_result(request.thread_id, part)

    async def _put_file(self, thread_id: str, file: ToolFile) -> FileRef:
        blob = await self._store.put_blob(thread_id, file.data, file.media_type)
        return FileRef(media_type=file.media_type, blob=blob, size_bytes=len(file.data))


def _may_not_start(agent: Agent, tools: Mapping[str, Tool]) -> bool:
    """Whether calls have to be looked at before they start: that counts, and what was begun is not run again."""
    asking = agent.approval != "never" or any(tool.approval not in (None, "never") for tool in tools.values())
    return asking or any(tool.kind == "client" for tool in tools.values())


async def _stopped(task: asyncio.Task[DispatchResult]) -> None:
    task.cancel()
    await asyncio.wait({task})


def _handed_over() -> ApplicationError:
    return ApplicationError(
        "The worker is shutting down; another one takes the call over.",
        type=ErrorType.WORKER_SHUTDOWN,
        next_retry_delay=HAND_OVER_DELAY,
        category=ApplicationErrorCategory.BENIGN,
    )


async def _answered(
    call: Callable[[], Awaitable[Answer]], request: DispatchRequest, patience: float = math.inf
) -> Answer:
    """Call the store until it answers, or is away at the time `patience` of the monotonic clock."""
    delay_s = _RETRY_S
    while True:
        try:
            return await call()
        except StoreUnavailable:
            if time.monotonic() > patience:
                raise
            activity.logger.warning("the store is away; the tool call waits", extra={"call_id": request.call_id})
        await asyncio.sleep(delay_s)
        delay_s = min(delay_s * 2, _RETRY_MAX_S)


def _result(part: ToolResultPart, tool: Tool | None) -> DispatchResult:
    outcome: Literal["ok", "error"] = "ok" if part.outcome == "ok" else "error"
    closed = outcome == "ok" and tool is not None and tool.kind == "thread" and tool.operation == CLOSE_THREAD
    return DispatchResult(outcome=outcome, preview=clip(part.content, PREVIEW_CHARS), closed=closed)
