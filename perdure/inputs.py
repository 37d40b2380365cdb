"""What reaches a thread from outside, as signals and updates carry it, and what becomes of it.

These are typed by people too (`temporal workflow signal --input '{"id":"m1","text":"hi"}'`), so unknown fields are
refused with their name instead of being carried along.
"""

from typing import Annotated, Any, Final, Literal

from pydantic import ConfigDict, Field, StrictBool

from perdure.approval import Short
from perdure.codec import Text, Wire, digest, dumps
from perdure.messages import FileRef, Outcome, TurnOptions

INLINE_BYTES = 32 * 1024
"""Content up to this size travels in its signal; larger content is stored first and travels as a blob id."""

ROOT: Final = "root"
"""What `parent_id` says for the beginning of the conversation, which is no message."""

Mode = Literal["interrupt", "queue", "steer", "reject"]
InputId = Annotated[str, Field(min_length=1, max_length=200, pattern=r"^[^\x00-\x1f\x7f]+$")]


class Input(Wire):
    """Base of all inputs."""

    model_config = ConfigDict(frozen=True, extra="forbid")


class UserMessage(Input):
    """Words of the user. `mode` says what they do to a turn that is under way.

    `interrupt` stops it, `queue` waits for its end, `steer` joins before its next model call, `reject` gives up.
    With `blob` the whole text is in the store, `text` holds its beginning and `sha256` the digest of the whole.

    They follow the last message of the conversation, or the message `parent_id` (`ROOT`: they begin a conversation of
    their own); or, if only `source_id` is given, they stand beside that message as an edited version of it. Without
    `run` nobody answers them and nothing is interrupted. `files` are stored blobs; `options` say how to answer.
    """

    kind: Literal["user_message"] = "user_message"
    id: InputId
    text: Text = ""
    mode: Mode = "interrupt"
    blob: str | None = None
    sha256: str | None = None
    metadata: dict[str, Any] | None = None
    parent_id: InputId | None = None
    source_id: InputId | None = None
    run: bool = True
    files: tuple[FileRef, ...] = ()
    options: TurnOptions | None = None

    @property
    def digest(self) -> str:
        """What tells these words from others under the same id, whether they travel inline or as a blob."""
        words = _digest(self.text, self.blob, self.sha256)
        return digest(dumps([words, *(file.blob for file in self.files)])) if self.files else words


class Interrupt(Input):
    """Stop whatever the thread is doing now."""

    kind: Literal["interrupt"] = "interrupt"
    reason: Text | None = None


class ToolResult(Input):
    """The result of an open call, from outside the worker. Deduplicated against the history, so it needs no id.

    A `preliminary` one is shown until the next comes, and the call stays open. With `message_id`, the message of the
    call, it is also taken for a call that nobody waits for any more: then it is stored, and nothing runs.

    `staged` marks a result that the dispatch activity has already stored under the call; it never comes from outside.
    With `subscription` a call that went well goes on sending events. `display` is what people are shown instead of the
    content: segments, best first (RAP, basic/tool-result), or the blob that holds them.
    """

    kind: Literal["tool_result"] = "tool_result"
    call_id: str
    content: Text = ""
    outcome: Outcome = "ok"
    blob: str | None = None
    size_bytes: int = 0
    staged: bool = False
    subscription: bool = False
    files: tuple[FileRef, ...] = ()
    display: Text | None = None
    preliminary: bool = False
    message_id: InputId | None = None


EventSource = Literal["subscription", "child", "parent"]


class Event(Input):
    """Something that happened, told to the thread: an event of a subscription, a child's report, a parent's message.

    `call_id` names the call that it goes back to: the one that subscribed, or that spawned the child. An `associative`
    event joins the conversation; another one is handled in a child thread of its own. `at` is when the workflow took
    it in, seconds since 1970; callers leave it out.
    """

    kind: Literal["event"] = "event"
    id: InputId
    call_id: str
    content: Text = ""
    blob: str | None = None
    sha256: str | None = None
    final: bool = False
    associative: bool = True
    source: EventSource = "subscription"
    at: float = Field(default=0.0, allow_inf_nan=False)

    @property
    def digest(self) -> str:
        """What tells this event from another under the same id."""
        return _digest(self.content, self.blob, self.sha256)


