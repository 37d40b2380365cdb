"""The tools of an agent in a conversation, when some of them are a server's to offer."""

from collections.abc import Mapping
from typing import Any

import pytest

from activities.catalog import Catalog, ToolCatalog
from activities.tool_output import Pending, ToolOutput
from perdure.agent import Agent, Agents
from perdure.builtins import READ_RESULT, Subscriptions, Threads, Timers
from perdure.contract import DispatchRequest
from perdure.errors import ToolsetUnavailable
from perdure.mcp import McpToolset
from perdure.records import OpenCall, ThreadRecord
from perdure.thread_texts import ownership
from perdure.tools import Tool, Toolset
from stores.memory import MemoryStore


class Server:
    """A tool server that offers what it is told to; `None` is no answer."""

    def __init__(self, name: str, *offered: str) -> None:
        self.name = name
        self.offered: tuple[str, ...] | None = offered
        self.fetched = 0

    async def fetch(self) -> dict[str, Any]:
        """What it offers now."""
        self.fetched += 1
        if self.offered is None:
            raise ToolsetUnavailable(f"{self.name} does not answer.")
        return {"names": list(self.offered)}

    def tools(self, listing: Mapping[str, Any]) -> tuple[Tool, ...]:
        """The tools of a listing."""
        return tuple(Tool(name, "", {"type": "object"}, kind="mcp", toolset=self.name) for name in listing["names"])

    async def call(self, tool: Tool, call: OpenCall, request: DispatchRequest) -> ToolOutput | Pending:
        """Never called here."""
        raise AssertionError

    async def close(self) -> None:
        """Nothing is open."""


def toolset(name: str) -> McpToolset:
    """A declaration; its server is a `Server` of this name."""
    return McpToolset.stdio(name, "unused")


class Bench:
    """A store with one conversation, and workers over it that know the same servers."""

    def __init__(self, *servers: Server, tools: tuple[Tool, ...] = (), toolsets: tuple[Toolset, ...] = ()) -> None:
        self.servers = {server.name: server for server in servers}
        declared = [*toolsets, *(toolset(server.name) for server in servers)]
        self.agent = Agent("a", model="test", tools=tools, toolsets=declared)
        self.store = MemoryStore()
        self.catalog = self.worker()

    def worker(self) -> ToolCatalog:
        """A new worker: it remembers nothing."""
        return ToolCatalog(self.store, Agents([self.agent]), lambda toolset: self.servers[toolset.name])

    async def thread(self, thread_id: str, parent: str | None = None) -> str:
        """A stored thread."""
        await self.store.create_thread(ThreadRecord(thread_id=thread_id, agent="a", parent_thread_id=parent))
        return thread_id

    async def of(self, thread_id: str) -> Catalog:
        """The tools as this worker offers them."""
        return await self.catalog.of(self.agent, thread_id)


def client_tool(name: str) -> Tool:
    """A tool of the agent's own."""
    return Tool(name, "", {"type": "object"}, kind="client")


async def test_own_tools_come_first_and_servers_in_the_order_of_their_declaration() -> None:
    """The order is always the same, for prompt caches."""
    bench = Bench(Server("s2", "z"), Server("s1", "b", "a"), tools=(client_tool("own"),), toolsets=(Timers(),))
    catalog = await bench.of(await bench.thread("t"))
    sleepers = ("sleep", "sleep_until", "sleep_until_event_or_input")
    assert tuple(catalog.tools) == ("own", *sleepers, "z", "b", "a", READ_RESULT)
    assert catalog.problems == ()


async def test_a_server_is_asked_once_in_a_conversation() -> None:
    """Also by other workers, and for the threads below: what the model saw once it goes on seeing."""
    server = Server("s", "old")
    bench = Bench(server)
    await bench.of(await bench.thread("root"))
    server.offered = ("new",)
    bench.catalog = bench.worker()
    assert tuple((await bench.of("root")).tools) == ("old", READ_RESULT)
    assert tuple((await bench.of(await bench.thread("child", "root"))).tools) == ("old", READ_RESULT)
    assert server.fetched == 1


async def test_another_conversation_asks_again() -> None:
    """It gets what the server offers then."""
    server = Server("s", "old")
    bench = Bench(server)
    await bench.of(await bench.thread("t1"))
    server.offered = ("new",)
    assert tuple((await bench.of(await bench.thread("t2"))).tools) == ("new", READ_RESULT)


