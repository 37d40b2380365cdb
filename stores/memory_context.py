"""What context providers said and keep, and what was spent, in memory."""

from collections.abc import Iterable

from perdure.codec import dumps
from perdure.messages import Usage
from perdure.records import LoggedMessage, ProviderState, Spending, Spent
from perdure.turn_context import TurnContext
from stores.memory_paths import MemoryPaths
from stores.memory_records import kept
from stores.memory_thread import MemoryThread


class MemoryContext(MemoryPaths):
    """`perdure.ports.ContextStore`."""

    async def put_turn_context(self, thread_id: str, turn: int, step: int, context: TurnContext) -> TurnContext:
        """See `perdure.ports.ContextStore`. Raises ThreadNotFound."""
        thread = self._thread(thread_id)
        said, states = kept(context), {one.state for one in thread.messages.values() if one.message.turn == turn}
        if turn > thread.record.turn or "running" in states:
            return thread.contexts.setdefault((turn, step), said)
        return thread.contexts.get((turn, step), said)

    async def get_turn_context(self, thread_id: str, turn: int, step: int) -> TurnContext | None:
        """See `perdure.ports.ContextStore`."""
        return self._threads[thread_id].contexts.get((turn, step)) if thread_id in self._threads else None

    async def drop_turn_contexts(self, thread_id: str, turn: int) -> None:
        """See `perdure.ports.ContextStore`."""
        if thread_id in self._threads:
            self._threads[thread_id].drop_contexts({turn})

    async def get_provider_states(self, thread_id: str) -> dict[str, ProviderState]:
        """See `perdure.ports.ContextStore`."""
        states = self._threads[thread_id].states if thread_id in self._threads else {}
        return {source: kept(state) for source, state in states.items()}

    async def finish_hook(self, thread_id: str, turn: int, source: str, state: ProviderState | None = None) -> bool:
        """See `perdure.ports.ContextStore`. Raises ThreadNotFound."""
        return self._thread(thread_id).finish_hook(turn, source, state)

    async def finished_hooks(self, thread_id: str, turn: int) -> tuple[str, ...]:
        """See `perdure.ports.ContextStore`."""
        finished = self._threads[thread_id].finished if thread_id in self._threads else ()
        return tuple(sorted((source for of_turn, source in finished if of_turn == turn), key=dumps))

    async def append_log(self, thread_id: str, source: str, messages: tuple[LoggedMessage, ...]) -> None:
        """See `perdure.ports.ContextStore`. Raises ThreadNotFound."""
        thread = self._thread(thread_id)
        fresh = [kept(message) for message in messages if self._is_there(thread, message)]
        for message in fresh:
            thread.logs.setdefault((source, message.id), message)

    async def read_log(self, thread_id: str, source: str) -> tuple[LoggedMessage, ...]:
        """See `perdure.ports.ContextStore`."""
        logs = self._threads[thread_id].logs if thread_id in self._threads else {}
        return tuple(message for (of_source, _), message in logs.items() if of_source == source)

    def _is_there(self, thread: MemoryThread, message: LoggedMessage) -> bool:
        if message.source is not None:
            return thread.message_of(message.turn) is not None
        return message.id in self._owners

    # -- models and money --------------------------------------------------------------------------------------

    async def set_model(self, thread_id: str, model: str | None) -> None:
        """See `perdure.ports.ContextStore`."""
        thread = self._thread(thread_id)
        thread.record = kept(thread.record.with_(model=model))

    async def add_usage(self, thread_id: str, turn: int, step: int, attempt: int, usage: Usage) -> None:
        """See `perdure.ports.ContextStore`. Raises ThreadNotFound. Readers are told of the message once more."""
        thread = self._thread(thread_id)
        if not thread.count_call(turn, step, attempt):
            return
        thread.spend(usage)
        message = thread.message_of(turn)
        if message is not None and usage != Usage():
            thread.spend_on(message.message.id, usage, changed=thread.next_seq())
            self._hints.wake(thread_id)

    async def get_spending(
        self, thread_id: str, turn: int | None = None, *, tree: bool = True, tenant: bool = True
    ) -> Spending:
        """See `perdure.ports.ContextStore`."""
        thread = self._thread(thread_id)
        record = thread.record
        root_id = record.root_thread_id or thread_id
        all_threads = [other.record for other in self._threads.values()]
        in_tree = [one.usage for one in all_threads if root_id in (one.thread_id, one.root_thread_id)]
        root = self._threads.get(root_id)
        message = thread.message_of(turn) if turn is not None else None
        of_turn = Spent()
        if message is not None:
            created_at = message.created_at
            since = created_at.timestamp() if created_at else None
            of_turn = Spent(usage=message.message.usage or Usage(), since=since)
        return Spending(
            turn=of_turn,
            thread=_spent([record.usage], thread),
            tree=_spent(in_tree, root) if tree else Spent(),
            tenant=_spent([one.usage for one in all_threads if one.tenant == record.tenant], None)
            if tenant
            else Spent(),
        )

    async def get_tenant_usage(self, tenant: str) -> Usage | None:
        """See `perdure.ports.ContextStore`."""
        of_tenant = [one.record.usage for one in self._threads.values() if one.record.tenant == tenant]
        return sum(of_tenant, Usage()) if of_tenant else None


def _spent(usages: Iterable[Usage], since: MemoryThread | None) -> Spent:
    created_at = since.record.created_at if since else None
    return Spent(usage=sum(usages, Usage()), since=created_at.timestamp() if created_at else None)
