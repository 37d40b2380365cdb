"""The activity `after_turn`: context providers are told of a turn that is over.

Its message is durable by then, and nothing here changes it. Providers are told in reverse order. One that has finished
is remembered together with what it keeps, in one transaction, so whoever tries again runs those that are left; one
whose worker dies between its hook and that moment runs again, with the state that it began with. What fails is tried
again and does not keep the others from running. Two kinds of failure are final: that of a sink, and state that is not
JSON, which the hook would leave again, with its effects repeated.
"""

import asyncio
from dataclasses import replace

import structlog
from temporalio import activity
from temporalio.exceptions import ApplicationError, ApplicationErrorCategory

from activities.heartbeat import heartbeating
from activities.path_cache import PathCache
from activities.store_call import store_call
from activities.turn_contexts import raise_if_stopped, reason, state_of
from activities.whole_turn import whole_turn
from perdure.agent import Agent, Agents
from perdure.codec import is_json
from perdure.context import (
    ContextProvider,
    ProviderRun,
    RunOutcome,
    after_hook,
    before_hook,
    is_each_call,
    is_sink,
    keeps_log,
    timeout_of,
)
from perdure.contract import AFTER_TURN, AfterTurnRequest, AfterTurnResult
from perdure.errors import UnknownMessage, UsageError
from perdure.history_provider import HistoryProvider
from perdure.messages import Message
from perdure.policy import ErrorType
from perdure.ports import Store
from perdure.records import ProviderState
from perdure.turn_context import ContextMessage

PATH_CHARS = 8 * 1024 * 1024
"""How much text of conversations is kept here, so that of a long one only the new messages are read."""

CONFLICTS = 5
"""How often a hook runs anew since another turn's has written the provider's state meanwhile."""


class AfterTurnActivities:
    """Tells the providers of the agents that a worker serves."""

    def __init__(self, store: Store, agents: Agents) -> None:
        self._store = store
        self._agents = agents
        self._paths = PathCache(store, max_chars=PATH_CHARS)

    @activity.defn(name=AFTER_TURN)
    async def after_turn(self, request: AfterTurnRequest) -> AfterTurnResult:
        """Run the hooks that have not finished, then forget what was said before the turn. Safe to repeat.

        A worker that shuts down lets them run for the time of its grace; what is cancelled after that is handed over,
        which is never taken for a stop (case B58).

        Raises:
            ApplicationError: of type `ErrorType.CONTEXT`, naming every provider whose hook has failed.
        """
        try:
            async with heartbeating():
                return await self.execute(request)
        except asyncio.CancelledError:
            details = activity.cancellation_details()
            if details is not None and details.worker_shutdown and not details.cancel_requested:
                raise ApplicationError(
                    "The worker is shutting down; another one takes the hooks over.",
                    type=ErrorType.WORKER_SHUTDOWN,
                    category=ApplicationErrorCategory.BENIGN,
                ) from None
            raise

    async def execute(self, request: AfterTurnRequest) -> AfterTurnResult:
        """The same outside of an activity. Raises ApplicationError."""
        try:
            agent = self._agents[request.agent]
        except UsageError as error:
            raise ApplicationError(f"{error} Start a worker that serves it.", type=ErrorType.USAGE) from error
        told = [provider for provider in reversed(agent.context) if after_hook(provider) or keeps_log(provider)]
        result = await self._tell_all(agent, request, told) if told else AfterTurnResult()
        await store_call(self._store.drop_turn_contexts(request.thread_id, request.turn))
        return result

    async def _tell_all(self, agent: Agent, request: AfterTurnRequest, told: list[ContextProvider]) -> AfterTurnResult:
        """Run what is left. What fails for good is a problem, and no more."""
        names = tuple(provider.name for provider in told)
        finished = await store_call(self._store.finished_hooks(request.thread_id, request.turn))
        left = [provider for provider in told if provider.name not in finished]
        if not left:
            return AfterTurnResult(finished=names)
        try:
            run, outcome = await store_call(self._turn(agent, request))
        except UnknownMessage:
            # Somebody has deleted the turn, and with it what there was to tell.
            problem = f"Turn {request.turn} was deleted before its context providers were told of it."
            return AfterTurnResult(problems=(problem,))
        failed: list[str] = []
        problems: list[str] = []
        for provider in left:
            try:
                await self._tell(provider, run, outcome)
            except _HookFailed as failure:
                _warn(provider, run, str(failure))
                if failure.is_final:
                    # Now, and not when all have run: the retry that another one needs must not run this one again.
                    await store_call(self._store.finish_hook(run.thread_id, run.turn, provider.name))
                    problems.append(str(failure))
                else:
                    failed.append(str(failure))
        if failed:
            raise ApplicationError(" ".join(failed + problems), type=ErrorType.CONTEXT)
        return AfterTurnResult(finished=names, problems=tuple(problems))

    async def _tell(self, provider: ContextProvider, run: ProviderRun, outcome: RunOutcome) -> None:
        """Run a hook, and remember that together with its state.

        Another turn's hook may have written the state since it was read: then this one runs again on top of that.
        """
        thread_id, name = run.thread_id, provider.name
        if isinstance(provider, HistoryProvider):
            await store_call(self._store.append_log(thread_id, name, provider.logged(run, outcome)))
        for _ in range(CONFLICTS):
            states = await store_call(self._store.get_provider_states(thread_id))
            state = await _new_state(provider, run, outcome, states.get(name))
            if await store_call(self._store.finish_hook(thread_id, run.turn, name, state)):
                return
        raise _HookFailed(provider, run, UsageError("its state was written by others each time that it ran"))

    async def _turn(self, agent: Agent, request: AfterTurnRequest) -> tuple[ProviderRun, RunOutcome]:
        path, thread = await asyncio.gather(
            self._paths.load(request.thread_id, request.message_id), self._store.get_thread(request.thread_id)
        )
        words, message = await whole_turn(self._store, path, request.thread_id, request.message_id)
        step = max((part.step for part in message.parts), default=0)
        context = await self._said(agent, request, step)
        run = ProviderRun(thread.thread_id, agent.name, thread.tenant, request.turn, step, words, {})
        return run, _outcome(message, context)

    async def _said(self, agent: Agent, request: AfterTurnRequest, step: int) -> dict[str, tuple[ContextMessage, ...]]:
        """What each provider had said in the turn, the oldest first."""
        asked = [provider for provider in agent.context if before_hook(provider)]
        if not asked:
            return {}
        # A call that was stopped has left no part, but was asked for: it is the one after the last.
        steps = range(step + 2) if any(map(is_each_call, asked)) else range(1)
        rows = [await self._store.get_turn_context(request.thread_id, request.turn, one) for one in steps]
        said: dict[str, tuple[ContextMessage, ...]] = {}
        for one in (one for row in rows if row is not None for one in row.providers):
            said[one.source] = said.get(one.source, ()) + one.messages
        return said


