"""The tools of an agent in a conversation: its own, the runtime's, and what the servers of its toolsets offer.

What a server offers is asked for once in each conversation (a root thread and all below it) and kept with it, so that
the model sees the same tools from the first turn to the last, whatever worker runs them and whatever the server offers
later to others. A server that does not answer is left out and named, and asked again a little later.
"""

import asyncio
import time
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import Any, Final

import structlog

from activities.rap_client import RapClient
from activities.read_result import ResultReader
from activities.recent import Recent
from activities.store_call import store_call
from activities.toolsets import ToolsetClient
from perdure.agent import Agent, Agents
from perdure.builtins import READ_RESULT, RESERVED, SUBSCRIPTION_TOOLS, Subscriptions, Threads, Timers
from perdure.errors import ConfigurationError, ToolsetUnavailable
from perdure.ports import Store
from perdure.rap.manifest import RapTool
from perdure.thread_texts import identity, ownership
from perdure.tools import Tool, Toolset

RETRY_S: Final = 30.0
"""How soon a server that does not answer is asked again: every model call would wait for it otherwise."""

Connect = Callable[[Toolset], ToolsetClient]


@dataclass(frozen=True)
class Catalog:
    """The tools by name, in the order that models see; what is wrong with the others; what is said of the thread."""

    tools: Mapping[str, Tool]
    problems: tuple[str, ...] = ()
    instructions: str = ""
    zone: str = "UTC"
    threads: Threads | None = None


@dataclass
class _Offers:
    """What the servers of an agent have offered in one conversation."""

    listings: dict[str, dict[str, Any]] = field(default_factory=dict[str, dict[str, Any]])
    catalog: Catalog | None = None
    asked_again_at: float = 0.0


def _no_servers(toolset: Toolset) -> ToolsetClient:
    raise ConfigurationError(f"Nothing here knows how to reach the server of toolset {toolset.name!r}.")


class ToolCatalog:
    """The tools of all agents of a worker, and the connections to their servers.

    Args:
        store: keeps what was offered, in the metadata of root threads.
        agents: whom the worker serves.
        connect: makes the client of a toolset that has a server.
    """

    def __init__(self, store: Store, agents: Agents, connect: Connect = _no_servers) -> None:
        self._store = store
        self._reader = ResultReader(store)
        self._agents = agents
        declared = {agent.name: [it for it in agent.toolsets if _has_server(it)] for agent in agents.values()}
        # Agents that declare the same toolset share its connections.
        different = dict.fromkeys(toolset for toolsets in declared.values() for toolset in toolsets)
        connected = {toolset: connect(toolset) for toolset in different}
        self._connected = tuple(connected.values())
        self._clients = {
            name: {toolset.name: connected[toolset] for toolset in toolsets} for name, toolsets in declared.items()
        }
        self._static = {agent.name: _catalog(agent, {}, None) for agent in agents.values() if self._is_static(agent)}
        self._roots = Recent[str, str]()
        self._offers = Recent[tuple[str, str], _Offers]()

    async def of(self, agent: Agent, thread_id: str) -> Catalog:
        """The agent's tools in the conversation of a thread."""
        return self._with_reader(await self._of(agent, thread_id), thread_id)

    async def _of(self, agent: Agent, thread_id: str) -> Catalog:
        if static := self._static.get(agent.name):
            return static
        root = await self._root(thread_id)
        offers = self._offers.get((root, agent.name)) or self._offers.put((root, agent.name), _Offers())
        if offers.catalog is None or (offers.catalog.problems and time.monotonic() >= offers.asked_again_at):
            offers.catalog = await self._compiled(agent, root, offers)
            offers.asked_again_at = time.monotonic() + RETRY_S
        return offers.catalog

    async def kept(self, agent: Agent, thread_id: str) -> Catalog:
        """The same without asking a server: tools that the conversation has not been offered yet are left out.

        Those that another worker has offered are in it, also if their server was away when this one has asked.
        """
        return self._with_reader(await self._kept(agent, thread_id), thread_id)

    async def _kept(self, agent: Agent, thread_id: str) -> Catalog:
        if static := self._static.get(agent.name):
            return static
        root = await self._root(thread_id)
        offers = self._offers.get((root, agent.name)) or _Offers()
        await self._recall(agent, root, offers)
        clients = self._clients[agent.name]
        tools: dict[str, tuple[Tool, ...]] = {}
        problems: list[str] = []
        for name, listing in offers.listings.items():
            try:
                tools[name] = clients[name].tools(listing)
            except ToolsetUnavailable as error:
                problems.append(str(error))
        return _catalog(agent, tools, root, problems)

    def client(self, agent: Agent, tool: Tool) -> ToolsetClient:
        """The way to the server of a tool. Raises KeyError if the agent has no such toolset any more."""
        return self._clients[agent.name][tool.toolset or ""]

    async def rap_tool(self, thread_id: str, name: str) -> tuple[RapClient, RapTool] | None:
        """A thread's RAP tool of this name, with the client of its server; None if it is none, or none any more."""
        thread = await store_call(self._store.get_thread(thread_id))
        agent = self._agents[thread.agent]
        tool = (await self.kept(agent, thread_id)).tools.get(name)
        if not isinstance(tool, RapTool):
            return None
        client = self.client(agent, tool)
        return (client, tool) if isinstance(client, RapClient) else None

    def rap_clients(self, agent: str) -> Iterable[RapClient]:
        """The clients of an agent's RAP servers; none for an agent that is not served here."""
        return [client for client in self._clients.get(agent, {}).values() if isinstance(client, RapClient)]

    async def close(self) -> None:
        """Close all connections."""
        for client in self._connected:
            await client.close()

    def _with_reader(self, catalog: Catalog, thread_id: str) -> Catalog:
        """With the tool that reads this thread's large results, after all others, so that it moves none of them."""
        if not catalog.tools:
            return catalog
        tools = {**catalog.tools, READ_RESULT: self._reader.tool(thread_id)}
        return replace(catalog, tools=MappingProxyType(tools))

    def _is_static(self, agent: Agent) -> bool:
        return not self._clients[agent.name] and not any(isinstance(toolset, Threads) for toolset in agent.toolsets)

    async def _root(self, thread_id: str) -> str:
        if root := self._roots.get(thread_id):
            return root
        chain = await store_call(self._store.get_ancestor_chain(thread_id))
        return self._roots.put(thread_id, chain[0].thread_id)

    async def _compiled(self, agent: Agent, root: str, offers: _Offers) -> Catalog:
        await self._recall(agent, root, offers)
        problems: list[str] = []

        async def offered(name: str, client: ToolsetClient) -> tuple[Tool, ...]:
            try:
                return client.tools(await self._listing(agent, root, name, client, offers))
            except ToolsetUnavailable as error:
                problems.append(str(error))
                return ()

        clients = self._clients[agent.name]
        tools = await asyncio.gather(*(offered(name, client) for name, client in clients.items()))
        return _catalog(agent, dict(zip(clients, tools, strict=True)), root, sorted(problems))

    async def _recall(self, agent: Agent, root: str, offers: _Offers) -> None:
        """Read what the conversation was offered before, by this worker or another."""
        missing = [name for name in self._clients[agent.name] if name not in offers.listings]
        if missing:
            kept = await store_call(self._store.get_metadata(root))
            offers.listings.update({name: kept[_key(agent, name)] for name in missing if _key(agent, name) in kept})

    async def _listing(
        self, agent: Agent, root: str, name: str, client: ToolsetClient, offers: _Offers
    ) -> dict[str, Any]:
        kept = offers.listings.get(name)
        if kept is not None:
            return kept
        listing = await client.fetch()
        # Kept before it is used: what the model has seen once, it goes on seeing.
        await store_call(self._store.set_metadata(root, {_key(agent, name): listing}))
        offers.listings[name] = listing
        return listing


