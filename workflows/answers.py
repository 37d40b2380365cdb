"""What became of inputs whose senders wait for it: the updates that are under way."""

from collections import Counter
from dataclasses import dataclass

from temporalio import workflow

with workflow.unsafe.imports_passed_through():
    from perdure.codec import digest, dumps
    from perdure.inputs import AnyInput, Control, Disposition, ToolResult

Key = tuple[str, ...]


@dataclass(frozen=True)
class Answer:
    """What became of an input. `detail` says why it was refused; `head_id` is the thread's head after it."""

    disposition: Disposition
    detail: str | None = None
    head_id: str | None = None


class Answers:
    """Holds an answer for as long as a handler waits for it, so it is bounded by the updates in flight."""

    def __init__(self) -> None:
        self._senders: Counter[Key] = Counter()
        self._known: dict[Key, list[Answer]] = {}

    def expect(self, content: AnyInput) -> None:
        """A handler waits for what becomes of this input, until `forget`."""
        self._senders[_key(content)] += 1

    def is_expected(self, content: AnyInput) -> bool:
        """Whether somebody will be told."""
        return self._senders[_key(content)] > 0

    def give(self, content: AnyInput, answer: Answer) -> None:
        """Tell a sender of this content, if there is any. Of several each gets an answer, in their order."""
        if self.is_expected(content):
            self._known.setdefault(_key(content), []).append(answer)

    def get(self, content: AnyInput) -> Answer | None:
        """What became of the input, None while that is not known."""
        answers = self._known.get(_key(content))
        return answers[0] if answers else None

    def take(self, content: AnyInput) -> None:
        """A handler has its answer: the next one is for the next handler of the same content."""
        answers = self._known.get(_key(content))
        if answers:
            answers.pop(0)

    def forget(self, content: AnyInput) -> None:
        """The handler has its answer."""
        key = _key(content)
        self._senders[key] -= 1
        if self._senders[key] == 0:
            del self._senders[key]
            self._known.pop(key, None)


def _key(content: AnyInput) -> Key:
    # The digest tells other content under the same id apart.
    if isinstance(content, ToolResult | Control):
        return content.kind, content.call_id or "", digest(dumps(content))
    return content.kind, getattr(content, "id", ""), getattr(content, "digest", "")
