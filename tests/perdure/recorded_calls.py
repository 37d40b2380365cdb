"""Calls to threads that are not made: what would have been sent, and answers that are given for it."""

from dataclasses import dataclass, field
from typing import Any

from perdure.codec import Wire
from perdure.contract import ThreadStart
from perdure.thread_calls import ThreadCalls


@dataclass
class RecordedCalls(ThreadCalls):
    """Records signals and updates, by their names and contents. `answers` are those to updates, by their names."""

    answers: dict[str, object] = field(default_factory=dict[str, object])
    sent: list[tuple[str, Any]] = field(default_factory=list[tuple[str, Any]])
    starts: list[ThreadStart] = field(default_factory=list[ThreadStart])

    async def signal_with_start(
        self, thread_id: str, signal: str, content: object, start: ThreadStart | None = None
    ) -> None:
        """It is taken."""
        self.sent.append((signal, content))
        self.starts.append(start or ThreadStart())

    async def update_with_start(
        self, thread_id: str, update: str, content: object, answer: type[Any], start: ThreadStart
    ) -> Any:
        """It is answered; an error that is given for an answer is raised."""
        self.sent.append((update, content))
        self.starts.append(start)
        given = self.answers[update]
        if isinstance(given, Exception):
            raise given
        assert isinstance(given, answer)
        return given

    def last(self) -> tuple[str, dict[str, Any]]:
        """What was sent last: its name, and the fields that are said, without the input's tag and its id."""
        name, content = self.sent[-1]
        assert isinstance(content, Wire)
        return name, {key: value for key, value in content.stated().items() if key not in ("kind", "id")}
