"""The way of messages to an MCP server and back, watched: what was sent, what was refused, when the other side ended.

The SDK tells a caller that the connection has closed, but neither whether the request had been sent by then, nor what
HTTP status stood against it. Both decide whether a call may be made again.
"""

import json
import os
import shutil
import sys
from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, Final, Self

import anyio
import httpx2
from mcp.client import Transport
from mcp.client.stdio import StdioServerParameters, get_default_environment, stdio_client
from mcp.client.streamable_http import streamable_http_client
from mcp.shared.message import SessionMessage
from mcp_types import jsonrpc_message_adapter
from pydantic import ValidationError

from activities import mcp_guard
from activities.mcp_attempt import current_attempt
from activities.tool_output import RESULT_CHARS
from perdure.codec import clip, loads
from perdure.errors import ToolsetUnavailable
from perdure.mcp import McpToolset

if TYPE_CHECKING:
    from contextvars import Context

    from mcp.client._transport import ReadStream, WriteStream

EVENT_BYTES: Final = 2 * RESULT_CHARS
"""The largest answer: a result is larger on the wire than in the end."""

FAREWELL_S: Final = 5.0
"""How long a server may take to answer what it is told about the end of a call or of the whole connection."""

Streams = tuple["WatchedStream", "MarkedStream"]


@asynccontextmanager
async def watched_transport(toolset: McpToolset, ended: Callable[[], None]) -> AsyncGenerator[Streams]:
    """Start or reach the server; `ended` is called when nothing more can come from it.

    Raises:
        ToolsetUnavailable: with a sentence, if the command cannot be started.
    """
    if toolset.url is None:
        async with _watched(stdio_client(_parameters(toolset), sys.__stderr__ or sys.stderr), ended) as streams:
            yield streams
        return
    # A call's own timeout bounds the wait for its answer. Neither a server that ignores that a call was given up, nor
    # one that is slow, is to leave other calls without a connection.
    timeout = httpx2.Timeout(None, connect=toolset.connect_timeout.total_seconds())
    limits = httpx2.Limits(max_connections=None, max_keepalive_connections=10)
    async with HttpClient(headers=dict(toolset.headers), timeout=timeout, limits=limits) as client:
        transport = streamable_http_client(toolset.url, http_client=client, max_sse_event_size=EVENT_BYTES)
        async with _watched(transport, ended) as streams:
            yield streams


@asynccontextmanager
async def _watched(transport: Transport, ended: Callable[[], None]) -> AsyncGenerator[Streams]:
    async with transport as (read, write):
        yield WatchedStream(read, ended), MarkedStream(write)


def _parameters(toolset: McpToolset) -> StdioServerParameters:
    command, folder = toolset.command or "", Path(toolset.cwd or ".")
    if not folder.is_dir():
        raise ToolsetUnavailable(f"MCP server {toolset.name!r} cannot be started: there is no folder {toolset.cwd!r}.")
    variables = get_default_environment() | dict(toolset.env)
    # Looked for here, since the guard could only say it to stderr.
    found = shutil.which(folder / command if os.path.dirname(command) else command, path=variables.get("PATH"))
    if found is None:
        raise ToolsetUnavailable(f"MCP server {toolset.name!r} cannot be started: there is no command {command!r}.")
    guarded = [command, *toolset.args]
    if sys.platform != "win32":
        guarded = [sys.executable, "-I", "-S", mcp_guard.__file__, *guarded]
    # A line that is not UTF-8 is one that cannot be read, and not the end of the connection.
    return StdioServerParameters(
        command=guarded[0],
        args=guarded[1:],
        env=dict(toolset.env),
        cwd=toolset.cwd,
        encoding_error_handler="replace",
    )


