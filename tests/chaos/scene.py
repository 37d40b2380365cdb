"""What somebody asks of a thread whose worker is about to die, and what there is to see of it afterwards."""

from collections.abc import Awaitable, Callable, Coroutine
from dataclasses import dataclass
from typing import Any

from perdure.branches import Imported
from perdure.contract import Approved, TreeChanged
from perdure.inputs import Accepted
from perdure.messages import Message, TextPart, ToolCallPart
from tests.cases.conversation import results_of
from tests.chaos.crashes import Crash
from tests.eventually import eventually


class Scene:
    """A thread in which somebody asks for something while its worker is about to die."""

    def __init__(self, crash: Crash) -> None:
        self.thread = crash.thread
        self.client = crash.client
        self.place = crash.place

    async def texts(self) -> list[str]:
        """What is shown."""
        return [
            "".join(part.text for part in message.parts if isinstance(part, TextPart))
            for message in await self.client.history(self.thread)
        ]

    async def first_answer(self) -> str:
        """A question and its answer; the id of that."""
        accepted = await self.client.send(self.thread, "hello", id="m1")
        return (await self.client.wait_settled(self.thread, accepted.message_id)).id

    async def question(self, words: str = "book it") -> str:
        """A turn that waits for approval; its call."""
        await self.client.send(self.thread, words, id="m1")
        return await self.asked("approval")

    async def wonder(self) -> str:
        """A turn that waits for a person's result; its call."""
        await self.client.send(self.thread, "wonder", id="m1")
        return await self.asked("waiting")

    async def asked(self, state: str) -> str:
        """The call that waits like that."""

        async def waits() -> str | None:
            # By the workflow's word: the store knows of it a moment earlier.
            asked = [call for call in await self.client.open_calls(self.thread) if call.state == state]
            return asked[0].call_id if asked else None

        call_id: str | None = await eventually(waits, timeout=60)
        assert call_id is not None
        return call_id

    async def hide(self) -> None:
        """Other words take the place of the first ones, and are answered."""
        words = (await self.client.history(self.thread))[0].id
        await self.client.edit(self.thread, words, "rather this", id="e1")
        await self.client.wait_settled(self.thread)

    async def turn_of(self, call_id: str) -> Message:
        """The turn that has made a call, on whatever branch."""
        messages = [one.message for one in (await self.client.tree(self.thread)).messages]
        return next(
            message
            for message in messages
            for part in message.parts
            if isinstance(part, ToolCallPart) and part.call_id == call_id
        )

    async def completed(self, call_id: str) -> list[tuple[str, str]]:
        """Wait until the turn that has made a call is over; outcome and content of its results."""

        async def is_over() -> bool:
            return (await self.turn_of(call_id)).status.state == "complete"

        await eventually(is_over, timeout=60)
        return results_of(await self.turn_of(call_id))


@dataclass(frozen=True)
class Deed:
    """What somebody asks for, about what `prepare` has made; and what there is to see of it afterwards."""

    prepare: Callable[[Scene], Awaitable[str]]
    ask: Callable[[Scene, str], Coroutine[Any, Any, TreeChanged | Approved | Accepted | Imported | None]]
    check: Callable[[Scene, str], Awaitable[None]]
    points: tuple[str, ...]
    ends: frozenset[str] = frozenset({"complete"})
