"""What the runtime asks of its stores. `stores/postgres.py` and `stores/memory.py` both keep this contract.

Every method raises `StoreUnavailable` when the database cannot be reached and never takes a failed read for an
empty one. Every write may be repeated.
"""

from collections.abc import AsyncGenerator
from typing import Any, Protocol

from perdure.batch import SyncBatch, SyncReport
from perdure.messages import Part, ToolResultPart, Usage
from perdure.records import (
    Change,
    Choice,
    Counts,
    LoggedMessage,
    OpenCall,
    Path,
    ProviderState,
    Snapshot,
    Spending,
    Step,
    StepOutcome,
    StoredTree,
    Subscription,
    Summary,
    Tail,
    ThreadRecord,
)
from perdure.turn_buffer import Chunk
from perdure.turn_context import TurnContext


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
        self, thread_id: str, known: str | None = None, message_id: str | None = None, *, whole: bool = False
    ) -> Path:
        """The path from the head to the root or the newest summary, in one statement, whatever its length.

        With `known`, a message on the path, only what follows it. With `message_id`, the path to that message of the
        thread instead of to its head. `whole` goes on to the root: what summaries stand for is there too, and no
        summary. Blobs of texts and files are not resolved. Raises ThreadNotFound, UnknownMessage.
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

    async def add_summary(self, summary: Summary) -> bool:
        """Hang a summary on its point of the tree, and add its usage to the thread's; False if it is void.

        It is if its point is gone, or if its shape is given and is not that of the thread's path any more: something in
        the middle was changed, or another summary came in meanwhile. Safe to repeat: the first answer stays. What a
        void one has cost counts too. Readers are told nothing: what they show stays.
        """
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


class ContextStore(Protocol):
    """What context providers said and keep, and what was spent."""

    async def put_turn_context(self, thread_id: str, turn: int, step: int, context: TurnContext) -> TurnContext:
        """Keep what providers said for a model call of a turn; the first one wins and is returned. Safe to repeat.

        Of a turn that does not run nothing is kept: it is over, or its message is gone.
        """
        ...

    async def get_turn_context(self, thread_id: str, turn: int, step: int) -> TurnContext | None:
        """What providers said for this model call, None if they were not asked yet."""
        ...

    async def get_provider_states(self, thread_id: str) -> dict[str, ProviderState]:
        """What providers keep of the thread, by their names."""
        ...

    async def finish_hook(self, thread_id: str, turn: int, source: str, state: ProviderState | None = None) -> bool:
        """A provider's hook after a turn has run: remember that, with its state, in one transaction.

        `state.version` is the one that was read; False, and nothing written, if there is another one by now. Of a hook
        that was finished before nothing is written, and that is True. Safe to repeat. When the last one of a turn is
        finished, `drop_turn_contexts` forgets what was said in it.
        """
        ...

    async def finished_hooks(self, thread_id: str, turn: int) -> tuple[str, ...]:
        """Names of the providers whose hook after the turn has run, as JSON strings are sorted."""
        ...

    async def drop_turn_contexts(self, thread_id: str, turn: int) -> None:
        """Forget what providers said in a turn that has settled. Safe to repeat."""
        ...

    async def append_log(self, thread_id: str, source: str, messages: tuple[LoggedMessage, ...]) -> None:
        """Add to the log of a history provider, all or nothing; messages whose ids are there are left out.

        So are those that the conversation does not have any more: a message by its id, what somebody else said
        (`source`) by its turn. They go from the log when they are deleted.
        """
        ...

    async def read_log(self, thread_id: str, source: str) -> tuple[LoggedMessage, ...]:
        """The log of a history provider, oldest first."""
        ...

    async def set_model(self, thread_id: str, model: str | None) -> None:
        """The thread's own model from the next model call on; None: its agent's again. Raises ThreadNotFound."""
        ...

    async def add_usage(self, thread_id: str, turn: int, step: int, attempt: int, usage: Usage) -> None:
        """Count a model call that brought nothing: it was stopped, or failed. Safe to repeat.

        It is added to its thread, and to the message of its turn if that is there.
        """
        ...

    async def get_spending(
        self, thread_id: str, turn: int | None = None, *, tree: bool = True, tenant: bool = True
    ) -> Spending:
        """What was spent so far, by the thread, its tree and its tenant, and by a turn if one is named.

        Costs more the more threads the tree and the tenant have, so each can be left out. Raises ThreadNotFound.
        """
        ...

    async def get_tenant_usage(self, tenant: str) -> Usage | None:
        """What all threads of a tenant have spent so far; None if it has none."""
        ...


class Store(ConversationStore, StateStore, ContextStore, Protocol):
    """All stores over one database, so that `append_messages` persists messages and accepted ids together."""