class WatchedStream:
    """What comes from the server. Calls `ended` when nothing more can come."""

    def __init__(self, stream: "ReadStream[SessionMessage | Exception]", ended: Callable[[], None]) -> None:
        self._stream = stream
        self._ended = ended

    @property
    def last_context(self) -> "Context | None":
        """The context of whoever put the last message in, which the SDK goes on in."""
        return getattr(self._stream, "last_context", None)

    async def receive(self) -> SessionMessage | Exception:
        """The next message, or why a line is none."""
        try:
            item = await self._stream.receive()
        except (anyio.EndOfStream, anyio.ClosedResourceError):
            self._ended()
            raise
        return _mended(item) if isinstance(item, ValidationError) else item

    async def aclose(self) -> None:
        """Close this side."""
        await self._stream.aclose()

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> SessionMessage | Exception:
        try:
            return await self.receive()
        except anyio.EndOfStream:
            raise StopAsyncIteration from None

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, exc_type: type[BaseException] | None, exc_val: BaseException | None, exc_tb: TracebackType | None
    ) -> None:
        await self.aclose()


def _mended(error: ValidationError) -> SessionMessage | ValidationError:
    """Read a line again that the SDK could not read.

    Servers that cut a text in the middle of an emoji send half a surrogate pair, which is JSON and no UTF-8. Without
    this the answer would be thrown away, and the call would wait until its time is over.
    """
    line: object = error.errors()[0]["input"]
    if not isinstance(line, str):
        return error
    try:
        text = json.dumps(loads(line), ensure_ascii=False).encode("utf-8", "replace").decode("utf-8")
        return SessionMessage(jsonrpc_message_adapter.validate_json(text, by_name=False))
    except ValueError:
        return error


class MarkedStream:
    """What goes to the server. Marks the attempt in whose context it is sent."""

    def __init__(self, stream: "WriteStream[SessionMessage]") -> None:
        self._stream = stream

    async def send(self, item: SessionMessage, /) -> None:
        """Hand a message over. Marked before, since a send that is cancelled may have been delivered."""
        attempt = current_attempt.get()
        attempt.sent = True
        try:
            await self._stream.send(item)
        except (anyio.BrokenResourceError, anyio.ClosedResourceError):
            attempt.sent = False
            raise

    async def aclose(self) -> None:
        """Close this side."""
        await self._stream.aclose()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, exc_type: type[BaseException] | None, exc_val: BaseException | None, exc_tb: TracebackType | None
    ) -> None:
        await self.aclose()


class HttpClient(httpx2.AsyncClient):
    """Keeps the trouble of one request from the others, and notes it in the attempt.

    To the SDK a failed request is the end of the connection, for all calls that are under way. Here it is an answer
    with an error status, which ends its own call only.
    """

    async def send(self, request: httpx2.Request, **options: Any) -> httpx2.Response:
        """As the base class does, but a POST never raises for want of an answer."""
        attempt = current_attempt.get()
        if request.method == "DELETE" or attempt.given_up:
            request.extensions = {**request.extensions, "timeout": httpx2.Timeout(FAREWELL_S).as_dict()}
        if request.method != "POST":
            return await super().send(request, **options)
        attempt.status = attempt.failure = None
        try:
            response = await super().send(request, **options)
            if response.headers.get("content-type", "").lower().startswith("application/json"):
                await response.aread()
        except httpx2.TransportError as error:
            if isinstance(error, httpx2.ConnectError | httpx2.ConnectTimeout | httpx2.ProxyError):
                attempt.sent = False
            attempt.failure = clip(str(error), 200) or type(error).__name__
            return httpx2.Response(503, request=request)
        if response.status_code >= 400:
            attempt.status = response.status_code
            if _is_session_lost(request, response):
                attempt.sent = False
        return response


def _is_session_lost(request: httpx2.Request, response: httpx2.Response) -> bool:
    """Whether the server does not know us any more, and so has not looked at the request.

    The status for it is 404; servers in TypeScript answer 400 after they have been started anew.
    """
    if "mcp-session-id" not in request.headers:
        return False
    is_refused = response.status_code == 400 and response.is_stream_consumed
    return response.status_code == 404 or (is_refused and b"session" in response.content.lower())
