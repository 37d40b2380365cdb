"""What an agent's context providers say for a model call: asked once, and kept so that a retry reads it.

Providers are asked before the first call of a turn, those with `each_call` before every one. Each time is a row in the
store, written before it is used: the first writer wins, and all others use its row. So whatever worker tries a call
again, and however often, the model reads the same. Later calls read the rows of earlier ones too, which do not change
any more: those of the turn that a thread is in are remembered here.
"""

import asyncio
import copy
import math
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import Final

import structlog
from temporalio.exceptions import ApplicationError

from activities.catalog import Catalog
from activities.recent import Recent
from activities.tool_run import described
from activities.whole_turn import whole_turn
from perdure import ids
from perdure.agent import Agent
from perdure.codec import clip
from perdure.context import (
    ContextProvider,
    ProviderRun,
    before_hook,
    is_each_call,
    is_required,
    said,
    schema_version_of,
    timeout_of,
    tools_of,
)
from perdure.contract import CompleteRequest
from perdure.errors import InvalidContext, UsageError
from perdure.history_provider import HistoryProvider
from perdure.messages import ContextPart, Message
from perdure.policy import ErrorType
from perdure.ports import Store
from perdure.records import Path, ProviderState
from perdure.turn_context import ProviderContext, TurnContext

REMEMBERED_THREADS: Final = 500
DETAIL_CHARS: Final = 300


@dataclass
class _Turn:
    """The rows of the turn that a thread is in, by step."""

    number: int
    rows: dict[int, TurnContext] = field(default_factory=dict[int, TurnContext])


