"""The wire contract between the workflow, its activities and its clients: names and payload types.

Histories hold these names and shapes, so they only ever gain optional fields. Payloads carry ids, counts and clipped
previews; words are in the store.
"""

from typing import Annotated, Literal, Self

from pydantic import ConfigDict, Field, ValidationError

from perdure.approval import ApprovalRequest
from perdure.codec import Text, Wire, clip
from perdure.errors import UsageError
from perdure.inputs import Disposition, Event
from perdure.messages import Status, Usage
from perdure.policy import CONTINUE_AS_NEW_EVENTS, IDLE_BEFORE_HIBERNATION
from perdure.records import Choice, Subscription, Tail, ThreadKind
from perdure.timer import Timer
from perdure.tools import ToolKind

WORKFLOW_TYPE = "ThreadWorkflow"
DEFAULT_TASK_QUEUE = "perdure"
PREVIEW_CHARS = 80
NAME_CHARS = 200

Name = Annotated[str, Field(min_length=1, max_length=NAME_CHARS, pattern=r"^[^\x00-\x1f\x7f]+$")]
"""What threads are found by. Temporal's visibility store holds at most 255 characters of it."""

LOAD, SYNC, COMPLETE, DISPATCH = "load", "sync", "complete", "dispatch"
SPAWN, NOTIFY, STOP_CHILDREN, CHOOSE = "spawn", "notify", "stop_children", "choose"
TELL_PARENT = "tell_parent"
AFTER_TURN, COMPACT, COMPACTED = "after_turn", "compact", "compacted"
COMPACTION_TYPE = "CompactionWorkflow"


