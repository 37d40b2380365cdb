"""Operations of message trees as values, so that the same ones can be given to several trees, and what a tree shows."""

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from types import EllipsisType
from typing import Any, Protocol

from hypothesis import Phase
from hypothesis import strategies as st

from perdure.tree import MessageTree
from perdure.tree_export import TreeExport, TreeItem
from tests.perdure.naive_tree import NaiveTree

IDS = "abcdefghijkl"
UNKNOWN = "?"

PHASES = [phase for phase in Phase if phase is not Phase.explain]
"""All but the one that explains a failure: it traces every line, and would outlast the time that a test has."""


class AnyTree(Protocol):
    """Whatever carries operations out."""

    def add(self, parent_id: str | None, message_id: str, content: str) -> object:
        """Add, change or move a message."""
        ...

    def switch(self, message_id: str) -> object:
        """Open a branch."""
        ...

    def delete(self, message_id: str, replacement_id: str | EllipsisType | None = ...) -> object:
        """Delete a message."""
        ...

    def reset(self, message_id: str | None) -> object:
        """Delete what is below a message."""
        ...

    def import_messages(self, export: TreeExport[str]) -> object:
        """Add many messages."""
        ...


@dataclass(frozen=True)
class Add:
    """`add`."""

    parent: str | None
    id: str
    content: str = ""

    def on(self, tree: AnyTree) -> object:
        """Carry it out."""
        return tree.add(self.parent, self.id, self.content)


@dataclass(frozen=True)
class Switch:
    """`switch`."""

    id: str

    def on(self, tree: AnyTree) -> object:
        """Carry it out."""
        return tree.switch(self.id)


@dataclass(frozen=True)
class Delete:
    """`delete`, with the parent for a replacement or, if `named`, another one."""

    id: str
    named: bool = False
    replacement: str | None = None

    def on(self, tree: AnyTree) -> object:
        """Carry it out."""
        return tree.delete(self.id, self.replacement) if self.named else tree.delete(self.id)


@dataclass(frozen=True)
class Reset:
    """`reset`."""

    id: str | None

    def on(self, tree: AnyTree) -> object:
        """Carry it out."""
        return tree.reset(self.id)


@dataclass(frozen=True)
class Import:
    """`import_messages`."""

    messages: tuple[TreeItem[str], ...] = ()
    head: str | None = None

    def on(self, tree: AnyTree) -> object:
        """Carry it out."""
        return tree.import_messages(TreeExport(self.messages, self.head))


Operation = Add | Switch | Delete | Reset | Import


def wire(operation: Operation) -> dict[str, Any]:
    """The operation as JSON has it."""
    return {"kind": type(operation).__name__, **asdict(operation)}


@dataclass
class Shown:
    """Everything that can be asked of a tree. The root is the key "" of `children` and `remembered`."""

    head: str | None
    path: Sequence[str]
    messages: Sequence[tuple[str, str | None, str]]
    levels: dict[str, int]
    children: dict[str, Sequence[str]]
    branches: dict[str, Sequence[str]]
    remembered: dict[str, str | None]


def shown(tree: MessageTree[str]) -> Shown:
    """What our tree shows."""
    export = tree.export_messages()
    ids = list(tree)
    return Shown(
        head=export.head_id,
        path=list(tree.path()),
        messages=[(item.id, item.parent_id, item.content) for item in export.messages],
        levels={name: tree.level(name) for name in ids},
        children={name or "": list(tree.children(name)) for name in (None, *ids)},
        branches={name: list(tree.branches(name)) for name in ids},
        remembered={name or "": tree.remembered(name) for name in (None, *ids)},
    )


def shown_naively(tree: NaiveTree) -> Shown:
    """What the naive tree shows."""
    ids = tree.ids()
    return Shown(
        head=tree.head,
        path=tree.path(tree.head),
        messages=[(item.id, item.parent_id, item.content) for item in tree.everything()],
        levels={name: len(tree.path(name)) - 1 for name in ids},
        children={name or "": tree.children(name) for name in (None, *ids)},
        branches={name: tree.children(tree.parent(name)) for name in ids},
        remembered={name or "": tree.opened.get(name) for name in (None, *ids)},
    )


def adds(tree: MessageTree[str]) -> st.SearchStrategy[Operation]:
    """New messages, often under the head."""
    return st.builds(
        Add, _placed(tree), st.sampled_from([name for name in IDS if name not in tree] or list(IDS)), _words
    )


def changes(tree: MessageTree[str]) -> st.SearchStrategy[Operation]:
    """Messages that are there, in their place or in another one."""
    stay = [Add(tree.get(name).parent_id, name, "changed") for name in tree]
    move = st.builds(Add, _placed(tree), st.sampled_from([*list(tree) * 8, *IDS]), _words)
    return st.sampled_from(stay or [Add(UNKNOWN, "a")]) | move | move


def switches(tree: MessageTree[str]) -> st.SearchStrategy[Operation]:
    """To wherever."""
    return st.builds(Switch, _named(tree))


def deletes(tree: MessageTree[str]) -> st.SearchStrategy[Operation]:
    """With a replacement or without."""
    named = _named(tree)
    return st.builds(Delete, named) | st.builds(Delete, named, st.just(True), _placed(tree))


def resets(tree: MessageTree[str]) -> st.SearchStrategy[Operation]:
    """Seldom of everything."""
    return st.builds(Reset, st.sampled_from([*list(tree) * 4, None, UNKNOWN]))


@st.composite
def imports(draw: st.DrawFn, tree: MessageTree[str]) -> Operation:
    """Parents late or early, messages that are there and move, and now and then one that hangs on nothing."""
    present = list(tree)
    ids = draw(st.lists(st.sampled_from(IDS), max_size=6))
    parents = st.sampled_from([None, *present, *ids * 2, *[UNKNOWN] * (not ids)])
    items = tuple(TreeItem(name, draw(parents), draw(_words)) for name in ids)
    return Import(items, draw(st.sampled_from([None, None, *ids, *present, UNKNOWN])))


@st.composite
def plantings(draw: st.DrawFn) -> Operation:
    """A tree to begin with, listed in any order, its head anywhere."""
    ids = IDS[: draw(st.integers(0, 8))]
    items = [TreeItem(name, draw(st.sampled_from([None, *ids[:place] * 3])), "") for place, name in enumerate(ids)]
    return Import(tuple(draw(st.permutations(items))), draw(st.sampled_from([None, *ids])))


def operations(tree: MessageTree[str]) -> st.SearchStrategy[Operation]:
    """Any of them."""
    return st.one_of(*(kind(tree) for kind in (adds, adds, changes, switches, deletes, resets, imports)))


_words = st.sampled_from(["", "x", "y"])


def _named(tree: MessageTree[str]) -> st.SearchStrategy[str]:
    return st.sampled_from([*list(tree) * 8, *IDS, UNKNOWN])


def _placed(tree: MessageTree[str]) -> st.SearchStrategy[str | None]:
    present = list(tree)
    return st.sampled_from([*present * 3, *[tree.head_id] * (1 + len(present)), None, UNKNOWN])
