"""Accepted ids, open calls, subscriptions, metadata, choices, views, children and keys in PostgreSQL."""

import secrets
from typing import Any

from perdure.codec import dumps, loads
from perdure.errors import CallNotOpen, ThreadNotFound
from perdure.messages import ToolResultPart
from perdure.records import (
    KEY_BYTES,
    MAX_UNSTARTED,
    MAX_VIEWS,
    Choice,
    OpenCall,
    Subscription,
    Tail,
    ThreadRecord,
    View,
)
from stores.database import Database
from stores.rows import to_call, to_choice, to_subscription, to_tail, to_thread


class PostgresState:
    """`perdure.ports.StateStore`."""

    def __init__(self, database: Database) -> None:
        self._database = database

    async def load_tail(self, thread_id: str, processed: int = 200) -> Tail:
        """See `perdure.ports.StateStore`."""
        row = await self._database.row("tail", thread_id, processed, MAX_UNSTARTED)
        if row is None:
            raise ThreadNotFound(thread_id)
        return to_tail(row)

    async def get_processed_ids(self, thread_id: str, ids: tuple[str, ...]) -> dict[str, str]:
        """See `perdure.ports.StateStore`."""
        rows = await self._database.rows("processed_ids", thread_id, ids)
        return {row["input_id"]: row["digest"] or "" for row in rows}

    async def get_active_subscriptions(self, thread_id: str) -> tuple[Subscription, ...]:
        """See `perdure.ports.StateStore`. Oldest first."""
        return tuple(to_subscription(row) for row in await self._database.rows("subscriptions", thread_id))

    # -- calls -------------------------------------------------------------------------------------------------

    async def get_call(self, thread_id: str, call_id: str) -> OpenCall:
        """See `perdure.ports.StateStore`."""
        row = await self._database.row("open_call", thread_id, call_id)
        if row is None:
            raise CallNotOpen(call_id)
        return to_call(row)

    async def start_call(self, thread_id: str, call_id: str, owner: str | None = None) -> OpenCall:
        """See `perdure.ports.StateStore`."""
        row = await self._database.row("start_call", thread_id, call_id, owner)
        assert row is not None, "bug: the function returns a row or raises"
        return to_call(row)

    async def stage_result(self, thread_id: str, result: ToolResultPart) -> ToolResultPart:
        """See `perdure.ports.StateStore`."""
        row = await self._database.row("stage_result", thread_id, result.call_id, dumps(result))
        assert row is not None, "bug: the function returns a row or raises"
        return ToolResultPart.model_validate(loads(row["stage_result"]))

    # -- metadata ----------------------------------------------------------------------------------------------

    async def get_metadata(self, thread_id: str) -> dict[str, Any]:
        """See `perdure.ports.StateStore`."""
        row = await self._database.row("get_metadata", thread_id)
        return loads(row["body"]) if row else {}

    async def set_metadata(self, thread_id: str, values: dict[str, Any]) -> None:
        """See `perdure.ports.StateStore`. Raises ThreadNotFound. Several round trips: the merge is made here."""
        async with self._database.transaction() as transaction:
            # Two writers would otherwise merge into the same old values, and one of them would be lost.
            thread = await transaction.row("lock_thread", thread_id)
            if thread is None:
                raise ThreadNotFound(thread_id)
            row = await transaction.row("get_metadata", thread_id)
            old: dict[str, Any] = loads(row["body"]) if row else {}
            merged = {**old, **values}
            kept = {key: value for key, value in merged.items() if value is not None}
            await transaction.row("set_metadata", thread["thread"], dumps(kept))

    # -- what people are asked and shown -----------------------------------------------------------------------

    async def put_choice(self, thread_id: str, choice: Choice) -> None:
        """See `perdure.ports.StateStore`. Raises ThreadNotFound too."""
        body = dumps(choice.with_(answered=False, seq=0))
        await self._database.row("put_choice", thread_id, dumps(choice.id), choice.call_id, choice.kind, body)

    async def get_choices(self, thread_id: str) -> tuple[Choice, ...]:
        """See `perdure.ports.StateStore`."""
        return tuple(to_choice(row) for row in await self._database.rows("choices", thread_id))

    async def remove_choice(self, thread_id: str, choice_id: str) -> None:
        """See `perdure.ports.StateStore`. Raises ThreadNotFound."""
        await self._database.row("remove_choice", thread_id, dumps(choice_id))

    async def put_view(self, thread_id: str, view_type: str, content: str) -> None:
        """See `perdure.ports.StateStore`."""
        shown = not View(view_type=view_type, content=content).is_empty
        await self._database.row("put_view", thread_id, dumps(view_type), dumps(content), shown, MAX_VIEWS)

    # -- children and keys -------------------------------------------------------------------------------------

    async def get_children(self, thread_id: str) -> tuple[ThreadRecord, ...]:
        """See `perdure.ports.StateStore`."""
        return tuple(to_thread(row) for row in await self._database.rows("children", thread_id))

    async def get_key(self, name: str) -> bytes:
        """See `perdure.ports.StateStore`. Two round trips when it is made."""
        row = await self._database.row("get_key", name)
        if row is None:
            row = await self._database.row("make_key", name, secrets.token_bytes(KEY_BYTES))
        assert row is not None, "bug: the statement returns a row"
        key: bytes = row["key"]
        return key
