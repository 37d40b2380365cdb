"""The message tree: what was edited or answered anew stands beside what it replaces, and no branch is lost.

A tree is its nodes, each with a parent and a place among its siblings; the branch that each parent remembers, which
is the one to open on the way down; and the head. The conversation is the path from the root to the head. The root is
no message: it is `None` wherever a parent is meant. After every operation each message on the path is the remembered
branch of its parent, so switching away and back shows again what was there.

Pure, synchronous, without recursion, since a tree is as deep as its conversation is long. An operation that is
refused changes nothing: all of them look first and change then, but for the import, which takes back what it did.

How a store keeps it. Every operation returns a `TreeDelta`: the rows to write in one transaction, under the lock
under which the tree was read.
- A `TreeNode` is a row of `messages`. `place` orders siblings and is the row's `seq` until the message is moved: a
  moved one goes to the end of its new siblings and gets a number above all others. The content is whatever else the
  row holds, or None where only the shape is needed.
- What a parent remembers is a nullable column of its row, of the thread's for the root. It is empty when that is the
  last child. So an answer under the head costs no more than its own row and `threads.head_id`, which is all that
  appending has ever written, and rows from before there was such a column mean what they should.
- The root stands for what a thread inherits: a message whose parent belongs to another thread is a child of the root
  here. `parent_id` and `parent_parts` of a child of the root are the thread's `spawn_message_id` and `spawn_parts`,
  and a message that is moved away from there has no `parent_parts`.
- A removed node leaves the tree. Whether its row can go is the store's to know: another thread may inherit it.

Clients show a message before the server has named it; such placeholders are theirs alone. Their exports leave them
out, so none arrives here, and the head is always a message that is stored.
"""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from types import EllipsisType
from typing import Generic, Self, TypeVar

from perdure.errors import StoreError, UnknownMessage, UsageError
from perdure.tree_export import TreeExport, TreeItem, parents_first

Content = TypeVar("Content")


@dataclass(frozen=True, slots=True)
class TreeNode(Generic[Content]):
    """A message in the tree: `parent_id` is None for a child of the root; siblings stand in the order of `place`."""

    id: str
    parent_id: str | None
    content: Content
    place: int


@dataclass(frozen=True, slots=True)
class TreeDelta(Generic[Content]):
    """What an operation changed; empty but for the head when that was nothing.

    `nodes` are new, moved, or have other content; a parent may come after its children. `remembered` names parents
    that are still there (None: the root) with the branch that they remember now, None for their last child.
    """

    nodes: tuple[TreeNode[Content], ...]
    removed: tuple[str, ...]
    remembered: tuple[tuple[str | None, str | None], ...]
    head_id: str | None


