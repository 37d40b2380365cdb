"""What the runtime asks of its stores. `stores/postgres.py` and `stores/memory.py` both keep this contract.

Every method raises `StoreUnavailable` when the database cannot be reached and never takes a failed read for an
empty one. Every write may be repeated.
"""

from collections.abc import AsyncGenerator
from typing import Any, Protocol

from perdure.batch import SyncBatch, SyncReport
from perdure.messages import Part, ToolResultPart
from perdure.records import (
    Change,
    Choice,
    Counts,
    OpenCall,
    Path,
    Snapshot,
    Step,
    StepOutcome,
    StoredTree,
    Subscription,
    Summary,
    Tail,
    ThreadRecord,
)
from perdure.turn_buffer import Chunk


class ConversationStore(Protocol):
    """Threads, the message tree, parts, the turn buffer, summaries and blobs."""

    async def create_thread(self, thread: ThreadRecord) -> ThreadRecord:
        """Create the thread if there is none of this id; returns the stored one. Safe to repeat.

        Raises SpawnPointNotFound if what it is to inherit up to is not there, or not any more.
        """
        ...

    async def get_thread(self, thread_id: str) -> ThreadRecord:
        """Raises ThreadNotFound."""
        ...

    async def get_ancestor_chain(self, thread_id: str) -> tuple[ThreadRecord, ...]:
        """The thread and its parents, the root first."""
        ...

    async def append_messages(self, batch: SyncBatch) -> SyncReport:
        """Apply a batch in one transaction, once. Raises StaleWriter, ThreadNotFound. Safe to repeat.

        Inputs that were accepted before, whose words are in a blob that is not stored, or which the tree does not
        allow, are refused.
        """
        ...

    async def load_history_with_ancestors(
        self, thread_id: str, known: str | None = None, message_id: str | None = None
    ) -> Path:
        """The path from the head to the root or the newest summary, in one statement, whatever its length.

        With `known`, a message on the path, only what follows it. With `message_id`, the path to that message of the
        thread instead of to its head. Blobs of texts and files are not resolved. Raises ThreadNotFound, UnknownMessage.
        """
        ...

    async def load_tree(self, thread_id: str, *, parts: bool = True) -> StoredTree:
        """All branches, read at one point of time; without `parts` only the messages. Raises ThreadNotFound."""
        ...

    async def begin_step(self, thread_id: str, turn: int, step: int, attempt: int) -> Step:
        """Open the step for this attempt, voiding an earlier one; a done step is returned as it is, with its parts.

        Raises StepSealed if the step is sealed, committed, or owned by a later attempt.
        """
        ...

    async def append_chunks(
        self, thread_id: str, turn: int, step: int, attempt: int, chunks: list[Chunk], first: int | None = None
    ) -> None:
        """Add to the turn buffer; opens the step if need be. Raises StepSealed as `begin_step` does, or if it is done.

        Safe to repeat only with `first`: how many chunks this attempt had appended before these.
        """
        ...

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
        """Store the exact parts and the outcome, with the last chunks for readers. Raises StepSealed."""
        ...

    async def snapshot(self, thread_id: str) -> Snapshot:
        """Everything a new reader shows, read at one point of time. Raises ThreadNotFound."""
        ...

    async def read_changes(self, thread_id: str, after: int, limit: int = 1000) -> tuple[Change, ...]:
        """What happened after the sequence number `after`, in order. Chunks of committed steps are gone."""
        ...

    def listen(self, thread_id: str) -> AsyncGenerator[None]:
        """Yields when the thread may have changed, at least once at the start and after a lost connection.

        A generator, so that a reader who leaves can close it at once.
        """
        ...

    async def put_blob(self, thread_id: str, data: bytes, media_type: str = "text/plain") -> str:
        """Store bytes under their SHA-256, within the thread; returns the blob id. Safe to repeat."""
        ...

    async def get_blob(self, thread_id: str, blob: str) -> bytes:
        """Raises BlobNotFound if there is no such blob in this thread or one of its ancestors."""
        ...

    async def get_message_counts(self, thread_id: str) -> Counts:
        """Exact counts over the current path, inherited messages included."""
        ...

    async def add_summary(self, summary: Summary) -> None:
        """Hang a summary on its point of the tree. Safe to repeat: one that a deletion has voided stays so."""
        ...

    async def close_thread(self, thread_id: str) -> None:
        """Mark the thread closed. Safe to repeat."""
        ...


class StateStore(Protocol):
    """Accepted ids, metadata, subscriptions, pending choices and open calls."""

    async def load_tail(self, thread_id: str, processed: int = 200) -> Tail:
        """All that is needed to go on, in one statement if possible. Raises ThreadNotFound."""
        ...

    async def get_processed_ids(self, thread_id: str, ids: tuple[str, ...]) -> dict[str, str]:
        """Which of these inputs the thread has accepted, with their digests: empty where the words were deleted."""
        ...

    async def get_active_subscriptions(self, thread_id: str) -> tuple[Subscription, ...]:
        """Subscriptions that go on."""
        ...

    async def get_call(self, thread_id: str, call_id: str) -> OpenCall:
        """The open call, with its staged result if it has one. Raises CallNotOpen."""
        ...

    async def start_call(self, thread_id: str, call_id: str, owner: str | None = None) -> OpenCall:
        """Count one more start of the call's execution and return it, with its staged result if it has one.

        A call with a result is not counted again. Raises CallNotOpen if the call is settled or unknown.
        Safe to repeat only with `owner`, which names this execution: it is counted once.
        """
        ...

    async def stage_result(self, thread_id: str, result: ToolResultPart) -> ToolResultPart:
        """Keep the result under its open call; the first one wins and is returned. Safe to repeat.

        Raises CallNotOpen.
        """
        ...

    async def get_metadata(self, thread_id: str) -> dict[str, Any]:
        """The thread's metadata; empty if there is none."""
        ...

    async def set_metadata(self, thread_id: str, values: dict[str, Any]) -> None:
        """Merge values into the thread's metadata; a value of None removes its key."""
        ...

    async def put_choice(self, thread_id: str, choice: Choice) -> None:
        """Keep a question of an open call without a result and tell readers; the same id again replaces it.

        It is dropped together with its call. The same question again changes nothing, unless it was answered. Raises
        CallNotOpen, ThreadNotFound.
        """
        ...

    async def get_choices(self, thread_id: str) -> tuple[Choice, ...]:
        """Questions that wait, oldest first."""
        ...

    async def remove_choice(self, thread_id: str, choice_id: str) -> None:
        """Drop an answered question and tell readers (`answered`). Safe to repeat. Raises ThreadNotFound."""
        ...

    async def put_view(self, thread_id: str, view_type: str, content: str) -> None:
        """Keep the newest content (JSON text) of a view and tell readers. Safe to repeat.

        Raises:
            ThreadNotFound: if there is no such thread.
            TooManyViews: if it would be one more than MAX_VIEWS. Views that are empty do not count, and are taken.
        """
        ...

    async def get_children(self, thread_id: str) -> tuple[ThreadRecord, ...]:
        """Child threads that are not closed, oldest first."""
        ...

    async def get_key(self, name: str) -> bytes:
        """A secret of the installation, 32 random bytes, made when it is first asked for. Always the same."""
        ...


class Store(ConversationStore, StateStore, Protocol):
    """Both stores over one database, so that `append_messages` persists messages and accepted ids together."""
