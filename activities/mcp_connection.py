"""One connection to an MCP server, through the official SDK: opened, shared by all calls of a worker, ended.

Whoever enters a context of the SDK must leave it in the same task, so a task of its own owns the connection from its
opening to its end. Calls come from other tasks, as many at once as there are: each is a request with an id.

A call that nobody waits for any more is cancelled in the SDK, which tells the server (`notifications/cancelled`, or the
end of the request's own stream, as the protocol has it) and drops an answer that comes late.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterator
from importlib.metadata import version
from typing import Any, Final, Literal, TypeVar, cast

from mcp import MCPError
from mcp.client import Client
from mcp_types import (
    CONNECTION_CLOSED,
    HEADER_MISMATCH,
    CallToolRequest,
    CallToolRequestParams,
    CallToolResult,
    Implementation,
    InputRequiredResult,
)
from pydantic import TypeAdapter, ValidationError

from activities.mcp_attempt import Attempt, ConnectionLost, ServerError, current_attempt
from activities.mcp_results import result_output
from activities.mcp_transport import FAREWELL_S, watched_transport
from activities.tool_output import ToolOutput
from perdure.codec import clip
from perdure.errors import ToolsetUnavailable
from perdure.mcp import McpToolset

# The SDK logs lines of the server with tracebacks, ids that give access, and URLs with their keys. Its sessions log
# under the name `client`.
for _name, _level in (("mcp", logging.CRITICAL), ("client", logging.CRITICAL), ("httpx2", logging.WARNING)):
    logging.getLogger(_name).setLevel(_level)

log = logging.getLogger("perdure.mcp")

PAGES: Final = 1000
"""No server has more tools than so many pages hold; one that always names a next page is broken."""

_TOLD_S: Final = 1.0
"""How long the end waits for servers to be told of calls that were given up."""

_CLIENT: Final = Implementation(name="perdure", version=version("perdure"))

_CallResult: Final[TypeAdapter[CallToolResult | InputRequiredResult]] = TypeAdapter(
    CallToolResult | InputRequiredResult
)

Answer = TypeVar("Answer")


class Connection:
    """A connection that is being opened from the moment it is made; `opened` waits for it."""

    def __init__(self, toolset: McpToolset) -> None:
        self._toolset = toolset
        self._client: Client | None = None
        self._failure = ""
        self._is_settled = asyncio.Event()
        self._ended = asyncio.Event()
        self._is_retired = False
        self._requests: set[asyncio.Task[Any]] = set()
        self.owner = asyncio.create_task(self._own())

    @property
    def is_alive(self) -> bool:
        """Whether it can take requests."""
        return not (self._ended.is_set() or self._is_retired or self.owner.done())

    async def opened(self) -> None:
        """Wait until it is open.

        Raises:
            ToolsetUnavailable: with a sentence.
        """
        seconds = self._toolset.connect_timeout.total_seconds()
        try:
            async with asyncio.timeout(seconds):
                await self._is_settled.wait()
        except TimeoutError:
            self.owner.cancel()
            raise ToolsetUnavailable(f"{self._server} did not answer within {seconds:g} s.") from None
        if self._client is None:
            raise ToolsetUnavailable(self._failure)

    def retire(self) -> None:
        """Take no more requests, and end when those under way have ended."""
        self._is_retired = True
        if not self._requests:
            self._ended.set()

    async def close(self) -> None:
        """End it: over HTTP the server is told, a server that was started is stopped. Safe to repeat."""
        if given_up := [request for request in self._requests if request.cancelling()]:
            await asyncio.wait(given_up, timeout=_TOLD_S)
        self._ended.set()
        if not self._is_settled.is_set():
            self.owner.cancel()
        # Each step is bounded by itself, so this is the end; what hangs nevertheless is cut off.
        _, pending = await asyncio.wait({self.owner}, timeout=2 * FAREWELL_S)
        if pending:
            self.owner.cancel()
            await asyncio.wait({self.owner}, timeout=FAREWELL_S)

    async def list_tools(self) -> list[dict[str, Any]]:
        """What the server says of its tools, all pages, as far as it is of use here.

        Raises:
            ConnectionLost: the connection is of no use any more.
            ServerError: the server refused.
        """
        return await self._request(self._list)

    async def call_tool(self, name: str, arguments: dict[str, Any]) -> ToolOutput:
        """Call a tool by the server's name for it. A cancellation is told to the server, and waits for nothing.

        Raises:
            ConnectionLost: the connection is of no use any more.
            ServerError: the server refused.
        """

        async def call(client: Client) -> ToolOutput:
            try:
                result = await _call(client, name, arguments)
            except MCPError as error:
                if error.code != HEADER_MISMATCH:
                    raise
                # The protocol's way: some arguments go into headers too, which only the tool's listing tells.
                await self._list(client)
                result = await _call(client, name, arguments)
            if isinstance(result, InputRequiredResult):
                raise ServerError(f"{self._server} asked for input of a person, which cannot be given here.")
            return await asyncio.to_thread(result_output, result)

        return await self._request(call)

    async def _list(self, client: Client) -> list[dict[str, Any]]:
        tools: list[dict[str, Any]] = []
        cursor: str | None = None
        for _ in range(PAGES):
            page = await client.list_tools(cursor=cursor)
            for tool in page.tools:
                hints = tool.annotations and {
                    "readOnlyHint": tool.annotations.read_only_hint is True,
                    "idempotentHint": tool.annotations.idempotent_hint is True,
                    "destructiveHint": tool.annotations.destructive_hint is not False,
                }
                known = {"title": tool.title, "description": tool.description, "annotations": hints}
                stated = {key: value for key, value in known.items() if value}
                tools.append({"name": tool.name, "inputSchema": tool.input_schema, **stated})
            cursor = page.next_cursor
            if cursor is None:
                return tools
        raise ServerError(f"{self._server} lists its tools without an end.")

    async def _request(self, ask: Callable[[Client], Awaitable[Answer]]) -> Answer:
        """Ask in a task of its own, so that telling the server of a cancellation keeps nobody waiting."""
        attempt = Attempt()
        request = asyncio.create_task(self._answered(ask, attempt))
        self._requests.add(request)
        request.add_done_callback(self._done)
        try:
            return await asyncio.shield(request)
        except asyncio.CancelledError:
            attempt.given_up = True
            request.cancel()
            raise

    def _done(self, request: asyncio.Task[Any]) -> None:
        self._requests.discard(request)
        if self._is_retired and not self._requests:
            self._ended.set()
        # Nobody may wait for its failure any more, and asyncio complains of failures that nobody has looked at.
        if not request.cancelled():
            request.exception()

    async def _answered(self, ask: Callable[[Client], Awaitable[Answer]], attempt: Attempt) -> Answer:
        current_attempt.set(attempt)
        if self._client is None or not self.is_alive:
            raise ConnectionLost(sent=False)
        try:
            return await ask(self._client)
        except MCPError as error:
            if self._is_loss(error, attempt):
                raise ConnectionLost(attempt.sent) from error
            raise ServerError(self._why(error, attempt)) from error
        except ValidationError as error:
            place = ".".join(str(step) for step in error.errors()[0]["loc"])
            raise ServerError(f"{self._server} answered, but not as MCP has it (at `{clip(place, 80)}`).") from error

    def _is_loss(self, error: MCPError, attempt: Attempt) -> bool:
        if attempt.failure or not attempt.sent:
            return True
        # Servers use the code for errors of their own too. The SDK's are those of a connection that has ended, and of
        # an event stream that broke off, which only its words tell apart.
        is_cut = self._toolset.url is not None and error.message.startswith("SSE stream")
        return error.code == CONNECTION_CLOSED and (is_cut or self._ended.is_set())

    async def _own(self) -> None:
        # A server of before 2026 may take the first question of the newer protocol for the end of the connection.
        modes: tuple[Literal["auto", "legacy"], ...] = ("auto", "legacy") if self._toolset.url is None else ("auto",)
        attempt = Attempt()
        current_attempt.set(attempt)
        try:
            for mode in modes:
                try:
                    await self._serve(mode)
                    break
                except Exception as error:  # whatever it is, it is the end of this connection, and no more
                    if self._client is not None:
                        log.warning("the connection to an MCP server broke", extra={"toolset": self._toolset.name})
                        break
                    self._failure = self._why(error, attempt)
                    if not any(_is_closed(leaf) for leaf in _leaves(error)):
                        break
        finally:
            self._ended.set()
            self._is_settled.set()

    async def _serve(self, mode: Literal["auto", "legacy"]) -> None:
        self._ended.clear()
        transport = watched_transport(self._toolset, self._ended.set)
        client = Client(transport, mode=mode, cache=None, client_info=_CLIENT)
        async with client:
            self._client = client
            self._is_settled.set()
            try:
                await self._ended.wait()
            finally:
                # Before the requests under way hear of it, so that they can tell it from an answer.
                self._ended.set()

    @property
    def _server(self) -> str:
        return f"MCP server {self._toolset.name!r}"

    def _why(self, error: Exception, attempt: Attempt) -> str:
        """A sentence for people and models, without what may be secret."""
        leaves = list(_leaves(error))
        said = next((leaf.message for leaf in leaves if isinstance(leaf, MCPError)), "")
        if unavailable := next((leaf for leaf in leaves if isinstance(leaf, ToolsetUnavailable)), None):
            return str(unavailable)
        if attempt.failure:
            return f"{self._server} at {self._toolset.endpoint} gave no answer: {attempt.failure}."
        if attempt.status in (401, 403):
            return f"{self._server} refused the credentials it was given (HTTP {attempt.status})."
        if attempt.status:
            return f"{self._server} answered with HTTP {attempt.status}: {_clipped(said)}."
        if any(_is_closed(leaf) for leaf in leaves) and self._client is None:
            return f"{self._server} ended before it answered; what it wrote to stderr may say why."
        if said:
            return f"{self._server} answered: {_clipped(said)}."
        return f"{self._server} cannot be used: {type(leaves[0]).__name__}: {_clipped(str(leaves[0]))}."


async def _call(client: Client, name: str, arguments: dict[str, Any]) -> CallToolResult | InputRequiredResult:
    # Not by `call_tool`, which throws a result away that does not fit what the server once said of it, and lists the
    # tools again to find out.
    request = CallToolRequest(params=CallToolRequestParams(name=name, arguments=arguments))
    return await client.session.send_request(request, _CallResult)


def _leaves(error: BaseException) -> Iterator[BaseException]:
    """The errors proper: the SDK's task groups wrap them."""
    if isinstance(error, BaseExceptionGroup):
        for inner in cast("BaseExceptionGroup[BaseException]", error).exceptions:
            yield from _leaves(inner)
    else:
        yield error


def _is_closed(error: BaseException) -> bool:
    return isinstance(error, MCPError) and error.code == CONNECTION_CLOSED


def _clipped(text: str) -> str:
    return clip(text, 300).rstrip(".")
