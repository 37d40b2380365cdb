"""What servers offer, and when they offer nothing (RAP, basic/toolsets): problems are told, the rest works."""

import json
from collections.abc import AsyncGenerator

import pytest
from temporalio.client import Client

from activities.catalog import ToolCatalog
from perdure.agent import Agent, Agents
from perdure.rap.toolset import RapToolset
from perdure.records import ThreadRecord
from perdure.settings import Settings
from perdure.testing import Call
from stores.postgres import PostgresStore
from tests.eventually import eventually
from tests.fakes.rap_server import DISCOVERY, Answer, FakeRapServer, FakeTool
from tests.workflows.rap_stack import RapStack
from worker import connect_toolset

TIMES = {"type": "object", "properties": {"zone": {"type": "string"}}, "required": ["zone"]}


@pytest.fixture
async def server() -> AsyncGenerator[FakeRapServer]:
    """A server that works."""
    async with FakeRapServer(FakeTool("ask"), FakeTool("get_time", schema=TIMES), name="good") as server:
        yield server


async def works(stack: RapStack, server: FakeRapServer, thread: str) -> None:
    """The good server's tool is offered, and a call of it comes back."""
    call = await stack.called(thread, server, Call("ask"))
    await server.result(call, "done")
    await stack.heard(thread, "heard done")
    assert "ask" in stack.model.requests[-1].tools


async def problem(stack: RapStack, thread: str) -> str:
    """The one problem that the status shows."""
    (told,) = await eventually(lambda: _problems(stack, thread))
    return str(told)


async def test_obligation_3_a_name_clash_offers_neither(
    temporal: Client, store: PostgresStore, server: FakeRapServer, thread: str
) -> None:
    """Both owners are named, neither tool can be called, and all others of the two servers can."""
    async with (
        FakeRapServer(FakeTool("get_time"), FakeTool("other"), name="second") as second,
        RapStack(temporal, store, RapToolset(server.url, "good"), RapToolset(second.url, "second")) as stack,
    ):
        await works(stack, server, thread)
        told = await problem(stack, thread)
        assert "get_time" in told
        assert "good" in told
        assert "second" in told
        assert stack.model.requests[0].tools == ("ask", "other", "cancel_subscription", "read_result")
        await stack.asked(thread, Call("get_time", {"zone": "UTC"}))
        await stack.heard(thread, "get_time")
        assert (await stack.results(thread))[-1].outcome == "error"
        assert [call.operation for call in (*server.invocations, *second.invocations)] == ["ask"]
        # Said once, and not with every model call.
        assert len((await stack.status(thread)).problems) == 1


async def test_obligation_3_a_clash_with_a_tool_of_the_agent(
    temporal: Client, store: PostgresStore, server: FakeRapServer, thread: str
) -> None:
    """A server cannot take the place of the agent's own tool."""
    own = Agent("x", model="test")

    @own.tool
    def get_time() -> str:
        """What time it is here."""
        return "noon"

    async with RapStack(temporal, store, server, tools=own.tools.values()) as stack:
        await works(stack, server, thread)
        assert "get_time" in await problem(stack, thread)
        assert "get_time" not in stack.model.requests[0].tools


@pytest.mark.parametrize(
    ("manifest", "said"),
    [
        ({"name": ""}, "`name`"),
        ({"endpoint": "/invoke"}, "`endpoint`"),
        ({"tools": []}, "`tools`"),
        ({"tools": [{"name": "a b", "description": "x", "inputSchema": {"type": "object"}}]}, "name"),
        ({"tools": [{"name": "fine", "description": "x", "inputSchema": {"type": "objekt"}}]}, "`inputSchema`"),
        ({"tools": [{"name": "fine", "description": "", "inputSchema": {"type": "object"}}]}, "`description`"),
    ],
)
async def test_obligation_2_an_invalid_manifest_offers_nothing(
    temporal: Client, store: PostgresStore, server: FakeRapServer, thread: str, manifest: dict[str, object], said: str
) -> None:
    """Not the valid tools in it either; what is wrong is told, and the other server's tools are offered."""
    async with (
        FakeRapServer(FakeTool("fine"), name="bad") as bad,
        RapStack(temporal, store, bad, server) as stack,
    ):
        bad.manifest = manifest
        await works(stack, server, thread)
        assert said in await problem(stack, thread)
        assert "fine" not in stack.model.requests[0].tools


@pytest.mark.parametrize("answer", [Answer(status=500), Answer(body=b"<html>"), Answer(status=302), Answer(body=b"[]")])
async def test_obligation_4_a_server_that_gives_no_manifest_is_reported(
    temporal: Client, store: PostgresStore, server: FakeRapServer, thread: str, answer: Answer
) -> None:
    """It is left out and named, and nobody waits long for it."""
    async with (
        FakeRapServer(FakeTool("fine"), name="bad") as bad,
        RapStack(temporal, store, RapToolset(bad.url, "bad"), server) as stack,
    ):
        bad.script(DISCOVERY, *[answer] * 20)
        await works(stack, server, thread)
        assert "bad" in await problem(stack, thread)


async def test_obligation_4_an_unreachable_server_is_reported(
    temporal: Client, store: PostgresStore, server: FakeRapServer, thread: str
) -> None:
    """A server that is down when a conversation begins costs it this server's tools alone."""
    gone = FakeRapServer(FakeTool("fine"))
    async with gone:
        url = gone.url
    async with RapStack(temporal, store, RapToolset(url, "gone"), server) as stack:
        await works(stack, server, thread)
        assert "gone cannot be reached" in await problem(stack, thread)