class ThreadStart(Wire):
    """How a thread begins; all of it may be left out. It counts only for a thread that is not stored yet.

    People type it, so unknown fields are refused: a misspelt `agent` is not to become the default one.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    agent: Name | None = None
    tenant: Name = "default"
    title: Annotated[Text, Field(max_length=NAME_CHARS)] | None = None
    kind: ThreadKind = "root"
    parent_thread_id: Name | None = None
    root_thread_id: Name | None = None
    spawn_message_id: Name | None = None
    spawn_parts: int | None = None
    user_id: Name | None = None
    model: Name | None = None

    @classmethod
    def read(cls, value: object) -> Self:
        """A start out of what somebody gave: an object, or nothing.

        Raises:
            UsageError: with a sentence that names each field that is wrong.
        """
        try:
            return cls.model_validate({} if value is None else value)
        except ValidationError as error:
            reasons = "; ".join(_reason(item["type"], item["msg"], item["loc"]) for item in error.errors())
            raise UsageError(f"The thread cannot start like this: {clip(reasons, 400)}.") from error


def _reason(type: str, message: str, place: tuple[int | str, ...]) -> str:
    field = clip(".".join(map(str, place)), PREVIEW_CHARS)
    match type:
        case "extra_forbidden":
            return f"there is no field `{field}` (there are {', '.join(ThreadStart.model_fields)})"
        case "model_type" | "model_attributes_type":
            return 'give an object such as {"agent": "NAME"}, or nothing'
        case "too_long":
            return f"`{field}` must be at most {NAME_CHARS} characters"
        case "string_too_long" | "string_too_short" | "string_pattern_mismatch":
            return f"`{field}` must be 1 to {NAME_CHARS} characters without control characters"
        case _:
            return f"`{field}`: {message.removeprefix('Value error, ')}"


class LoadRequest(Wire):
    """Input of `load`: the thread, created if it is new."""

    thread_id: str
    start: ThreadStart = ThreadStart()


class LoadResult(Wire):
    """Output of `load`. What the worker knows about running this thread is recorded here, so replays agree on it.

    `servers`: the agent has tool servers, which want to be told of calls that are given up. `revision`: by which rules
    the run goes (`perdure.policy.REVISION`); those that were recorded before there was such a number go by the first.
    `hooks`: context providers want to be told when a turn is over. `compacts`: the agent's conversations are made
    shorter when they outgrow the model.
    """

    tail: Tail
    idle_s: float = IDLE_BEFORE_HIBERNATION.total_seconds()
    history_events: int = CONTINUE_AS_NEW_EVENTS
    model_timeout_s: float = 900.0
    model: Text = ""
    search_attributes: bool = True
    servers: bool = False
    events_per_minute: int = 600
    events_per_subscription: int | None = None
    subscriptions: int = 100
    revision: int = 1
    hooks: bool = False
    compacts: bool = False


class CompleteRequest(Wire):
    """Input of `complete`: one model call. The attempt is Temporal's attempt of the activity, after `attempts` others.

    A run that takes a turn over from another counts on from there, so that the two never write as the same attempt.
    The model reads the path to the turn's message, wherever the head is: `message_id`, if that is not the id that turns
    of the thread's own have.
    """

    thread_id: str
    agent: str
    turn: int
    step: int = 0
    attempts: int = 0
    message_id: str | None = None


class CallOutline(Wire):
    """A tool call as the workflow sees it; its id follows from turn, step and index, its arguments are in the store.

    `error` says why it must not be executed. What is needed to dispatch it is recorded here, so that a replay does
    not depend on the agent's present declaration: for a call that the workflow itself carries out, its arguments too,
    or the timer that they ask for. With `approval` (without its words) it waits for a decision, which one that was
    remembered for the tool, or for `arguments_digest`, replaces.
    """

    index: int
    tool: Text
    preview: Text = ""
    kind: ToolKind = "function"
    passive: bool = False
    timeout_s: float = 600.0
    error: Text | None = None
    arguments: Text | None = None
    operation: Text | None = None
    task_queue: Text | None = None
    timer: Timer | None = None
    retry_safe: bool = False
    approval: ApprovalRequest | None = None
    arguments_digest: str | None = None


class CompleteResult(Wire):
    """What a model call brought. `parts` counts the parts in the turn buffer, `trailing_reasoning` those to trim.

    `first_call` is the position of the first tool call among them: a child thread inherits only what is before it.
    `compact`: the request has grown so long that the conversation is to be made shorter.
    """

    parts: int = 0
    first_call: int = 0
    trailing_reasoning: int = 0
    calls: tuple[CallOutline, ...] = ()
    finish: Literal["stop", "tool_calls", "length", "content_filter", "limit", "error"] = "stop"
    usage: Usage = Usage()
    model: str | None = None
    preview: Text = ""
    detail: Text | None = None
    problems: tuple[Text, ...] = ()
    compact: bool = False


class AfterTurnRequest(Wire):
    """Input of `after_turn`: a turn is over, and its message is durable."""

    thread_id: str
    agent: str
    turn: int
    message_id: str


class AfterTurnResult(Wire):
    """Output of `after_turn`: which providers' hooks have run, and what went wrong in them for good."""

    finished: tuple[Text, ...] = ()
    problems: tuple[Text, ...] = ()


class CompactRequest(Wire):
    """Input of the compaction workflow and of `compact`: make shorter what stands before a point.

    The point is after the first `parts` parts of the message, all if that is None; what is newer is never looked at.
    `number` counts the compactions that the thread has asked for. `forced`: by a person, or since the model refused a
    request that was too long: then it is done however short the conversation is.
    """

    thread_id: str
    agent: str
    message_id: str
    parts: int | None = None
    number: int = 1
    forced: bool = False


class Compacting(Wire):
    """Answer to the update `compact`: the compaction that is under way, or the `result` if none is.

    It has no `run_id` if an earlier run of the thread has begun it.
    """

    run_id: str | None = None
    result: "CompactResult | None" = None


class CompactResult(Wire):
    """Output of `compact`.

    done: a summary was added. nothing: there is nothing before the point that could be left out. void: the point is not
    on the path any more. empty: the summariser said nothing. failed: it could not be asked, or something else went
    wrong for good; `detail` says what.
    """

    outcome: Literal["done", "nothing", "void", "empty", "failed"] = "done"
    summary_id: str | None = None
    covered: int = 0
    detail: Text | None = None


class DispatchRequest(Wire):
    """Input of `dispatch`: one tool call. Tool and arguments are read from the store."""

    thread_id: str
    agent: str
    call_id: str


class DispatchResult(Wire):
    """The outcome; the result itself is staged in the store under the call.

    `pending`: the tool is not run by a worker, its result comes from outside, within `expires_s` if that is given.
    `closed`: the call has closed the thread.
    """

    outcome: Literal["ok", "error", "pending"] = "ok"
    preview: Text = ""
    expires_s: float | None = None
    closed: bool = False


