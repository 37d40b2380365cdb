"""The client of an MCP toolset: its listing, its tools, its calls, over one connection for the whole worker.

`mcp` takes about a second to import. It is imported by the first thread that needs a server, beside the event loop:
importing this module does not import it, and a worker without MCP toolsets never does.
"""

import asyncio
import json
from collections.abc import Awaitable, Callable, Mapping
from typing import TYPE_CHECKING, Any, TypeVar

from activities.mcp_attempt import ConnectionLost, ServerError
from activities.mcp_listing import check_schemas, listed_tools
from activities.tool_output import ToolOutput, error_output
from perdure.codec import is_json
from perdure.contract import DispatchRequest
from perdure.errors import ToolsetUnavailable
from perdure.mcp import McpToolset
from perdure.records import OpenCall
from perdure.tools import Tool

if TYPE_CHECKING:
    from activities.mcp_connection import Connection

Answer = TypeVar("Answer")


class McpClient:
    """The `ToolsetClient` of an MCP server. Nothing is started or connected before it is needed."""

    def __init__(self, toolset: McpToolset) -> None:
        self._toolset = toolset
        self._current: Connection | None = None
        self._opening: asyncio.Task[Connection] | None = None
        self._connections: set[Connection] = set()
        self._is_closed = False

    @property
    def name(self) -> str:
        """The toolset's name."""
        return self._toolset.name

    async def fetch(self) -> dict[str, Any]:
        """Ask the server for its tools, all pages.

        Raises:
            ToolsetUnavailable: with a sentence, if the server does not answer or what it offers is not valid.
        """
        seconds = self._toolset.connect_timeout.total_seconds()
        try:
            async with asyncio.timeout(seconds):
                listing = {"tools": await self._ask(lambda connection: connection.list_tools(), is_safe=True)}
        except TimeoutError:
            raise ToolsetUnavailable(f"MCP server {self.name!r} did not answer within {seconds:g} s.") from None
        except ServerError as error:
            raise ToolsetUnavailable(str(error)) from error
        if not is_json(listing):
            raise ToolsetUnavailable(f"What MCP server {self.name!r} offers is not valid JSON.")
        await asyncio.to_thread(check_schemas, self._toolset, self.tools(listing))
        return listing

    def tools(self, listing: Mapping[str, Any]) -> tuple[Tool, ...]:
        """The tools of a listing, as far as the toolset asks for them.

        Raises:
            ToolsetUnavailable: with a sentence, if the listing is not valid.
        """
        return listed_tools(self._toolset, listing)

    async def call(self, tool: Tool, call: OpenCall, request: DispatchRequest) -> ToolOutput:
        """Have the server run a tool. A cancellation and the end of the tool's time are told to the server."""
        try:
            arguments = _sendable(tool.validate(call.arguments))
        except ValueError as error:
            return error_output(str(error))
        operation = tool.operation or tool.name
        deadline = asyncio.timeout(tool.timeout.total_seconds())
        try:
            async with deadline:
                return await self._ask(lambda server: server.call_tool(operation, arguments), tool.retry_safe)
        except TimeoutError:
            return error_output(
                f"{tool.name} did not return within {tool.timeout.total_seconds():g} s. The server was told to stop; "
                "whether the call took effect is unknown."
            )
        except (ServerError, ToolsetUnavailable) as error:
            return error_output(str(error))

    async def close(self) -> None:
        """End the connection, and a server that was started. Safe to repeat."""
        self._is_closed = True
        await asyncio.gather(*(connection.close() for connection in self._connections))

    async def _ask(self, ask: "Callable[[Connection], Awaitable[Answer]]", is_safe: bool) -> Answer:
        """Ask over the connection, and once more over a new one if the first was lost and nothing can be done twice."""
        lost = ConnectionLost(sent=False)
        for _ in range(2):
            connection = await self._connection()
            try:
                return await ask(connection)
            except ConnectionLost as error:
                lost = error
                connection.retire()
            if lost.sent and not is_safe:
                break
        raise ServerError(self._lost(lost)) from lost

    def _lost(self, lost: ConnectionLost) -> str:
        if not lost.sent:
            return f"MCP server {self.name!r} ended the connection before it took the call."
        return (
            f"The connection to MCP server {self.name!r} broke during the call, so its outcome is unknown. "
            "Check whether it took effect before you repeat it."
        )

    async def _connection(self) -> "Connection":
        if self._is_closed:
            raise ToolsetUnavailable(f"MCP server {self.name!r} is not used any more: the worker is shutting down.")
        if self._current is not None and self._current.is_alive:
            return self._current
        if self._opening is None:
            self._opening = asyncio.create_task(self._open())
            self._opening.add_done_callback(self._opened)
        # The opening is for all who wait for it: one that is cancelled does not end it.
        return await asyncio.shield(self._opening)

    async def _open(self) -> "Connection":
        connection = (await asyncio.to_thread(_connection_type))(self._toolset)
        self._connections.add(connection)
        connection.owner.add_done_callback(lambda _: self._connections.discard(connection))
        await connection.opened()
        self._current = connection
        return connection

    def _opened(self, opening: "asyncio.Task[Connection]") -> None:
        self._opening = None
        # Whoever waited for it may be gone, and asyncio complains of failures that nobody has looked at.
        if not opening.cancelled():
            opening.exception()


def _sendable(arguments: dict[str, Any]) -> dict[str, Any]:
    # MCP is UTF-8, and to the SDK what cannot be encoded is the end of the connection.
    try:
        json.dumps(arguments, ensure_ascii=False).encode("utf-8")
    except UnicodeEncodeError as error:
        raise ValueError("The arguments hold half a surrogate pair, which no server can be sent.") from error
    return arguments


def _connection_type() -> "type[Connection]":
    from activities.mcp_connection import Connection

    return Connection
