"""The body of a request, read no further than it may be long."""

from fastapi import Request

from gateway.refusal import Refusal


class ClientGone(Exception):
    """The client went away before it had sent all of its request; nobody waits for an answer."""


def largest_body(request: Request, limit_bytes: int) -> int:
    """How many bytes the body may have, by what the request says of it.

    Raises:
        Refusal: 413 if it says that they are above the limit.
    """
    if "transfer-encoding" in request.headers:  # it comes in chunks, and a length that is given too means nothing
        return limit_bytes
    declared = int(request.headers.get("content-length", "0"))  # the server has checked that it is a number
    if declared > limit_bytes:
        raise _too_large(limit_bytes)
    return declared


async def read_body(request: Request, limit_bytes: int) -> bytes:
    """The whole body.

    Raises:
        Refusal: 413 as soon as it is clear that the body is above the limit; the rest is not kept.
        ClientGone: if the connection ends before the body does.
    """
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


def _too_large(limit_bytes: int) -> Refusal:
    return Refusal(
        413, f"The body is above {limit_bytes:,} bytes, the most that this gateway takes (PERDURE_CALLBACK_BYTES)."
    )