def _has_server(toolset: Toolset) -> bool:
    return not isinstance(toolset, Threads | Timers | Subscriptions)


def _key(agent: Agent, name: str) -> str:
    return f"toolset:{agent.name}:{name}"


def _catalog(
    agent: Agent, offered: Mapping[str, tuple[Tool, ...]], root: str | None, problems: Iterable[str] = ()
) -> Catalog:
    """All tools in the order of their declaration. Of tools with the same name none is offered."""
    threads = next((toolset for toolset in agent.toolsets if isinstance(toolset, Threads)), None)
    timers = next((toolset for toolset in agent.toolsets if isinstance(toolset, Timers)), None)
    tools = list(agent.tools.values())
    for toolset in agent.toolsets:
        if isinstance(toolset, Threads | Timers | Subscriptions):
            tools += toolset.tools
        else:
            tools += offered.get(toolset.name, ())
    for provider in agent.context:
        tools += getattr(provider, "tools", ())
    if any(tool.kind == "rap" for tool in tools) and not any(isinstance(own, Subscriptions) for own in agent.toolsets):
        tools += SUBSCRIPTION_TOOLS
    counts = Counter(tool.name for tool in tools)
    unusable = {name for name, count in counts.items() if count > 1} | RESERVED
    found = [*problems, *(_clash(name, tools) for name, count in counts.items() if count > 1)]
    found += [
        f"The tool name {name!r} is reserved, so that tool is not offered." for name in counts if name in RESERVED
    ]
    for problem in found:
        structlog.get_logger("perdure.tools").warning("tools are not offered", agent=agent.name, reason=problem)
    return Catalog(
        tools=MappingProxyType({tool.name: tool for tool in tools if tool.name not in unusable}),
        problems=tuple(found),
        instructions=_instructions(
            root if threads else None, subscribes=any(tool in SUBSCRIPTION_TOOLS for tool in tools)
        ),
        zone=timers.timezone if timers else "UTC",
        threads=threads,
    )


def _instructions(root: str | None, *, subscribes: bool) -> str:
    owns = ownership() if root or subscribes else ""
    return "\n".join(filter(None, (identity(root) if root else "", owns)))


def _clash(name: str, tools: Iterable[Tool]) -> str:
    owners = ", ".join(sorted({tool.toolset or "the agent itself" for tool in tools if tool.name == name}))
    return f"Several tools are named {name!r} (of {owners}), so none of them is offered; rename or leave out one."
