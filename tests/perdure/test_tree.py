"""The message tree, case by case. The numbers are those of the list of cases that the product is held to.

Cases 16 and 17 are about placeholders of clients, which never reach a server: `tests/node` shows that.
"""

from collections.abc import Callable
from time import process_time

import pytest

from perdure.errors import StoreError, UnknownMessage, UsageError
from perdure.tree import MessageTree, TreeDelta, TreeNode
from perdure.tree_export import TreeExport, TreeItem

DEEP = 30_000
SECONDS = 2.0


def grown(*edges: str) -> MessageTree[str]:
    """A tree of `parent>child` edges, or `>child` for a child of the root; the content is the id in capitals."""
    tree: MessageTree[str] = MessageTree()
    for edge in edges:
        parent, child = edge.split(">")
        tree.add(parent or None, child, child.upper())
    return tree


def exported(*edges: str, head: str | None = None) -> TreeExport[str]:
    """An export of such edges, listed in this order."""
    pairs = [edge.split(">") for edge in edges]
    return TreeExport(tuple(TreeItem(child, parent or None, child.upper()) for parent, child in pairs), head)


def edges(tree: MessageTree[str]) -> list[str]:
    """The tree as `exported` takes it."""
    return [f"{item.parent_id or ''}>{item.id}" for item in tree.export_messages().messages]


def path(tree: MessageTree[str]) -> str:
    """The conversation, ids in a row."""
    return " ".join(tree.path())


def refused(tree: MessageTree[str], says: str, operate: Callable[..., object], *arguments: object) -> None:
    """Check that the operation is refused with these words and changes nothing."""
    before = (tree.export_messages(), [tree.remembered(name) for name in (None, *tree)])
    with pytest.raises(UsageError, match=says):
        operate(*arguments)
    assert (tree.export_messages(), [tree.remembered(name) for name in (None, *tree)]) == before


def test_case_01_messages_follow_each_other() -> None:
    """An empty tree has no head; each message that follows the head becomes it; an export lists parents first."""
    tree = grown()
    assert (tree.head_id, path(tree), len(tree), tree.export_messages()) == (None, "", 0, TreeExport())
    tree = grown(">a", "a>b", "b>c")
    assert (tree.head_id, path(tree)) == ("c", "a b c")
    assert tree.export_messages() == exported(">a", "a>b", "b>c", head="c")


def test_case_02_answers_side_by_side() -> None:
    """Two answers to one question: whichever is switched to is seen, and both are branches each time."""
    tree = grown(">u", "u>a1", "u>a2")
    for answer in ("a1", "a2", "a1"):
        tree.switch(answer)
        assert (path(tree), tree.branches(answer)) == (f"u {answer}", ("a1", "a2"))


def test_case_03_a_branch_is_remembered() -> None:
    """Switching to a message opens what was open below it."""
    tree = grown(">r", "r>a", "a>x", "r>b", "b>y")
    for seen in ("y", "x"):
        tree.switch(seen)
        tree.switch("r")
        assert tree.head_id == seen
    assert path(tree) == "r a x"


def test_case_04_a_deleted_answer_gives_way_to_the_other() -> None:
    """Where the head is deleted, the conversation ends with the end of its sibling."""
    tree = grown(">u", "u>a1", "a1>x", "u>a2")
    tree.switch("a2")
    tree.delete("a2")
    assert (path(tree), tree.branches("a1")) == ("u a1 x", ("a1",))


def test_case_05_the_last_sibling_takes_over() -> None:
    """Of several siblings of a deleted head the last one is seen, not the question alone."""
    tree = grown(">u", "u>a1", "u>a2", "u>a3")
    tree.switch("a2")
    tree.delete("a2")
    assert (tree.head_id, tree.branches("a1")) == ("a3", ("a1", "a3"))


def test_case_06_what_is_below_moves_up() -> None:
    """Deleting from the middle keeps what follows, one level higher."""
    tree = grown(">a", "a>b", "b>c")
    tree.delete("b")
    assert (path(tree), tree.get("c").parent_id, tree.level("c")) == ("a c", "a", 1)


