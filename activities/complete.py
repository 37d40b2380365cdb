"""The activity `complete`: one model call, streamed into the turn buffer.

It may run any number of times for one step. An attempt that finds the step done returns what is stored, without asking
the model; one that finds it open voids what streamed and starts over; a late one is refused by the store and stops.
Nothing it writes is history before `sync` commits it, and nothing is dispatched before that.
"""

import asyncio
from collections.abc import Callable
from contextlib import AsyncExitStack
from datetime import timedelta
from typing import Any, TypeVar

from pydantic_ai.direct import model_request_stream
from pydantic_ai.messages import ModelMessage, ModelResponse
from pydantic_ai.models import Model
from temporalio import activity
from temporalio.exceptions import ApplicationError, ApplicationErrorCategory

from activities.approval_policy import with_approvals
from activities.catalog import Catalog, ToolCatalog
from activities.heartbeat import heartbeating
from activities.model_calls import judge, outline
from activities.model_errors import failure
from activities.model_messages import accepted_files, request_parameters, to_messages, to_parts
from activities.path_cache import PathCache
from activities.step_writer import StepWriter
from activities.stream_chunks import StreamChunks
from perdure import ids, models
from perdure.agent import Agent, Agents
from perdure.collector import paused_collector
from perdure.contract import COMPLETE, CompleteRequest, CompleteResult
from perdure.errors import BlobNotFound, ModelError, StepSealed
from perdure.messages import Usage
from perdure.policy import ErrorType
from perdure.ports import Store
from perdure.records import Path, StepOutcome
from perdure.view import Request, Response, view

Built = TypeVar("Built")

CLEAN_UP_S = 0.25
"""How long a cancelled call may take to close its connection; the stop does not wait longer for it."""

LONG_PATH = 1_000
"""Parts of a conversation above which its request is built in a thread: that of so many takes 10 ms."""

HAND_OVER_DELAY = timedelta(milliseconds=1)
"""Another worker starts at once. Temporal reads zero as "not set"."""


