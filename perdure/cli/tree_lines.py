"""A message tree as lines: one for each message, further in only where a branch leaves the one that is open.

Below a message that has several answers the others come first, each with all that follows it, and then the one that is
open goes on at the same margin. So a conversation of any length reads straight down, and what is shown stands leftmost.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Final

from perdure.cli.calls import call_words
from perdure.cli.printable import one_line
from perdure.codec import clip
from perdure.messages import Message, Role, Status, ToolCallPart
from perdure.records import StoredTree
from perdure.stored_tree import beginning, shape
from perdure.tree import MessageTree
from perdure.waiting import ended_early

TEXT_CHARS: Final = 80
MAX_INDENT: Final = 20
"""Further in a line would begin beyond the window; what stands deeper is told by its branch alone."""


@dataclass(frozen=True)
class TreeLine:
    """A message of the tree: how far in it stands, which branch of how many it opens, and whether it is shown."""

    message: Message
    parent_id: str | None
    indent: int
    branch: int
    branches: int
    shown: bool

    def text(self, name: str) -> str:
        """The line for people; `name` is what the message is called in it."""
        margin = "  " * min(self.indent, MAX_INDENT)
        about = label(self.message.role, self.message.status, self.branch, self.branches)
        return f"{'*' if self.shown else ' '} {margin}{name} {about}: {words_of(self.message)}"

    @property
    def stated(self) -> dict[str, Any]:
        """The same as JSON."""
        return {
            "message_id": self.message.id,
            "parent_id": self.parent_id,
            "role": self.message.role,
            "status": self.message.status,
            "text": beginning(self.message),
            "branch": self.branch,
            "branches": self.branches,
            "shown": self.shown,
        }


def tree_lines(stored: StoredTree) -> list[TreeLine]:
    """The lines of a whole tree, in reading order."""
    tree = shape(stored)
    shown = set(tree.path())
    return [
        TreeLine(node.content, node.parent_id, indent, branch, branches, message_id in shown)
        for message_id, indent, branch, branches in _walk(tree)
        for node in [tree.get(message_id)]
    ]


def places(stored: StoredTree) -> dict[str, str]:
    """Of each message that stands beside others, which of how many it is: `2/3`."""
    tree = shape(stored)
    parents = [None, *tree]
    siblings = (tree.children(parent_id) for parent_id in parents)
    return {
        message_id: f"{at}/{len(children)}"
        for children in siblings
        if len(children) > 1
        for at, message_id in enumerate(children, 1)
    }


def label(role: Role, status: Status, branch: int, branches: int) -> str:
    """What a line says of a message: `assistant 2/3 (running)`."""
    place = f" {branch}/{branches}" if branches > 1 else ""
    match status.state:
        case "complete":
            state = ""
        case "requires_action":
            state = " (waits for people)"
        case "running":
            state = " (running)"
        case "incomplete":
            state = f" ({ended_early(status)})"
    return f"{role}{place}{state}"


def words_of(message: Message) -> str:
    """What a message begins with on one line; of one without words the calls."""
    calls = (call_words(part) for part in message.parts if isinstance(part, ToolCallPart))
    return one_line(clip(beginning(message) or " ".join(calls), TEXT_CHARS))


def _walk(tree: MessageTree[Message]) -> Iterator[tuple[str, int, int, int]]:
    # A stack instead of recursion: a tree is as deep as its conversation is long.
    waiting: list[tuple[str | None, int, int, int]] = [(None, 0, 1, 1)]
    while waiting:
        message_id, indent, branch, branches = waiting.pop()
        if message_id is not None:
            yield message_id, indent, branch, branches
        children, opened = tree.children(message_id), tree.remembered(message_id)
        below = [(child_id, at) for at, child_id in enumerate(children, 1)]
        # What is pushed last is read first, so the branch that is open goes below all others.
        waiting.extend((child_id, indent, at, len(below)) for child_id, at in below if child_id == opened)
        waiting.extend((child_id, indent + 1, at, len(below)) for child_id, at in reversed(below) if child_id != opened)
