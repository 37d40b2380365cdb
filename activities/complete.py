"""The activity `complete`: one model call, streamed into the turn buffer.

It may run any number of times for one step. An attempt that finds the step done returns what is stored, without asking
the model; one that finds it open voids what streamed and starts over; a late one is refused by the store and stops.
Nothing it writes is history before `sync` commits it, and nothing is dispatched before that.
"""

import asyncio
from collections.abc import Generator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta

from pydantic_ai.direct import model_request_stream
from pydantic_ai.messages import ModelMessage, ModelResponse
from temporalio import activity
from temporalio.exceptions import ApplicationError, ApplicationErrorCategory

from activities.approval_policy import with_approvals
from activities.budgets import Budgets
from activities.catalog import Catalog, ToolCatalog
from activities.final_result import with_output
from activities.heartbeat import heartbeating
from activities.lost_calls import LostCalls
from activities.model_calls import judge, outline
from activities.model_choice import Candidate, Chosen, ModelChoice
from activities.model_errors import cause_of, decisive, failure, has_forgotten, may_fall_back
from activities.model_messages import request_parameters, to_parts
from activities.path_cache import PathCache
from activities.prices import usage_of, usage_of_unanswered
from activities.request_builder import RequestBuilder
from activities.service_history import continued, remembered
from activities.step_writer import StepWriter
from activities.stream_chunks import StreamChunks
from activities.turn_contexts import TurnContexts, kept_context, offered
from perdure import ids
from perdure.agent import Agent, Agents
from perdure.compaction import is_due
from perdure.contract import COMPLETE, CompleteRequest, CompleteResult
from perdure.errors import ConfigurationError, ModelError, StepSealed, StoreError
from perdure.messages import Usage
from perdure.policy import ErrorType
from perdure.ports import Store
from perdure.records import Path, StepOutcome
from perdure.turn_context import TurnContext

CLEAN_UP_S = 0.25
"""How long a cancelled call may take to close its connection; the stop does not wait longer for it."""

HAND_OVER_DELAY = timedelta(milliseconds=1)
"""Another worker starts at once. Temporal reads zero as "not set"."""


