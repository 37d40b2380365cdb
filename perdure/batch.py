"""What `sync` writes: one batch of operations, applied in one transaction or not at all.

A batch is numbered. The store keeps the number of the last one it applied (the thread's version), so a batch is
applied once however often it is sent: the same number and `sync_id` again returns the stored report (a retry after a
lost reply), an older number or another `sync_id` is a stale writer. A batch that brings an input which the thread
has accepted before, or whose words are in a blob that is not stored, is refused whole, with the input named, so the
manager can build it again without it.
"""

from typing import Annotated, Literal

from pydantic import Field

from perdure.codec import Text, Wire
from perdure.messages import Message, Part, Status, ToolResultPart, Usage


class AppendMessage(Wire):
    """A new message. Its parent is the thread's head unless `message.parent_id` names one; it becomes the head.

    With `message.input_id` set, the input is recorded as accepted under `digest` in the same transaction.
    """

    kind: Literal["append_message"] = "append_message"
    message: Message
    digest: str | None = None


class AppendParts(Wire):
    """Parts whose content is in the batch, placed from position `start`, the end of the message.

    Their calls are open; one with an `error` has that for its staged result.
    """

    kind: Literal["append_parts"] = "append_parts"
    message_id: str
    start: int
    parts: tuple[Part, ...]


class CommitStep(Wire):
    """The content of the turn buffer for (turn, step) becomes parts of the message, from position `start`.

    `sealed` closes a step that is still streaming: its later writes are refused, and of what streamed the text and
    finished reasoning before it stay, calls and a trailing thought do not. `trim_reasoning` drops trailing reasoning
    of a finished step. `discard` drops the whole of it. A step that never began commits nothing. `usage` is added to
    the thread's: with the step and not with the end of the turn, which may be another owner's to write.
    """

    kind: Literal["commit_step"] = "commit_step"
    message_id: str
    start: int
    turn: int
    step: int
    sealed: bool = False
    trim_reasoning: bool = False
    discard: bool = False
    usage: Usage = Usage()


class StageResult(Wire):
    """A result from outside, kept under its call until its whole group is in."""

    kind: Literal["stage_result"] = "stage_result"
    result: ToolResultPart


class CommitResults(Wire):
    """The results of one parallel group become parts, in call order. The calls are open no longer.

    A call's staged result is used where there is one; `results` holds those that were made in the workflow
    (interrupted, refused) and wins only over nothing: what a tool really returned is never replaced.
    """

    kind: Literal["commit_results"] = "commit_results"
    message_id: str
    start: int
    call_ids: tuple[str, ...]
    results: tuple[ToolResultPart, ...] = ()


class SetStatus(Wire):
    """A message settles. The first settled status stays: a later one is ignored."""

    kind: Literal["set_status"] = "set_status"
    message_id: str
    status: Status


class TrackSubscription(Wire):
    """A settled call goes on sending events. Written again when its counters change or it is paused: the last wins.

    `arguments` are those of the call, clipped; `received` counts its events; `paused` says why it is paused.
    """

    kind: Literal["track_subscription"] = "track_subscription"
    call_id: str
    tool: str
    arguments: Text = "{}"
    received: int = 0
    paused: Text | None = None


class RemoveSubscription(Wire):
    """A subscription has ended."""

    kind: Literal["remove_subscription"] = "remove_subscription"
    call_id: str


class SetDue(Wire):
    """An open call ends by itself at a time, in seconds since 1970: a timer that must survive its workflow run."""

    kind: Literal["set_due"] = "set_due"
    call_id: str
    due: float


class CloseThread(Wire):
    """The thread takes nothing more."""

    kind: Literal["close_thread"] = "close_thread"


Operation = Annotated[
    AppendMessage
    | AppendParts
    | CommitStep
    | StageResult
    | CommitResults
    | SetStatus
    | TrackSubscription
    | RemoveSubscription
    | SetDue
    | CloseThread,
    Field(discriminator="kind"),
]


class SyncBatch(Wire):
    """`number` is the thread's version before the batch plus one; `sync_id` names this attempt to write it."""

    thread_id: str
    number: int
    sync_id: str
    operations: tuple[Operation, ...] = ()


class Refused(Wire):
    """An input that the thread has accepted before; `conflict` if it was with other content.

    Or one that nobody could read: `missing` if it names a blob that neither the thread nor an ancestor has.
    """

    input_id: str
    conflict: bool = False
    missing: bool = False


class SyncReport(Wire):
    """What a batch did. With `refused` not empty nothing was written and the version is unchanged.

    `steps` names the (turn, step) pairs whose parts are durable since this batch: what dispatch waits for.
    """

    number: int
    steps: tuple[tuple[int, int], ...] = ()
    refused: tuple[Refused, ...] = ()
    detail: Text | None = None
