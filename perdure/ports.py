"""What the runtime asks of its stores. `stores/postgres.py` and `stores/memory.py` both keep this contract.

Every method raises `StoreUnavailable` when the database cannot be reached and never takes a failed read for an
empty one. Every write may be repeated.
"""

from collections.abc import AsyncGenerator
from datetime import datetime
from typing import Any, Literal, Protocol

from perdure.approval import ApprovalRequest, Decision, RememberedDecision
from perdure.batch import SyncBatch, SyncReport
from perdure.codec import Text, Wire
from perdure.messages import Message, Part, Status, ToolResultPart, Usage
from perdure.timer import Timer
from perdure.tools import ToolKind
from perdure.turn_buffer import Chunk

ThreadKind = Literal["root", "child", "event"]

KEY_BYTES = 32
"""The length of an installation's secrets (`get_key`)."""

MAX_VIEWS = 100
"""How many views a thread shows at most: each snapshot holds them all."""


class ThreadRecord(Wire):
    """A thread. `version` counts its applied batches, `seq` its changes, `turn` its turns so far.

    Until it has a head its path is what it inherits: up to part `spawn_parts` of the message `spawn_message_id`.
    A title that is the beginning of words, as `perdure.codec.clip` makes it, goes when the message of these is deleted.
    Stores refuse nothing to a thread with `closed_at`, so that what runs in it can settle: that it takes nothing new
    is its workflow's to see to.
    """

    thread_id: str
    agent: str
    tenant: str = "default"
    kind: ThreadKind = "root"
    title: Text | None = None
    parent_thread_id: str | None = None
    root_thread_id: str | None = None
    spawn_message_id: str | None = None
    spawn_parts: int | None = None
    head_id: str | None = None
    version: int = 0
    seq: int = 0
    turn: int = 0
    usage: Usage = Usage()
    created_at: datetime | None = None
    closed_at: datetime | None = None


class Summary(Wire):
    """A compaction of everything up to a point of the tree: the first `parts` parts of the message."""

    id: str
    thread_id: str
    message_id: str
    parts: int
    text: Text


class Path(Wire):
    """The conversation from its start, or from the newest summary on it, to the head; oldest first.

    `extends` is the message that the reader knew already: the messages follow after it and it is not among them.
    `shape` rises when something on the way up from a message to the root may have changed (a message was deleted or
    moved, a late result came in): what was read under another number is void.
    """

    messages: tuple[Message, ...] = ()
    summary: Summary | None = None
    extends: str | None = None
    seq: int = 0
    shape: int = 0


class OpenCall(Wire):
    """A durable tool call without a committed result. `started` counts how often its execution began.

    `index` is its place among the calls of its step, `position` that of its part in the message. A call that must not
    be executed has its result from the start. `kind`, `passive` and `timeout_s` are those of the agent's tool: stores
    do not know them. `load` adds them, and leaves of arguments a preview and of a result only that there is one; whole
    arguments stay where the workflow itself carries the call out, or the `timer` that they ask for. `due` is when it
    ends by itself (`SetDue`). `approval` and `decision` are those of the call's part, which `load` leaves the words out
    of; for decisions to come and repeated ones it adds `arguments_digest` and `decision_digest`. `interim` is the
    newest preliminary result, which `load` leaves out.
    """

    call_id: str
    message_id: str
    turn: int
    step: int
    index: int
    position: int = 0
    tool: Text
    arguments: Text = "{}"
    started: int = 0
    result: ToolResultPart | None = None
    kind: ToolKind = "function"
    passive: bool = False
    timeout_s: float = 600.0
    due: float | None = None
    operation: Text | None = None
    task_queue: Text | None = None
    timer: Timer | None = None
    retry_safe: bool = False
    approval: ApprovalRequest | None = None
    decision: Decision | None = None
    arguments_digest: str | None = None
    decision_digest: str | None = None
    interim: ToolResultPart | None = None


class Subscription(Wire):
    """A settled call that goes on sending events.

    `arguments` are the call's, clipped; `received` counts the events taken in, `paused` says why no more are.
    `minute` and `in_minute` are the minute (since 1970) of the newest event and how many came in it; stores do not
    keep them.
    """

    call_id: str
    tool: str
    arguments: Text = "{}"
    received: int = 0
    paused: Text | None = None
    minute: int = 0
    in_minute: int = 0