class CompleteActivities:
    """Asks the models of the agents that a worker serves."""

    def __init__(
        self,
        store: Store,
        agents: Agents,
        catalog: ToolCatalog | None = None,
        paths: PathCache | None = None,
        models: ModelChoice | None = None,
    ) -> None:
        self._store = store
        self._agents = agents
        self._catalog = catalog or ToolCatalog(store, agents)
        self._paths = paths or PathCache(store)
        self._lost = LostCalls(store)
        self._budgets = Budgets(store, self._lost)
        self._contexts = TurnContexts(store)
        self._models = models or ModelChoice()
        self._requests = RequestBuilder(store, self._paths)

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
                raise ApplicationError("The model call cancelled itself.", type=ErrorType.MODEL)
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
            return await self._step(request, attempt, agent)
        except ApplicationError:
            raise
        except Exception as error:  # one function decides what every failure becomes
            raise failure(error, label) from error

    async def close(self) -> None:
        """Close the connections of the models that were resolved by name."""
        await self._lost.close()
        await self._models.close()

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
        if (crossed := await self._budgets.crossed(agent, request)) is not None:
            return CompleteResult(finish="limit", detail=crossed)
        catalog = await self._catalog.of(agent, request.thread_id)
        path = await self._path(request)
        context = await self._contexts.of(agent, request, path)
        call = _Call(request, attempt, agent, offered(catalog, agent, context), path, context)
        return await self._answer(call, self._models.candidates(agent, path, request))

    async def _answer(self, call: "_Call", candidates: tuple[Candidate, ...]) -> CompleteResult:
        """What the first model says that can answer. The next is asked only if nothing has streamed yet.

        What the ones before it have taken may have used a budget up, which is looked at before each.
        """
        lost = Usage()
        failures: list[ApplicationError] = []
        error: Exception | None = None
        for candidate in candidates:
            if candidate.anew and not has_forgotten(error):
                continue
            with self._counting(call, lost):
                crossed = await self._budgets.crossed(call.agent, call.request, lost) if lost.requests else None
            if crossed is not None:
                self._lost.count(call.request, call.attempt, lost)
                return CompleteResult(finish="limit", detail=crossed)
            try:
                return await self._answer_of(await self._opened(candidate, call), call, lost)
            except _BrokenOff as broken:
                lost += broken.usage
                error = broken.error
                failures.append(failure(error, candidate.name))
                failures[-1].__cause__ = cause_of(error)
                if broken.streamed or not may_fall_back(error):
                    break
        if lost.requests:
            self._lost.count(call.request, call.attempt, lost)
        # Not where it was caught: what was left out of the cause would come along as the context.
        raise decisive(failures)

    @contextmanager
    def _counting(self, call: "_Call", lost: Usage) -> Generator[None]:
        """What models have taken that were asked in vain is counted if the call ends before the next one is asked."""
        try:
            yield
        except BaseException:  # whatever it is, a stop or a store that is away: it is paid for
            if lost.requests:
                self._lost.count(call.request, call.attempt, lost)
            raise

    async def _opened(self, candidate: Candidate, call: "_Call") -> Chosen:
        try:
            chosen = await self._models.open(candidate)
            self._budgets.check_prices(call.agent, [chosen.model])
        except ConfigurationError as error:
            raise _BrokenOff(error, Usage()) from error
        return chosen

    async def _answer_of(self, chosen: Chosen, call: "_Call", lost: Usage) -> CompleteResult:
        """The answer of one model; `lost` is what those before it have cost."""
        request, agent, catalog = call.request, call.agent, call.catalog
        place = request.thread_id, request.turn, request.step
        with self._counting(call, lost):
            messages = await self._requests.build(agent, request, call.path, call.context, chosen.model)
        chosen, messages = continued(chosen, messages, call.path)
        async with StepWriter(self._store, *place, call.attempt) as writer:
            response, usage = await self._stream(chosen, call, messages, writer, lost)
            try:
                due = is_due(agent.compaction, chosen.model.profile, usage)
                outcome = _outcome(response).with_(usage=usage + lost, compact=due)
                parts, outcome = judge(to_parts(response, *place), outcome, agent, catalog, call.path, chosen.settings)
                parts = remembered(parts, response, chosen, call.path)
                parts = kept_context(agent, call.context) + await with_approvals(parts, agent, catalog)
            except BaseException:  # whatever it is, a stop included: nobody reads the answer, but it is paid for
                self._lost.count(request, call.attempt, usage + lost)
                raise
            # To its end, also if the call is stopped or handed over meanwhile.
            storing = asyncio.create_task(writer.finish(parts, outcome))
            self._lost.count_if_refused(storing, request, call.attempt, usage + lost)
            await asyncio.shield(storing)
        return outline(parts, outcome, catalog)

    async def _stream(
        self, chosen: Chosen, call: "_Call", messages: list[ModelMessage], writer: StepWriter, lost: Usage
    ) -> tuple[ModelResponse, Usage]:
        request, agent = call.request, call.agent
        chunks = StreamChunks(request.thread_id, request.turn, request.step)
        parameters = with_output(request_parameters(_instructions(call), call.catalog.tools.values()), agent.output)
        used: Usage | None = None
        try:
            async with model_request_stream(
                chosen.model, messages, model_settings=chosen.settings, model_request_parameters=parameters
            ) as stream:
                try:
                    async for event in stream:
                        for chunk in chunks.of(event):
                            writer.add(chunk)
                finally:
                    response = stream.get()
                    used = usage_of(response, agent.price, messages)
                if response.finish_reason == "error":
                    raise ModelError("The provider broke the answer off with an error.", retryable=True)
                return response, used
        except (asyncio.CancelledError, StoreError):
            # Stopped, or another attempt has the step.
            used = used or usage_of_unanswered(messages, chosen.model, agent.price)
            self._lost.count(request, call.attempt, used + lost)
            raise
        except Exception as error:  # whatever a provider's client raises: `execute` decides what it becomes
            # A request that was refused before anything of an answer came costs nothing.
            raise _BrokenOff(error, used or Usage(requests=1), streamed=writer.streamed) from error

    async def _path(self, request: CompleteRequest) -> Path:
        """The path to the turn's own message, wherever the head is by now: it may have moved between two attempts."""
        own = request.message_id or ids.turn_message_id(request.thread_id, request.turn)
        return await self._paths.load(request.thread_id, own)


@dataclass(frozen=True)
class _Call:
    """A model call, and what it is put together from."""

    request: CompleteRequest
    attempt: int
    agent: Agent
    catalog: Catalog
    path: Path
    context: TurnContext


class _BrokenOff(Exception):
    """A model could not be asked or its answer broke off, after it had used so much; readers may have seen some."""

    def __init__(self, error: Exception, usage: Usage, *, streamed: bool = False) -> None:
        super().__init__(str(error))
        self.error = error
        self.usage = usage
        self.streamed = streamed


def _instructions(call: _Call) -> str:
    texts = (call.agent.instructions.strip(), call.catalog.instructions, call.context.instructions)
    return "\n\n".join(text for text in texts if text)


def _outcome(response: ModelResponse) -> StepOutcome:
    match response.finish_reason:
        case "length":
            detail = "The answer was cut off by the output limit."
            return StepOutcome(finish="length", model=response.model_name, detail=detail)
        case "content_filter":
            detail = "The provider's content filter stopped the answer."
            return StepOutcome(finish="content_filter", model=response.model_name, detail=detail)
        case _:
            return StepOutcome(model=response.model_name)


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
