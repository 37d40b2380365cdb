"""The turn buffer: chunks of a streaming answer, coalesced into parts.

The same class serves the manager (`handle_completion`), the stores (what streamed when a step is sealed) and readers
(the answer so far), so a partial answer looks the same wherever it is put together.
"""

from collections.abc import Iterable

from perdure.codec import Text, Wire
from perdure.messages import Part, ReasoningPart, TextPart, ToolCallPart


class Chunk(Wire):
    """A piece of part number `index` of a step. Pieces of one text or thought follow each other and are joined.

    `part` opens the part, or replaces what was there; `delta` adds to its text, or to the arguments of a call.
    """

    index: int
    part: Part | None = None
    delta: Text = ""


class TurnBuffer:
    """Parts of one attempt in the order of their indexes."""

    def __init__(self, chunks: Iterable[Chunk] = ()) -> None:
        self._parts: dict[int, Part] = {}
        self._deltas: dict[int, list[str]] = {}
        for chunk in chunks:
            self.add(chunk)

    def __bool__(self) -> bool:
        return bool(self._parts)

    def add(self, chunk: Chunk) -> None:
        """Take a chunk. A delta for an index that no part has opened opens a text."""
        if chunk.part is not None:
            self._parts[chunk.index] = chunk.part
            self._deltas[chunk.index] = []
        elif chunk.index not in self._parts:
            self._parts[chunk.index] = TextPart()
            self._deltas[chunk.index] = []
        if chunk.delta:
            self._deltas[chunk.index].append(chunk.delta)

    def clear(self) -> None:
        """Drop everything."""
        self._parts.clear()
        self._deltas.clear()

    @property
    def parts(self) -> tuple[Part, ...]:
        """What has streamed so far; blank texts are left out, since no provider takes them back."""
        joined = (self._joined(index) for index in sorted(self._parts))
        return tuple(part for part in joined if not _is_blank(part))

    def chunks(self) -> list[Chunk]:
        """The same content as one chunk for each part, which replaces whatever a reader had of it."""
        return [Chunk(index=index, part=self._joined(index)) for index in sorted(self._parts)]

    def _joined(self, index: int) -> Part:
        part = self._parts[index]
        tail = "".join(self._deltas[index])
        match part:
            case TextPart() | ReasoningPart() if tail:
                return part.with_(text=part.text + tail)
            case ToolCallPart() if tail:
                return part.with_(arguments=part.arguments + tail)
            case _:
                return part


def _is_blank(part: Part) -> bool:
    return isinstance(part, TextPart) and not part.text.strip() and part.blob is None


def trim_reasoning(parts: tuple[Part, ...]) -> tuple[Part, ...]:
    """The parts without trailing reasoning: no committed step ends on a thought (rule V7)."""
    end = len(parts)
    while end and isinstance(parts[end - 1], ReasoningPart):
        end -= 1
    return parts[:end]


def sealed_parts(parts: tuple[Part, ...]) -> tuple[Part, ...]:
    """What stays of a step that was stopped while it streamed.

    Calls go: none of them was durable, so none was dispatched, and nobody waits for a result. A thought stays only
    if it is whole, which is known by a later part having begun, and if its provider signed it (case B20).
    """
    kept = tuple(
        part
        for position, part in enumerate(parts)
        if isinstance(part, TextPart)
        or (isinstance(part, ReasoningPart) and part.signature is not None and position + 1 < len(parts))
    )
    return trim_reasoning(kept)
