"""A RAP client with a store around it: threads to call from, and calls to make."""

from collections.abc import AsyncGenerator, Sequence
from contextlib import asynccontextmanager
from typing import Any, Final

from activities.rap_client import RapClient
from activities.tool_output import Pending, ToolOutput
from perdure.contract import DispatchRequest
from perdure.rap.manifest import RapTool, read_manifest
from perdure.rap.toolset import RapToolset
from perdure.records import OpenCall, ThreadRecord
from stores.memory import MemoryStore
from tests.fakes.rap_server import FakeRapServer

GATEWAY: Final = "http://127.0.0.1:9/gate"
DELAYS_S: Final = (0.01, 0.01, 0.01)


class RapCaller:
    """Three threads, `root`, `child` and `grandchild`, and the client of one server.

    Attributes:
        client: what is tested.
        store: what it reads from.
    """

    def __init__(self, server: FakeRapServer, client: RapClient, store: MemoryStore) -> None:
        self._server = server
        self.client = client
        self.store = store

    async def start(self) -> None:
        """Create the threads."""
        await self.store.create_thread(ThreadRecord(thread_id="root", agent="a"))
        for thread_id, parent in (("child", "root"), ("grandchild", "child")):
            record = ThreadRecord(
                thread_id=thread_id, agent="a", kind="child", parent_thread_id=parent, root_thread_id="root"
            )
            await self.store.create_thread(record)

    def tool(self, name: str | None = None) -> RapTool:
        """A tool that the server offers now, the first one if none is named."""
        tools = {tool.name: tool for tool in read_manifest(self._server.offer(), self.client.name).tools}
        return tools[name] if name else next(iter(tools.values()))

    async def call(
        self,
        tool: RapTool,
        arguments: str = "{}",
        *,
        thread_id: str = "root",
        started: int = 1,
        call_id: str = "call_1",
    ) -> ToolOutput | Pending:
        """Make a call."""
        call = OpenCall(
            call_id=call_id,
            message_id="m",
            turn=1,
            step=0,
            index=0,
            tool=tool.name,
            arguments=arguments,
            started=started,
        )
        return await self.client.call(tool, call, DispatchRequest(thread_id=thread_id, agent="a", call_id=call_id))


@asynccontextmanager
async def calling(
    server: FakeRapServer,
    *,
    url: str | None = None,
    store: MemoryStore | None = None,
    gateway_url: str | None = GATEWAY,
    retry_delays_s: Sequence[float] = DELAYS_S,
    **options: Any,
) -> AsyncGenerator[RapCaller]:
    """A caller of this server, which has this base URL. `options` are the toolset's."""
    store = store or MemoryStore()
    toolset = RapToolset(url or server.url, name="fake", **options)
    caller = RapCaller(server, RapClient(toolset, store, gateway_url, retry_delays_s=retry_delays_s), store)
    await caller.start()
    yield caller
    await caller.client.close()
