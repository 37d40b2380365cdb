"""The message tree against its naive twin: whatever is done to both, they show the same, and the rules hold.

A store goes along that knows nothing but the deltas: what is loaded from it is the tree again.
"""

from copy import deepcopy
from typing import cast
from unittest import TestCase

import pytest
from hypothesis import event
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from perdure.errors import UsageError
from perdure.tree import MessageTree, TreeDelta, TreeNode
from tests.perdure.naive_tree import NaiveTree
from tests.perdure.tree_operations import (
    PHASES,
    UNKNOWN,
    Operation,
    adds,
    changes,
    deletes,
    imports,
    plantings,
    resets,
    shown,
    shown_naively,
    switches,
)
from tests.properties import settings


class Rows:
    """What a store keeps: rows, a nullable column that says what is remembered, and the head."""

    def __init__(self) -> None:
        self.nodes: dict[str, TreeNode[str]] = {}
        self.remembered: dict[str | None, str | None] = {}
        self.head_id: str | None = None

    def write(self, delta: TreeDelta[str]) -> None:
        """Apply a delta as a store would: a row that goes takes its columns along."""
        for name in delta.removed:
            del self.nodes[name]
            self.remembered.pop(name, None)
        self.nodes |= {node.id: node for node in delta.nodes}
        assert all(parent is None or parent in self.nodes for parent, _ in delta.remembered)
        self.remembered |= dict(delta.remembered)
        self.head_id = delta.head_id

    def load(self) -> MessageTree[str]:
        """The tree of the rows."""
        remembered = {parent: child for parent, child in self.remembered.items() if child is not None}
        return MessageTree[str].from_nodes(self.nodes.values(), remembered, self.head_id)


class TreeMachine(RuleBasedStateMachine):
    """Operations go to the tree, to its twin and, as deltas, to the rows."""

    def __init__(self) -> None:
        super().__init__()
        self.tree: MessageTree[str] = MessageTree()
        self.twin = NaiveTree()
        self.rows = Rows()

    @initialize(planting=plantings())
    def plant(self, planting: Operation) -> None:
        """Some tree to begin with."""
        self.operate(planting)

    @rule(data=st.data())
    def add(self, data: st.DataObject) -> None:
        """A new message."""
        self.operate(data.draw(adds(self.tree)))

    @rule(data=st.data())
    def change(self, data: st.DataObject) -> None:
        """A message that is there."""
        self.operate(data.draw(changes(self.tree)))

    @rule(data=st.data())
    def switch(self, data: st.DataObject) -> None:
        """Another branch."""
        self.operate(data.draw(switches(self.tree)))

    @rule(data=st.data())
    def delete(self, data: st.DataObject) -> None:
        """One message."""
        self.operate(data.draw(deletes(self.tree)))

    @rule(data=st.data())
    def reset(self, data: st.DataObject) -> None:
        """All below a message."""
        self.operate(data.draw(resets(self.tree)))

    @rule(data=st.data())
    def import_messages(self, data: st.DataObject) -> None:
        """Several at once."""
        self.operate(data.draw(imports(self.tree)))

    @rule()
    def go_on_from_rows(self) -> None:
        """Another process goes on with what is stored."""
        self.tree = self.rows.load()

    def operate(self, operation: Operation) -> None:
        """One operation, carried out by both or refused by both; refused, it changes nothing (T6)."""
        name, before, rows_before = type(operation).__name__, shown(self.tree), dict(self.rows.nodes)
        try:
            delta = cast("TreeDelta[str]", operation.on(self.tree))
        except UsageError:
            event(f"{name} refused")
            with pytest.raises(UsageError):
                operation.on(self.twin)
            assert shown(self.tree) == before
            return
        inner = before.head is not None and bool(before.children[before.head])
        event(f"{name} done" + " with an inner head" * inner)
        operation.on(self.twin)
        assert all(node != rows_before.get(node.id) for node in delta.nodes)
        self.rows.write(delta)

    @invariant()
    def twins_show_the_same(self) -> None:
        """Head, path, contents, levels, order, branches, what is remembered; siblings keep their order (T4)."""
        assert shown(self.tree) == shown_naively(self.twin)

    @invariant()
    def rows_are_the_tree(self) -> None:
        """The deltas told everything."""
        assert shown(self.rows.load()) == shown(self.tree)
        assert len(self.rows.nodes) == len(self.tree)

    @invariant()
    def rules_hold(self) -> None:
        """T1, T2, T3 and T5, of what is shown."""
        now = shown(self.tree)
        ids = [name for name, _, _ in now.messages]
        assert len(set(ids)) == len(ids) == len(self.tree)
        for name, parent, _ in now.messages:
            assert now.levels[name] == (0 if parent is None else now.levels[parent] + 1)
            assert now.children[parent or ""].count(name) == 1
        for parent, child in now.remembered.items():
            assert child in now.children[parent] if now.children[parent] else child is None
        for above, below in zip(["", *now.path], now.path, strict=False):
            assert now.remembered[above] == below
        assert (now.head is None) == (not ids)
        assert now.path[-1:] == ([] if now.head is None else [now.head])

    @invariant()
    def exports_come_back(self) -> None:
        """Export and import keep path, branches, order and head (T20); what was remembered elsewhere may be lost."""
        export = self.tree.export_messages()
        copy: MessageTree[str] = MessageTree()
        copy.import_messages(export)
        before, after = shown(self.tree), shown(copy)
        assert copy.export_messages() == export
        assert (after.path, after.branches, after.levels) == (before.path, before.branches, before.levels)

    @invariant()
    def questions_change_nothing(self) -> None:
        """Whoever asks, for what is there or not, leaves it as it is."""
        before = deepcopy(shown(self.tree))
        assert not self.tree.has_children(UNKNOWN)
        for ask in (self.tree.get, self.tree.path, self.tree.branches, self.tree.children, self.tree.remembered):
            with pytest.raises(UsageError, match="There is no message"):
                ask(UNKNOWN)
        assert shown(self.tree) == before


TestTree: type[TestCase] = TreeMachine.TestCase
TestTree.settings = settings(stateful_step_count=20, phases=PHASES)  # type: ignore[attr-defined] # pyright: ignore[reportAttributeAccessIssue] - Hypothesis reads it
