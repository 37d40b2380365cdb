"""The local activities `load` and `sync`: a thread's state comes from the store and goes to it."""

from temporalio import activity
from temporalio.exceptions import ApplicationError

from activities.catalog import Catalog, ToolCatalog
from activities.import_file import append_with_imports
from activities.model_calls import TOOL_CHARS, asking, dispatching, preview
from activities.rap_client import USER
from activities.store_call import store_call
from perdure.agent import Agent, Agents
from perdure.batch import ImportMessages, SyncBatch, SyncReport
from perdure.codec import clip
from perdure.context import has_hooks
from perdure.contract import LOAD, SYNC, LoadRequest, LoadResult
from perdure.draft import DETAIL_CHARS
from perdure.errors import UsageError
from perdure.messages import Status, ToolResultPart
from perdure.policy import REMEMBERED_DECISIONS, REVISION, ErrorType
from perdure.ports import Store
from perdure.records import OpenCall, Tail, ThreadRecord

MODEL_CHARS = 60
"""The model's name stands in the summary of every model call."""


class SyncActivities:
    """Reads and writes a thread's state. Both activities may run any number of times with the same effect.

    That matters: a local activity's result is recorded only when its workflow task completes, so a task that the
    server refuses runs them again.
    """

    def __init__(
        self, store: Store, agents: Agents, catalog: ToolCatalog | None = None, *, search_attributes: bool = True
    ) -> None:
        self._store = store
        self._agents = agents
        self._catalog = catalog or ToolCatalog(store, agents)
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
            model=start.model,
        )
        stored = await store_call(self._store.create_thread(record))
        if start.user_id and stored.kind == "root" and stored.version == 0:
            # Tool servers are told for whom they work; whoever starts the thread says it once.
            await store_call(self._store.set_metadata(stored.thread_id, {USER: start.user_id}))
        agent = self._serving(stored)
        limits = agent.limits
        tail = await store_call(self._store.load_tail(request.thread_id, processed=0))
        # A server that hangs must not keep the thread from loading; whatever was called had been offered before.
        catalog = await self._catalog.kept(agent, request.thread_id) if tail.calls else Catalog({})
        return LoadResult(
            tail=_outlined(tail, catalog),
            idle_s=limits.idle.total_seconds(),
            history_events=limits.history_events,
            model_timeout_s=limits.model_timeout.total_seconds(),
            model=clip(agent.model if isinstance(agent.model, str) else agent.model.model_name, MODEL_CHARS),
            search_attributes=self._search_attributes,
            servers=any(self._catalog.rap_clients(agent.name)),
            subscriptions=limits.subscriptions,
            events_per_minute=limits.events_per_minute,
            events_per_subscription=limits.events_per_subscription,
            revision=REVISION,
            hooks=has_hooks(agent.context),
            compacts=agent.compaction is not None,
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
        if any(isinstance(operation, ImportMessages) for operation in batch.operations):
            return await store_call(self._import(batch))
        return await store_call(self._store.append_messages(batch))

    async def _import(self, batch: SyncBatch) -> SyncReport:
        agent = self._serving(await self._store.get_thread(batch.thread_id))
        return await append_with_imports(self._store, batch, (await self._catalog.kept(agent, batch.thread_id)).tools)


def _outlined(tail: Tail, catalog: Catalog) -> Tail:
    """The tail without words, its calls with what their tools say of them."""
    message = tail.message.with_(metadata=None, status=_clipped(tail.message.status)) if tail.message else None
    last = _clipped(tail.last) if tail.last else None
    return tail.with_(
        message=message,
        last=last,
        calls=tuple(_outlined_call(call, catalog) for call in tail.calls),
        # The store keeps them all, and the history would leave the older ones out: they need not travel.
        remembered=tail.remembered[-REMEMBERED_DECISIONS:],
    )


def _clipped(status: Status) -> Status:
    """Ours are clipped when they are made; those of an import say whatever they say."""
    return status if status.detail is None else status.with_(detail=clip(status.detail, DETAIL_CHARS))


def _outlined_call(call: OpenCall, catalog: Catalog) -> OpenCall:
    # That there is a result is all that counts: the store has it, and commits it with its group.
    result = ToolResultPart(call_id=call.call_id, outcome=call.result.outcome) if call.result else None
    outlined = call.with_(
        tool=clip(call.tool, TOOL_CHARS),
        arguments=preview(call.arguments),
        result=result,
        decision=call.decision.without_words() if call.decision else None,
        decision_digest=call.decision.digest if call.decision else None,
        interim=None,
        **asking(call.approval, call.arguments),
    )
    tool = catalog.tools.get(call.tool)
    if tool is None:
        return outlined
    if call.result:
        # It is not dispatched any more, and its arguments need not be valid. But it may be what closes the thread.
        return outlined.with_(kind=tool.kind, operation=tool.operation)
    try:
        return outlined.with_(**dispatching(tool, call.arguments, catalog))
    except ValueError:
        # The name is another tool's since the call was made. A load that fails would fail for ever; `dispatch` answers.
        return outlined
