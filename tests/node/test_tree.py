"""The message tree does what the published one does, operation by operation; and where it does not, that is told.

Placeholders of clients (optimistic messages) are not in our tree: what counts is that the published tree leaves them
out of what it sends.
"""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import event, given, note
from hypothesis import strategies as st

from perdure.errors import UsageError
from perdure.tree import MessageTree
from perdure.tree_export import TreeExport, TreeItem
from tests.node.repositories import Answer, Repositories
from tests.perdure.tree_operations import (
    PHASES,
    Add,
    Delete,
    Import,
    Operation,
    Switch,
    operations,
    plantings,
    shown,
    wire,
)
from tests.properties import settings

pytestmark = pytest.mark.node


def carried_out(tree: MessageTree[str], operation: Operation) -> Answer:
    """What becomes of it in ours."""
    try:
        operation.on(tree)
    except UsageError:
        return Answer(refused=True, shown=shown(tree))
    return Answer(refused=False, shown=shown(tree))


@settings(phases=PHASES)
@given(data=st.data(), planting=plantings(), count=st.integers(1, 15))
def test_agrees_with_the_published_tree(
    repositories: Repositories, data: st.DataObject, planting: Operation, count: int
) -> None:
    """The same operations are refused, and after each head, path, branches, order and what is open are the same.

    What the repository was put right in (`unselected`, `leftovers`) is what the tests below show one by one.
    """
    tree: MessageTree[str] = MessageTree()
    done = [planting]
    answers = [carried_out(tree, planting)]
    for _ in range(count):
        done.append(data.draw(operations(tree)))
        answers.append(carried_out(tree, done[-1]))
    for operation, answer, published in zip(done, answers, repositories.run(done), strict=True):
        name = type(operation).__name__
        note(f"{operation}")
        event(f"{name} {'refused' if answer.refused else 'done'}")
        assert (published.refused, published.shown) == (answer.refused, answer.shown)
        if published.unselected:
            event(f"{name} leaves the path unselected")
            assert name in ("Add", "Delete", "Import")
        if published.leftovers:
            event(f"{name} is refused and leaves something")
            assert name == "Import"


U_A_X_AND_B = Import((TreeItem("u", None, ""), TreeItem("a", "u", ""), TreeItem("x", "a", ""), TreeItem("b", "u", "")))


@pytest.mark.parametrize(
    "done",
    [
        pytest.param([replace(U_A_X_AND_B, head="a"), Add("b", "y"), Add("b", "a")], id="an inner head moves"),
        pytest.param(
            [U_A_X_AND_B, Add("x", "y"), Add("a", "z"), Import(head="x"), Delete("a")], id="above an inner head"
        ),
        pytest.param([U_A_X_AND_B, Add("u", "c"), Switch("b"), Delete("b", True, "a")], id="a head with another heir"),
    ],
)
def test_the_published_path_is_not_always_open(repositories: Repositories, done: Sequence[Operation]) -> None:
    """After these the published tree shows a path that it does not remember: switching to an ancestor would leave it.

    In ours each message on the path is what its parent remembers, after every operation; all else is the same.
    """
    tree: MessageTree[str] = MessageTree()
    answers = [carried_out(tree, operation) for operation in done]
    *before, last = repositories.run(done)
    assert last.unselected
    assert not any(answer.unselected for answer in before)
    assert last.shown == answers[-1].shown
    path = ["", *last.shown.path]
    assert [last.shown.remembered[name] for name in path[:-1]] == path[1:]


@pytest.mark.parametrize(
    "refused",
    [
        pytest.param(Import((TreeItem("new", None, ""), TreeItem("y", "nobody", ""))), id="parent"),
        pytest.param(Import((TreeItem("new", None, ""),), "nobody"), id="head"),
    ],
)
def test_the_published_import_leaves_what_it_had_added(repositories: Repositories, refused: Import) -> None:
    """Both refuse it; ours is then as it was, whatever was listed before the message that does not fit."""
    tree: MessageTree[str] = MessageTree()
    before = carried_out(tree, U_A_X_AND_B)
    published = repositories.run([U_A_X_AND_B, refused])[-1]
    assert (published.refused, published.leftovers) == (True, True)
    assert carried_out(tree, refused) == replace(before, refused=True)


@pytest.mark.parametrize("operation", [Add("a", ""), Add("", "new")], ids=["id", "parent"])
def test_the_published_tree_takes_empty_ids(repositories: Repositories, operation: Add) -> None:
    """As an id like others, and as the root where a parent is meant. Ours refuses both."""
    tree: MessageTree[str] = MessageTree()
    carried_out(tree, U_A_X_AND_B)
    assert not repositories.run([U_A_X_AND_B, operation])[-1].refused
    assert carried_out(tree, operation).refused


def test_an_import_of_nothing_empties_both(repositories: Repositories) -> None:
    """An export of an empty tree has no head, and no head means no messages."""
    tree: MessageTree[str] = MessageTree()
    done = [U_A_X_AND_B, Import()]
    answers = [carried_out(tree, operation) for operation in done]
    assert [answer.shown for answer in repositories.run(done)] == [answer.shown for answer in answers]
    assert len(tree) == 0


def placeholder(parent: str, name: str) -> dict[str, Any]:
    """A message that a client shows before the server has named it."""
    return {**wire(Add(parent, name)), "optimistic": True}


def received(answer: Answer) -> MessageTree[str]:
    """Our tree of what the published one exports."""
    tree: MessageTree[str] = MessageTree()
    tree.import_messages(TreeExport(tuple(TreeItem(*message) for message in answer.shown.messages), answer.shown.head))
    return tree


def test_case_16_a_placeholder_at_the_head_is_not_sent(repositories: Repositories) -> None:
    """The export goes without it and ends with a message that is kept; switching away drops it at the client."""
    shown_last, away = repositories.run([replace(U_A_X_AND_B, head="x"), placeholder("x", "?"), wire(Switch("b"))])[1:]
    assert shown_last.shown.path == ["u", "a", "x", "?"]
    assert received(shown_last).path() == ("u", "a", "x")
    assert "?" not in away.shown.levels
    assert received(away).path() == ("u", "b")


def test_case_17_what_follows_a_placeholder_is_sent_under_its_parent(repositories: Repositories) -> None:
    """A kept child of a placeholder arrives as a child of the nearest message that is kept."""
    answer = repositories.run([replace(U_A_X_AND_B, head="x"), placeholder("x", "?"), wire(Add("?", "y"))])[-1]
    assert answer.shown.path == ["u", "a", "x", "?", "y"]
    assert received(answer).path() == ("u", "a", "x", "y")
