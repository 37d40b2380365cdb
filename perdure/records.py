"""What stores hold and hand out: threads, paths, open calls, steps, snapshots and changes. Values without behaviour."""

from datetime import datetime
from typing import Any, Literal

from pydantic import Field

from perdure.approval import ApprovalRequest, Decision, RememberedDecision
from perdure.codec import Text, Wire
from perdure.messages import Message, Part, Role, Status, ToolResultPart, Usage
from perdure.timer import Timer
from perdure.tools import ToolKind
from perdure.turn_buffer import Chunk

ThreadKind = Literal["root", "child", "event"]

KEY_BYTES = 32
"""The length of an installation's secrets (`get_key`)."""

MAX_UNSTARTED = 1_000
"""How many children a tail names as never started at most: the newest, so that old ones that cannot start keep no newer
one from it. A run has some hundreds in the making at a time: the calls of a step, or the events of a batch."""

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
    model: Text | None = None
    created_at: datetime | None = None
    closed_at: datetime | None = None


SummaryKind = Literal["summary", "trace", "window"]
"""What a compaction left: a summary by a model; the words, with one line for each tool call; nothing but a note."""


class SummaryItem(Wire):
    """One message of what a compaction left, in order, where it kept more than one text."""

    role: Literal["user", "assistant"]
    text: Text


class Summary(Wire):
    """A compaction of everything up to a point of the tree: the first `parts` parts of the message.

    What stands for it is `text`, or `items` if there are any. It covers `covered` messages, and an earlier summary
    (`previous_id`) with all that this covered; the originals stay. `shape` is the `basis` of the path it was made of:
    one that was made before a deletion above its point is void.
    """

    id: str
    thread_id: str
    message_id: str
    parts: int
    text: Text
    kind: SummaryKind = "summary"
    items: tuple[SummaryItem, ...] = ()
    covered: int = 0
    previous_id: str | None = None
    shape: int | None = None
    usage: Usage = Usage()


class Path(Wire):
    """The conversation from its start, or from the newest summary on it, to the head; oldest first.

    `extends` is the message that the reader knew already: the messages follow after it and it is not among them.
    `shape` rises when something on the way up from a message to the root may have changed (a message was deleted or
    moved, a late result came in, a summary was added): what was read under another number is void. `basis` does too,
    but not for a summary of a thread above: what such a one stands for is as it was. `model` is the thread's, if it has
    one of its own.
    """

    messages: tuple[Message, ...] = ()
    summary: Summary | None = None
    extends: str | None = None
    seq: int = 0
    shape: int = 0
    basis: int = 0
    model: Text | None = None


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


class Deadline(Wire):
    """When a call of a turn that rests ends by itself, in seconds since 1970."""

    call_id: str
    due: float


class Tail(Wire):
    """All that the history manager needs to go on, whatever the length of the conversation.

    `message` is the turn that runs, wherever it is in the tree; or else one that waited for people, and whose calls
    have their results by now; or else the head; without its parts, whose number is `parts`. `calls` are its open ones,
    in call order; `step` is their step, or else the one after the last committed step of its turn; `followers` counts
    the messages below it; `hidden` says that it is not on the path to the head. `last` is the status of the head if
    that is a turn, and `paused` says that it waits for people, be it `message` or not. `attempt` is the one that owns
    the turn buffer, 0 if that is empty; `processed` are the newest accepted inputs with their digests, oldest first;
    `children` counts the child threads that are not closed; `unstarted` are those of them that were made and never ran,
    oldest first: their owner vanished before it could start them. `remembered` are decisions for calls to come. Of
    turns that wait for people and are not `message`, `answered` says that the calls of one have their results, and
    `deadline` is the first of those that are set for their calls.
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
    answered: bool = False
    deadline: Deadline | None = None


StepState = Literal["open", "done"]


class StepOutcome(Wire):
    """How a model call ended: what `complete` returns, kept so that a retry need not ask the model again.

    `compact`: the request has grown so long that the conversation is to be made shorter.
    """

    finish: Literal["stop", "tool_calls", "length", "content_filter", "limit", "error"] = "stop"
    model: str | None = None
    usage: Usage = Usage()
    detail: Text | None = None
    compact: bool = False


class Step(Wire):
    """The turn buffer of one step: the attempt that owns it and, when it is done, its parts and outcome."""

    turn: int
    step: int
    attempt: int
    state: StepState = "open"
    parts: tuple[Part, ...] = ()
    outcome: StepOutcome | None = None


class Choice(Wire):
    """What an open call asks a person for: to choose (`choices`), or to open a link (`auth_url`).

    These are RAP's questions (server/user-choice, server/oauth).
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
    person is asked something, or has answered. view: it has other content, or none. summary: what the model reads in
    place of what is before its point; what was said stays. tree: the path is another one, or something in the middle of
    it is: take a new snapshot. A part that is told again is a call that was decided about.
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
    summary: Summary | None = None
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
    """Messages of a thread on its current path, exactly; `visible` are those that no summary stands for."""

    total: int = 0
    user: int = 0
    assistant: int = 0
    event: int = 0
    visible: int = 0


class Spent(Wire):
    """What was spent within some bounds, and since when, in seconds since 1970."""

    usage: Usage = Usage()
    since: float | None = None


class Spending(Wire):
    """What a turn has spent, its thread, the tree of threads it belongs to, and its tenant.

    A tree is a root thread and all below it. What streams at this moment is not in it.
    """

    turn: Spent = Spent()
    thread: Spent = Spent()
    tree: Spent = Spent()
    tenant: Spent = Spent()


class ProviderState(Wire):
    """What a context provider keeps of a thread. `version` counts writes; `schema_version` is the provider's own."""

    values: dict[str, Any] = Field(default_factory=dict)
    version: int = 0
    schema_version: int = 1


class LoggedMessage(Wire):
    """A message in the log of a history provider that is not the thread's own history. Its id makes it one row."""

    id: Text
    role: Role
    text: Text
    turn: int = 0
    source: Text | None = None


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