class TurnContexts:
    """Asks the providers of an agent before a model call."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._turns = Recent[str, _Turn](REMEMBERED_THREADS)

    async def of(self, agent: Agent, request: CompleteRequest, path: Path) -> TurnContext:
        """What the providers say for this model call, or what they said when it was tried before.

        An agent without providers that are asked costs nothing.

        Raises:
            ApplicationError: of type `ErrorType.CONTEXT`, if a required provider fails; another try may help, unless
                what it returned is no context.
        """
        asked = [provider for provider in agent.context if before_hook(provider)]
        if not asked:
            return TurnContext(step=request.step)
        each_call = [provider for provider in asked if is_each_call(provider)]
        rows = [await self._row(agent, request, 0, asked, path)]
        if each_call and request.step > 0:
            between = range(1, request.step)
            rows += await asyncio.gather(*(self._known(request, step) for step in between))
            rows.append(await self._row(agent, request, request.step, each_call, path))
        context = TurnContext(providers=tuple(one for row in rows for one in row.providers), step=request.step)
        own = _message_id(request)
        return _without_kept(context, [message for message in path.messages[-1:] if message.id == own])

    async def _row(
        self, agent: Agent, request: CompleteRequest, step: int, providers: list[ContextProvider], path: Path
    ) -> TurnContext:
        """What was said before a call, or is now."""
        turn = self._turn(request)
        if step < request.step and step in turn.rows:
            return turn.rows[step]
        row = await self._store.get_turn_context(request.thread_id, request.turn, step)
        if row is None:
            said_now = await self._ask(agent, request, step, providers, path)
            row = await self._store.put_turn_context(request.thread_id, request.turn, step, said_now)
        turn.rows[step] = row
        return row

    async def _known(self, request: CompleteRequest, step: int) -> TurnContext:
        """What was said before an earlier call; nothing, if nobody was asked then."""
        turn = self._turn(request)
        if step not in turn.rows:
            stored = await self._store.get_turn_context(request.thread_id, request.turn, step)
            turn.rows[step] = stored or TurnContext(step=step)
        return turn.rows[step]

    def _turn(self, request: CompleteRequest) -> _Turn:
        turn = self._turns.get(request.thread_id)
        if turn is None or turn.number != request.turn:
            turn = self._turns.put(request.thread_id, _Turn(request.turn))
        return turn

    async def _ask(
        self,
        agent: Agent,
        request: CompleteRequest,
        step: int,
        providers: list[ContextProvider],
        path: Path,
    ) -> TurnContext:
        words, _ = await whole_turn(self._store, path, request.thread_id, _message_id(request))
        thread, states = await asyncio.gather(
            self._store.get_thread(request.thread_id), self._store.get_provider_states(request.thread_id)
        )
        run = ProviderRun(request.thread_id, agent.name, thread.tenant, request.turn, step, words, {})
        answers = [await _asked(provider, run, states.get(provider.name)) for provider in providers]
        return TurnContext(providers=tuple(answers), step=step)


def state_of(provider: ContextProvider, stored: ProviderState | None) -> ProviderState:
    """What a provider keeps, as a copy.

    Raises:
        UsageError: if it was written by another version of the provider.
    """
    version = schema_version_of(provider)
    if stored is None:
        return ProviderState(schema_version=version)
    if stored.schema_version != version:
        raise UsageError(
            f"its state was written by version {stored.schema_version} and it reads version {version}; the state stays "
            "as it is until a version that reads it is back"
        )
    return stored.with_(values=copy.deepcopy(stored.values))


def reason(error: BaseException, provider: ContextProvider) -> str:
    """Why a hook failed, for people."""
    match error:
        case TimeoutError() if not str(error):
            return f"it did not answer within {math.ceil(timeout_of(provider).total_seconds())} s"
        case asyncio.CancelledError():
            return "it was cancelled"
        case UsageError():
            return clip(str(error), DETAIL_CHARS)
        case _:
            return clip(described(error), DETAIL_CHARS)


def raise_if_stopped(error: BaseException) -> None:
    """Pass a cancellation on, also one that the hook has turned into another error.

    Not its own: then it has awaited something that was cancelled.
    """
    task = asyncio.current_task()
    if task is not None and task.cancelling():
        raise asyncio.CancelledError from error


async def _asked(provider: ContextProvider, run: ProviderRun, stored: ProviderState | None) -> ProviderContext:
    hook = before_hook(provider)
    assert hook is not None
    try:
        state = state_of(provider, stored)
        async with asyncio.timeout(timeout_of(provider).total_seconds()):
            answer = await hook(replace(run, state=state.values))
        return said(provider, answer, run.step)
    except (KeyboardInterrupt, GeneratorExit):
        raise
    except BaseException as error:  # whatever a provider raises, `sys.exit` included: it is required or left out
        raise_if_stopped(error)
        sentence = f"Context provider {provider.name!r} failed: {reason(error, provider)}."
        if is_required(provider):
            # State of another version is no such mistake: a worker that reads it may make the next try.
            is_mistake = isinstance(error, InvalidContext)
            raise ApplicationError(sentence, type=ErrorType.CONTEXT, non_retryable=is_mistake) from error
        structlog.get_logger("perdure.context").warning(
            "a context provider was left out", thread=run.thread_id, provider=provider.name, reason=sentence
        )
        return ProviderContext(
            source=provider.name, tools=(), problem=f"{sentence} The turn goes on without it.", step=run.step
        )


def _message_id(request: CompleteRequest) -> str:
    return request.message_id or ids.turn_message_id(request.thread_id, request.turn)


def _without_kept(context: TurnContext, turn: Sequence[Message]) -> TurnContext:
    """Without the messages that are in the conversation already, as parts of the turn: the model reads them there."""
    parts = [part for message in turn for part in message.parts if isinstance(part, ContextPart)]
    kept = {(part.source, part.step) for part in parts}
    if not kept:
        return context
    providers = (one.with_(messages=()) if (one.source, one.step) in kept else one for one in context.providers)
    return context.with_(providers=tuple(providers))


def offered(catalog: Catalog, agent: Agent, context: TurnContext) -> Catalog:
    """The agent's tools without those of providers that are not offered now; with what is wrong with providers."""
    newest = context.newest
    gone = {
        tool.name
        for provider in agent.context
        if (one := newest.get(provider.name)) is not None and one.tools is not None
        for tool in tools_of(provider)
        if tool.name not in one.tools
    }
    if not gone and not context.problems:
        return catalog
    tools = {name: tool for name, tool in catalog.tools.items() if name not in gone}
    return replace(catalog, tools=MappingProxyType(tools), problems=catalog.problems + context.problems)


def kept_context(agent: Agent, context: TurnContext) -> tuple[ContextPart, ...]:
    """What the agent's history provider keeps of it in the conversation: of what was said before this very call."""
    history = next((one for one in agent.context if isinstance(one, HistoryProvider) and not one.is_log), None)
    if history is None:
        return ()
    return tuple(
        ContextPart(source=one.source, text=message.text, role=message.role, step=context.step)
        for one in context.providers
        if one.step == context.step and history.keeps(one.source)
        for message in one.messages
    )
