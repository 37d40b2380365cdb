"""What context providers said and keep, and what was spent, in PostgreSQL."""

from typing import Any

from perdure.codec import dumps, loads
from perdure.errors import ThreadNotFound
from perdure.messages import Usage
from perdure.records import LoggedMessage, ProviderState, Spending
from perdure.turn_context import TurnContext
from stores.database import Database
from stores.rows import encoded, to_spending, to_usage


class PostgresContext:
    """`perdure.ports.ContextStore`. Names of providers are kept as JSON text: they are any text."""

    def __init__(self, database: Database) -> None:
        self._database = database

    async def put_turn_context(self, thread_id: str, turn: int, step: int, context: TurnContext) -> TurnContext:
        """See `perdure.ports.ContextStore`. Raises ThreadNotFound."""
        row = await self._database.row("put_turn_context", thread_id, turn, step, dumps(context))
        assert row is not None, "bug: the function returns a row or raises"
        return TurnContext.model_validate(loads(row["put_turn_context"]))

    async def get_turn_context(self, thread_id: str, turn: int, step: int) -> TurnContext | None:
        """See `perdure.ports.ContextStore`."""
        row = await self._database.row("turn_context", thread_id, turn, step)
        return TurnContext.model_validate(loads(row["body"])) if row else None

    async def drop_turn_contexts(self, thread_id: str, turn: int) -> None:
        """See `perdure.ports.ContextStore`."""
        await self._database.rows("drop_turn_contexts", thread_id, turn)

    async def get_provider_states(self, thread_id: str) -> dict[str, ProviderState]:
        """See `perdure.ports.ContextStore`."""
        rows = await self._database.rows("provider_states", thread_id)
        return {
            loads(row["source"]): ProviderState(
                values=loads(row["body"]), version=row["version"], schema_version=row["schema_version"]
            )
            for row in rows
        }

    async def finish_hook(self, thread_id: str, turn: int, source: str, state: ProviderState | None = None) -> bool:
        """See `perdure.ports.ContextStore`. Raises ThreadNotFound."""
        written = (dumps(state.values), state.version, state.schema_version) if state else (None, None, None)
        row = await self._database.row("finish_hook", thread_id, turn, dumps(source), *written)
        assert row is not None, "bug: the function returns a row or raises"
        finished: bool = row["finish_hook"]
        return finished

    async def finished_hooks(self, thread_id: str, turn: int) -> tuple[str, ...]:
        """See `perdure.ports.ContextStore`."""
        rows = await self._database.rows("finished_hooks", thread_id, turn)
        return tuple(loads(row["source"]) for row in rows)

    async def append_log(self, thread_id: str, source: str, messages: tuple[LoggedMessage, ...]) -> None:
        """See `perdure.ports.ContextStore`. Raises ThreadNotFound."""
        rows = [_logged(message) for message in messages if message.source is not None or _may_be_an_id(message.id)]
        await self._database.row("append_log", thread_id, dumps(source), dumps(rows))

    async def read_log(self, thread_id: str, source: str) -> tuple[LoggedMessage, ...]:
        """See `perdure.ports.ContextStore`."""
        rows = await self._database.rows("read_log", thread_id, dumps(source))
        return tuple(LoggedMessage.model_validate(loads(row["body"])) for row in rows)

    async def set_model(self, thread_id: str, model: str | None) -> None:
        """See `perdure.ports.ContextStore`."""
        if await self._database.row("set_model", thread_id, encoded(model)) is None:
            raise ThreadNotFound(thread_id)

    async def add_usage(self, thread_id: str, turn: int, step: int, attempt: int, usage: Usage) -> None:
        """See `perdure.ports.ContextStore`. Raises ThreadNotFound. Readers are told of the message once more."""
        await self._database.row("add_usage", thread_id, turn, step, attempt, dumps(usage))

    async def get_spending(
        self, thread_id: str, turn: int | None = None, *, tree: bool = True, tenant: bool = True
    ) -> Spending:
        """See `perdure.ports.ContextStore`."""
        rows = await self._database.rows("spending", thread_id, turn, tree, tenant)
        if not rows:
            raise ThreadNotFound(thread_id)
        return to_spending(rows)

    async def get_tenant_usage(self, tenant: str) -> Usage | None:
        """See `perdure.ports.ContextStore`."""
        row = await self._database.row("tenant_usage", tenant)
        return to_usage(row["usage"]) if row else None


def _logged(message: LoggedMessage) -> dict[str, Any]:
    return {
        "id": dumps(message.id),
        "message_id": message.id if message.source is None else None,
        "turn": message.turn,
        "body": dumps(message),
    }


def _may_be_an_id(text: str) -> bool:
    # No message has an id that the database cannot hold.
    return "\0" not in text and not any("\ud800" <= char <= "\udfff" for char in text)
