"""The content of a message as clients hold it: a call and its result are one entry, though ours are two parts.

Where a result goes among the parts follows from the calls: those of a step come, in call order, when nothing of the
step is left. Parts that stand in another order are told with it.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from perdure.messages import ContextPart, Part, ToolCallPart, ToolResultPart


@dataclass(slots=True)
class Entry:
    """A part, and if it is a call its result or the newest preliminary one. A result with no call stands alone."""

    part: Part
    result: ToolResultPart | None = None
    interim: ToolResultPart | None = None

    @property
    def is_open(self) -> bool:
        """Whether it is a call without a result."""
        return isinstance(self.part, ToolCallPart) and self.result is None


def entries(parts: Sequence[Part]) -> tuple[list[Entry], list[int] | None]:
    """The parts as entries, and the order to tell with them; None if it follows from them.

    A result belongs to the first call before it that has its id and no result yet.
    """
    if not any(isinstance(part, ToolResultPart) for part in parts):
        return [Entry(part) for part in parts], None
    found: list[Entry] = []
    positions: list[tuple[int, int | None]] = []
    waiting: dict[str, list[int]] = {}
    for position, part in enumerate(parts):
        if isinstance(part, ToolResultPart) and (calls := waiting.get(part.call_id)):
            index = calls.pop(0)
            found[index].result = part
            positions[index] = (positions[index][0], position)
            continue
        if isinstance(part, ToolCallPart):
            waiting.setdefault(part.call_id, []).append(len(found))
        found.append(Entry(part))
        positions.append((position, None))
    read = [positions[index][1 if is_result else 0] for index, is_result in _placed(found)]
    if all(position == index for index, position in enumerate(read)):
        return found, None
    order = {position: index for index, position in enumerate(read)}
    return found, [order[position] for position in range(len(parts))]


def parts_of(content: Sequence[Entry], order: Sequence[int] | None = None) -> tuple[Part, ...]:
    """The entries as parts. An order that is not one of all of them says nothing."""
    if order is None and all(entry.result is None for entry in content):
        return tuple(entry.part for entry in content)
    parts = [_of(content[index], is_result) for index, is_result in _placed(content)]
    if order is not None and sorted(order) == list(range(len(parts))):
        return tuple(parts[index] for index in order)
    return tuple(parts)


Placed = tuple[int, ContextPart]
"""What a model was told besides the conversation, and its position among the parts of its message."""


def without_context(parts: Sequence[Part]) -> tuple[Sequence[Part], list[Placed]]:
    """The parts that are words of the conversation, and where the others stood."""
    context = [(position, part) for position, part in enumerate(parts) if isinstance(part, ContextPart)]
    return ([part for part in parts if not isinstance(part, ContextPart)], context) if context else (parts, context)


def with_context(parts: Sequence[Part], context: Iterable[Placed]) -> tuple[Part, ...]:
    """All parts in their places, which are those that the parts alone leave free."""
    found = list(parts)
    for position, part in sorted(context, key=lambda placed: placed[0]):
        found.insert(position, part)
    return tuple(found)


def _of(entry: Entry, is_result: bool) -> Part:
    if not is_result:
        return entry.part
    assert entry.result is not None
    return entry.result


def _placed(content: Iterable[Entry]) -> Iterator[tuple[int, bool]]:
    """The index of each part's entry, and whether it is the entry's result."""
    answered: list[int] = []
    step = 0
    for index, entry in enumerate(content):
        if answered and entry.part.step != step:
            yield from ((call, True) for call in answered)
            answered.clear()
        step = entry.part.step
        yield index, False
        if entry.result is not None:
            answered.append(index)
    yield from ((call, True) for call in answered)


class Steps:
    """The step that a part belongs to when nothing is said of it: another one begins with what follows calls."""

    def __init__(self) -> None:
        self._step = 0
        self._after_call = False

    def expected(self, is_call: bool) -> int:
        """The step of the next part."""
        return self._step + 1 if self._after_call and not is_call else self._step

    def take(self, step: int, is_call: bool) -> None:
        """The next part was of this step."""
        self._step = step
        self._after_call = is_call