class MessageTree(Generic[Content]):
    """A thread's messages, its branches and its head. The head is None when there is no message, and only then.

    Every method that is given the id of a message raises `UnknownMessage` if there is none, where nothing else is said.
    """

    def __init__(self) -> None:
        self._nodes: dict[str, TreeNode[Content]] = {}
        # In the order of places; the values say nothing. A dict, so that one of 30,000 siblings leaves at once.
        self._children: dict[str | None, dict[str, None]] = {}
        self._remembered: dict[str | None, str] = {}
        self._head: str | None = None
        self._next_place = 0
        # What stood there before the operation: the delta is told from it, and an import that fails is undone by it.
        self._old_nodes: dict[str, TreeNode[Content] | None] = {}
        self._old_remembered: dict[str | None, str | None] = {}

    @classmethod
    def from_nodes(
        cls, nodes: Iterable[TreeNode[Content]], remembered: Mapping[str | None, str], head_id: str | None
    ) -> Self:
        """The tree of stored rows, in any order. Raises StoreError if they are not one."""
        tree = cls()
        tree._nodes = {node.id: node for node in nodes}
        tree._remembered = dict(remembered)
        tree._head = head_id
        tree._next_place = max((node.place for node in tree._nodes.values()), default=-1) + 1
        tree._order_children()
        tree._check()
        return tree

    # -- what is there -----------------------------------------------------------------------------------------

    @property
    def head_id(self) -> str | None:
        """The message that the conversation ends with. It may have children."""
        return self._head

    def __len__(self) -> int:
        return len(self._nodes)

    def __contains__(self, message_id: object) -> bool:
        return message_id in self._nodes

    def __iter__(self) -> Iterator[str]:
        """All ids, each after its parent, a branch to its end before the next begins."""
        return self._below(None)

    def get(self, message_id: str) -> TreeNode[Content]:
        """The message with its parent."""
        try:
            return self._nodes[message_id]
        except KeyError:
            raise UnknownMessage(f"There is no message {message_id!r} in this thread.") from None

    def path(self, message_id: str | None = None) -> tuple[str, ...]:
        """The ids from the root to the message, which is the head if none is named."""
        end = self._head if message_id is None else self.get(message_id).id
        return tuple(self._upward(end))[::-1]

    def level(self, message_id: str) -> int:
        """How many messages are above it. Counted, not kept: a branch that is moved has nothing to correct."""
        return len(self.path(message_id)) - 1

    def children(self, message_id: str | None) -> tuple[str, ...]:
        """The ids below the message, or below the root, in order."""
        return tuple(self._children.get(self._checked(message_id), {}))

    def has_children(self, message_id: str) -> bool:
        """Whether anything is below it. False if there is no such message."""
        return bool(self._children.get(message_id))

    def branches(self, message_id: str) -> tuple[str, ...]:
        """The ids of the message and its siblings, in order."""
        return self.children(self.get(message_id).parent_id)

    def remembered(self, message_id: str | None) -> str | None:
        """The child to open below the message, or below the root; None exactly if it has no children."""
        parent_id = self._checked(message_id)
        return self._remembered.get(parent_id) or self._last_child(parent_id)

    def export_messages(self) -> TreeExport[Content]:
        """The whole tree. Imported into an empty one it gives the same path, branches, order and head."""
        nodes = (self._nodes[message_id] for message_id in self)
        return TreeExport(tuple(TreeItem(node.id, node.parent_id, node.content) for node in nodes), self._head)

    # -- operations --------------------------------------------------------------------------------------------

    def add(self, parent_id: str | None, message_id: str, content: Content) -> TreeDelta[Content]:
        """Add a message as the last child, or change one that is there.

        The head follows a new message only from its parent, else the message is just stored. One that is there gets
        the content and stays where it is, or moves under another parent with all below it; the head stays the message
        that it is. But a head without children, under which a branch is moved, goes to the end of that branch.

        Raises:
            UnknownMessage: there is no such parent.
            UsageError: the id is empty, or the message would come to stand under itself.
        """
        self._add(self._checked(parent_id), message_id, content)
        return self._delta()

    def switch(self, message_id: str) -> TreeDelta[Content]:
        """Open the branch of a message, and below it what was last open there: the head is at the end of that."""
        self._set_head(self._leaf(self.get(message_id).id))
        return self._delta()

    def delete(self, message_id: str, replacement_id: str | EllipsisType | None = ...) -> TreeDelta[Content]:
        """Delete one message. What is below it goes, in order, to the end of the replacement's children.

        The replacement is the parent if none is named; None is the root. A deleted head goes to the end of what is
        remembered below the replacement, which below the parent is the last sibling.

        Raises:
            UnknownMessage: there is no such message or replacement.
            UsageError: the replacement would be deleted, or stands below what would be.
        """
        parent_id = self.get(message_id).parent_id
        heir_id = parent_id if isinstance(replacement_id, EllipsisType) else self._checked(replacement_id)
        if message_id in self._upward(heir_id):
            raise UsageError(
                f"What is below message {message_id!r} cannot go to {heir_id!r}: that is no place outside."
            )
        for child_id in self.children(message_id):
            self._unlink(child_id)
            self._link(child_id, heir_id, self._nodes[child_id].content)
        self._unlink(message_id)
        self._drop(message_id)
        self._set_head(self._leaf(heir_id) if self._head == message_id else self._head)
        return self._delta()

    def reset(self, message_id: str | None) -> TreeDelta[Content]:
        """Delete everything below a message, on all its branches, and make it the head; None empties the tree.

        What is deleted is gone. Nothing that goes on with a message, such as a resumed turn, may call it.
        """
        for below_id in list(self._below(self._checked(message_id))):
            self._drop(below_id)
        self._children.pop(message_id, None)
        self._remember(message_id, None)
        self._set_head(message_id)
        return self._delta()

    def import_messages(self, export: TreeExport[Content]) -> TreeDelta[Content]:
        """Add the messages of an export, children after their parents and else in its order, and go to its head.

        What is there stays and a known id is changed, as `add` does. Without a head it is the last message, in the
        order in which they were added. An export of nothing empties the tree, as what it was made from is empty.

        Raises:
            UnknownMessage: a parent or the head is neither there nor in the export.
            UsageError: as `add`, or messages are each other's parents.
        """
        head_before = self._head
        try:
            items = parents_first(export.messages, self._nodes)
            for item in items:
                self._add(self._checked(item.parent_id), item.id, item.content)
            head_id = export.head_id if export.head_id is not None else items[-1].id if items else None
            if head_id is None:
                return self.reset(None)
            self._set_head(self.get(head_id).id)
        except UsageError:
            self._undo(head_before)
            raise
        return self._delta()

    # -- how they are done -------------------------------------------------------------------------------------

    def _checked(self, message_id: str | None) -> str | None:
        return None if message_id is None else self.get(message_id).id

    def _upward(self, message_id: str | None) -> Iterator[str]:
        while message_id is not None:
            yield message_id
            message_id = self._nodes[message_id].parent_id

    def _below(self, message_id: str | None) -> Iterator[str]:
        waiting = list(reversed(self._children.get(message_id, {})))
        while waiting:
            below_id = waiting.pop()
            yield below_id
            waiting.extend(reversed(self._children.get(below_id, {})))

    def _leaf(self, message_id: str | None) -> str | None:
        while (child_id := self.remembered(message_id)) is not None:
            message_id = child_id
        return message_id

    def _last_child(self, parent_id: str | None) -> str | None:
        return next(reversed(self._children.get(parent_id, {})), None)

    def _add(self, parent_id: str | None, message_id: str, content: Content) -> None:
        if not message_id:
            raise UsageError("A message needs an id.")
        node = self._nodes.get(message_id)
        if node is None:
            follows = self._head == parent_id
            self._link(message_id, parent_id, content)
            if follows:
                # The path to the parent is remembered already, so this is all of the way to the new head.
                self._remember(parent_id, message_id)
                self._head = message_id
        elif node.parent_id == parent_id:
            self._put(replace(node, content=content))
        elif message_id in self._upward(parent_id):
            raise UsageError(f"Message {message_id!r} cannot stand under itself.")
        else:
            self._unlink(message_id)
            self._link(message_id, parent_id, content)
            self._set_head(self._head)

    def _set_head(self, message_id: str | None) -> None:
        self._head = message_id
        for on_path in self._upward(message_id):
            self._remember(self._nodes[on_path].parent_id, on_path)

    def _link(self, message_id: str, parent_id: str | None, content: Content) -> None:
        siblings = self._children.setdefault(parent_id, {})
        remembered = self.remembered(parent_id)
        self._put(TreeNode(message_id, parent_id, content, self._next_place))
        self._next_place += 1
        siblings[message_id] = None
        if remembered is not None:
            self._remember(parent_id, remembered)
        elif self._head == parent_id:
            self._head = self._leaf(message_id)

    def _unlink(self, message_id: str) -> None:
        parent_id = self._nodes[message_id].parent_id
        del self._children[parent_id][message_id]
        if self._remembered.get(parent_id) == message_id:
            self._remember(parent_id, None)

    def _drop(self, message_id: str) -> None:
        self._old_nodes.setdefault(message_id, self._nodes.pop(message_id))
        self._children.pop(message_id, None)
        self._remember(message_id, None)

    def _put(self, node: TreeNode[Content]) -> None:
        self._old_nodes.setdefault(node.id, self._nodes.get(node.id))
        self._nodes[node.id] = node

    def _remember(self, parent_id: str | None, child_id: str | None) -> None:
        old = self._remembered.get(parent_id)
        self._old_remembered.setdefault(parent_id, old)
        if child_id is None or child_id == self._last_child(parent_id):
            self._remembered.pop(parent_id, None)
        else:
            self._remembered[parent_id] = child_id

    # -- what has changed --------------------------------------------------------------------------------------

    def _delta(self) -> TreeDelta[Content]:
        now = {message_id: self._nodes.get(message_id) for message_id in self._old_nodes}
        delta = TreeDelta(
            nodes=tuple(node for node in now.values() if node is not None and node != self._old_nodes[node.id]),
            removed=tuple(name for name, node in now.items() if node is None),
            remembered=tuple(
                (parent_id, self._remembered.get(parent_id))
                for parent_id, old in self._old_remembered.items()
                if (parent_id is None or parent_id in self._nodes) and self._remembered.get(parent_id) != old
            ),
            head_id=self._head,
        )
        self._forget_old()
        return delta

    def _undo(self, head_id: str | None) -> None:
        for message_id, node in self._old_nodes.items():
            self._nodes.pop(message_id, None)
            if node is not None:
                self._nodes[message_id] = node
        for parent_id, child_id in self._old_remembered.items():
            self._remembered.pop(parent_id, None)
            if child_id is not None:
                self._remembered[parent_id] = child_id
        self._head = head_id
        self._order_children()
        self._forget_old()

    def _forget_old(self) -> None:
        self._old_nodes.clear()
        self._old_remembered.clear()

    def _order_children(self) -> None:
        self._children = {}
        for node in sorted(self._nodes.values(), key=lambda node: node.place):
            self._children.setdefault(node.parent_id, {})[node.id] = None

    def _check(self) -> None:
        """What cannot be read as a tree must not be taken for a smaller one."""
        if sum(1 for _ in self) != len(self._nodes):
            raise StoreError("The stored tree is broken: some messages do not hang on its root.")
        if any(child_id not in self._children.get(parent_id, {}) for parent_id, child_id in self._remembered.items()):
            raise StoreError("The stored tree is broken: a remembered branch is not a child.")
        if (self._head is None) != (not self._nodes) or (self._head is not None and self._head not in self._nodes):
            raise StoreError(f"The stored tree is broken: its head {self._head!r} does not belong to it.")
        if any(self.remembered(self._nodes[on_path].parent_id) != on_path for on_path in self._upward(self._head)):
            raise StoreError("The stored tree is broken: the path to its head is not what is remembered.")
