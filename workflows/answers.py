"""What became of messages whose senders wait for it: the updates `send` that are under way."""

from collections import Counter

from temporalio import workflow

with workflow.unsafe.imports_passed_through():
    from perdure.inputs import Disposition, Event, UserMessage

Key = tuple[str, str]


class Answers:
    """Holds an answer for as long as a handler waits for it, so it is bounded by the updates in flight."""

    def __init__(self) -> None:
        self._senders: Counter[Key] = Counter()
        self._known: dict[Key, Disposition] = {}

    def expect(self, message: UserMessage) -> None:
        """A handler waits for what becomes of this message, until `forget`."""
        self._senders[_key(message)] += 1

    def is_expected(self, content: UserMessage | Event) -> bool:
        """Whether somebody will be told."""
        return self._senders[_key(content)] > 0

    def give(self, content: UserMessage | Event, disposition: Disposition) -> None:
        """Tell the senders of this content, if there are any."""
        if self.is_expected(content):
            self._known[_key(content)] = disposition

    def get(self, message: UserMessage) -> Disposition | None:
        """What became of the message, None while that is not known."""
        return self._known.get(_key(message))

    def forget(self, message: UserMessage) -> None:
        """The handler has its answer."""
        key = _key(message)
        self._senders[key] -= 1
        if self._senders[key] == 0:
            del self._senders[key]
            self._known.pop(key, None)


def _key(content: UserMessage | Event) -> Key:
    # The digest tells other words under the same id apart; the same words twice may share their answer.
    return content.id, content.digest
