"""A provider that does not end when it is told to, and a store that tells when it has refused what comes late."""

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import asynccontextmanager
from datetime import UTC, datetime
from typing import Any, Literal

from pydantic_ai.messages import ModelMessage, ModelResponseStreamEvent
from pydantic_ai.models import ModelRequestParameters, StreamedResponse
from pydantic_ai.models.wrapper import WrapperModel
from pydantic_ai.settings import ModelSettings
from typing_extensions import override

from perdure.errors import StepSealed
from perdure.messages import Part
from perdure.records import StepOutcome
from perdure.testing import ScriptedModel
from perdure.turn_buffer import Chunk
from stores.postgres import PostgresStore
from tests.cases.conversation import Gate

Ending = Literal["raises", "returns", "delivers"]

FIRST_WORDS = "first words"
LATE_WORDS = " and late ones"


class LateModel(WrapperModel):
    """Its first answer begins, and takes no notice of being cancelled; all others are those of the script.

    Once it is cancelled it `raises`, `returns` as if all were said, or waits for the gate and `delivers` the rest:
    words, and a call that people have to approve.
    """

    def __init__(self, scripted: ScriptedModel, ending: Ending, gate: Gate) -> None:
        super().__init__(scripted)
        self._scripted = scripted
        self._ending: Ending = ending
        self._gate = gate

    @asynccontextmanager
    async def request_stream(
        self,
        messages: list[ModelMessage],
        model_settings: ModelSettings | None,
        model_request_parameters: ModelRequestParameters,
        run_context: Any = None,
    ) -> AsyncGenerator[StreamedResponse]:
        """Answer, for the first time or by the script."""
        asking = self._scripted.request_stream(messages, model_settings, model_request_parameters, run_context)
        async with asking as stream:
            if len(self._scripted.requests) > 1:
                yield stream
                return
            late = _LateStream(model_request_parameters)
            late.begin(self._ending, self._gate)
            yield late


class _LateStream(StreamedResponse):
    def begin(self, ending: Ending, gate: Gate) -> None:
        self._ending = ending
        self._gate = gate

    async def _get_event_iterator(self) -> AsyncIterator[ModelResponseStreamEvent]:
        for event in self._parts_manager.handle_text_delta(vendor_part_id=0, content=FIRST_WORDS):
            yield event
        try:
            if self._ending == "delivers":
                await self._gate.passed()
            else:
                await asyncio.Event().wait()
        except asyncio.CancelledError:
            if self._ending == "delivers":
                await self._gate.passed()
        if self._ending == "raises":
            raise RuntimeError("the connection was closed")
        if self._ending == "delivers":
            for event in self._parts_manager.handle_text_delta(vendor_part_id=0, content=LATE_WORDS):
                yield event
            for event in self._parts_manager.handle_tool_call_delta_events(
                vendor_part_id=1, tool_name="pay", args="{}"
            ):
                yield event
        self.finish_reason = "stop"

    async def close_stream(self) -> None:
        """There is no connection to close."""

    @property
    def model_name(self) -> str:
        return "late"

    @property
    def provider_name(self) -> str:
        return "late"

    @property
    def provider_url(self) -> None:
        return None

    @property
    def timestamp(self) -> datetime:
        return datetime.now(UTC)


class SealedStore(PostgresStore):
    """A store that tells when it has refused an answer that came late."""

    refused: asyncio.Event

    @override
    async def append_chunks(
        self, thread_id: str, turn: int, step: int, attempt: int, chunks: list[Chunk], first: int | None = None
    ) -> None:
        try:
            await super().append_chunks(thread_id, turn, step, attempt, chunks, first)
        except StepSealed:
            self.refused.set()
            raise

    @override
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
        try:
            await super().finish_step(thread_id, turn, step, attempt, parts, outcome, chunks)
        except StepSealed:
            self.refused.set()
            raise