async def test_a_conversation_keeps_its_tools(
    temporal: Client, store: PostgresStore, server: FakeRapServer, thread: str
) -> None:
    """A manifest that changes, and a server that goes away, change nothing for it, over restarts; a new one sees it."""
    async with RapStack(temporal, store, server) as stack:
        await works(stack, server, thread)
        offered = stack.model.requests[-1].parameters.function_tools
        server.manifest = {"tools": [FakeTool("ask", description="Changed.").entry(), FakeTool("new").entry()]}
        await stack.restart_worker()
        await works(stack, server, thread)
        assert stack.model.requests[-1].parameters.function_tools == offered
        await server.stop()
        await stack.restart_worker()
        await stack.client.send(thread, "still there?", id="m")
        await stack.heard(thread, "still there?")
        assert stack.model.requests[-1].parameters.function_tools == offered
        assert (await stack.status(thread)).problems == ()
        async with server:
            await works(stack, server, f"{thread}-new")
            assert stack.model.requests[-1].tools == ("ask", "new", "cancel_subscription", "read_result")


async def test_a_worker_that_knew_no_server_carries_calls_out(
    store: PostgresStore, server: FakeRapServer, thread: str
) -> None:
    """The server was away when this worker asked it; another worker has offered its tools since, and they are kept."""
    agent = Agent("a", model="test", toolsets=[RapToolset(server.url)])
    await store.create_thread(ThreadRecord(thread_id=thread, agent="a"))

    def worker() -> ToolCatalog:
        return ToolCatalog(store, Agents([agent]), lambda toolset: connect_toolset(toolset, store, Settings()))

    here, elsewhere = worker(), worker()
    server.script(DISCOVERY, *[Answer(status=500)] * 3)
    assert "ask" not in (await here.of(agent, thread)).tools
    assert "ask" not in (await here.kept(agent, thread)).tools
    assert "ask" in (await elsewhere.of(agent, thread)).tools
    assert "ask" in (await here.kept(agent, thread)).tools
    asked = len(server.received(DISCOVERY))
    assert (await here.kept(agent, thread)).problems == ()
    assert len(server.received(DISCOVERY)) == asked
    for catalog in (here, elsewhere):
        await catalog.close()


async def test_child_threads_have_the_tools_of_their_root(
    temporal: Client, store: PostgresStore, server: FakeRapServer, thread: str
) -> None:
    """A session is a root and all below it: a child does not ask the server again, so its prompt begins the same."""
    async with RapStack(temporal, store, server) as stack:
        subscription = await stack.subscribed(thread, server, "ask")
        asked = len(server.received(DISCOVERY))
        server.manifest = {"tools": [FakeTool("new").entry()]}
        await stack.restart_worker()
        await server.event(subscription, "rain")
        (child,) = await eventually(lambda: store.get_children(thread))
        await stack.heard(child.thread_id, "heard rain")
        assert stack.model.requests[-1].tools == stack.model.requests[0].tools
        assert len(server.received(DISCOVERY)) == asked


async def test_obligation_5_calls_go_to_the_endpoint_of_their_own_server(
    temporal: Client, store: PostgresStore, thread: str
) -> None:
    """The manifest says where, the base URL only where the manifest is; what is sent is all that the protocol names."""
    async with (
        FakeRapServer(FakeTool("ask"), prefix="/tools", path="/invoke") as server,
        FakeRapServer(FakeTool("other")) as other,
        RapStack(temporal, store, server, other) as stack,
    ):
        call = await stack.called(thread, server, Call("ask", {"n": 1}))
        assert [request.path for request in server.requests] == ["/tools/.well-known/rap-toolset", "/tools/invoke"]
        assert [request.path for request in other.requests] == ["/.well-known/rap-toolset"]
        sent = json.loads(json.dumps(dict(call.body)))
        assert sent == {
            "operation": "ask",
            "arguments": {"n": 1},
            "id": (await stack.status(thread)).open_calls[0].call_id,
            "call_id": None,
            "callback_url": await stack.gateway.url(thread, call.id),
            "group_id": thread,
            "thread_ancestors": None,
        }
        await server.result(call, "done")
        await stack.heard(thread, "heard done")


async def test_obligation_6_arguments_are_checked_before_anything_is_sent(
    temporal: Client, store: PostgresStore, server: FakeRapServer, thread: str
) -> None:
    """What does not fit the schema is an error for the model, and the server hears nothing of it."""
    async with RapStack(temporal, store, server) as stack:
        await stack.asked(thread, Call("get_time", {"zone": 7}))
        await stack.heard(thread, "zone")
        assert (await stack.results(thread))[-1].outcome == "error"
        assert server.invocations == []
        call = await stack.called(thread, server, Call("get_time", {"zone": "UTC"}))
        await server.result(call, "noon")
        await stack.heard(thread, "heard noon")


async def test_obligation_9_a_refused_call_is_an_error_for_the_model(
    temporal: Client, store: PostgresStore, server: FakeRapServer, thread: str
) -> None:
    """A 4xx is not tried again, names the operation and no address; the next call goes through."""
    async with RapStack(temporal, store, server) as stack:
        server.script("/", Answer(status=422))
        await stack.asked(thread, Call("ask"))
        await stack.heard(thread, "refused with HTTP status 422")
        (result,) = await stack.results(thread)
        assert (result.outcome, "ask" in result.content, server.url in result.content) == ("error", True, False)
        assert len(server.received("/")) == 1
        await works(stack, server, thread)


async def _problems(stack: RapStack, thread: str) -> tuple[str, ...]:
    return (await stack.status(thread)).problems
