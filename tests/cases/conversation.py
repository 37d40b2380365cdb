"""A conversation over a real worker, with what its users do and see."""

import asyncio
from collections.abc import Callable
from typing import Any

from perdure.agent import Agent
from perdure.contract import CallStatus
from perdure.messages import Message, Part, Status, TextPart, ToolCallPart, ToolResultPart
from perdure.testing import Asked, Call, Reply, ScriptedModel
from tests.eventually import eventually
from tests.stack import Stack

Answering = Callable[[Asked], Reply | str]


class Gate:
    """Something that happens when it is opened, and tells that it has begun."""

    def __init__(self) -> None:
        self.begun = asyncio.Event()
        self.open = asyncio.Event()

    async def passed(self) -> None:
        """Wait for it to be opened."""
        self.begun.set()
        await self.open.wait()


class Conversation:
    """One thread: what people say and do, and what they are shown."""

    def __init__(self, stack: Stack, thread: str, model: ScriptedModel) -> None:
        self.stack = stack
        self.client = stack.client
        self.thread = thread
        self.model = model

    async def say(self, text: str, **options: Any) -> Message:
        """Words, and the settled answer."""
        accepted = await self.client.send(self.thread, text, **options)
        return await self.client.wait_settled(self.thread, accepted.message_id)

    async def path(self) -> list[Message]:
        """The messages that are shown."""
        return await self.client.history(self.thread)

    async def shown(self) -> list[str]:
        """What is shown, as text."""
        return [text_of(message) for message in await self.path()]

    async def ids(self) -> list[str]:
        """The ids of what is shown."""
        return [message.id for message in await self.path()]

    async def message(self, message_id: str) -> Message:
        """A message on any branch."""
        tree = await self.client.tree(self.thread)
        return next(one.message for one in tree.messages if one.message.id == message_id)

    async def status(self, message_id: str) -> Status:
        """Its status."""
        return (await self.message(message_id)).status

    async def waiting(self, count: int = 1) -> list[CallStatus]:
        """Wait until so many calls wait for a decision, or for a result of a person."""

        async def found() -> list[CallStatus]:
            calls = [
                call
                for call in await self.client.open_calls(self.thread)
                if call.state == "approval" or (call.kind == "client" and call.state == "waiting")
            ]
            return calls if len(calls) == count else []

        return await eventually(found)

    async def paused(self, count: int = 1) -> tuple[str, list[str]]:
        """Wait until the shown turn waits for people; its id, and its calls that wait."""
        calls = await self.waiting(count)

        async def rests() -> bool:
            return (await self.path())[-1].status.state == "requires_action"

        await eventually(rests)
        return (await self.path())[-1].id, [call.call_id for call in calls]

    async def until(self, message_id: str, state: str) -> Message:
        """Wait until a message on any branch has a status."""

        async def found() -> Message | None:
            message = await self.message(message_id)
            return message if message.status.state == state else None

        message = await eventually(found)
        assert message is not None
        return message

    async def until_streams(self, text: str) -> None:
        """Wait until the words stream, on whatever branch."""

        async def streams() -> bool:
            live = (await self.client.store.snapshot(self.thread)).live
            return live is not None and any(isinstance(part, TextPart) and text in part.text for part in live.parts)

        await eventually(streams)


def text_of(message: Message) -> str:
    """The words of a message."""
    return "".join(part.text for part in message.parts if isinstance(part, TextPart))


def results_of(message: Message) -> list[tuple[str, str]]:
    """Outcome and content of each result."""
    return [(part.outcome, part.content) for part in message.parts if isinstance(part, ToolResultPart)]


def kinds_of(parts: tuple[Part, ...]) -> list[str]:
    """What each part is."""
    return [part.kind for part in parts]


def call_in(message: Message, index: int = 0) -> ToolCallPart:
    """A call of the message."""
    return [part for part in message.parts if isinstance(part, ToolCallPart)][index]


def agent_of(model: ScriptedModel) -> Agent:
    """An agent with a tool that people have to approve, one that people carry out, and a plain one."""
    agent = Agent("a", model=model)

    @agent.tool(approval="always")
    async def pay(amount: int = 0) -> str:
        """Pay."""
        return f"paid {amount}"

    @agent.tool
    async def look(what: str = "") -> str:
        """Look."""
        return f"saw {what}"

    agent.client_tool("ask", description="Ask a person.", parameters={"type": "object", "properties": {}})
    return agent


def with_gate(gate: Gate, *more: Gate) -> Callable[[ScriptedModel], Agent]:
    """An agent with tools that run until their gates are opened: hold, hold1, ..."""

    def declare(model: ScriptedModel) -> Agent:
        agent = agent_of(model)
        for number, each in enumerate((gate, *more)):
            agent.tool(name=f"hold{number or ''}")(holding(each))
        return agent

    def holding(each: Gate) -> Callable[[], object]:
        async def hold() -> str:
            """Hold on."""
            await each.passed()
            return "held"

        return hold

    return declare


def by_words(replies: dict[str, list[Reply | str]]) -> Answering:
    """A script that goes by the last words of the user: the n-th request about them gets the n-th reply."""
    asked: dict[str, int] = {}

    def answer(request: Asked) -> Reply | str:
        words = request.user_text
        asked[words] = asked.get(words, 0) + 1
        known = replies.get(words, [])
        return known[asked[words] - 1] if asked[words] <= len(known) else f"answer {asked[words]} to {words}"

    return answer


PAY = Reply(Call("pay", '{"amount": 3}'))
ASK = Reply(Call("ask"))


async def typed(talk: Conversation, name: str, payload: object) -> Any:
    """An update as anybody may type it."""
    return await talk.stack.handle(talk.thread).execute_update(name, payload)  # pyright: ignore[reportUnknownMemberType]  # the SDK's `args` has no type
