"""What `sync` writes: one batch of operations, applied in one transaction or not at all.

A batch is numbered. The store keeps the number of the last one it applied (the thread's version), so a batch is
applied once however often it is sent: the same number and `sync_id` again returns the stored report (a retry after a
lost reply), an older number or another `sync_id` is a stale writer. A batch that brings an input which the thread
has accepted before, or whose words are in a blob that is not stored, is refused whole, with the input named, so the
manager can build it again without it.
"""

from typing import Annotated, Any, Literal

from pydantic import Field

from perdure.approval import Decision, RememberedDecision
from perdure.codec import Text, Wire
from perdure.messages import Message, Part, Status, ToolResultPart, Usage


class AppendMessage(Wire):
    """A new message. Its parent is the thread's head unless something else is said; it becomes the head.

    The parent is `message.parent_id`; or the parent of the message `beside`; or the message `answering`, of an
    assistant's message its parent, so that an answer stands beside another one; or nothing `at_root`. With
    `input_id` (else `message.input_id`) the input is recorded as accepted under `digest` in the same transaction.

    Where one of these is said and the parent is a turn that waits for people (`requires_action`), that turn settles
    first, as incomplete and cancelled: its undecided questions are resolved as cancelled, and its open calls get their
    staged results or else a cancelled one. A turn that goes on at the head is settled by whoever made the batch.
    """

    kind: Literal["append_message"] = "append_message"
    message: Message
    digest: str | None = None
    beside: str | None = None
    answering: str | None = None
    at_root: bool = False
    input_id: str | None = None


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
    """A turn settles, or begins or ceases to wait for people (`requires_action`, `running`).

    The first settled status stays: a later one is ignored, so a turn that has ended never goes on.
    """

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


class Decide(Wire):
    """What became of the question whether an open call may run. The first decision stays; it is kept with its part.

    When the call ends by itself (`SetDue`) was said of the question, and is forgotten with it.
    """

    kind: Literal["decide"] = "decide"
    call_id: str
    decision: Decision


class RememberDecision(Wire):
    """A decision holds for calls to come. One for the same tool and arguments is replaced."""

    kind: Literal["remember_decision"] = "remember_decision"
    remembered: RememberedDecision


class ForgetDecisions(Wire):
    """No decision holds for calls to come any more."""

    kind: Literal["forget_decisions"] = "forget_decisions"


class ShowInterim(Wire):
    """A preliminary result of an open call: readers see it, and the call goes on. The last one stays."""

    kind: Literal["show_interim"] = "show_interim"
    result: ToolResultPart


class StoreLateResult(Wire):
    """The result of a call that is not at hand. If it is open, in a turn that rests, the result is staged.

    With `subscribes` the first one makes the call a subscription; a preliminary one (`interim`) is shown, as by
    `ShowInterim`. Of a call that nobody waited for any more the result takes the place of the one that was made up for
    it: only of one whose outcome is interrupted, cancelled or expired. What a tool has returned is never replaced. The
    call's outcome decides at the moment of writing; another one is left alone.

    Without a message it is the result of an open call, on whatever branch, and of no other one. So is a preliminary
    one. If there is no such call, or the call is not in the message, the result is left alone, unless whoever gave it
    is to be told (`named`): then the batch is refused.
    """

    kind: Literal["store_late_result"] = "store_late_result"
    message_id: str | None = None
    result: ToolResultPart
    named: bool = False
    subscribes: bool = False
    interim: bool = False


class SwitchBranch(Wire):
    """The branch of a message is opened, and below it what was last open there (`perdure.tree`)."""

    kind: Literal["switch_branch"] = "switch_branch"
    message_id: str
    input_id: str
    digest: str


class DeleteMessage(Wire):
    """A message goes, with all that was kept of its content; what is below it moves to its parent or `replacement_id`.

    Child threads that inherit up to it inherit up to its parent from now on, whole.
    """

    kind: Literal["delete_message"] = "delete_message"
    message_id: str
    replacement_id: str | None = None
    input_id: str
    digest: str


