"""The local activities `load` and `sync`: a thread's state comes from the store and goes to it."""

from collections.abc import Awaitable
from typing import TypeVar

from temporalio import activity
from temporalio.exceptions import ApplicationError

from activities.model_calls import TOOL_CHARS, preview
from perdure.agent import Agent, Agents
from perdure.batch import SyncBatch, SyncReport
from perdure.codec import clip
from perdure.contract import LOAD, SYNC, LoadRequest, LoadResult
from perdure.errors import StaleWriter, StoreError, StoreUnavailable, ThreadNotFound, UsageError
from perdure.messages import ToolResultPart
from perdure.policy import ErrorType
from perdure.ports import OpenCall, Store, Tail, ThreadRecord

MODEL_CHARS = 60
"""The model's name stands in the summary of every model call."""

Result = TypeVar("Result")


class SyncActivities:
    """Reads and writes a thread's state. Both activities may run any number of times with the same effect.

    That matters: a local activity's result is recorded only when its workflow task completes, so a task that the
    server refuses runs them again.
    """

    def __init__(self, store: Store, agents: Agents, *, search_attributes: bool = True) -> None:
        self._store = store
        self._agents = agents
        self._search_attributes = search_attributes

    @activity.defn(name=LOAD)
    async def load(self, request: LoadRequest) -> LoadResult:
        """The thread's tail; the thread is created if it is new.

        Temporal refuses answers above 2 MB for ever, so no words are in it; they are in the store. No accepted ids
        are read either: the store judges old ones when they come up.
        """
        start = request.start
        agent = self._agent(start.agent)
        record = ThreadRecord(
            thread_id=request.thread_id,
            agent=agent.name,
            tenant=start.tenant,
            kind=start.kind,
            title=start.title,
            parent_thread_id=start.parent_thread_id,
            root_thread_id=start.root_thread_id,
            spawn_message_id=start.spawn_message_id,
            spawn_parts=start.spawn_parts,
        )
        stored = await store_call(self._store.create_thread(record))
        agent = self._serving(stored)
        limits = agent.limits
        return LoadResult(
            tail=_outlined(await store_call(self._store.load_tail(request.thread_id, processed=0)), agent),
            idle_s=limits.idle.total_seconds(),
            history_events=limits.history_events,
            model_timeout_s=limits.model_timeout.total_seconds(),
            model=clip(agent.model if isinstance(agent.model, str) else agent.model.model_name, MODEL_CHARS),
            search_attributes=self._search_attributes,
        )

    def _agent(self, name: str | None) -> Agent:
        try:
            return self._agents[name] if name else self._agents.default
        except UsageError as error:
            raise ApplicationError(str(error), type=ErrorType.USAGE, non_retryable=True) from error

    def _serving(self, thread: ThreadRecord) -> Agent:
        """The agent of a stored thread.

        During a deploy only other workers may know it. The inputs that this run has taken must not end with it, so
        the load is tried again until one of those takes it.
        """
        try:
            return self._agents[thread.agent]
        except UsageError as error:
            raise ApplicationError(f"{error} Start a worker that serves it.", type=ErrorType.USAGE) from error

    @activity.defn(name=SYNC)
    async def sync(self, batch: SyncBatch) -> SyncReport:
        """Apply a batch; idempotent by its number and sync id."""
        return await store_call(self._store.append_messages(batch))


def _outlined(tail: Tail, agent: Agent) -> Tail:
    """The tail without words, its calls with what their tools say of them."""
    message = tail.message.with_(metadata=None) if tail.message else None
    return tail.with_(message=message, calls=tuple(_outlined_call(call, agent) for call in tail.calls))


def _outlined_call(call: OpenCall, agent: Agent) -> OpenCall:
    # That there is a result is all that counts: the store has it, and commits it with its group.
    result = ToolResultPart(call_id=call.call_id, outcome=call.result.outcome) if call.result else None
    outlined = call.with_(tool=clip(call.tool, TOOL_CHARS), arguments=preview(call.arguments), result=result)
    tool = agent.tools.get(call.tool)
    if tool is None:
        return outlined
    return outlined.with_(kind=tool.kind, passive=tool.passive, timeout_s=tool.timeout.total_seconds())


async def store_call(call: Awaitable[Result]) -> Result:
    """Await a call of the store, its errors turned into failures that say whether another try can help."""
    try:
        return await call
    except StoreUnavailable as error:
        raise ApplicationError(f"{error} It is tried again.", type=ErrorType.STORE) from error
    except StaleWriter as error:
        raise ApplicationError(str(error), type=ErrorType.STALE_WRITER, non_retryable=True) from error
    except ThreadNotFound as error:
        raise ApplicationError(str(error), type=ErrorType.USAGE, non_retryable=True) from error
    except StoreError as error:
        # The store is there and says no: it would say so every time.
        raise ApplicationError(str(error), type=ErrorType.BUG, non_retryable=True) from error
