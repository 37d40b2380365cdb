"""Where a conversation is cut for a compaction: what is left out for the model, and what stays as it is. Pure.

A cut stands between two parts of the path, at a place where nothing is torn apart:

- never inside a step of the model, so no thought is parted from what it led to;
- never between a call and its result, nor after a call that may still get one, so both sides are valid views (B13);
- never inside a message of the user's side, and never after words that nobody has begun to answer;
- only in the thread's own messages, or directly before the first of them: what a child inherits is its parent's to
  compact, and a summary that hung there would stand in the parent's way too.

In the middle of a long turn it may stand between two steps. Then the words that the turn answers are left out with the
rest, and whoever makes the summary has to quote them: `Cut.words`.
"""

from dataclasses import dataclass

from perdure.messages import (
    ContextPart,
    EventPart,
    Message,
    Part,
    ReasoningPart,
    TextPart,
    ToolCallPart,
    ToolResultPart,
)
from perdure.path_size import part_chars
from perdure.records import Path

_OPEN = ("running", "requires_action")


@dataclass(frozen=True)
class Place:
    """A place where the path may be cut: after part `at` of all, the first `parts` parts of the message left out.

    `kept` is how many characters of the path stay.
    """

    message_id: str
    parts: int
    at: int
    kept: int


@dataclass(frozen=True)
class Cut:
    """A path that was cut.

    Attributes:
        message_id: the message that the summary hangs on.
        parts: how many of its parts are left out.
        covered: what is left out, as a path, with the earlier summary.
        kept: the messages that stay.
        messages: how many messages end in what is left out; each is counted by one summary only.
        words: those of the user's side that are left out though their answer is not over.
    """

    message_id: str
    parts: int
    covered: Path
    kept: tuple[Message, ...]
    messages: int
    words: str


def up_to(path: Path, message_id: str, parts: int | None) -> Path:
    """The path to a message, without what follows its first `parts` parts.

    Without any message if a summary stands for all of that already.

    Args:
        path: the path that ends with the message.
        message_id: the message.
        parts: how many, those included that a summary on the path stands for; None: all.
    """
    last = path.messages[-1] if path.messages else None
    if last is None or last.id != message_id:
        return path.with_(messages=())
    stay = len(last.parts) if parts is None else parts - hidden_parts(path, last)
    if stay < 0:
        return path.with_(messages=())
    return path.with_(messages=(*path.messages[:-1], last.with_(parts=last.parts[:stay])))


def hidden_parts(path: Path, message: Message) -> int:
    """How many parts of the message the summary of the path stands for: positions are counted with them."""
    summary = path.summary
    return summary.parts if summary is not None and summary.message_id == message.id else 0


def places(path: Path, thread_id: str) -> list[Place]:
    """Where the path may be cut, oldest first."""
    flat = [(number, part) for number, message in enumerate(path.messages) for part in message.parts]
    left = sum(part_chars(part) for _, part in flat)
    waiting = _unanswered_from(path.messages)
    calls = _Calls()
    found: list[Place] = []
    within = 0
    for at, (number, part) in enumerate(flat):
        message = path.messages[number]
        within = within + 1 if at and flat[at - 1][0] == number else 1
        left -= part_chars(part)
        calls.add(message, part)
        after = flat[at + 1] if at + 1 < len(flat) else None
        if _tears(path.messages, number, part, after, calls):
            continue
        if message.role != "assistant" and waiting <= number:
            continue
        if message.thread_id == thread_id:
            found.append(Place(message.id, hidden_parts(path, message) + within, at + 1, left))
        elif after is not None and path.messages[after[0]].thread_id == thread_id:
            found.append(Place(path.messages[after[0]].id, 0, at + 1, left))
    return found


def choose(found: list[Place], keep: float, room: float) -> Place | None:
    """The place after which about `keep` characters stay: the oldest one after which no more do.

    Something always stays if there is room for it: where the newest group alone is more than `keep`, it stays all the
    same, up to `room`. Nothing does only if nothing was to.
    """
    fitting = [place for place in found if place.kept <= keep]
    if not fitting:
        # What cannot be cut any shorter, a group that is still open for one, stays however long it is.
        return found[-1] if found else None
    chosen = fitting[0]
    if chosen.kept == 0 and keep > 0 and len(found) > 1 and found[-2].kept <= room:
        return found[-2]
    return chosen


def cut(path: Path, place: Place) -> Cut:
    """The path in two. Parts on both sides are all parts of the path, none twice."""
    covered: list[Message] = []
    kept: list[Message] = []
    left = place.at
    for message in path.messages:
        if left <= 0:
            kept.append(message)
        elif left < len(message.parts):
            covered.append(message.with_(parts=message.parts[:left]))
            kept.append(message.with_(parts=message.parts[left:]))
        else:
            covered.append(message)
        left -= len(message.parts)
    staying = {message.id for message in kept}
    ended = [message for message in covered if message.id not in staying and message.status.state not in _OPEN]
    return Cut(
        message_id=place.message_id,
        parts=place.parts,
        covered=path.with_(messages=tuple(covered)),
        kept=tuple(kept),
        messages=len(ended),
        words=_words(path.messages, len(covered)),
    )


def opening(path: Path) -> str:
    """The first words of the user on the path, empty if there are none."""
    texts = (words_of(message) for message in path.messages if message.role == "user")
    return next((text for text in texts if text.strip()), "")


def words_of(message: Message) -> str:
    """What a message of the user's side says."""
    texts = [
        part.text if isinstance(part, TextPart) else part.content
        for part in message.parts
        if isinstance(part, TextPart | EventPart)
    ]
    return "\n\n".join(text for text in texts if text.strip())


class _Calls:
    """The calls of the newest response that have no result yet."""

    def __init__(self) -> None:
        self.open: set[str] = set()
        self._step: tuple[str, int] | None = None
        self._answering = False

    def add(self, message: Message, part: Part) -> None:
        if isinstance(part, ToolResultPart):
            self.open.discard(part.call_id)
            self._answering = True
            return
        step = (message.id, part.step)
        if step != self._step or self._answering:
            self.open.clear()
        self._step, self._answering = step, False
        if isinstance(part, ToolCallPart):
            self.open.add(part.call_id)


def _tears(
    messages: tuple[Message, ...], number: int, part: Part, after: tuple[int, Part] | None, calls: _Calls
) -> bool:
    """Whether a cut after this part would part what belongs together."""
    message = messages[number]
    if after is None:
        # Nobody knows yet what comes next: it may be the results.
        return bool(calls.open) or isinstance(part, ReasoningPart | ContextPart)
    if isinstance(after[1], ToolResultPart):
        return True
    if after[0] != number:
        # The calls of a turn that is over get no result any more; a paused one is answered when people decide.
        return bool(calls.open) and message.status.state in _OPEN
    if message.role != "assistant" or calls.open or isinstance(part, ReasoningPart | ContextPart):
        return True
    return after[1].step == part.step and not isinstance(part, ToolResultPart)


def _unanswered_from(messages: tuple[Message, ...]) -> int:
    """Where the words begin that nobody has answered, or whose answer is under way; their number if there are none."""
    end = len(messages)
    if end and messages[-1].role == "assistant":
        if messages[-1].status.state not in _OPEN:
            return end
        end -= 1
    while end and messages[end - 1].role != "assistant":
        end -= 1
    return end


def _words(messages: tuple[Message, ...], covered: int) -> str:
    waiting = _unanswered_from(messages)
    texts = (words_of(message) for message in messages[waiting:covered] if message.role != "assistant")
    return "\n\n".join(text for text in texts if text)
