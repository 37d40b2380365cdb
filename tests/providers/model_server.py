"""A local HTTP server that answers by script, whatever the protocol: answers are made by a dialect."""

import asyncio
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from types import TracebackType
from typing import Any, Self

from tests.fakes.http_wire import Received, chunk, read_request, response_head


@dataclass(frozen=True)
class Answer:
    """What goes out for one request: a stream of events as their bytes, or with another status than 200 a body.

    Attributes:
        events: the bytes of each event, in order.
        drop_after: the connection is cut after so many of them.
        delay_s: before each event.
    """

    events: Sequence[bytes] = ()
    status: int = 200
    headers: Mapping[str, str] = field(default_factory=dict[str, str])
    body: Mapping[str, Any] | None = None
    drop_after: int | None = None
    delay_s: float = 0.0


class ModelServer:
    """The server. Answers come in the order of the script, one for each request; connections are kept alive.

    Attributes:
        requests: what was asked, oldest first.
        connections: how many were made.
        open: how many are open.
        broken_off: how many clients left before their answer was complete.
    """

    def __init__(self, script: Sequence[Answer]) -> None:
        self._script = list(script)
        self._server: asyncio.Server | None = None
        self._clients: dict[asyncio.Task[None], asyncio.StreamWriter] = {}
        self.requests: list[Received] = []
        self.connections = 0
        self.broken_off = 0

    @property
    def url(self) -> str:
        """Where it is."""
        assert self._server is not None
        return f"http://127.0.0.1:{self._server.sockets[0].getsockname()[1]}"

    @property
    def open(self) -> int:
        """Connections that are open now."""
        return len(self._clients)

    def then(self, *answers: Answer) -> None:
        """More of the script."""
        self._script += answers

    async def __aenter__(self) -> Self:
        self._server = await asyncio.start_server(self._accept, "127.0.0.1", 0)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        assert self._server is not None
        self._server.close()
        for client, writer in list(self._clients.items()):
            client.cancel()
            # Here too, since a task that is cancelled before it has begun never comes to its `finally`.
            writer.transport.abort()
        await asyncio.gather(*self._clients, return_exceptions=True)
        await self._server.wait_closed()
        await asyncio.sleep(0)  # in which the transports close their sockets

    def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        client = asyncio.create_task(self._serve(reader, writer))
        self._clients[client] = writer
        client.add_done_callback(self._clients.pop)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        answering = False
        try:
            while True:
                answering = False
                request = await read_request(reader)
                answering = True
                self.requests.append(request)
                answer = self._script.pop(0) if self._script else Answer(status=418, body={"error": "no script"})
                if not await _write(writer, answer):
                    return
        except (ConnectionError, asyncio.IncompleteReadError):
            self.broken_off += answering
        finally:
            writer.close()


async def _write(writer: asyncio.StreamWriter, answer: Answer) -> bool:
    """Whether the connection goes on."""
    if answer.status != 200:
        body = json.dumps(answer.body or {}).encode()
        length = {"content-length": str(len(body))}
        writer.write(_head(answer, {"content-type": "application/json", **length}) + body)
        await writer.drain()
        return True
    writer.write(_head(answer, {"content-type": "text/event-stream", "transfer-encoding": "chunked"}))
    for number, event in enumerate(answer.events):
        if answer.drop_after == number:
            await writer.drain()
            writer.transport.abort()
            return False
        if answer.delay_s:
            await asyncio.sleep(answer.delay_s)
        writer.write(chunk(event))
        await writer.drain()
    writer.write(chunk(b""))
    await writer.drain()
    return True


def _head(answer: Answer, headers: Mapping[str, str]) -> bytes:
    return response_head(answer.status, {**headers, **answer.headers})


def sse(data: Mapping[str, Any] | str, event: str | None = None, end: str = "\n") -> bytes:
    """One server-sent event."""
    text = data if isinstance(data, str) else json.dumps(data, ensure_ascii=False)
    named = "" if event is None else f"event: {event}{end}"
    return f"{named}data: {text}{end}{end}".encode()
