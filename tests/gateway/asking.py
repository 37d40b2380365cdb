"""Threads that wait for answers from outside, behind a gateway."""

from datetime import timedelta

from temporalio.client import Client

from perdure.agent import Agent
from perdure.limits import Limits
from perdure.messages import Message, ToolResultPart
from perdure.testing import Asked, Call, Reply, ScriptedModel
from stores.postgres import PostgresStore
from tests.eventually import eventually
from tests.gateway.served import Served
from tests.stack import Stack


class Asking:
    """An agent that waits for answers from outside, in a stack with a gateway."""

    def __init__(self, temporal: Client, store: PostgresStore, *, calls: int = 1, idle: timedelta | None = None):
        def script(asked: Asked) -> Reply | str:
            return f"{len(asked.results)} answers" if asked.results else Reply(*[Call("ask")] * calls)

        limits = Limits(idle=idle) if idle else Limits()
        agent = Agent("a", model=ScriptedModel(script), limits=limits)

        @agent.tool(kind="client")
        async def ask() -> str:
            """Ask outside."""
            raise AssertionError("answered from outside")

        self.stack = Stack(temporal, store, [agent], sandbox=False)
        self.served = Served(temporal, store, task_queue=self.stack.settings.task_queue)

    async def __aenter__(self) -> "Asking":
        await self.stack.__aenter__()
        await self.served.__aenter__()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.served.__aexit__()
        await self.stack.__aexit__()

    async def begin(self, thread: str) -> tuple[str, list[str]]:
        """The thread waits; returns the message to be answered and the ids of its open calls."""
        accepted = await self.stack.client.send(thread, "go")

        async def is_waiting() -> bool:
            return (await self.stack.client.status(thread)).state == "waiting"

        await eventually(is_waiting)
        return accepted.message_id, [call.call_id for call in await self.stack.client.open_calls(thread)]

    async def answer(self, thread: str, call_id: str, text: str) -> int:
        """Send a result; returns the status."""
        body = {"type": "tool_result", "group_id": thread, "id": call_id, "text": text}
        return (await self.served.post(thread, call_id, body)).status_code


def results(message: Message) -> list[str]:
    """The contents of its tool results."""
    return [part.content for part in message.parts if isinstance(part, ToolResultPart)]
