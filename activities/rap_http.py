"""HTTP to a RAP server: what is sent, to whom credentials go, and whether a request can have arrived.

Every request has a connection of its own. On one that was used before, a server that closes it just then looks like one
that fails after it has read the request, and a call could not be sent again.
"""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
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
        return await _patiently(lambda: self._send("GET", url, None, timeout_s, limit_bytes), delays_s, resend=True)

    async def post(
        self, url: str, message: object, timeout_s: float, delays_s: Sequence[float] = (), *, resend: bool = False
    ) -> Reply:
        """Post a JSON message; only the status of the answer is read.

        After each of the delays it is sent again if it did not arrive, or if the server failed (5xx); with `resend`
        also if it may have arrived.

        Raises:
            NotSent, NoAnswer: see there.
        """
        content = dumps(message).encode("ascii")
        return await _patiently(lambda: self._send("POST", url, content, timeout_s, 0), delays_s, resend)

    async def close(self) -> None:
        """Close what is open."""
        if self._client is not None:
            await self._client.aclose()
            self._client = None

    async def _send(self, method: str, url: str, content: bytes | None, timeout_s: float, limit_bytes: int) -> Reply:
        try:
            async with asyncio.timeout(CONNECT_S + timeout_s):
                return await self._follow(method, url, content, limit_bytes)
        except _NOTHING_SENT as error:
            raise NotSent from error
        except (httpx2.TransportError, TimeoutError) as error:
            raise NoAnswer from error

    async def _follow(
        self, method: str, url: str, content: bytes | None, limit_bytes: int, redirects: int = _REDIRECTS
    ) -> Reply:
        """Send it, and send it again where the same host says that it has moved. Others are not followed."""
        reply, location = await self._exchange(method, url, content, limit_bytes)
        target = urljoin(url, location) if location else ""
        is_moved = reply.status in (_MOVED if method == "GET" else _KEEP_METHOD)
        if not is_moved or not redirects or not is_web_address(target) or not self._toolset.trusts(target, url):
            return reply
        return await self._follow(method, target, content, limit_bytes, redirects - 1)

    async def _exchange(
        self, method: str, url: str, content: bytes | None, limit_bytes: int
    ) -> tuple[Reply, str | None]:
        client = self._client = self._client or _new_client()
        headers = self._headers(url) | ({} if content is None else {"content-type": "application/json"})
        async with client.stream(method, url, content=content, headers=headers) as response:
            body = await _read(response, limit_bytes) if response.is_success and limit_bytes else None
            return Reply(response.status_code, body), response.headers.get("location")

    def _headers(self, url: str) -> dict[str, str]:
        credentials = self._toolset.headers if self._toolset.trusts(url) else dict[str, str]()
        # Unpacking could make a small answer a huge one before its length is seen.
        return {**credentials, "accept": "application/json", "accept-encoding": "identity"}


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


def _new_client() -> httpx2.AsyncClient:
    return httpx2.AsyncClient(
        timeout=httpx2.Timeout(None, connect=CONNECT_S),
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