async def test_a_server_that_does_not_answer_is_named_and_left_out() -> None:
    """The other tools are offered; it is not asked again at once."""
    server = Server("s")
    server.offered = None
    bench = Bench(server, tools=(client_tool("own"),))
    await bench.thread("t")
    for _ in range(3):
        catalog = await bench.of("t")
        assert tuple(catalog.tools) == ("own", READ_RESULT)
        assert catalog.problems == ("s does not answer.",)
    assert server.fetched == 1


async def test_a_server_that_answers_again_is_offered_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """In the conversation that had to begin without it."""
    server = Server("s")
    server.offered = None
    bench = Bench(server)
    await bench.of(await bench.thread("t"))
    server.offered = ("a",)
    monkeypatch.setattr("activities.catalog.RETRY_S", 0.0)
    now = 1e12
    monkeypatch.setattr("activities.catalog.time.monotonic", lambda: now)
    assert tuple((await bench.of("t")).tools) == ("a", READ_RESULT)
    assert (await bench.of("t")).problems == ()


async def test_of_tools_with_the_same_name_none_is_offered() -> None:
    """Neither of two servers nor of the agent itself and a server: the model could not tell them apart."""
    bench = Bench(Server("s1", "x", "a"), Server("s2", "x", "own"), tools=(client_tool("own"),))
    catalog = await bench.of(await bench.thread("t"))
    assert tuple(catalog.tools) == ("a", READ_RESULT)
    assert len(catalog.problems) == 2
    assert "'x'" in catalog.problems[1]
    assert "s1, s2" in catalog.problems[1]


async def test_a_reserved_name_is_never_offered() -> None:
    """A server cannot speak for the runtime."""
    bench = Bench(Server("s", "receive_event__injected", "a"))
    assert tuple((await bench.of(await bench.thread("t"))).tools) == ("a", READ_RESULT)


async def test_all_threads_of_a_conversation_are_told_the_same_of_its_root() -> None:
    """The instructions name the root alone, so that a child's request begins as its parent's does."""
    bench = Bench(toolsets=(Threads(),))
    root = await bench.of(await bench.thread("root"))
    child = await bench.of(await bench.thread("child", "root"))
    assert 'in the root thread root, and your stack of threads is ["root"]' in root.instructions
    assert ownership() in root.instructions
    assert child.instructions == root.instructions


@pytest.mark.parametrize(("toolset", "told"), [(Subscriptions(), ownership()), (Timers(), "")])
async def test_who_can_subscribe_is_told_how_to_know_its_subscriptions(toolset: Toolset, told: str) -> None:
    """Without child threads there is no stack to name; who can own nothing is told nothing."""
    bench = Bench(toolsets=(toolset,))
    assert (await bench.of(await bench.thread("t"))).instructions == told


async def test_a_thread_is_loaded_without_asking_a_server() -> None:
    """What it was offered before is known; a server that hangs cannot hold it up."""
    asked, silent = Server("asked", "a"), Server("silent", "b")
    silent.offered = None
    bench = Bench(asked, silent)
    await bench.of(await bench.thread("t"))
    bench.catalog = bench.worker()
    fetched = asked.fetched, silent.fetched
    assert tuple((await bench.catalog.kept(bench.agent, "t")).tools) == ("a", READ_RESULT)
    assert (asked.fetched, silent.fetched) == fetched


async def test_agents_that_declare_the_same_toolset_share_its_connections() -> None:
    """One process, one set of connections."""
    store = MemoryStore()
    shared = toolset("s")
    made: list[str] = []

    def connect(declared: Toolset) -> Server:
        made.append(declared.name)
        return Server(declared.name)

    agents = Agents([Agent("a", model="test", toolsets=[shared]), Agent("b", model="test", toolsets=[toolset("s")])])
    ToolCatalog(store, agents, connect)
    assert made == ["s"]


async def test_an_agent_without_a_rap_toolset_can_be_let_end_subscriptions() -> None:
    """Those of tools of the user's side; with a RAP toolset it can anyhow."""
    bench = Bench(tools=(client_tool("watch"),), toolsets=(Subscriptions(),))
    assert tuple((await bench.of(await bench.thread("t"))).tools) == ("watch", "cancel_subscription", READ_RESULT)
