"""A message tree as lines."""

import pytest

from perdure.cli.tree_lines import MAX_INDENT, places, tree_lines, words_of
from perdure.messages import Message, Role, Status, TextPart, ToolCallPart
from perdure.records import StoredTree, TreeMessage


def stored(shape: str, head: str, **remembered: str) -> StoredTree:
    """A tree out of `child:parent` pairs in order; `-` is the root."""
    pairs = [pair.split(":") for pair in shape.split()]
    messages = tuple(
        TreeMessage(message=said(name), parent_id=None if parent == "-" else parent, place=place)
        for place, (name, parent) in enumerate(pairs)
    )
    kept = tuple((None if parent == "root" else parent, child) for parent, child in remembered.items())
    return StoredTree(head_id=head, messages=messages, remembered=kept)


def said(name: str, role: Role = "user", **fields: object) -> Message:
    """A message whose words are its name."""
    parts = {"parts": (TextPart(text=name.upper()),)}
    return Message.model_validate({"id": name, "thread_id": "t1", "role": role} | parts | fields)


def shown(tree: StoredTree) -> list[str]:
    """The lines as they are printed."""
    return [line.text(line.message.id) for line in tree_lines(tree)]


def test_a_conversation_reads_straight_down() -> None:
    """However long it is: a line is further in only where a branch leaves it."""
    names = [f"m{number}" for number in range(30_000)]
    tree = stored(" ".join(f"{name}:{parent}" for parent, name in zip(["-", *names], names, strict=False)), names[-1])
    assert [line.indent for line in tree_lines(tree)] == [0] * 30_000


def test_other_branches_come_before_the_one_that_is_open() -> None:
    """Each with all that follows it, and numbered as they stand; what is shown is marked and leftmost."""
    tree = stored("a:- b:a c:a d:a e:b f:c g:c h:f", "h", a="c", c="f")
    assert shown(tree) == [
        "* a user: A",
        "    b user 1/3: B",
        "    e user: E",
        "    d user 3/3: D",
        "* c user 2/3: C",
        "    g user 2/2: G",
        "* f user 1/2: F",
        "* h user: H",
    ]


def test_a_conversation_may_begin_more_than_once() -> None:
    """Then the beginnings are branches."""
    assert shown(stored("a:- b:- c:a", "c", root="a")) == ["    b user 2/2: B", "* a user 1/2: A", "* c user: C"]
    assert shown(StoredTree()) == []


def test_deep_in_branches_of_branches_lines_stay_on_the_screen() -> None:
    """From some depth on they go no further in."""
    pairs = ["m0:-", *(f"m{number}:m{number - 1} x{number}:m{number - 1}" for number in range(1, 100))]
    tree = stored(" ".join(pairs), "x1")
    # Below m0 the branch x1 is open, below m1 x2, and so on: each m is further in than the one before.
    lines = tree_lines(tree)
    assert max(line.indent for line in lines) == 99
    assert max(len(line.text("")) for line in lines) < 2 * MAX_INDENT + 40


@pytest.mark.parametrize(
    ("role", "status", "line"),
    [
        ("assistant", Status(state="running"), "* a assistant (running): A"),
        ("assistant", Status(state="requires_action"), "* a assistant (waits for people): A"),
        ("assistant", Status(state="incomplete", reason="cancelled"), "* a assistant (cancelled): A"),
        ("event", Status(), "* a event: A"),
    ],
)
def test_a_line_says_how_its_message_stands(role: Role, status: Status, line: str) -> None:
    """Unless it is complete."""
    message = TreeMessage(message=said("a", role, status=status))
    assert shown(StoredTree(head_id="a", messages=(message,))) == [line]


def test_a_message_without_words_shows_its_calls() -> None:
    """And nothing of either is obeyed by a terminal, or longer than a line."""
    call = ToolCallPart(call_id="c", tool="look\x1b", arguments='{"at": "x"}')
    assert words_of(said("a", "assistant", parts=(call, call))) == 'look�(at="x") look�(at="x")'
    assert len(words_of(said("a", parts=(TextPart(text="x\n" * 1_000),)))) <= 80


def test_places_are_those_of_messages_that_have_others_beside_them() -> None:
    """On all branches, and at the beginning too."""
    assert places(stored("a:- b:a c:a d:- e:b", "e", root="a", a="b")) == {
        "a": "1/2",
        "d": "2/2",
        "b": "1/2",
        "c": "2/2",
    }
    assert places(StoredTree()) == {}
