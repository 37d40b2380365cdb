"""The body of a request, read no further than it may be long."""

from fastapi import Request

from gateway.refusal import Refusal


class ClientGone(Exception):
    """The client went away before it had sent all of its request; nobody waits for an answer."""


async def read_body(request: Request, limit_bytes: int) -> bytes:
    """The whole body.

    Raises:
        Refusal: 413 as soon as it is clear that the body is above the limit; the rest is not kept.
        ClientGone: if the connection ends before the body does.
    """
    if _declared(request) > limit_bytes:
        raise _too_large(limit_bytes)
    body = bytearray()
    while True:
        message = await request.receive()
        if message["type"] == "http.disconnect":
            raise ClientGone
        body += message.get("body", b"")
        if len(body) > limit_bytes:
            raise _too_large(limit_bytes)
        if not message.get("more_body", False):
            return bytes(body)


def _declared(request: Request) -> int:
    # The server has checked that it is a number; without one the body comes in chunks.
    return int(request.headers.get("content-length", "0"))


def _too_large(limit_bytes: int) -> Refusal:
    return Refusal(
        413, f"The body is above {limit_bytes:,} bytes, the most that this gateway takes (PERDURE_CALLBACK_BYTES)."
    )
