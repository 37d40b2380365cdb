"""The branches of a thread as they are read from the store. Pure."""

from perdure.codec import Text, Wire, clip
from perdure.messages import EventPart, Message, Role, Status, TextPart
from perdure.records import StoredTree
from perdure.tree import MessageTree, TreeNode

TEXT_CHARS = 200


class Branch(Wire):
    """One of the messages that stand beside each other; `text` is the beginning of its words.

    `selected` is the one that is shown, or would be if the branch that all of them are on was.
    """

    message_id: str
    role: Role
    status: Status = Status()
    text: Text = ""
    selected: bool = False


def shape(tree: StoredTree) -> MessageTree[Message]:
    """The tree with its operations. Raises StoreError if what is stored is none."""
    nodes = [TreeNode(one.message.id, one.parent_id, one.message, one.place) for one in tree.messages]
    # A thread without a message of its own begins at one of another thread: here the root stands for that.
    return MessageTree[Message].from_nodes(nodes, dict(tree.remembered), tree.head_id if nodes else None)


def leaf(tree: MessageTree[Message], message_id: str) -> str:
    """The end of the branch that opens with a message."""
    while (below := tree.remembered(message_id)) is not None:
        message_id = below
    return message_id


def beginning(message: Message) -> str:
    """What a message begins with, on one line: its words, or the event that it tells."""
    texts = (part.text for part in message.parts if isinstance(part, TextPart))
    events = (part.content for part in message.parts if isinstance(part, EventPart))
    return clip(" ".join([*events, *texts]), TEXT_CHARS)
