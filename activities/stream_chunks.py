"""From pydantic-ai's stream events to the chunks that readers follow.

Words and thoughts stream as deltas; a tool call is shown when it begins and again, with its arguments, when it is
complete. Chunks are for the eye and for a stop in mid-stream: a step that finishes stores its exact parts.
"""

from collections.abc import Iterator

from pydantic_ai import messages as wire

from activities.model_messages import call_part, reasoning_part
from perdure import ids
from perdure.messages import Part, ReasoningPart, TextPart, ToolCallPart
from perdure.turn_buffer import Chunk


class StreamChunks:
    """The chunks of one step."""

    def __init__(self, thread_id: str, turn: int, step: int) -> None:
        self._thread_id = thread_id
        self._turn = turn
        self._step = step
        self._calls: dict[int, str] = {}

    def of(self, event: wire.ModelResponseStreamEvent) -> Iterator[Chunk]:
        """The chunks of an event, none for events that show nothing."""
        match event:
            case wire.PartStartEvent():
                yield from self._opened(event.index, event.part)
            case wire.PartDeltaEvent(delta=wire.TextPartDelta() | wire.ThinkingPartDelta() as delta):
                if delta.content_delta:
                    yield Chunk(index=event.index, delta=delta.content_delta)
            case wire.PartEndEvent():
                yield from self._completed(event.index, event.part)
            case _:
                pass

    def _opened(self, index: int, part: wire.ModelResponsePart) -> Iterator[Chunk]:
        opened: Part
        match part:
            case wire.TextPart():
                opened = TextPart(text=part.content, step=self._step)
            case wire.ThinkingPart():
                opened = ReasoningPart(text=part.content, step=self._step)
            case wire.ToolCallPart():
                call_id = self._call_id(index)
                opened = ToolCallPart(call_id=call_id, tool=part.tool_name, arguments="", step=self._step)
            case _:
                return
        yield Chunk(index=index, part=opened)

    def _completed(self, index: int, part: wire.ModelResponsePart) -> Iterator[Chunk]:
        match part:
            case wire.ToolCallPart():
                yield Chunk(index=index, part=call_part(part, self._call_id(index), self._step))
            case wire.ThinkingPart() if part.signature and part.id is None:
                # A stop keeps a thought only with its signature, so a whole one gets it now. One that its provider
                # knows by an id belongs to the item after it, which a stop may cut off: it stays unsigned and goes.
                yield Chunk(index=index, part=reasoning_part(part, self._step))
            case _:
                pass

    def _call_id(self, index: int) -> str:
        # Calls are counted in the order in which they begin, which is their order in the finished answer.
        if index not in self._calls:
            self._calls[index] = ids.call_id(self._thread_id, self._turn, self._step, len(self._calls))
        return self._calls[index]
