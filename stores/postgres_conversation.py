"""Threads, the message tree, batches, readers and blobs in PostgreSQL."""

import hashlib

from perdure.batch import CommitStep, Refused, SyncBatch, SyncReport, changes_tree
from perdure.codec import dumps
from perdure.errors import BlobNotFound, ThreadNotFound
from perdure.messages import Part, Usage
from perdure.records import Change, Counts, Path, Snapshot, StoredTree, Summary, ThreadRecord
from perdure.turn_buffer import TurnBuffer, sealed_parts
from stores import batch_sql
from stores.address import StepStreams, stale_writer
from stores.batch_sql import CoalescedStep, CoalescedSteps
from stores.database import Database, Row, Transaction
from stores.late_result import NoSuchCall, missing_calls
from stores.postgres_tree import TreeBatch, needs_lock
from stores.rows import (
    encoded,
    to_call,
    to_change,
    to_choice,
    to_chunks,
    to_outcome,
    to_parts,
    to_path,
    to_step,
    to_thread,
    to_tree,
    to_view,
)


class PostgresConversation:
    """The conversation half of `perdure.ports.ConversationStore`; the turn buffer has a file of its own."""

    def __init__(self, database: Database) -> None:
        self._database = database

    async def create_thread(self, thread: ThreadRecord) -> ThreadRecord:
        """See `perdure.ports.ConversationStore`. Two round trips if it exists."""
        row = await self._database.row(
            "insert_thread",
            thread.thread_id,
            thread.tenant,
            thread.agent,
            thread.kind,
            encoded(thread.title),
            thread.parent_thread_id,
            thread.root_thread_id,
            thread.spawn_message_id,
            thread.spawn_parts,
            thread.head_id,
            thread.created_at,
            encoded(thread.model),
        )
        return to_thread(row) if row else await self.get_thread(thread.thread_id)

    async def get_thread(self, thread_id: str) -> ThreadRecord:
        """See `perdure.ports.ConversationStore`."""
        row = await self._database.row("get_thread", thread_id)
        if row is None:
            raise ThreadNotFound(thread_id)
        return to_thread(row)

    async def get_ancestor_chain(self, thread_id: str) -> tuple[ThreadRecord, ...]:
        """See `perdure.ports.ConversationStore`. Raises ThreadNotFound."""
        rows = await self._database.rows("ancestor_chain", thread_id)
        if not rows:
            raise ThreadNotFound(thread_id)
        return tuple(to_thread(row) for row in rows)

    async def close_thread(self, thread_id: str) -> None:
        """See `perdure.ports.ConversationStore`. Raises ThreadNotFound."""
        if await self._database.row("close_thread", thread_id) is None:
            raise ThreadNotFound(thread_id)

    # -- batches -----------------------------------------------------------------------------------------------

    async def append_messages(self, batch: SyncBatch) -> SyncReport:
        """See `perdure.ports.ConversationStore`. A batch that closes a streaming step takes a few round trips more.

        So does one that changes the tree, and one with large words: whether they are there is asked before.
        """
        if refused := await self._without_blob(batch) or await self._without_call(batch):
            return SyncReport(number=batch.number - 1, refused=refused)
        try:
            return await self._write(batch)
        except NoSuchCall as error:
            return SyncReport(number=batch.number - 1, refused=(error.refused,))

    async def _write(self, batch: SyncBatch) -> SyncReport:
        if any(map(needs_lock, batch.operations)):
            return await self._change(batch)
        operations = batch.operations
        if not any(isinstance(one, CommitStep) and (one.sealed or one.discard) for one in operations):
            try:
                return await self._append(self._database, batch, {})
            except StepStreams:
                pass  # nothing was written; once more, with what has streamed
        async with self._database.transaction() as transaction:
            # The lock comes first: what is read after it is all that will ever have streamed.
            await transaction.rows("lock_thread", batch.thread_id)
            return await self._append(transaction, batch, await self._coalesce(transaction, batch))

    async def _without_blob(self, batch: SyncBatch) -> tuple[Refused, ...]:
        wanted = {name: {_sha256(blob) for blob in blobs} for name, blobs in batch_sql.blobs(batch).items()}
        if not wanted:
            return ()
        rows = await self._database.rows("stored_blobs", batch.thread_id, list(set[bytes]().union(*wanted.values())))
        found = {row["sha256"] for row in rows}
        missing = tuple(Refused(input_id=name, missing=True) for name, blobs in wanted.items() if not blobs <= found)
        return missing if missing and await self._is_next(batch) else ()

    async def _without_call(self, batch: SyncBatch) -> tuple[Refused, ...]:
        # Asked without the lock: only batches open and close calls, and whoever writes one of them at the same time is
        # refused as stale.
        wanted = batch_sql.wanted_calls(batch)
        if not wanted:
            return ()
        rows = await self._database.rows("are_open", batch.thread_id, list(wanted))
        missing = missing_calls(wanted, {row["call_id"] for row in rows})
        return missing if missing and await self._is_next(batch) else ()

    async def _is_next(self, batch: SyncBatch) -> bool:
        """Whether a batch is to be refused for what it lacks, and not the last one again, which had it.

        Raises ThreadNotFound, and StaleWriter: a writer who is told of a refusal goes on from what it knows, and there
        is more by now.
        """
        thread = await self._database.row("get_thread", batch.thread_id)
        if thread is None:
            raise ThreadNotFound(batch.thread_id)
        if _is_applied(thread, batch):
            return False
        if thread["version"] != batch.number - 1:
            raise stale_writer(thread["version"])
        return True

    async def _change(self, batch: SyncBatch) -> SyncReport:
        """A batch that must see what is stored before it can be written."""
        async with self._database.transaction() as transaction:
            thread = await transaction.row("lock_thread", batch.thread_id)
            if thread is None:
                raise ThreadNotFound(batch.thread_id)
            applied = TreeBatch(transaction, thread, await self._coalesce(transaction, batch))
            if not _is_applied(thread, batch):
                if thread["version"] != batch.number - 1:
                    raise stale_writer(thread["version"])
                if refused := await self._accepted(transaction, batch):
                    return SyncReport(number=batch.number - 1, refused=refused)
                if unfit := await applied.apply(batch):
                    return SyncReport(number=batch.number - 1, refused=(unfit,))
                await applied.write(batch)
            tree = await applied.report(batch) if any(map(changes_tree, batch.operations)) else None
        return SyncReport(number=batch.number, steps=batch_sql.durable_steps(batch), tree=tree)

    async def _accepted(self, transaction: Transaction, batch: SyncBatch) -> tuple[Refused, ...]:
        inputs = batch_sql.inputs(batch)
        rows = await transaction.rows("processed_ids", batch.thread_id, list(inputs))
        known = {row["input_id"]: row["digest"] for row in rows}
        return tuple(
            Refused(input_id=name, conflict=known[name] not in (None, digest))
            for name, digest in inputs.items()
            if name in known
        )

    async def _append(
        self, database: Database | Transaction, batch: SyncBatch, coalesced: CoalescedSteps
    ) -> SyncReport:
        inputs = batch_sql.inputs(batch)
        rows = await database.rows(
            "append_messages",
            batch.thread_id,
            batch.number,
            batch.sync_id,
            dumps(inputs),
            dumps(batch_sql.operations(batch, coalesced)),
        )
        if rows:
            conflicts = {row["refused"]: row["conflict"] for row in rows}
            refused = tuple(Refused(input_id=name, conflict=conflicts[name]) for name in inputs if name in conflicts)
            return SyncReport(number=batch.number - 1, refused=refused)
        return SyncReport(number=batch.number, steps=batch_sql.durable_steps(batch))

    async def _coalesce(self, transaction: Transaction, batch: SyncBatch) -> CoalescedSteps:
        coalesced: CoalescedSteps = {}
        for operation in batch.operations:
            if isinstance(operation, CommitStep):
                row = await transaction.row("step", batch.thread_id, operation.turn, operation.step)
                if row and (operation.sealed or operation.discard or row["outcome"] is None):
                    coalesced[operation.turn, operation.step] = _coalesced(row, operation)
        return coalesced

    # -- reading -----------------------------------------------------------------------------------------------

    async def load_history_with_ancestors(
        self, thread_id: str, known: str | None = None, message_id: str | None = None, *, whole: bool = False
    ) -> Path:
        """See `perdure.ports.ConversationStore`. Raises ThreadNotFound, UnknownMessage."""
        return await _path(self._database, thread_id, known, message_id, whole=whole)

    async def load_tree(self, thread_id: str, *, parts: bool = True) -> StoredTree:
        """See `perdure.ports.ConversationStore`. Four statements that read the same point of time."""
        async with self._database.transaction(snapshot=True) as transaction:
            thread = await transaction.row("get_thread", thread_id)
            if thread is None:
                raise ThreadNotFound(thread_id)
            messages = await transaction.rows("tree_messages", thread["thread"], thread_id)
            bodies = await transaction.rows("tree_parts", thread["thread"]) if parts else []
            calls = await transaction.rows("open_calls", thread_id)
        return to_tree(thread, messages, bodies, calls)

    async def get_message_counts(self, thread_id: str) -> Counts:
        """See `perdure.ports.ConversationStore`. Raises ThreadNotFound."""
        row = await self._database.row("message_counts", thread_id)
        if row is None:
            raise ThreadNotFound(thread_id)
        return Counts(**row)

    async def snapshot(self, thread_id: str) -> Snapshot:
        """See `perdure.ports.ConversationStore`. Six statements that read the same point of time."""
        async with self._database.transaction(snapshot=True) as transaction:
            thread = await transaction.row("get_thread", thread_id)
            if thread is None:
                raise ThreadNotFound(thread_id)
            path = await _path(transaction, thread_id)
            live = await transaction.row("live_step", thread_id)
            calls = await transaction.rows("shown_calls", thread_id)
            choices = await transaction.rows("choices", thread_id)
            views = await transaction.rows("views", thread_id)
        return Snapshot(
            thread=to_thread(thread),
            path=path,
            live=to_step(live) if live else None,
            chunks=to_chunks(live["chunks"]) if live else (),
            calls=tuple(to_call(call) for call in calls),
            seq=thread["seq"],
            choices=tuple(to_choice(choice) for choice in choices),
            views=tuple(map(to_view, views)),
        )

    async def read_changes(self, thread_id: str, after: int, limit: int = 1000) -> tuple[Change, ...]:
        """See `perdure.ports.ConversationStore`."""
        return tuple(to_change(row) for row in await self._database.rows("changes", thread_id, after, limit))

    # -- blobs and summaries -----------------------------------------------------------------------------------

    async def put_blob(self, thread_id: str, data: bytes, media_type: str = "text/plain") -> str:
        """See `perdure.ports.ConversationStore`. Raises ThreadNotFound."""
        digest = hashlib.sha256(data)
        if await self._database.row("put_blob", thread_id, digest.digest(), media_type, data) is None:
            raise ThreadNotFound(thread_id)
        return digest.hexdigest()

    async def get_blob(self, thread_id: str, blob: str) -> bytes:
        """See `perdure.ports.ConversationStore`."""
        row = await self._database.row("get_blob", thread_id, _sha256(blob))
        if row is None:
            raise BlobNotFound(thread_id, blob)
        data: bytes = row["data"]
        return data

    async def add_summary(self, summary: Summary) -> bool:
        """See `perdure.ports.ConversationStore`. Raises ThreadNotFound, and ContentConflict if the id is taken.

        What it has cost counts in any case.
        """
        columns = {
            "id": summary.id,
            "message_id": summary.message_id,
            "parts": summary.parts,
            "body": dumps(summary.text),
            "kind": summary.kind,
            "items": dumps(summary.items) if summary.items else None,
            "covered": summary.covered,
            "previous_id": summary.previous_id,
            "shape": summary.shape,
            "usage": dumps(summary.usage) if summary.usage != Usage() else None,
        }
        row = await self._database.row("add_summary", summary.thread_id, dumps(columns))
        assert row is not None, "bug: the function returns a row or raises"
        accepted: bool = row["add_summary"]
        return accepted


async def _path(
    database: Database | Transaction,
    thread_id: str,
    known: str | None = None,
    message_id: str | None = None,
    *,
    whole: bool = False,
) -> Path:
    rows = await database.rows("path", thread_id, known, message_id, whole)
    if not rows:
        raise ThreadNotFound(thread_id)
    return to_path(rows, known, message_id)


def _coalesced(row: Row, operation: CommitStep) -> CoalescedStep:
    outcome = to_outcome(row["outcome"])
    if operation.discard:
        parts: tuple[Part, ...] = ()
    elif outcome is None:
        parts = sealed_parts(TurnBuffer(to_chunks(row["chunks"])).parts)
    else:
        parts = sealed_parts(to_parts(row["parts"]))
    return CoalescedStep(parts, row["attempt"], outcome.usage if outcome else Usage())


def _is_applied(thread: Row, batch: SyncBatch) -> bool:
    return (thread["version"], thread["sync_id"]) == (batch.number, batch.sync_id)


def _sha256(blob: str) -> bytes:
    try:
        return bytes.fromhex(blob)
    except ValueError:
        return b""  # no blob has such an id
