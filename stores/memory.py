"""Threads in memory: the same contract for tests and for conversations that nobody keeps.

Nothing here awaits, so each method is atomic. A batch works on a draft of its thread, which takes the place of the
thread when the last operation is through. Values pass through the codec when they are stored, so what a database
could not hold is refused here as well, and nobody shares an object with the store.
"""

import hashlib
from collections.abc import AsyncGenerator, Iterator
from dataclasses import replace
from datetime import UTC, datetime

from perdure.batch import AppendMessage, Refused, SyncBatch, SyncReport
from perdure.errors import BlobNotFound, ContentConflict, StaleWriter, StepSealed, StoreError
from perdure.messages import Message, Part
from perdure.ports import Change, Counts, Path, Snapshot, Step, StepOutcome, Summary, ThreadRecord
from perdure.turn_buffer import Chunk
from stores import batch_sql
from stores.memory_state import MemoryState, accepted
from stores.memory_thread import MemoryThread, StoredMessage, StoredStep, kept


class MemoryStore(MemoryState):
    """`perdure.ports.Store` for one process and one event loop."""

    def __init__(self) -> None:
        super().__init__()
        self._owners: dict[str, str] = {}
        self._summaries: dict[str, Summary] = {}

    async def close(self) -> None:
        """Nothing is open; what is stored stays readable."""

    # -- threads -----------------------------------------------------------------------------------------------

    async def create_thread(self, thread: ThreadRecord) -> ThreadRecord:
        """See `perdure.ports.ConversationStore`."""
        if thread.thread_id not in self._threads:
            if thread.parent_thread_id is not None:
                self._thread(thread.parent_thread_id)
            for message_id in (thread.head_id, thread.spawn_message_id):
                if message_id is not None and message_id not in self._owners:
                    raise StoreError(f"bug: thread {thread.thread_id} begins at message {message_id}, not stored")
            created_at = thread.created_at or datetime.now(UTC)
            fresh = thread.with_(created_at=created_at, closed_at=None, version=0, seq=0, turn=0)
            self._threads[thread.thread_id] = MemoryThread(fresh)
            if thread.parent_thread_id is not None:
                self._children.setdefault(thread.parent_thread_id, []).append(thread.thread_id)
        return self._thread(thread.thread_id).record

    async def get_thread(self, thread_id: str) -> ThreadRecord:
        """See `perdure.ports.ConversationStore`."""
        return self._thread(thread_id).record

    async def get_ancestor_chain(self, thread_id: str) -> tuple[ThreadRecord, ...]:
        """See `perdure.ports.ConversationStore`. Raises ThreadNotFound."""
        return tuple(thread.record for thread in self._line(thread_id))[::-1]

    async def close_thread(self, thread_id: str) -> None:
        """See `perdure.ports.ConversationStore`. Raises ThreadNotFound."""
        self._thread(thread_id).close()
        self._hints.wake(thread_id)

    # -- batches -----------------------------------------------------------------------------------------------

    async def append_messages(self, batch: SyncBatch) -> SyncReport:
        """See `perdure.ports.ConversationStore`."""
        thread = self._thread(batch.thread_id)
        report = SyncReport(number=batch.number, steps=batch_sql.durable_steps(batch))
        inputs = batch_sql.inputs(batch)
        missing = tuple(
            Refused(input_id=input_id, missing=True)
            for input_id, blobs in batch_sql.blobs(batch).items()
            if not blobs <= {blob for thread in self._line(batch.thread_id) for blob in thread.blobs}
        )
        if missing:
            return SyncReport(number=batch.number - 1, refused=missing)
        if (thread.record.version, thread.sync_id) == (batch.number, batch.sync_id):
            return report
        if thread.record.version != batch.number - 1:
            raise StaleWriter(
                "The thread has been written by somebody else and is at version "
                f"{thread.record.version}. Load it again."
            )
        known = accepted(thread)
        refused = tuple(
            Refused(input_id=input_id, conflict=known[input_id] != digest)
            for input_id, digest in inputs.items()
            if input_id in known
        )
        if refused:
            return SyncReport(number=batch.number - 1, refused=refused)
        draft = thread.copy()
        for operation in batch.operations:
            if isinstance(operation, AppendMessage):
                self._check_place(operation.message, draft)
            draft.apply(operation)
        draft.record = draft.record.with_(version=batch.number)
        draft.sync_id = batch.sync_id
        self._threads[batch.thread_id] = draft
        self._owners.update(dict.fromkeys(draft.messages, batch.thread_id))
        self._hints.wake(batch.thread_id)
        return report

    def _check_place(self, message: Message, draft: MemoryThread) -> None:
        if message.id in self._owners or message.id in draft.messages:
            raise ContentConflict(f"This id is taken already; what is stored stays. Message {message.id}")
        parent = message.parent_id
        if parent is not None and parent not in self._owners and parent not in draft.messages:
            raise StoreError(f"bug: message {message.id} has the parent {parent}, which is not stored")

    # -- the turn buffer ---------------------------------------------------------------------------------------

    async def begin_step(self, thread_id: str, turn: int, step: int, attempt: int) -> Step:
        """See `perdure.ports.ConversationStore`."""
        thread, at = self._thread(thread_id), (turn, step)
        stored = thread.claim_step(at, attempt)
        if stored is None or stored.outcome is None:
            stored = thread.steps[at] = StoredStep(attempt, began=thread.next_seq())
            self._hints.wake(thread_id)
        return stored.as_step(turn, step)

    async def append_chunks(
        self, thread_id: str, turn: int, step: int, attempt: int, chunks: list[Chunk], first: int | None = None
    ) -> None:
        """See `perdure.ports.ConversationStore`."""
        thread, at = self._thread(thread_id), (turn, step)
        stored = thread.claim_step(at, attempt)
        if stored and stored.outcome:
            raise StepSealed(f"This step was finished by attempt {stored.attempt}; its late writes are refused.")
        thread.add_chunks(at, attempt, chunks, first)
        self._hints.wake(thread_id)

    async def finish_step(
        self,
        thread_id: str,
        turn: int,
        step: int,
        attempt: int,
        parts: tuple[Part, ...],
        outcome: StepOutcome,
        chunks: list[Chunk],
    ) -> None:
        """See `perdure.ports.ConversationStore`."""
        thread, at = self._thread(thread_id), (turn, step)
        stored = thread.claim_step(at, attempt)
        exact, outcome = tuple(kept(part) for part in parts), kept(outcome)
        if stored and stored.outcome:
            if stored.attempt == attempt and stored.parts == exact:
                return
            raise StepSealed(f"This step was finished by attempt {stored.attempt}; its late writes are refused.")
        thread.steps[at] = replace(thread.add_chunks(at, attempt, chunks), parts=exact, outcome=outcome)
        self._hints.wake(thread_id)

    # -- reading -----------------------------------------------------------------------------------------------

    async def load_history_with_ancestors(self, thread_id: str, known: str | None = None) -> Path:
        """See `perdure.ports.ConversationStore`. Raises ThreadNotFound."""
        return self._path(thread_id, known)

    async def get_message_counts(self, thread_id: str) -> Counts:
        """See `perdure.ports.ConversationStore`. Raises ThreadNotFound."""
        roles = [stored.message.role for stored, _ in self._upward(thread_id)]
        return Counts(
            total=len(roles),
            user=roles.count("user"),
            assistant=roles.count("assistant"),
            event=roles.count("event"),
        )

    async def snapshot(self, thread_id: str) -> Snapshot:
        """See `perdure.ports.ConversationStore`."""
        thread = self._thread(thread_id)
        at = max(thread.steps, default=None)
        live = thread.steps[at] if at else None
        return Snapshot(
            thread=thread.record,
            path=self._path(thread_id, None),
            live=live.as_step(*at) if live and at else None,
            chunks=tuple(chunk for _, chunk in live.chunks) if live else (),
            calls=thread.ordered_calls(),
            seq=thread.record.seq,
            choices=thread.waiting_choices(),
            views=thread.shown_views(),
        )

    async def read_changes(self, thread_id: str, after: int, limit: int = 1000) -> tuple[Change, ...]:
        """See `perdure.ports.ConversationStore`."""
        thread = self._threads.get(thread_id)
        changes = sorted(thread.changes() if thread else (), key=lambda change: change.seq)
        return tuple(change for change in changes if change.seq > after)[:limit]

    def listen(self, thread_id: str) -> AsyncGenerator[None]:
        """See `perdure.ports.ConversationStore`."""
        return self._hints.listen(thread_id)

    def _path(self, thread_id: str, known: str | None) -> Path:
        messages: list[Message] = []
        summary: Summary | None = None
        extends: str | None = None
        for stored, cut in self._upward(thread_id):
            if stored.message.id == known:
                extends = known
                break
            parts = tuple(part for _, part in stored.parts)[:cut]
            summary = self._summary_at(stored.message.id, cut)
            if summary is not None:
                parts = parts[summary.parts :]
            if summary is None or parts:
                messages.append(stored.message.with_(parts=parts))
            if summary is not None:
                break
        return Path(
            messages=tuple(reversed(messages)),
            summary=summary,
            extends=extends,
            seq=self._thread(thread_id).record.seq,
        )

    def _upward(self, thread_id: str) -> Iterator[tuple[StoredMessage, int | None]]:
        """The path from its end to the root, each message with the number of parts that are inherited, None for all."""
        record = self._thread(thread_id).record
        message_id = record.head_id or record.spawn_message_id
        cut = None if record.head_id else record.spawn_parts
        while message_id is not None:
            stored = self._threads[self._owners[message_id]].messages[message_id]
            yield stored, cut
            message_id, cut = stored.message.parent_id, stored.message.parent_parts

    def _summary_at(self, message_id: str, cut: int | None) -> Summary | None:
        at_message = [
            summary
            for summary in self._summaries.values()
            if summary.message_id == message_id and (cut is None or summary.parts <= cut)
        ]
        return max(reversed(at_message), key=lambda summary: summary.parts, default=None)

    # -- blobs and summaries -----------------------------------------------------------------------------------

    async def put_blob(self, thread_id: str, data: bytes, media_type: str = "text/plain") -> str:
        """See `perdure.ports.ConversationStore`. Raises ThreadNotFound."""
        blob = hashlib.sha256(data).hexdigest()
        self._thread(thread_id).blobs[blob] = bytes(data)
        return blob

    async def get_blob(self, thread_id: str, blob: str) -> bytes:
        """See `perdure.ports.ConversationStore`."""
        if thread_id in self._threads:
            for thread in self._line(thread_id):
                if blob in thread.blobs:
                    return thread.blobs[blob]
        raise BlobNotFound(thread_id, blob)

    async def add_summary(self, summary: Summary) -> None:
        """See `perdure.ports.ConversationStore`. Raises ThreadNotFound, and ContentConflict if the id is taken."""
        self._thread(summary.thread_id)
        if self._summaries.get(summary.id, summary) != summary:
            raise ContentConflict(f"The summary {summary.id!r} is there with other content, which stays.")
        if summary.message_id not in self._owners:
            raise StoreError(f"bug: the summary {summary.id} stands at message {summary.message_id}, not stored")
        self._summaries[summary.id] = kept(summary)