def test_case_07_all_children_move_in_order() -> None:
    """Several children of a deleted message go to the root in their order, behind what is there."""
    tree = grown(">a", "a>b", "a>c", "a>d", ">e")
    tree.delete("a", None)
    assert tree.children(None) == ("e", "b", "c", "d")


def test_case_08_no_refuge_in_what_is_deleted() -> None:
    """The replacement is neither the deleted message, nor below it, nor unknown."""
    tree = grown(">a", "a>b", "b>c")
    for replacement in ("a", "c"):
        refused(tree, "no place outside", tree.delete, "a", replacement)
    refused(tree, "There is no message 'nobody'", tree.delete, "a", "nobody")


def test_case_09_nothing_stands_under_itself() -> None:
    """A known message does not move under its descendant or itself, and keeps its old content then."""
    tree = grown(">a", "a>b", "b>c")
    for parent in ("c", "a"):
        refused(tree, "'a' cannot stand under itself", tree.add, parent, "a", "new")
    assert tree.get("a").content == "A"


def test_case_10_unknown_messages() -> None:
    """Whatever names a message that is not there is an error, but for the question whether it has children."""
    tree = grown(">a")
    refused(tree, "There is no message 'nobody'", tree.add, "nobody", "b", "")
    refused(tree, "There is no message 'nobody'", tree.add, "nobody", "a", "")
    refused(tree, "There is no message ''", tree.add, "", "b", "")
    refused(tree, "needs an id", tree.add, None, "", "")
    for ask in (tree.switch, tree.branches, tree.delete, tree.get, tree.path, tree.reset, tree.children):
        refused(tree, "There is no message 'nobody'", ask, "nobody")
    assert not tree.has_children("nobody")
    assert not tree.has_children("a")
    with pytest.raises(UnknownMessage):
        tree.level("nobody")


def test_case_11_reset_takes_all_below() -> None:
    """Reset deletes every branch below a message and none beside it; of nothing, it empties the tree."""
    tree = grown(">u", "u>a", "a>b", "a>c", "c>d", "u>e")
    tree.reset("a")
    assert (path(tree), edges(tree)) == ("u a", [">u", "u>a", "u>e"])
    tree.reset(None)
    assert (tree.head_id, len(tree), tree.remembered(None)) == (None, 0, None)


def test_what_was_deleted_remembers_nothing() -> None:
    """A message that comes again after a reset has no branch to open."""
    tree = grown(">u", "u>a", "a>x", "a>y")
    assert tree.remembered("a") == "x"
    tree.reset("u")
    tree.add("u", "a", "")
    assert (tree.remembered("a"), path(tree)) == (None, "u a")


def test_case_12_the_head_may_have_children() -> None:
    """An imported head keeps what is below it; what is added under it is a sibling of that, and is seen."""
    tree = grown()
    tree.import_messages(exported(">u1", "u1>a1", "a1>u2", "u2>a2", head="a1"))
    assert (len(tree), path(tree), tree.remembered("a1")) == (4, "u1 a1", "u2")
    tree.add("a1", "u3", "")
    assert (path(tree), tree.branches("u3")) == ("u1 a1 u3", ("u2", "u3"))


def test_case_13_children_listed_before_parents() -> None:
    """They wait for their parents; without a head it is the last in the order made so, not the last listed."""
    tree = grown()
    tree.import_messages(exported("a>b", "b>c", ">a"))
    assert (path(tree), tree.head_id) == ("a b c", "c")


def test_case_14_imports_that_hang_on_nothing() -> None:
    """An unknown parent, an unknown head, parents in a circle: refused, and nothing of the import stays."""
    tree = grown(">u", "u>a", "u>b")
    tree.switch("a")
    refused(tree, "There is no message 'nobody'", tree.import_messages, exported(">new", "nobody>x"))
    refused(tree, "There is no message 'nobody'", tree.import_messages, exported("b>a", "a>x", head="nobody"))
    refused(tree, "'x', 'y'", tree.import_messages, exported("b>a", "y>x", "x>y"))
    refused(tree, "'a' cannot stand under itself", tree.import_messages, exported("a>new", "new>a"))
    tree.add("a", "x", "")
    assert edges(tree) == [">u", "u>a", "a>x", "u>b"]


