"""One thread as a client sees it: words are posted, and the answer is there when a reader of the store has it."""

import asyncio
from collections.abc import AsyncGenerator, Callable
from types import TracebackType
from typing import Self

from benchmarks.agents import ANSWER, QUESTION
from perdure.client import PerdureClient
from perdure.inputs import Mode
from perdure.messages import Message
from perdure.watch import View, WatchEvent, answer_text, is_settled

PATIENCE_S = 60


class Conversation:
    """A thread with one reader, from its first change on."""

    def __init__(self, client: PerdureClient, thread_id: str) -> None:
        self.thread_id = thread_id
        self.view = View()
        self._client = client
        self._events: AsyncGenerator[WatchEvent, None] = client.watch(thread_id, after=0)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    async def close(self) -> None:
        """Stop reading. Safe to repeat."""
        await self._events.aclose()

    async def post(self, text: str, *, id: str | None = None, mode: Mode = "interrupt") -> str:
        """Post words; returns the id of their message."""
        return await self._client.post(self.thread_id, text, id=id, mode=mode)

    async def turn(self, text: str = QUESTION) -> float:
        """Post words and wait for the settled answer; returns the seconds between."""
        clock = asyncio.get_running_loop().time
        began = clock()
        message_id = await self.post(text)
        await self.until(
            lambda view: view.head is not None and view.head.parent_id == message_id and is_settled(view.head)
        )
        if self.view.head is None or answer_text(self.view.head) != ANSWER:
            raise RuntimeError(f"{self.thread_id} was not answered as scripted but with {self.view.head}")
        return clock() - began

    async def settled(self, message_id: str) -> Message:
        """Wait until the message is answered by a settled turn, complete or not."""
        await self.until(lambda view: _answers(view.answer(message_id)))
        answer = self.view.answer(message_id)
        assert answer is not None
        return answer

    async def until(self, condition: Callable[[View], bool]) -> None:
        """Read on until the view is like that."""
        async with asyncio.timeout(PATIENCE_S):
            while not condition(self.view):
                self.view.apply(await anext(self._events))


def _answers(message: Message | None) -> bool:
    return message is not None and is_settled(message)
