"""The naive twin of the message tree: lists that are searched, and nothing that is not looked up again.

It knows no deltas and no places. The nodes stand in one list in the order in which they were put where they are, so
siblings are in order by themselves; `opened` says for every parent with children which of them is open.
"""

from collections.abc import Sequence
from copy import deepcopy
from dataclasses import dataclass, field
from types import EllipsisType

from perdure.errors import UsageError
from perdure.tree_export import TreeExport, TreeItem

Item = TreeItem[str]


@dataclass
class NaiveTree:
    """A tree as it should be."""

    items: list[Item] = field(default_factory=list[Item])
    opened: dict[str | None, str] = field(default_factory=dict[str | None, str])
    head: str | None = None

    # -- what is there -----------------------------------------------------------------------------------------

    def ids(self) -> list[str]:
        """All of them."""
        return [item.id for item in self.items]

    def item(self, message_id: str) -> Item:
        """The message, or an error."""
        found = [item for item in self.items if item.id == message_id]
        if not found:
            raise UsageError(message_id)
        return found[0]

    def parent(self, message_id: str) -> str | None:
        """Of a message."""
        return self.item(message_id).parent_id

    def children(self, parent: str | None) -> list[str]:
        """In order."""
        return [item.id for item in self.items if item.parent_id == parent]

    def path(self, message_id: str | None) -> list[str]:
        """From the root."""
        return [] if message_id is None else [*self.path(self.parent(message_id)), message_id]

    def leaf(self, message_id: str | None) -> str | None:
        """What is open, all the way down."""
        return self.leaf(self.opened[message_id]) if self.children(message_id) else message_id

    def everything(self, parent: str | None = None) -> list[Item]:
        """In the order of an export."""
        return [item for child in self.children(parent) for item in (self.item(child), *self.everything(child))]

    # -- operations --------------------------------------------------------------------------------------------

    def add(self, parent_id: str | None, message_id: str, content: str) -> None:
        """Add, change or move."""
        if parent_id is not None:
            self.item(parent_id)
        if not message_id or message_id in self.path(parent_id):
            raise UsageError(message_id)
        if message_id not in self.ids():
            at_head = parent_id == self.head
            self.place(TreeItem(message_id, parent_id, content))
            if at_head:
                self.head = message_id
        elif self.parent(message_id) != parent_id:
            self.place(TreeItem(message_id, parent_id, content))
        else:
            self.items = [TreeItem(i.id, i.parent_id, content) if i.id == message_id else i for i in self.items]
        self.open_path()

    def switch(self, message_id: str) -> None:
        """Open a branch, and the one that was open in it."""
        self.item(message_id)
        self.head = self.leaf(message_id)
        self.open_path()

    def delete(self, message_id: str, replacement_id: str | EllipsisType | None = ...) -> None:
        """One message; its children find another parent."""
        heir = self.parent(message_id) if isinstance(replacement_id, EllipsisType) else replacement_id
        if message_id in self.path(heir):
            raise UsageError(message_id)
        for child in self.children(message_id):
            self.place(TreeItem(child, heir, self.item(child).content))
        self.items.remove(self.item(message_id))
        self.reopen()
        if self.head == message_id:
            self.head = self.leaf(heir)
        self.open_path()

    def reset(self, message_id: str | None) -> None:
        """Nothing stays below."""
        if message_id is not None:
            self.item(message_id)
        gone = self.everything(message_id)
        self.items = [item for item in self.items if item not in gone]
        self.head = message_id
        self.reopen()
        self.open_path()

    def import_messages(self, export: TreeExport[str]) -> None:
        """Into a copy, which is taken if all of it goes well."""
        draft = deepcopy(self)
        ordered = parents_first(export.messages, self.ids())
        for item in ordered:
            draft.add(item.parent_id, item.id, item.content)
        head = export.head_id or (ordered[-1].id if ordered else None)
        if head is None:
            draft.reset(None)
        else:
            draft.item(head)
            draft.head = head
            draft.open_path()
        self.items, self.opened, self.head = draft.items, draft.opened, draft.head

    # -- how they are done -------------------------------------------------------------------------------------

    def place(self, item: Item) -> None:
        """Put a message, new or not, last below its parent. A childless head goes to its end."""
        at_bare_head = item.parent_id == self.head and not self.children(item.parent_id)
        self.items = [other for other in self.items if other.id != item.id]
        self.reopen()
        self.items.append(item)
        self.reopen()
        if at_bare_head:
            self.head = self.leaf(item.id)

    def reopen(self) -> None:
        """Where the open child has gone, the last one is open; a first child is open."""
        for parent in [None, *self.ids()]:
            children = self.children(parent)
            if children and self.opened.get(parent) not in children:
                self.opened[parent] = children[-1]
        with_children = {item.parent_id for item in self.items}
        self.opened = {parent: child for parent, child in self.opened.items() if parent in with_children}

    def open_path(self) -> None:
        """What is seen is open."""
        for message_id in self.path(self.head):
            self.opened[self.parent(message_id)] = message_id


def parents_first(items: Sequence[Item], known: list[str]) -> list[Item]:
    """Level by level: whoever came too early follows its parent."""
    listed = [item.id for item in items]
    ordered: list[Item] = []
    early: list[Item] = []
    for item in items:
        parent = item.parent_id
        if parent in listed and parent not in known and parent not in [other.id for other in ordered]:
            early.append(item)
            continue
        level = [item]
        while level:
            ordered += level
            level = [later for above in level for later in early if later.parent_id == above.id]
            early = [item for item in early if item not in level]
    return ordered + early