class CompleteActivities:
    """Asks the models of the agents that a worker serves."""

    def __init__(
        self, store: Store, agents: Agents, catalog: ToolCatalog | None = None, paths: PathCache | None = None
    ) -> None:
        self._store = store
        self._agents = agents
        self._catalog = catalog or ToolCatalog(store, agents)
        self._paths = paths or PathCache(store)
        self._models: dict[str, Model[Any]] = {}
        self._connections = AsyncExitStack()
        self._long_paths = asyncio.Lock()

    @activity.defn(name=COMPLETE)
    async def complete(self, request: CompleteRequest) -> CompleteResult:
        """Make the model call of a step, or return its stored outcome. Safe to run again: see the module's docstring.

        A stop cancels it within a heartbeat. A worker that shuts down hands the call over to another one at once,
        which is never taken for a stop (case B58): the failure is retryable and names itself.
        """
        call = asyncio.create_task(self.execute(request, request.attempts + activity.info().attempt))
        call.add_done_callback(_retrieve)
        shutdown = asyncio.create_task(activity.wait_for_worker_shutdown())
        try:
            async with heartbeating():
                await asyncio.wait({call, shutdown}, return_when=asyncio.FIRST_COMPLETED)
        except asyncio.CancelledError:
            details = activity.cancellation_details()
            if details is not None and details.worker_shutdown and not details.cancel_requested:
                raise _handed_over() from None
            raise
        else:
            if not call.done():
                raise _handed_over()
            if call.cancelled():
                raise ApplicationError("The model call cancelled itself. It is tried again.", type=ErrorType.MODEL)
            return call.result()
        finally:
            shutdown.cancel()
            call.cancel()
            await asyncio.wait({call, shutdown}, timeout=CLEAN_UP_S)

    async def execute(self, request: CompleteRequest, attempt: int = 1) -> CompleteResult:
        """The same outside of an activity, for callers that drive the loop themselves. Raises ApplicationError."""
        label = request.agent
        try:
            agent = self._agents[request.agent]
            label = agent.model if isinstance(agent.model, str) else agent.model.model_name
            if request.step >= agent.limits.steps:
                detail = f"The turn reached its limit of {agent.limits.steps} model calls."
                return CompleteResult(finish="limit", detail=detail)
            return await self._step(request, attempt, agent)
        except Exception as error:  # one function decides what every failure becomes
            raise failure(error, label) from error

    async def close(self) -> None:
        """Close the connections of the models that were resolved by name."""
        await self._connections.aclose()

    async def _step(self, request: CompleteRequest, attempt: int, agent: Agent) -> CompleteResult:
        if attempt > 1 and (stored := await self._stored(request, attempt, agent)) is not None:
            return stored
        try:
            return await self._ask(request, attempt, agent)
        except StepSealed:
            # Attempts count on over the runs of a workflow, but a reset one asks as the first again: it may be done.
            if (stored := await self._stored(request, attempt, agent)) is None:
                raise
            return stored

    async def _stored(self, request: CompleteRequest, attempt: int, agent: Agent) -> CompleteResult | None:
        """The outcome if the step is done; else the step is open for this attempt."""
        step = await self._store.begin_step(request.thread_id, request.turn, request.step, attempt)
        if step.state != "done" or step.outcome is None:
            return None
        return outline(step.parts, step.outcome, await self._catalog.of(agent, request.thread_id))

    async def _ask(self, request: CompleteRequest, attempt: int, agent: Agent) -> CompleteResult:
        thread_id, turn, step = request.thread_id, request.turn, request.step
        model = await self._model(agent)
        catalog = await self._catalog.of(agent, thread_id)
        path = await self._path(request)
        messages = await self._messages(thread_id, path, model)
        async with StepWriter(self._store, thread_id, turn, step, attempt) as writer:
            chunks = StreamChunks(thread_id, turn, step)
            async with model_request_stream(
                model,
                messages,
                model_settings=models.model_settings(model, agent.settings),
                model_request_parameters=request_parameters(_instructions(agent, catalog), catalog.tools.values()),
            ) as stream:
                async for event in stream:
                    for chunk in chunks.of(event):
                        writer.add(chunk)
                response = stream.get()
            parts, outcome = judge(to_parts(response, thread_id, turn, step), _outcome(response), agent, catalog, path)
            parts = await with_approvals(parts, agent, catalog)
            await writer.finish(parts, outcome)
        return outline(parts, outcome, catalog)

    async def _path(self, request: CompleteRequest) -> Path:
        """The path to the turn's own message, wherever the head is by now: it may have moved between two attempts."""
        own = request.message_id or ids.turn_message_id(request.thread_id, request.turn)
        return await self._paths.load(request.thread_id, own)

    async def _messages(self, thread_id: str, path: Path, model: Model[Any]) -> list[ModelMessage]:
        seen, wanted = await self._built(path, _seen, path, model)
        loaded = await asyncio.gather(*(self._file(thread_id, blob) for blob in wanted))
        found = {blob: data for blob, data in zip(wanted, loaded, strict=True) if data is not None}
        return await self._built(path, to_messages, seen, model, found)

    async def _built(self, path: Path, build: Callable[..., Built], *arguments: object) -> Built:
        """What a pure function makes of a path.

        A long one takes a second or two: heartbeats, and the other model calls of the worker, go on meanwhile. One at a
        time, since more would take no less time and would keep the collector from ever running.
        """

        def built() -> Built:
            with paused_collector():
                return build(*arguments)

        if sum(len(message.parts) for message in path.messages) <= LONG_PATH:
            return built()
        async with self._long_paths:
            return await asyncio.to_thread(built)

    async def _file(self, thread_id: str, blob: str) -> bytes | None:
        try:
            return await self._store.get_blob(thread_id, blob)
        except BlobNotFound:
            # One file that is not stored must not fail every later request: the model reads a note in its place.
            return None

    async def _model(self, agent: Agent) -> Model[Any]:
        """One model object for each agent, so that its connections are used again."""
        model = self._models.get(agent.name)
        if model is None:
            model = models.resolve(agent.model, agent.settings)
            if model is not agent.model:
                await self._connections.enter_async_context(model)
            self._models[agent.name] = model
        return model


def _seen(path: Path, model: Model[Any]) -> tuple[tuple[Request | Response, ...], list[str]]:
    """What the model is to read, and the blobs of the files in it."""
    seen = view(path)
    return seen, sorted(set(accepted_files(seen, model)))


def _instructions(agent: Agent, catalog: Catalog) -> str:
    return "\n\n".join(text for text in (agent.instructions.strip(), catalog.instructions) if text)


def _outcome(response: ModelResponse) -> StepOutcome:
    if response.finish_reason == "error":
        raise ModelError("The provider broke the answer off with an error. It is tried again.", retryable=True)
    usage = Usage(
        requests=1,
        input_tokens=response.usage.input_tokens,
        output_tokens=response.usage.output_tokens,
        cached_tokens=response.usage.cache_read_tokens,
    )
    match response.finish_reason:
        case "length":
            detail = "The answer was cut off by the output limit."
            return StepOutcome(finish="length", model=response.model_name, usage=usage, detail=detail)
        case "content_filter":
            detail = "The provider's content filter stopped the answer."
            return StepOutcome(finish="content_filter", model=response.model_name, usage=usage, detail=detail)
        case _:
            return StepOutcome(model=response.model_name, usage=usage)


def _handed_over() -> ApplicationError:
    return ApplicationError(
        "The worker is shutting down; another one takes the model call over.",
        type=ErrorType.WORKER_SHUTDOWN,
        next_retry_delay=HAND_OVER_DELAY,
        category=ApplicationErrorCategory.BENIGN,
    )


def _retrieve(call: asyncio.Task[CompleteResult]) -> None:
    # A call that was given up may still fail later; nobody waits for that, and asyncio is not to complain.
    if not call.cancelled():
        call.exception()