def test_case_15_a_branch_moves_under_a_later_one() -> None:
    """It takes all below it along, and where it holds the head it is seen in its new place."""
    tree = grown(">a", "a>b", "b>c", ">x", "x>y")
    tree.add("y", "a", "A")
    assert (path(tree), tree.head_id, tree.level("c")) == ("x y a b c", "c", 4)
    assert edges(tree) == [">x", "x>y", "y>a", "a>b", "b>c"]
    assert tree.remembered(None) == "x"


def test_a_moved_inner_head_is_seen_in_its_new_place() -> None:
    """Also where the head has children: coming back to an ancestor opens the branch that was seen."""
    tree = grown()
    tree.import_messages(exported(">p", "p>q", ">a", "a>b", "b>c", head="b"))
    tree.add("p", "a", "A")
    assert (path(tree), tree.remembered("p")) == ("p a b", "a")


def test_a_known_message_is_changed_in_its_place() -> None:
    """Under the same parent it gets the content and nothing else; nothing new is no change."""
    tree = grown(">u", "u>a", "u>b")
    assert tree.add("u", "a", "new").nodes == (TreeNode("a", "u", "new", 1),)
    assert (tree.head_id, tree.branches("a"), tree.get("a").content) == ("a", ("a", "b"), "new")
    assert tree.add("u", "a", "new") == TreeDelta((), (), (), "a")


def test_a_message_beside_the_conversation_is_only_stored() -> None:
    """The head does not follow a new message whose parent it is not; it is open where there was no other."""
    tree = grown(">u", "u>a", "a>x", "u>b", "b>y")
    assert (path(tree), tree.remembered("u"), tree.remembered("b")) == ("u a x", "a", "y")
    tree.switch("b")
    assert path(tree) == "u b y"


def test_a_bare_head_goes_to_the_end_of_what_moves_under_it() -> None:
    """By a move, and by what a deleted message leaves to it."""
    tree = grown(">a", ">b", "b>c", "c>d")
    tree.add("a", "b", "B")
    assert path(tree) == "a b c d"
    tree = grown(">a", ">b", "b>c", "b>d", "c>e")
    tree.delete("b", "a")
    assert (path(tree), tree.children("a")) == ("a c e", ("c", "d"))


def test_a_branch_that_is_moved_away_is_forgotten() -> None:
    """Its old parent opens the last child that it still has, and none if it has none."""
    tree = grown(">u", "u>a", "u>b", "u>c", ">v")
    tree.switch("b")
    tree.add("v", "b", "B")
    assert (tree.remembered("u"), path(tree)) == ("c", "v b")
    tree.add(None, "b", "B")
    assert (tree.remembered("v"), tree.children(None)) == (None, ("u", "v", "b"))


def test_a_deleted_head_leaves_to_a_replacement_elsewhere() -> None:
    """The conversation goes on at the end of the replacement, which is open from then on."""
    tree = grown(">r", "r>a", "a>x", "r>b", "r>c")
    tree.switch("b")
    tree.delete("b", "a")
    assert (path(tree), tree.remembered("r")) == ("r a x", "a")


def test_an_import_adds_to_what_is_there() -> None:
    """It changes and moves what it knows, goes to its head, and is empty only if it says of a tree that it is."""
    tree = grown(">u", "u>a")
    tree.import_messages(exported("u>b", "b>a", ">v", head="a"))
    assert (path(tree), edges(tree)) == ("u b a", [">u", "u>b", "b>a", ">v"])
    tree.import_messages(exported(head="v"))
    assert (path(tree), len(tree)) == ("v", 4)
    tree.import_messages(exported())
    assert (tree.head_id, len(tree)) == (None, 0)


