"""A message tree on its way from one place to another."""

from collections import deque
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Generic, TypeVar

from perdure.errors import UsageError

Content = TypeVar("Content")


@dataclass(frozen=True, slots=True)
class TreeItem(Generic[Content]):
    """A message of an export."""

    id: str
    parent_id: str | None
    content: Content


@dataclass(frozen=True, slots=True)
class TreeExport(Generic[Content]):
    """A whole tree to carry elsewhere: parents before children, siblings in order. Branches are not remembered."""

    messages: tuple[TreeItem[Content], ...] = ()
    head_id: str | None = None


def parents_first(items: Sequence[TreeItem[Content]], known: Collection[str]) -> list[TreeItem[Content]]:
    """The items with each child that was listed too early right behind its parent; else their order is kept.

    Raises UsageError if messages are each other's parents. A parent that is neither listed nor known is not looked for.
    """
    listed = {item.id for item in items}
    added: set[str] = set()
    early: dict[str, list[TreeItem[Content]]] = {}
    ordered: list[TreeItem[Content]] = []
    for item in items:
        if item.parent_id in listed and item.parent_id not in added and item.parent_id not in known:
            early.setdefault(item.parent_id, []).append(item)
            continue
        ready = deque([item])
        while ready:
            ordered.append(ready.popleft())
            added.add(ordered[-1].id)
            ready.extend(early.pop(ordered[-1].id, ()))
    if early:
        names = ", ".join(sorted(repr(item.id) for waiting in early.values() for item in waiting))
        raise UsageError(f"These messages are below each other, and none of them below the root: {names}.")
    return ordered
