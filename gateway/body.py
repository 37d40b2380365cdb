"""The body of a request, read and unpacked no further than it may be long."""

import zlib
from typing import Final

from fastapi import Request

from gateway.refusal import Refusal

_GZIP: Final = ("gzip", "x-gzip")
_GZIP_BITS: Final = zlib.MAX_WBITS | 16
"""zlib's word for the format of gzip."""

_MEMBERS: Final = 100
"""Of gzip in one body. Each costs a copy of what follows it, however little it holds."""


class ClientGone(Exception):
    """The client went away before it had sent all of its request; nobody waits for an answer."""


def largest_body(request: Request, limit_bytes: int) -> int:
    """How many bytes the body may have, by what the request says of it.

    Raises:
        Refusal: 413 if it says that they are above the limit, 415 if they are packed in a way that is not known here.
    """
    # In chunks, a length that is given too means nothing; and packed, it says nothing of what will be held here.
    is_chunked = "transfer-encoding" in request.headers
    declared = 0 if is_chunked else int(request.headers.get("content-length", "0"))  # the server has checked it
    if declared > limit_bytes:
        raise _too_large(limit_bytes)
    return limit_bytes if is_chunked or _is_packed(request) else declared


async def read_body(request: Request, limit_bytes: int) -> bytes:
    """The whole body, unpacked if it is packed.

    Raises:
        Refusal: 413 as soon as it is clear that the body, or what it unpacks to, is above the limit; the rest is not
            kept. 415 and 400 if it is packed in another way than gzip, or than it says.
        ClientGone: if the connection ends before the body does.
    """
    body: _Plain | _Packed = _Packed(limit_bytes) if _is_packed(request) else _Plain(limit_bytes)
    while True:
        message = await request.receive()
        if message["type"] == "http.disconnect":
            raise ClientGone
        body.add(message.get("body", b""))
        if not message.get("more_body", False):
            return body.whole()


class _Plain:
    """A body as it comes."""

    def __init__(self, limit_bytes: int) -> None:
        self._limit_bytes = limit_bytes
        self._body = bytearray()

    def add(self, data: bytes) -> None:
        if len(self._body) + len(data) > self._limit_bytes:
            raise _too_large(self._limit_bytes)
        self._body += data

    def whole(self) -> bytes:
        return bytes(self._body)


class _Packed:
    """A body that comes as gzip: one member, or several in a row, which are one text (RFC 1952, 2.2).

    A few bytes may stand for very many, so no more is ever unpacked than one byte above the limit.
    """

    def __init__(self, limit_bytes: int) -> None:
        self._packed_bytes, self._limit_bytes = 0, limit_bytes
        self._plain = _Plain(limit_bytes)
        self._left_bytes = limit_bytes + 1
        self._member = zlib.decompressobj(_GZIP_BITS)
        self._members = 0

    def add(self, data: bytes) -> None:
        # What is packed may be longer than what it holds, or hold nothing.
        self._packed_bytes += len(data)
        if self._packed_bytes > self._limit_bytes:
            raise _too_large(self._limit_bytes)
        while data:
            if self._member.eof or not self._members:
                self._member = zlib.decompressobj(_GZIP_BITS)
                self._members += 1
            if self._members > _MEMBERS:
                raise Refusal(400, f"The body is more than {_MEMBERS} gzip members in a row.")
            try:
                unpacked = self._member.decompress(data, self._left_bytes)
            except zlib.error as error:
                raise _not_gzip() from error
            self._left_bytes -= len(unpacked)
            self._plain.add(unpacked)  # refuses before nothing is left, which would mean no bound to zlib
            data = self._member.unused_data

    def whole(self) -> bytes:
        if self._members and not self._member.eof:
            raise _not_gzip()
        return self._plain.whole()


def _is_packed(request: Request) -> bool:
    coding = request.headers.get("content-encoding", "").strip().lower()
    if coding in ("", "identity"):
        return False
    if coding not in _GZIP:
        raise Refusal(415, f"The body is packed as {coding[:40]!r}; this gateway takes it as it is, or as gzip.")
    return True


def _not_gzip() -> Refusal:
    return Refusal(400, "The body is not gzip, as its Content-Encoding says that it is.")


def _too_large(limit_bytes: int) -> Refusal:
    return Refusal(
        413, f"The body is above {limit_bytes:,} bytes, the most that this gateway takes (PERDURE_CALLBACK_BYTES)."
    )
