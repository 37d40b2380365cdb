"""Threads in memory: the same contract for tests and for conversations that nobody keeps.

Nothing here awaits, so each method is atomic. A batch works on a draft of its thread, which takes the place of the
thread when the last operation is through. Values pass through the codec when they are stored, so what a database
could not hold is refused here as well, and nobody shares an object with the store.
"""

import hashlib
from dataclasses import replace
from datetime import UTC, datetime

from perdure.batch import Refused, SyncBatch, SyncReport, TreeReport, changes_tree
from perdure.errors import BlobNotFound, SpawnPointNotFound, StaleWriter, StepSealed, StoreError
from perdure.messages import Part, Usage
from perdure.records import Step, StepOutcome, ThreadRecord
from perdure.turn_buffer import Chunk
from stores import batch_sql
from stores.late_result import missing_calls
from stores.memory_batch import Anchor, MemoryBatch, tree_report
from stores.memory_context import MemoryContext
from stores.memory_records import StoredStep, kept
from stores.memory_thread import MemoryThread


class MemoryStore(MemoryContext):
    """`perdure.ports.Store` for one process and one event loop."""

    async def close(self) -> None:
        """Nothing is open; what is stored stays readable."""

    # -- threads -----------------------------------------------------------------------------------------------

    async def create_thread(self, thread: ThreadRecord) -> ThreadRecord:
        """See `perdure.ports.ConversationStore`."""
        if thread.thread_id not in self._threads:
            if thread.parent_thread_id is not None:
                self._thread(thread.parent_thread_id)
            if thread.head_id is not None and thread.head_id not in self._owners:
                raise StoreError(f"bug: thread {thread.thread_id} begins at message {thread.head_id}, not stored")
            if thread.spawn_message_id is not None and thread.spawn_message_id not in self._owners:
                raise SpawnPointNotFound(thread.spawn_message_id)
            created_at = thread.created_at or datetime.now(UTC)
            fresh = thread.with_(created_at=created_at, closed_at=None, version=0, seq=0, turn=0, usage=Usage())
            self._threads[thread.thread_id] = MemoryThread(kept(fresh))
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
        if (thread.record.version, thread.sync_id) == (batch.number, batch.sync_id):
            tree = tree_report(thread, batch.operations) if any(map(changes_tree, batch.operations)) else None
            return _done(batch, tree)
        if thread.record.version != batch.number - 1:
            raise StaleWriter(
                "The thread has been written by somebody else and is at version "
                f"{thread.record.version}. Load it again."
            )
        refused = self._missing(batch) or missing_calls(batch_sql.wanted_calls(batch), thread.calls.keys())
        refused = refused or _accepted(thread, batch)
        if refused:
            return SyncReport(number=batch.number - 1, refused=refused)
        applying = MemoryBatch(thread.copy(), batch, self._owners)
        if unfit := applying.run():
            return SyncReport(number=batch.number - 1, refused=(unfit,))
        self._take(batch, applying)
        return _done(batch, applying.report())

    def _missing(self, batch: SyncBatch) -> tuple[Refused, ...]:
        stored = {blob for thread in self._line(batch.thread_id) for blob in thread.blobs}
        wanted = batch_sql.blobs(batch).items()
        return tuple(Refused(input_id=input_id, missing=True) for input_id, blobs in wanted if not blobs <= stored)

    def _take(self, batch: SyncBatch, applied: MemoryBatch) -> None:
        """The draft takes the place of its thread, and what hangs on removed messages follows."""
        draft = applied.draft
        self._tell_below(batch.thread_id, applied)
        self._void_summaries(applied.changed)
        draft.record = draft.record.with_(version=batch.number)
        draft.sync_id = batch.sync_id
        self._threads[batch.thread_id] = draft
        for message_id in applied.heirs:
            self._owners.pop(message_id, None)  # it may have come with this batch
        self._owners.update(dict.fromkeys(draft.messages, batch.thread_id))
        if applied.heirs:
            self._hang_up(applied)
        for blob in (applied.freed & draft.blobs.keys()) - {draft.spent_blob}:
            if not any(thread.names(blob) for thread in self._heirs_of_blobs(batch.thread_id)):
                del draft.blobs[blob]
        self._hints.wake(batch.thread_id)

    def _tell_below(self, thread_id: str, applied: MemoryBatch) -> None:
        """Readers of threads whose path had a message that is another one now, or gone, need a new snapshot."""
        for changed in filter(None, (applied.changed, applied.answered)):
            for name, thread in self._threads.items():
                above = self._upward(thread.record.spawn_message_id, None) if name != thread_id else ()
                if any(stored.message.id in changed for stored, _ in above):
                    thread.redraw(reshape=False)
                    self._hints.wake(name)

    def _hang_up(self, applied: MemoryBatch) -> None:
        heirs: dict[str | None, Anchor] = {name: applied.anchor(heir) for name, heir in applied.heirs.items()}
        for thread in self._threads.values():
            if thread is not applied.draft:
                thread.follow(heirs)

    def _heirs_of_blobs(self, thread_id: str) -> list[MemoryThread]:
        """The thread and all that find their blobs in it too."""
        return [self._threads[name] for name in self._threads if self._thread(thread_id) in self._line(name)]

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

    # -- blobs -------------------------------------------------------------------------------------------------

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


def _done(batch: SyncBatch, tree: TreeReport | None) -> SyncReport:
    return SyncReport(number=batch.number, steps=batch_sql.durable_steps(batch), tree=tree)


def _accepted(thread: MemoryThread, batch: SyncBatch) -> tuple[Refused, ...]:
    """The inputs that the thread has accepted before. One whose words were deleted is a duplicate of whatever it is."""
    known = thread.inputs
    return tuple(
        Refused(input_id=input_id, conflict=known[input_id] not in (None, digest))
        for input_id, digest in batch_sql.inputs(batch).items()
        if input_id in known
    )
