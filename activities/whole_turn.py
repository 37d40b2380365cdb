"""A turn with the words that it answers, whole also where a summary stands for some of it."""

from perdure.errors import UnknownMessage
from perdure.large_text import LargeTexts
from perdure.messages import Message
from perdure.ports import ConversationStore
from perdure.records import Path


async def whole_turn(
    store: ConversationStore, path: Path, thread_id: str, message_id: str
) -> tuple[tuple[Message, ...], Message]:
    """The words and events that a turn answers, and its message; `path` is that to the message.

    A compaction may be faster than a turn's hooks, or come in the middle of a long turn: then the path begins after its
    words, or in its message. Such a path is read again as a whole, once for each compaction: the paths of later turns
    hold an answer from before their words.

    Raises:
        UnknownMessage: if the turn is deleted.
    """
    if path.summary is not None and not _has_turn(path, message_id):
        path = await store.load_history_with_ancestors(thread_id, message_id=message_id, whole=True)
        texts = LargeTexts(store)
        turn = [await texts.message(thread_id, message) for message in (*turn_input(path), *path.messages[-1:])]
        path = Path(messages=tuple(turn))
    if not path.messages or path.messages[-1].id != message_id:
        raise UnknownMessage(f"The turn of the message {message_id!r} is not in the thread any more.")
    return turn_input(path), path.messages[-1]


def turn_input(path: Path) -> tuple[Message, ...]:
    """The words and events that the last message of a path answers: all since the answer before it."""
    messages: list[Message] = []
    for message in reversed(path.messages[:-1]):
        if message.role == "assistant":
            break
        messages.append(message)
    return tuple(reversed(messages))


def _has_turn(path: Path, message_id: str) -> bool:
    """Whether the path after a summary begins before the turn's words: an answer from before them is on it."""
    is_there = bool(path.messages) and path.messages[-1].id == message_id
    return is_there and any(message.role == "assistant" for message in path.messages[:-1])
