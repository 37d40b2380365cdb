"""What a thread in memory holds: messages, steps, and values as a database gives them back."""

from dataclasses import dataclass
from datetime import datetime
from typing import TypeVar

from perdure.codec import Wire, dumps, loads
from perdure.messages import Message, Part, StatusState
from perdure.records import Step, StepOutcome
from perdure.turn_buffer import Chunk, TurnBuffer

Value = TypeVar("Value", bound=Wire)


def kept(value: Value) -> Value:
    """The value as a database gives it back. Raises ValueError for what JSON cannot hold."""
    return type(value).model_validate(loads(dumps(value)))


@dataclass(frozen=True)
class StoredMessage:
    """A message without its parts, and the parts with their sequence numbers.

    `place` orders siblings; `remembered` is the child that is open below it, None for the last one. `decided` are the
    numbers of decisions about its calls, with the positions of these.
    """

    message: Message
    changed: int
    place: int
    created_at: datetime | None
    given_id: str | None = None
    remembered: str | None = None
    parts: tuple[tuple[int, Part], ...] = ()
    decided: tuple[tuple[int, int], ...] = ()

    @property
    def state(self) -> StatusState:
        """Where the message stands."""
        return self.message.status.state

    def whole(self) -> Message:
        """The message with its parts."""
        return self.message.with_(parts=tuple(part for _, part in self.parts))


@dataclass(frozen=True)
class StoredStep:
    """A step of the turn buffer: `began` and the chunks carry their sequence numbers."""

    attempt: int
    began: int
    chunks: tuple[tuple[int, Chunk], ...] = ()
    parts: tuple[Part, ...] = ()
    outcome: StepOutcome | None = None

    def as_step(self, turn: int, step: int) -> Step:
        """The step as the port gives it; while it streams its parts are what the chunks give."""
        parts = self.parts if self.outcome else TurnBuffer(chunk for _, chunk in self.chunks).parts
        return Step(
            turn=turn,
            step=step,
            attempt=self.attempt,
            state="done" if self.outcome else "open",
            parts=parts,
            outcome=self.outcome,
        )
