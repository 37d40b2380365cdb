"""Tool servers of the RAP protocol with the whole stack: calls go out over HTTP, results come back to the gateway."""

from collections.abc import AsyncGenerator

import pytest
from temporalio.client import Client

from perdure.agent import Agent
from perdure.messages import EventPart
from perdure.rap.toolset import RapToolset
from perdure.testing import Asked, Call, Reply, ScriptedModel
from perdure.watch import answer_text
from stores.postgres import PostgresStore
from tests.eventually import eventually
from tests.fakes.rap_server import FakeRapServer, FakeTool
from tests.gateway.served import Served
from tests.stack import Stack


@pytest.fixture
async def server() -> AsyncGenerator[FakeRapServer]:
    """A tool server whose tool does what the test says."""
    async with FakeRapServer(FakeTool("look_up"), FakeTool("subscribe")) as server:
        yield server


async def serving(temporal: Client, store: PostgresStore, model: ScriptedModel, server: FakeRapServer) -> Stack:
    """A stack whose agent has the server's tools; its gateway is `Served`."""
    return Stack(temporal, store, [Agent("a", model=model, toolsets=[RapToolset(server.url)])])


async def test_a_result_comes_back_through_the_gateway(
    temporal: Client, store: PostgresStore, server: FakeRapServer, thread: str
) -> None:
    """The call is sent once, the thread waits, and the result that is posted ends the wait."""
    model = ScriptedModel([Reply(Call("look_up", {"what": "moon"})), "far"])
    stack = await serving(temporal, store, model, server)
    async with Served(temporal, store, task_queue=stack.settings.task_queue) as gateway:
        stack.settings = stack.settings.model_copy(update={"gateway_url": gateway.base})
        async with stack:
            accepted = await stack.client.send(thread, "look it up", id="m1")
            invocation = await server.invoked()
            assert invocation.arguments == {"what": "moon"}
            posted = await server.result(invocation, "384,400 km")
            assert posted.status == 200
            message = await stack.client.wait_settled(thread, accepted.message_id)
            assert answer_text(message) == "far"
            assert model.requests[1].results == ("384,400 km",)


async def test_events_of_a_subscription_come_inline(
    temporal: Client, store: PostgresStore, server: FakeRapServer, thread: str
) -> None:
    """Associative events start turns of the thread, until the final one."""

    def script(asked: Asked) -> Reply:
        if asked.answered == 0:
            return Reply(Call("subscribe"))
        return Reply(f"heard {asked.results[-1]}" if asked.results else "ok")

    model = ScriptedModel(script)
    stack = await serving(temporal, store, model, server)
    async with Served(temporal, store, task_queue=stack.settings.task_queue) as gateway:
        stack.settings = stack.settings.model_copy(update={"gateway_url": gateway.base})
        async with stack:
            await stack.client.send(thread, "subscribe", id="m1")
            invocation = await server.invoked()
            await server.result(invocation, "subscribed", subscription=True)

            async def said(text: str) -> bool:
                return text in answer_text((await stack.client.history(thread))[-1])

            await eventually(lambda: said("heard subscribed"))
            assert (await server.event(invocation, "first", associative=True)).status == 200
            await eventually(lambda: said("heard first"))
            assert (await server.event(invocation, "last", associative=True, final=True)).status == 200
            await eventually(lambda: said("heard last"))
            assert (await server.event(invocation, "too late", associative=True)).status in (404, 410)
            events = [
                part for m in await stack.client.history(thread) for part in m.parts if isinstance(part, EventPart)
            ]
            assert [part.content for part in events] == ["first", "last"]
