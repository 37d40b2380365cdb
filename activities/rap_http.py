"""HTTP to a RAP server: what is sent, to whom credentials go, and whether a request can have arrived.

Every request has a connection of its own. On one that was used before, a server that closes it just then looks like one
that fails after it has read the request, and a call could not be sent again.
"""

import asyncio
import ssl
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import cache
from typing import Final
from urllib.parse import urljoin

import httpx2

from perdure.codec import dumps
from perdure.rap.toolset import RapToolset, is_web_address

CONNECT_S: Final = 5.0
"""How long a connection may take: longer ones hardly ever come about."""

_REDIRECTS: Final = 5
_KEEP_METHOD: Final = frozenset({307, 308})
_MOVED: Final = frozenset({301, 302, 303}) | _KEEP_METHOD
_NOTHING_SENT: Final = (
    httpx2.ConnectError,
    httpx2.ConnectTimeout,
    httpx2.PoolTimeout,
    httpx2.ProxyError,
    httpx2.UnsupportedProtocol,
    httpx2.InvalidURL,
)


class NotSent(Exception):
    """The request has not reached anybody."""


class NoAnswer(Exception):
    """There was no answer, or it broke off: the request may have been carried out."""


@dataclass(frozen=True)
class Reply:
    """An answer; `body` is None if it was not read, or is longer than it may be."""

    status: int
    body: bytes | None = field(default=None, repr=False)

    @property
    def is_ok(self) -> bool:
        """The protocol says 200; its reference takes any 2xx."""
        return 200 <= self.status < 300


@dataclass(frozen=True)
class _Request:
    """A POST if there is content, else a GET; of the answer so many bytes are read."""

    url: str
    timeout_s: float
    content: bytes | None = field(default=None, repr=False)
    limit_bytes: int = 0


class RapHttp:
    """Requests to one toolset's server. The client is made when it is first needed, in the loop that needs it."""

    def __init__(self, toolset: RapToolset) -> None:
        self._toolset = toolset
        self._client: httpx2.AsyncClient | None = None

    async def get(self, url: str, timeout_s: float, limit_bytes: int, delays_s: Sequence[float] = ()) -> Reply:
        """Ask for JSON and read so many bytes of it at most; the content type is not looked at.

        Raises:
            NotSent, NoAnswer: see there.
        """
        request = _Request(url, timeout_s, limit_bytes=limit_bytes)
        return await _patiently(lambda: self._send(request), delays_s, resend=True)

    async def post(
        self, url: str, message: object, timeout_s: float, delays_s: Sequence[float] = (), *, resend: bool = False
    ) -> Reply:
        """Post a JSON message; only the status of the answer is read.

        After each of the delays it is sent again if it did not arrive, or if the server failed (5xx); with `resend`
        also if it may have arrived.

        Raises:
            NotSent, NoAnswer: see there.
        """
        request = _Request(url, timeout_s, content=dumps(message).encode("ascii"))
        return await _patiently(lambda: self._send(request), delays_s, resend)

    async def close(self) -> None:
        """Close what is open."""
        if self._client is not None:
            await self._client.aclose()
            self._client = None

    async def _send(self, request: _Request) -> Reply:
        try:
            # The client's own timeouts are for each read and each redirect; this one is for a server that trickles.
            async with asyncio.timeout(CONNECT_S + 2 * request.timeout_s):
                return await self._follow(request)
        except _NOTHING_SENT as error:
            raise NotSent from error
        except (httpx2.TransportError, TimeoutError) as error:
            raise NoAnswer from error

    async def _follow(self, request: _Request, redirects: int = _REDIRECTS) -> Reply:
        """Send it, and send it again where the same host says that it has moved. Others are not followed."""
        reply, location = await self._exchange(request)
        is_moved = reply.status in (_MOVED if request.content is None else _KEEP_METHOD)
        target = _target(request.url, location) if is_moved and redirects else None
        if target is None or not self._toolset.trusts(target, request.url):
            return reply
        return await self._follow(replace(request, url=target), redirects - 1)

    async def _exchange(self, request: _Request) -> tuple[Reply, str | None]:
        client = self._client = self._client or _new_client()
        async with client.stream(
            "GET" if request.content is None else "POST",
            request.url,
            content=request.content,
            headers=self._headers(request),
            timeout=httpx2.Timeout(request.timeout_s, connect=CONNECT_S),
        ) as response:
            limit_bytes = request.limit_bytes
            body = await _read(response, limit_bytes) if response.is_success and limit_bytes else None
            return Reply(response.status_code, body), response.headers.get("location")

    def _headers(self, request: _Request) -> dict[str, str]:
        credentials = self._toolset.headers if self._toolset.trusts(request.url) else dict[str, str]()
        kind = {} if request.content is None else {"content-type": "application/json"}
        # Unpacking could make a small answer a huge one before its length is seen.
        return {**credentials, **kind, "accept": "application/json", "accept-encoding": "identity"}


def _target(url: str, location: str | None) -> str | None:
    try:
        target = urljoin(url, location or "")
    except ValueError:
        return None
    return target if location and is_web_address(target) else None


async def _patiently(send: Callable[[], Awaitable[Reply]], delays_s: Sequence[float], resend: bool) -> Reply:
    unsure: NoAnswer | None = None
    for delay_s in delays_s:
        try:
            reply = await send()
            if reply.status < 500:
                return reply
        except NotSent:
            pass
        except NoAnswer as error:
            if not resend:
                raise
            unsure = error
        await asyncio.sleep(delay_s)
    try:
        return await send()
    except NotSent:
        if unsure is not None:
            raise unsure from None
        raise


@cache
def _certificates() -> ssl.SSLContext:
    """Those of the machine, or of the client library, read once: that takes longer than most calls."""
    return httpx2.create_ssl_context()


def _new_client() -> httpx2.AsyncClient:
    return httpx2.AsyncClient(
        verify=_certificates(),
        limits=httpx2.Limits(max_connections=None, max_keepalive_connections=0),
        headers={"user-agent": "perdure"},
    )


async def _read(response: httpx2.Response, limit_bytes: int) -> bytes | None:
    pieces = bytearray()
    async for piece in response.aiter_raw():
        pieces += piece
        if len(pieces) > limit_bytes:
            return None
    return bytes(pieces)
