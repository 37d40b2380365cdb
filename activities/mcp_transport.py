"""The way of messages to an MCP server and back, watched: what was sent, what was refused, when the other side ended.

The SDK tells a caller that the connection has closed, but neither whether the request had been sent by then, nor what
HTTP status stood against it. Both decide whether a call may be made again.
"""

from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager
from types import TracebackType
from typing import TYPE_CHECKING, Any, Final, Self

import anyio
import httpx2
from mcp.client import Transport
from mcp.client.streamable_http import streamable_http_client
from mcp.shared.message import SessionMessage

from activities.mcp_attempt import current_attempt
from activities.mcp_process import LINE_BYTES, process_transport
from perdure.codec import clip
from perdure.mcp import McpToolset

if TYPE_CHECKING:
    from contextvars import Context

    from mcp.client._transport import ReadStream, WriteStream

FAREWELL_S: Final = 5.0
"""How long a server may take to answer what it is told about the end of a call or of the whole connection."""

_KEPT_HEADERS: Final = ("content-type", "mcp-session-id")

Streams = tuple["WatchedStream", "MarkedStream"]


@asynccontextmanager
async def watched_transport(toolset: McpToolset, ended: Callable[[], None]) -> AsyncGenerator[Streams]:
    """Start or reach the server; `ended` is called when nothing more can come from it.

    Raises:
        ToolsetUnavailable: with a sentence, if the command cannot be started.
    """
    if toolset.url is None:
        async with _watched(process_transport(toolset), ended) as streams:
            yield streams
        return
    # A call's own timeout bounds the wait for its answer. Neither a server that ignores that a call was given up, nor
    # one that is slow, is to leave other calls without a connection.
    timeout = httpx2.Timeout(None, connect=toolset.connect_timeout.total_seconds())
    limits = httpx2.Limits(max_connections=None, max_keepalive_connections=10)
    async with HttpClient(headers=dict(toolset.headers), timeout=timeout, limits=limits) as client:
        transport = streamable_http_client(toolset.url, http_client=client, max_sse_event_size=LINE_BYTES)
        async with _watched(transport, ended) as streams:
            yield streams


@asynccontextmanager
async def _watched(transport: Transport, ended: Callable[[], None]) -> AsyncGenerator[Streams]:
    async with transport as (read, write):
        yield WatchedStream(read, ended), MarkedStream(write)


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
            return await self._stream.receive()
        except (anyio.EndOfStream, anyio.ClosedResourceError):
            self._ended()
            raise

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
                response = await _read_whole(response)
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


async def _read_whole(response: httpx2.Response) -> httpx2.Response:
    """The same with its body read, here and not in the SDK, to which a body that breaks off is the end of everything.

    Raises:
        TransportError: if it breaks off, or is longer than what is read of any answer.
    """
    content = bytearray()
    try:
        async for piece in response.aiter_bytes():
            content += piece
            if len(content) > LINE_BYTES:
                raise httpx2.ReadError(f"the answer has more than {LINE_BYTES:,} bytes")
    finally:
        await response.aclose()
    kept = {name: response.headers[name] for name in _KEPT_HEADERS if name in response.headers}
    whole = httpx2.Response(response.status_code, headers=kept, content=bytes(content), request=response.request)
    whole.next_request = response.next_request
    return whole


def _is_session_lost(request: httpx2.Request, response: httpx2.Response) -> bool:
    """Whether the server does not know us any more, and so has not looked at the request.

    The status for it is 404; servers in TypeScript answer 400 after they have been started anew.
    """
    if "mcp-session-id" not in request.headers:
        return False
    is_refused = response.status_code == 400 and response.is_stream_consumed
    return response.status_code == 404 or (is_refused and b"session" in response.content.lower())