class Control(Input):
    """What a person decides about a thread: to close it, to make it shorter for the model, and the like.

    A subscription (`call_id`) is ended or resumed. A decision for calls to come is withdrawn: that for the `tool`, and
    for calls with these `arguments` (their digest) if it is for such alone.
    """

    kind: Literal["control"] = "control"
    action: Literal["close", "cancel_subscription", "resume_subscription", "compact", "forget_decision"]
    call_id: str = ""
    tool: Text = ""
    arguments: str | None = None


class Regenerate(Input):
    """Answer once more: a new answer beside the message, or below it if it is a user's. The old one stays."""

    kind: Literal["regenerate"] = "regenerate"
    id: InputId
    message_id: InputId

    @property
    def digest(self) -> str:
        """What tells this from another request under the same id."""
        return digest(self.message_id)


class TreeChange(Input):
    """What a person does with the branches of a conversation.

    switch: show the branch of the message. delete: that message goes, what follows it moves up to its parent, or to
    `replacement_id`. reset: all that follows the message goes; `ROOT` for all there is. import: the messages of the
    blob (`perdure.interchange`) are added. annotate: `metadata` is merged into the message's.
    """

    kind: Literal["tree_change"] = "tree_change"
    id: InputId
    action: Literal["switch", "delete", "reset", "import", "annotate"]
    message_id: InputId | None = None
    replacement_id: InputId | None = None
    blob: str | None = None
    metadata: dict[str, Any] | None = None

    @property
    def takes_away(self) -> bool:
        """Whether all it does is to delete; a closed thread takes that too."""
        return self.action in ("delete", "reset")

    @property
    def digest(self) -> str:
        """What tells this change from another one under the same id."""
        return digest(dumps(self.with_(id="")))


class Approval(Input):
    """A person's answer to the question whether a call may run; the fields are those of `perdure.approval.Decision`."""

    kind: Literal["approval"] = "approval"
    call_id: InputId
    approved: StrictBool | None = None
    option_id: InputId | None = None
    text: Short | None = None
    answers: dict[str, Any] | None = None
    reason: Short | None = None
    by: Short | None = None
    at: float = Field(default=0.0, allow_inf_nan=False)

    @property
    def id(self) -> str:
        """A call is decided once, so its own id will do."""
        return self.call_id

    @property
    def digest(self) -> str:
        """What tells this answer from another one."""
        return digest(dumps(self.with_(at=0.0)))


def _digest(text: str, blob: str | None, sha256: str | None) -> str:
    return digest(text) if blob is None else sha256 or blob


AnyInput = Annotated[
    UserMessage | Interrupt | ToolResult | Event | Control | Regenerate | TreeChange | Approval,
    Field(discriminator="kind"),
]

Identified = UserMessage | Event | Regenerate | TreeChange
"""Inputs that the store knows again by their ids."""

Disposition = Literal[
    "started",
    "interrupted",
    "queued",
    "steered",
    "rejected",
    "duplicate",
    "conflict",
    "settled",
    "dropped",
    "deferred",
    "spawned",
    "appended",
    "changed",
    "refused",
]
"""What became of an input.

started: it opened a turn; interrupted: it did so after stopping one; queued, steered, deferred: it waits; settled: it
closed a call or decided about it; spawned: a child thread handles it; appended: it was added and nobody answers it;
changed: the tree is as was asked, or the preliminary result is shown; rejected: mode `reject` met a turn under way, or
the thread is closed; duplicate: known already, nothing changed; conflict: its id is taken by other content, nothing
changed; dropped: there is nothing it could belong to, or the blob that should hold it is not stored; refused: it names
what is not there, or asks for what cannot be done, and nothing changed.
"""


class Accepted(Wire):
    """The answer to the update `send`."""

    message_id: str
    disposition: Disposition
    detail: Text | None = None