class SpawnRequest(Wire):
    """Input of `spawn`: a child thread for a call of `spawn_thread`, or for an event of a subscription.

    It inherits the path up to the first `parts` parts of `message_id`.
    """

    thread_id: str
    agent: str
    call_id: str
    message_id: str | None = None
    parts: int | None = None
    event: Event | None = None
    origin: Subscription | None = None


class SpawnResult(Wire):
    """Output of `spawn`: the child's id and how it starts, or why there is none, for the model."""

    thread_id: str = ""
    start: ThreadStart | None = None
    content: Text = ""
    error: Text | None = None


class NotifyRequest(Wire):
    """Input of `notify`: tell all tool servers of the agent that calls were given up, or that the thread is closed."""

    thread_id: str
    agent: str
    call_ids: tuple[str, ...] = ()
    closed: bool = False


class StopChildrenRequest(Wire):
    """Input of `stop_children`: interrupt every child thread that is not closed, or only the one named."""

    thread_id: str
    child: str | None = None
    reason: Text | None = None


class TellParentRequest(Wire):
    """Input of `tell_parent`: this child thread was closed by a person, so it has told its parent nothing."""

    thread_id: str


class ChooseRequest(Wire):
    """Input of `choose`: send a person's choice to the tool server that asked. None is the default: dismissed."""

    thread_id: str
    choice_id: str
    selected: int | None = None


class CallStatus(Wire):
    """An open call, as the query `open_calls` shows it.

    `kind` says who carries it out; None if its workflow does not run, since the store does not know it. `due` is when
    it ends by itself, in seconds since 1970. In the state `approval` it waits for somebody to approve it.
    """

    call_id: str
    tool: Text
    preview: Text = ""
    state: Literal["waiting", "running", "settled", "approval"] = "waiting"
    kind: ToolKind | None = None
    due: float | None = None


class SubscriptionStatus(Wire):
    """A subscription, as the query `status` shows it."""

    call_id: str
    tool: Text
    received: int = 0
    paused: Text | None = None

    @classmethod
    def of(cls, known: Subscription) -> Self:
        """What is shown of a subscription."""
        return cls(call_id=known.call_id, tool=known.tool, received=known.received, paused=known.paused)


class Retry(Wire):
    """Work of a thread that has failed and is tried again; `what` is what the Temporal UI calls it.

    `attempt` is the one that runs or comes next, `why` the last one's failure, and `next_try` when it comes, in seconds
    since 1970; None if it runs.
    """

    what: Text
    attempt: int
    why: Text = ""
    next_try: float | None = None


class ThreadStatus(Wire):
    """The answer to the query `status`.

    `dropped` counts events and results that belonged to nothing, since the thread was last loaded; `children` says
    whether there may be child threads that are not closed. `choices` are what people are asked, `retrying` is what has
    failed and is tried again: the client adds them, since only the store knows the ones, and Temporal the others.
    """

    thread_id: str
    agent: str
    state: Literal["idle", "running", "waiting", "closed"]
    turn: int = 0
    step: int = 0
    head_id: str | None = None
    last: Status | None = None
    open_calls: tuple[CallStatus, ...] = ()
    queued: int = 0
    deferred: int = 0
    usage: Usage = Usage()
    problems: tuple[Text, ...] = ()
    subscriptions: tuple[SubscriptionStatus, ...] = ()
    dropped: int = 0
    children: bool = False
    choices: tuple[Choice, ...] = ()
    retrying: tuple[Retry, ...] = ()


class TreeChanged(Wire):
    """The answer to `regenerate`, `change_tree` and `add_result`: what became of it, and the head of the thread now.

    `message_id` is the new answer of `regenerate`.
    """

    disposition: Disposition = "changed"
    head_id: str | None = None
    message_id: str | None = None


class Approved(Wire):
    """The answer to the update `decide`. `pending` are the calls of the turn that still wait for a decision."""

    call_id: str
    disposition: Disposition = "settled"
    pending: tuple[str, ...] = ()


class Stopped(Wire):
    """The answer to the update `stop`: the turn that was stopped, 0 if none was under way."""

    turn: int = 0
