"""The tool `read_result`: the rest of a result or an event of which the model has seen the beginning.

What was clipped for the model is whole in the store, also when a summary stands for it by now, and when it is the
parent's of the thread that asks.
"""

from collections.abc import Iterator
from functools import partial
from typing import Final

from perdure.builtins import read_result_tool
from perdure.codec import clip
from perdure.errors import BlobNotFound, ToolError
from perdure.inputs import INLINE_BYTES
from perdure.messages import EventPart, Message, ToolCallPart, ToolResultPart
from perdure.ports import Store
from perdure.request_room import how_to_go_on
from perdure.tools import Tool
from perdure.view_calls import id_of_place, short_id

PIECE_BYTES: Final = INLINE_BYTES - 512
"""What is returned at once; with the note after it, it is shown in full."""

_SHORT_ID_CHARS: Final = 8
_ID_CHARS: Final = 100


class ResultReader:
    """Reads results of threads."""

    def __init__(self, store: Store) -> None:
        self._store = store

    def tool(self, thread_id: str) -> Tool:
        """The tool, for a thread."""
        return read_result_tool(partial(self.read, thread_id))

    async def read(self, thread_id: str, call_id: str, offset: int) -> str:
        """The piece of a result that begins at an offset in bytes, and where to go on.

        Raises:
            ToolError: if there is no such result or nothing at this offset, with a sentence for the model.
        """
        data = await self._data(thread_id, await self._find(thread_id, call_id))
        if offset >= len(data):
            raise ToolError(f"The result of {call_id!r} has {len(data)} bytes, so there is nothing at {offset}.")
        start = _boundary(data, offset)
        text, end = _decoded(data, start)
        go_on = how_to_go_on(call_id, end) if end < len(data) else "This is the end."
        return f"{text}\n\n[Bytes {start} to {end} of {len(data)}. {go_on}]"

    async def _find(self, thread_id: str, call_id: str) -> ToolResultPart | EventPart:
        """What the model sees under this id: first on the path as it is shown, then behind summaries, then elsewhere.

        Elsewhere, since the head may be on another branch by now than the turn that asks.
        """
        for whole in (False, True):
            path = await self._store.load_history_with_ancestors(thread_id, whole=whole)
            if found := next(_answers(path.messages, call_id), None):
                return found
        tree = await self._store.load_tree(thread_id)
        for node in tree.messages:
            if found := next(_answers((node.message,), call_id), None):
                return found
        raise ToolError(f"There is no result of a call {clip(call_id, _ID_CHARS)!r} in this conversation.")

    async def _data(self, thread_id: str, part: ToolResultPart | EventPart) -> bytes:
        if part.blob is None:
            return part.content.encode("utf-8", "surrogatepass")
        try:
            return await self._store.get_blob(thread_id, part.blob)
        except BlobNotFound:
            # Whoever sent the result named a blob that is not here, or the message was deleted.
            raise ToolError("The rest of this result is missing: it was never stored, or it was deleted.") from None


def _answers(messages: tuple[Message, ...], call_id: str) -> Iterator[ToolResultPart | EventPart]:
    """What answers a call of this id, as models see ids. A result is that of the first call it fits, as in the view."""
    calls: list[tuple[str, bool]] = []
    for message in messages:
        for position, part in enumerate(message.parts):
            match part:
                case EventPart() if _is(call_id, id_of_place(message.id, position, event=True)):
                    yield part
                case ToolCallPart():
                    is_asked_for = _is(call_id, part.call_id) or _is(call_id, id_of_place(message.id, position))
                    calls.append((part.call_id, is_asked_for))
                case ToolResultPart():
                    answered = next((call for call in calls if call[0] == part.call_id), None)
                    if answered is not None:
                        calls.remove(answered)
                        if answered[1]:
                            yield part
                case _:
                    pass


def _is(shown: str, call_id: str) -> bool:
    """Whether an id is shown like this, shortened or not."""
    return shown == call_id or (len(shown) >= _SHORT_ID_CHARS and shown == short_id(call_id, len(shown)))


def _boundary(data: bytes, at: int) -> int:
    """The beginning of the character that this byte belongs to; of what is no text, the byte itself."""
    for start in range(at, max(at - 4, -1), -1):
        if data[start] & 0b1100_0000 != 0b1000_0000:
            return start
    return at


def _decoded(data: bytes, start: int) -> tuple[str, int]:
    """A piece as text, and where it ends."""
    end = min(start + PIECE_BYTES, len(data))
    if end < len(data):
        end = _boundary(data, end)
    try:
        return data[start:end].decode("utf-8", "surrogatepass"), end
    except UnicodeDecodeError:
        # No text at all: what stands for a byte that cannot be read takes three.
        end = min(start + PIECE_BYTES // 3, len(data))
        return data[start:end].decode("utf-8", "replace"), end
