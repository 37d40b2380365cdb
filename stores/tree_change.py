"""What the operations of a batch do to the message tree, for both stores alike.

A store loads the rows of a thread under its lock, gives each operation that concerns the tree to `apply`, in the order
of the batch, and writes what comes back. Plain appends are among them: which message they follow depends on what
stood before them in the batch. Nothing here is content but the roles, which say where an answer belongs.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import NamedTuple

from perdure.batch import (
    AnnotateMessage,
    AppendMessage,
    DeleteMessage,
    ImportMessages,
    Operation,
    ResetThread,
    SwitchBranch,
    TreeReport,
)
from perdure.errors import ContentConflict, UsageError
from perdure.inputs import ROOT
from perdure.messages import Role, Status
from perdure.tree import MessageTree, TreeDelta, TreeNode
from stores.tree_import import ImportedRow, KnownMessages, import_messages

Tree = MessageTree[Role]
TreeOperation = AppendMessage | SwitchBranch | DeleteMessage | ResetThread | ImportMessages


class TreeRow(NamedTuple):
    """A row of `messages`. A parent in another thread, which is what this one inherits, stands for the root."""

    id: str
    parent_id: str | None
    place: int
    role: Role


@dataclass(frozen=True, slots=True)
class Applied:
    """What an operation did.

    `delta` holds the rows to write: parents (None: the root), places, remembered branches, removed messages, the head.
    No place is above the thread's number afterwards: a store raises that to the highest if need be. So whatever is
    appended later, whose place is its number, comes after its siblings.

    `parent_id` is the parent of an appended message. Of removed messages, `heir_id` is the one up to which child
    threads inherit now that inherited up to them (None: what this thread inherits itself). At and below `changed`,
    seen from before, no summary holds any more; `redraws` says that readers need a new snapshot, `reshapes` that what
    is kept of paths is void.
    """

    delta: TreeDelta[Role]
    parent_id: str | None = None
    heir_id: str | None = None
    imported: tuple[ImportedRow, ...] = ()
    changed: tuple[str, ...] = ()
    redraws: bool = True

    @property
    def reshapes(self) -> bool:
        """Whether something in the middle of a path is another than before."""
        return bool(self.changed)


def tree_of(rows: Iterable[TreeRow], remembered: Mapping[str | None, str], head_id: str | None) -> Tree:
    """The tree of a thread's own rows. Raises StoreError if they are none.

    A thread that has no message yet may begin at one of another thread: then the root stands for that.
    """
    own = {row.id: row for row in rows}
    nodes: list[TreeNode[Role]] = [
        TreeNode(row.id, row.parent_id if row.parent_id in own else None, row.role, row.place) for row in own.values()
    ]
    return Tree.from_nodes(nodes, remembered, head_id if own else None)


def of_tree(operation: Operation) -> TreeOperation | None:
    """The operation, if the tree must be told of it once it has been loaded."""
    return operation if isinstance(operation, TreeOperation) else None


def apply(
    tree: Tree, operation: TreeOperation, thread_id: str, turn: int, known: KnownMessages | None = None
) -> Applied:
    """Apply one operation to the tree; `turn` is the thread's newest, `known` the messages that an import names.

    Raises:
        UsageError: with a sentence for whoever asked. The tree is as it was, and the whole batch must be refused.
        ContentConflict: if the thread has a message of this id.
    """
    match operation:
        case AppendMessage():
            return _append(tree, operation)
        case SwitchBranch(message_id=message_id):
            before = tree.head_id
            delta = tree.switch(message_id)
            return Applied(delta, redraws=delta.head_id != before)
        case DeleteMessage():
            return _delete(tree, operation)
        case ResetThread(message_id=message_id):
            delta = tree.reset(message_id)
            return Applied(delta, heir_id=message_id, changed=delta.removed)
        case ImportMessages():
            assert known is not None, "bug: what an import names was not read"
            done = import_messages(tree, operation, thread_id, turn, known)
            redraws = bool(done.moves_head or done.rows or done.changed)
            return Applied(done.delta, imported=done.rows, changed=done.changed, redraws=redraws)


def report(
    tree: Tree,
    status: Status | None,
    running_id: str | None,
    turn: int,
    *,
    operations: Iterable[Operation] = (),
    title: str | None = None,
) -> TreeReport:
    """How the tree stands after these operations.

    `status` is that of the head if it has one, `turn` the thread's newest, `title` what it is called by now.
    """
    last = status if tree.head_id is not None and tree.get(tree.head_id).content == "assistant" else None
    return TreeReport(
        head_id=tree.head_id,
        last=last,
        paused=last is not None and last.state == "requires_action",
        followers=0 if running_id is None else followers(tree, running_id),
        hidden=running_id is not None and is_hidden(tree, running_id),
        turn=turn,
        untitled=title is None
        and any(isinstance(one, DeleteMessage | ResetThread | ImportMessages) for one in operations),
    )


def followers(tree: Tree, message_id: str) -> int:
    """How many messages are below one, on all branches."""
    count, waiting = 0, [message_id]
    while waiting:
        children = tree.children(waiting.pop())
        count += len(children)
        waiting.extend(children)
    return count


def is_hidden(tree: Tree, message_id: str) -> bool:
    """Whether a message is not on the path to the head."""
    return message_id not in tree.path()


def _append(tree: Tree, operation: AppendMessage) -> Applied:
    message_id = operation.message.id
    if message_id in tree:
        raise ContentConflict(f"This id is taken already; what is stored stays. Message {message_id}")
    before = tree.head_id
    parent_id = _parent(tree, operation)
    role = operation.message.role
    delta = tree.add(parent_id, message_id, role)
    if delta.head_id != message_id:
        # Only now, and not as the tree has it: who asked for this message is to see it.
        opened = tree.switch(message_id)
        remembered = tuple({**dict(delta.remembered), **dict(opened.remembered)}.items())
        delta = TreeDelta(delta.nodes, (), remembered, opened.head_id)
    return Applied(delta, parent_id=parent_id, redraws=parent_id != before)


def _parent(tree: Tree, operation: AppendMessage) -> str | None:
    if operation.message.parent_id is not None:
        return tree.get(operation.message.parent_id).id
    if operation.at_root:
        return None
    if operation.beside is not None:
        edited = tree.get(operation.beside)
        if edited.content != operation.message.role:
            raise UsageError(f"Message {operation.beside!r} is not the user's: only words can be edited; answer anew.")
        return edited.parent_id
    if operation.answering is not None:
        answered = tree.get(operation.answering)
        return answered.parent_id if answered.content == "assistant" else answered.id
    return tree.head_id


def _delete(tree: Tree, operation: DeleteMessage) -> Applied:
    heir_id = tree.get(operation.message_id).parent_id
    match operation.replacement_id:
        case None:
            delta = tree.delete(operation.message_id)
        case str(name) if name == ROOT:
            delta = tree.delete(operation.message_id, None)
        case replacement_id:
            delta = tree.delete(operation.message_id, replacement_id)
    return Applied(delta, heir_id=heir_id, changed=(operation.message_id,))


def is_gone(tree: Tree | None, operation: Operation) -> bool:
    """Whether a deletion, which was refused, is of a message that is not there.

    Then it may be one that was made before, under another id: two people delete the same message. It is known by its
    digest, for nothing is left of the message; and so it is told from an id that never was any.
    """
    return tree is not None and isinstance(operation, DeleteMessage) and operation.message_id not in tree


def input_of(operation: Operation) -> tuple[str, str | None] | None:
    """The input that an operation carries out, with its digest; it is recorded as accepted with it."""
    if isinstance(operation, AppendMessage):
        name = operation.input_id or operation.message.input_id
        return None if name is None else (name, operation.digest)
    if isinstance(operation, SwitchBranch | DeleteMessage | ResetThread | ImportMessages | AnnotateMessage):
        return operation.input_id, operation.digest
    return None
