"""The turn buffer in PostgreSQL: what a step streams, until its batch commits it."""

from perdure.codec import dumps
from perdure.messages import Part
from perdure.records import Step, StepOutcome
from perdure.turn_buffer import Chunk, trim_reasoning
from stores import batch_sql
from stores.database import Database
from stores.rows import to_outcome, to_parts


class PostgresTurnBuffer:
    """The steps of `perdure.ports.ConversationStore`."""

    def __init__(self, database: Database) -> None:
        self._database = database

    async def begin_step(self, thread_id: str, turn: int, step: int, attempt: int) -> Step:
        """See `perdure.ports.ConversationStore`."""
        row = await self._database.row("begin_step", thread_id, turn, step, attempt)
        assert row is not None, "bug: the function always returns a row"
        outcome = to_outcome(row["outcome"])
        return Step(
            turn=turn,
            step=step,
            attempt=row["attempt"],
            state="done" if outcome else "open",
            parts=to_parts(row["parts"] or ()),
            outcome=outcome,
        )

    async def append_chunks(
        self, thread_id: str, turn: int, step: int, attempt: int, chunks: list[Chunk], first: int | None = None
    ) -> None:
        """See `perdure.ports.ConversationStore`."""
        bodies = [dumps(chunk) for chunk in chunks]
        await self._database.row("append_chunks", thread_id, turn, step, attempt, bodies, first)

    async def finish_step(
        self,
        thread_id: str,
        turn: int,
        step: int,
        attempt: int,
        parts: tuple[Part, ...],
        outcome: StepOutcome,
        chunks: list[Chunk],
    ) -> None:
        """See `perdure.ports.ConversationStore`."""
        await self._database.row(
            "finish_step",
            thread_id,
            turn,
            step,
            attempt,
            [dumps(part) for part in parts],
            len(trim_reasoning(parts)),
            dumps(batch_sql.calls(parts, (turn, step))),
            dumps(outcome),
            [dumps(chunk) for chunk in chunks],
        )