class _HookFailed(Exception):
    """A hook failed; the text says which, and why. A final failure is not tried again."""

    def __init__(self, provider: ContextProvider, run: ProviderRun, error: BaseException) -> None:
        what = reason(error, provider)
        super().__init__(f"Context provider {provider.name!r} failed after turn {run.turn}: {what}.")
        self.is_final = is_sink(provider) or isinstance(error, _NotJson)


class _NotJson(UsageError):
    """A hook has left in its state what cannot be stored."""

    def __init__(self) -> None:
        super().__init__("what it left in its state is not JSON, so nothing of it was kept")


async def _new_state(
    provider: ContextProvider, run: ProviderRun, outcome: RunOutcome, stored: ProviderState | None
) -> ProviderState | None:
    """Run the hook on what the provider keeps; what it keeps then, None if that is the same."""
    hook = after_hook(provider)
    if hook is None:
        return None
    try:
        kept = state_of(provider, stored)
        async with asyncio.timeout(timeout_of(provider).total_seconds()):
            await hook(replace(run, state=kept.values), outcome)
        if not is_json(kept.values):
            raise _NotJson
    except (KeyboardInterrupt, GeneratorExit):
        raise
    except BaseException as error:  # whatever a provider raises, `sys.exit` included
        raise_if_stopped(error)
        raise _HookFailed(provider, run, error) from error
    return kept if kept.values != (stored.values if stored else {}) else None


def _warn(provider: ContextProvider, run: ProviderRun, sentence: str) -> None:
    log = structlog.get_logger("perdure.context")
    log.warning("a hook after a turn failed", thread=run.thread_id, provider=provider.name, reason=sentence)


def _outcome(message: Message, context: dict[str, tuple[ContextMessage, ...]]) -> RunOutcome:
    status = message.status
    match status.state, status.reason:
        case ("complete", _) | ("incomplete", "steered"):
            return RunOutcome("success", status, message, None, context)
        case "incomplete", "cancelled":
            return RunOutcome("cancel", status, message, None, context)
        case "incomplete", "limit":
            return RunOutcome("limit", status, message, status.detail, context)
        case _:
            return RunOutcome("failure", status, message, status.detail or f"The turn ended: {status.reason}.", context)