def test_appending_costs_one_row() -> None:
    """A message under the head changes its own row and the head; one beside others what their parent remembers."""
    tree = grown(">u", "u>a")
    assert tree.add("a", "x", "") == TreeDelta((TreeNode("x", "a", "", 2),), (), (), "x")
    assert tree.add("u", "b", "") == TreeDelta((TreeNode("b", "u", "", 3),), (), (("u", "a"),), "x")
    assert tree.switch("b") == TreeDelta((), (), (("u", None),), "b")


@pytest.mark.parametrize(
    ("nodes", "remembered", "head", "says"),
    [
        pytest.param([("a", None), ("b", "gone")], {}, "a", "do not hang on its root", id="parent"),
        pytest.param([("a", None), ("b", "c"), ("c", "b")], {}, "a", "do not hang on its root", id="circle"),
        pytest.param([("a", None), ("b", "a")], {"b": "a"}, "b", "not a child", id="remembered"),
        pytest.param([("a", None)], {"gone": "a"}, "a", "not a child", id="no parent"),
        pytest.param([("a", None)], {}, None, "its head None", id="no head"),
        pytest.param([("a", None)], {}, "b", "its head 'b'", id="head"),
        pytest.param([], {}, "b", "its head 'b'", id="head of nothing"),
        pytest.param([("a", None), ("b", None)], {}, "a", "not what is remembered", id="path"),
    ],
)
def test_rows_that_are_no_tree(
    nodes: list[tuple[str, str | None]], remembered: dict[str | None, str], head: str | None, says: str
) -> None:
    """Stored rows of which something is missing are an error, never a smaller tree."""
    rows = [TreeNode(name, parent, "", place) for place, (name, parent) in enumerate(nodes)]
    with pytest.raises(StoreError, match=says):
        MessageTree[str].from_nodes(rows, remembered, head)


def deep(count: int = DEEP) -> TreeExport[str]:
    """A chain from `n0` down."""
    return TreeExport(tuple(TreeItem(f"n{i}", f"n{i - 1}" if i else None, "") for i in range(count)))


def wide(count: int = DEEP) -> TreeExport[str]:
    """A chain of one, and all others below it."""
    return TreeExport((TreeItem("n0", None, ""), *(TreeItem(f"n{i}", "n0", "") for i in range(1, count))))


@pytest.mark.parametrize("big", [deep(), wide()], ids=["deep", "wide"])
def test_case_18_thirty_thousand_messages(big: TreeExport[str]) -> None:
    """As deep or as wide as that, nothing recurses and nothing takes 2 s: the slowest operation is named if so."""
    tree: MessageTree[str] = MessageTree()
    last = big.messages[-1].id
    took: dict[str, float] = {}

    def timed(name: str, operate: Callable[[], object]) -> None:
        began = process_time()
        operate()
        # The time of this process alone: others use the machine too.
        took[name] = process_time() - began

    timed("import", lambda: tree.import_messages(TreeExport(big.messages, last)))
    assert (len(tree), tree.head_id) == (DEEP, last)
    timed("import late parents", lambda: grown().import_messages(TreeExport(big.messages[::-1])))
    timed("regenerate", lambda: tree.add(tree.get(last).parent_id, "again", ""))
    timed("switch", lambda: tree.switch("again"))
    timed("refused import", lambda: refused(tree, "no message", tree.import_messages, exported("nobody>x")))
    timed("delete top", lambda: tree.delete("n0"))
    assert (len(tree), tree.head_id) == (DEEP, "again")
    timed("export", tree.export_messages)
    timed("load", lambda: MessageTree[str].from_nodes([tree.get(name) for name in tree], {}, tree.head_id))
    timed("move", lambda: (tree.add(None, "new", ""), tree.add("new", "n1", "")))
    timed("reset", lambda: tree.reset("n1"))
    assert set(tree.children("new")) == {"n1"}
    timed("reset to nothing", lambda: tree.reset(None))
    slowest = max(took, key=lambda name: took[name])
    assert took[slowest] < SECONDS, f"{slowest} took {took[slowest]:.1f} s"
