"""HTTP/1.1 by hand, for fakes that answer as no framework would: what is written here is what goes over the wire."""

import asyncio
import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, cast


@dataclass(frozen=True)
class Received:
    """A request as it came; names of headers in lower case."""

    method: str
    path: str
    headers: Mapping[str, str]
    body: bytes

    @property
    def json(self) -> dict[str, Any]:
        """The body, a JSON object, decoded."""
        return cast("dict[str, Any]", json.loads(self.body))


async def read_head(reader: asyncio.StreamReader) -> Received:
    """A request up to its body, which is not read."""
    first, *lines = (await reader.readuntil(b"\r\n\r\n")).decode("ascii").split("\r\n")
    method, path, _ = first.split(" ")
    pairs = (line.partition(":") for line in lines if line)
    return Received(method, path, {name.lower(): value.strip() for name, _, value in pairs}, b"")


async def read_body(reader: asyncio.StreamReader, head: Received) -> Received:
    """The request whole."""
    body = await reader.readexactly(int(head.headers.get("content-length", "0")))
    return Received(head.method, head.path, head.headers, body)


async def read_request(reader: asyncio.StreamReader) -> Received:
    """The next request of a connection. Raises IncompleteReadError if the client has closed it."""
    return await read_body(reader, await read_head(reader))


def response_head(status: int, headers: Mapping[str, str]) -> bytes:
    """A response up to its body, with these headers and no others."""
    lines = [f"HTTP/1.1 {status} scripted", *(f"{name}: {value}" for name, value in headers.items())]
    return ("\r\n".join(lines) + "\r\n\r\n").encode()


def chunk(data: bytes) -> bytes:
    """A piece of a body that is sent in chunks; an empty one ends it."""
    return f"{len(data):x}\r\n".encode() + data + b"\r\n"