class Tail(Wire):
    """All that the history manager needs to go on, whatever the length of the conversation.

    `message` is the turn that runs, wherever it is in the tree, or else the head; without its parts, whose number is
    `parts`. `calls` are its open ones, in call order; `step` is their step, or else the one after the last committed
    step of its turn; `followers` counts the messages below it; `hidden` says that it is not on the path to the head.
    `last` is the status of the head if that is a turn, and `paused` says that it waits for people, be it `message` or
    not. `attempt` is the one that owns the turn buffer, 0 if that is empty; `processed` are the newest accepted inputs
    with their digests, oldest first; `children` counts the child threads that are not closed; `unstarted` are those of
    them that were made and never ran: their owner vanished before it could start them. `remembered` are decisions for
    calls to come.
    """

    thread: ThreadRecord
    message: Message | None = None
    parts: int = 0
    step: int = 0
    attempt: int = 0
    calls: tuple[OpenCall, ...] = ()
    subscriptions: tuple[Subscription, ...] = ()
    processed: tuple[tuple[str, str], ...] = ()
    children: int = 0
    unstarted: tuple[str, ...] = ()
    last: Status | None = None
    followers: int = 0
    hidden: bool = False
    paused: bool = False
    remembered: tuple[RememberedDecision, ...] = ()


StepState = Literal["open", "done"]


class StepOutcome(Wire):
    """How a model call ended: what `complete` returns, kept so that a retry need not ask the model again."""

    finish: Literal["stop", "tool_calls", "length", "content_filter", "limit", "error"] = "stop"
    model: str | None = None
    usage: Usage = Usage()
    detail: Text | None = None


class Step(Wire):
    """The turn buffer of one step: the attempt that owns it and, when it is done, its parts and outcome."""

    turn: int
    step: int
    attempt: int
    state: StepState = "open"
    parts: tuple[Part, ...] = ()
    outcome: StepOutcome | None = None


class Choice(Wire):
    """What an open call asks a person for: to choose (`choices`), or to open a link (`auth_url`); RAP sheet, I and J.

    The answer goes to `response_url`, where the call's tool server waits for it. `answered` once somebody has chosen;
    then the words and links are left out. A call that has its result asks nothing more, and no change says so besides
    the one with the result: a reader drops the call's choices when it sees that, in a `call` or as a part.
    """

    id: str
    call_id: str
    kind: Literal["choice", "oauth"] = "choice"
    prompt: Text = ""
    choices: tuple[Text, ...] = ()
    default: int = 0
    response_url: str | None = None
    auth_url: str | None = None
    answered: bool = False
    seq: int = 0


class View(Wire):
    """The newest state of something a tool shows people, a diff for one; never interpreted. `content` is JSON text.

    Empty content clears it.
    """

    view_type: Text
    content: Text
    seq: int = 0

    @property
    def is_empty(self) -> bool:
        """Whether there is nothing to show."""
        return self.content.strip() in ("", '""', "null", "{}")


class Change(Wire):
    """One thing that happened, for readers; exactly one of the fields after `seq` is set, `message` without parts.

    chunk: (turn, step, attempt) and the chunk that streamed. attempt: a new attempt began, what streamed before it is
    void. part: a part was committed at a position of a message; it replaces what streamed. call: an open call
    started, got its result staged, or ends by itself at another time. message: a message was added or its status
    changed; the first is told with the status it had then, so the parts of a turn come before its end. choice: a
    person is asked something, or has answered. view: it has other content, or none. tree: the path is another one, or
    something in the middle of it is: take a new snapshot. A part that is told again is a call that was decided about.
    """

    seq: int
    turn: int = 0
    step: int = 0
    attempt: int = 0
    message_id: str | None = None
    position: int | None = None
    chunk: Chunk | None = None
    new_attempt: bool = False
    part: Part | None = None
    call: OpenCall | None = None
    message: Message | None = None
    choice: Choice | None = None
    view: View | None = None
    tree: bool = False


class Snapshot(Wire):
    """A thread as it is now: the committed path, the step that streams, the open calls; live from `seq` on.

    `chunks` are those of the live step in order, pieces of one part joined or not: their indexes are what the chunks
    after `seq` go on from, which the parts alone do not tell.
    """

    thread: ThreadRecord
    path: Path
    live: Step | None = None
    chunks: tuple[Chunk, ...] = ()
    calls: tuple[OpenCall, ...] = ()
    seq: int = 0
    choices: tuple[Choice, ...] = ()
    views: tuple[View, ...] = ()


class Counts(Wire):
    """Messages of a thread on its current path, exactly."""

    total: int = 0
    user: int = 0
    assistant: int = 0
    event: int = 0


class TreeMessage(Wire):
    """A message in the whole tree, with its place among its siblings (`perdure.tree.TreeNode`).

    `parent_id` is None at the root, which for a child thread stands for what it inherits. `given_id` is the id under
    which it was imported; exports use that.
    """

    message: Message
    parent_id: str | None = None
    place: int = 0
    created_at: datetime | None = None
    given_id: str | None = None


class StoredTree(Wire):
    """A thread's own messages on all branches, in any order; `remembered` as in `perdure.tree`, None for the root.

    `calls` are all open ones, those of paused turns on other branches too.
    """

    head_id: str | None = None
    messages: tuple[TreeMessage, ...] = ()
    remembered: tuple[tuple[str | None, str], ...] = ()
    calls: tuple[OpenCall, ...] = ()


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
