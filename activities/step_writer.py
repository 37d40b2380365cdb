"""Writes a streaming answer to the turn buffer, in batches.

The model is never waited for by a reader longer than one interval, and the store is never written more often than
that, whatever the speed of the tokens. An answer that is complete within the first interval costs one write.
"""

import asyncio
from types import TracebackType
from typing import Self

from temporalio import activity

from perdure.errors import StoreUnavailable
from perdure.messages import Part
from perdure.ports import ConversationStore
from perdure.records import StepOutcome
from perdure.turn_buffer import Chunk, TurnBuffer

FLUSH_INTERVAL_S = 0.05
_RETRY_S, _RETRY_MAX_S = 0.2, 5.0


class StepWriter:
    """The turn buffer of one attempt. Enter it to write in the background; leaving it stops that."""

    def __init__(self, store: ConversationStore, thread_id: str, turn: int, step: int, attempt: int) -> None:
        self._store = store
        self._place = (thread_id, turn, step, attempt)
        self._pending: dict[int, Chunk] = {}
        self._all = TurnBuffer()
        self._wake = asyncio.Event()
        self._writing = asyncio.Lock()
        self._flusher: asyncio.Task[None] | None = None
        self._failed: Exception | None = None
        self._in_doubt = False
        self.streamed = False

    async def __aenter__(self) -> Self:
        self._flusher = asyncio.create_task(self._flush_forever())
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._stop()

    def add(self, chunk: Chunk) -> None:
        """Take a chunk. Pieces of a part that wait for the same write are joined.

        Raises:
            StepSealed: if an earlier write was refused: this attempt is over.
        """
        if self._failed is not None:
            raise self._failed
        self._all.add(chunk)
        waiting = self._pending.get(chunk.index)
        if waiting is not None and chunk.part is None:
            chunk = waiting.with_(delta=waiting.delta + chunk.delta)
        self._pending[chunk.index] = chunk
        self._wake.set()

    async def finish(self, parts: tuple[Part, ...], outcome: StepOutcome) -> None:
        """Store the exact answer, with the last chunks for readers.

        While the store is away this tries on: the answer has been paid for, and only this process has it.

        Raises:
            StepSealed: if the step was stopped or taken over.
        """
        async with self._writing:
            await self._stop()
        if self._failed is not None:
            raise self._failed
        # Nobody has seen a chunk of an answer that came at once, and its parts follow in a moment.
        chunks = self._take() if self.streamed else []
        delay_s = _RETRY_S
        while True:
            try:
                await self._store.finish_step(*self._place, parts, outcome, chunks)
            except StoreUnavailable:
                activity.logger.warning("answer not stored yet, the store is away", extra={"thread_id": self._place[0]})
                await asyncio.sleep(delay_s)
                delay_s = min(2 * delay_s, _RETRY_MAX_S)
            else:
                return

    async def _flush_forever(self) -> None:
        while True:
            await self._wake.wait()
            await asyncio.sleep(_RETRY_S if self._in_doubt else FLUSH_INTERVAL_S)
            self._wake.clear()
            async with self._writing:
                try:
                    await self._flush()
                except Exception as error:  # whatever ends the writing ends the answer: `add` and `finish` raise it
                    self._failed = error
                    return

    async def _flush(self) -> None:
        chunks = self._take()
        self.streamed = True
        try:
            await self._store.append_chunks(*self._place, chunks)
        except StoreUnavailable:
            # Whether it was written is unknown, and deltas written twice would double words for readers and for a
            # stop. So the next write replaces every part as a whole.
            self._in_doubt = True
            self._wake.set()
        else:
            self._in_doubt = False

    def _take(self) -> list[Chunk]:
        chunks = self._all.chunks() if self._in_doubt else list(self._pending.values())
        self._pending.clear()
        return chunks

    async def _stop(self) -> None:
        flusher, self._flusher = self._flusher, None
        if flusher is not None:
            flusher.cancel()
            await asyncio.wait({flusher})