class ResetThread(Wire):
    """All below a message goes, on all branches; all there is if that is None."""

    kind: Literal["reset_thread"] = "reset_thread"
    message_id: str | None
    input_id: str
    digest: str


class ImportedMessage(Wire):
    """A message from outside, its ids those of the file; `created_at` is its time as text (ISO 8601), if it has one.

    A running or paused message is a turn that can be resumed: calls among its parts without a result are open, and
    `interim` are the preliminary results of those.
    """

    message: Message
    created_at: str | None = None
    interim: tuple[ToolResultPart, ...] = ()


class ImportMessages(Wire):
    """Messages from outside are added to the tree, and its head is theirs.

    They are in the blob. Whoever applies the batch reads them from there and puts them, checked, into `messages`: they
    never travel through Temporal. `head_id` is theirs; their ids are those of the file.
    """

    kind: Literal["import_messages"] = "import_messages"
    blob: str
    input_id: str
    digest: str
    messages: tuple[ImportedMessage, ...] = ()
    head_id: str | None = None


class AnnotateMessage(Wire):
    """Values are merged into a message's metadata; None removes a key."""

    kind: Literal["annotate_message"] = "annotate_message"
    message_id: str
    metadata: dict[str, Any]
    input_id: str
    digest: str


class CloseThread(Wire):
    """The thread takes nothing more. Turns that wait for people settle as cancelled, on whatever branch.

    No operation of the same batch adds to those that are not settled by it: they rest.
    """

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
    | CloseThread
    | Decide
    | RememberDecision
    | ForgetDecisions
    | ShowInterim
    | StoreLateResult
    | SwitchBranch
    | DeleteMessage
    | ResetThread
    | ImportMessages
    | AnnotateMessage,
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

    Or a deletion that was made before under another id. Or one that nobody could read: `missing` if it names a blob
    that neither the thread nor an ancestor has. Or one that the tree does not allow: `detail` says why, in a sentence
    for whoever asked. A late result has no id: it is named by its call (`input_id`) and the `message_id` that was given
    with it, which is not that of the call; or by an empty one, if none was given and no such call is open.
    """

    input_id: str
    message_id: str | None = None
    conflict: bool = False
    missing: bool = False
    detail: Text | None = None


class TreeReport(Wire):
    """How the tree stands after a batch that did more to it than to go on at the head.

    `last` is the head's status, None of a message that is no turn; `paused` says that the head is a turn that waits for
    people. Of the turn that runs, if there is one, `followers` counts the messages below it, and `hidden` says that it
    is not on the path to the head. `turn` is the thread's. After a deletion, a reset or an import `untitled` says that
    the thread has no title: one that was made of its words goes with them.
    """

    head_id: str | None = None
    last: Status | None = None
    paused: bool = False
    followers: int = 0
    hidden: bool = False
    turn: int = 0
    untitled: bool = False


class SyncReport(Wire):
    """What a batch did. With `refused` not empty nothing was written and the version is unchanged.

    `steps` names the (turn, step) pairs whose parts are durable since this batch: what dispatch waits for. `tree` is
    set if the batch changed the tree (`changes_tree`).
    """

    number: int
    steps: tuple[tuple[int, int], ...] = ()
    refused: tuple[Refused, ...] = ()
    detail: Text | None = None
    tree: TreeReport | None = None


def changes_tree(operation: Operation) -> bool:
    """Whether an operation needs the tree's shape, and a report of it.

    What goes on at the head does not, so the usual turn costs the same however many messages there are; nor does what
    stays in its own message. Closing does: turns may wait for people on any branch.
    """
    if isinstance(operation, AppendMessage):
        return bool(
            operation.at_root or operation.beside or operation.answering or operation.message.parent_id is not None
        )
    return isinstance(operation, SwitchBranch | DeleteMessage | ResetThread | ImportMessages | CloseThread)
