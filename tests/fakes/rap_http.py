"""A small HTTP server for fakes: it records every request whole and answers by script, also in ways no framework would.

One request for each connection. What is written here is what goes over the wire: no header is added but `connection`
and `content-length`.
"""

import asyncio
import socket
import struct
from collections import defaultdict, deque
from collections.abc import Mapping
from dataclasses import dataclass, field
from types import TracebackType
from typing import Literal, Self

from tests.fakes.http_wire import Received, read_body, read_head, response_head


@dataclass(frozen=True)
class Answer:
    """How one request is answered.

    Attributes:
        status, body, headers: what is sent.
        delay_s: how long it takes until then.
        hold: it waits until this is set; one that nobody sets never answers.
        reset: no answer, the connection is reset: `before` the body was read, or `after` the whole request was.
        taken: whether the request counts as carried out; found out when left out: it does if the status is below 300,
            or if the connection is reset after the request.
    """

    status: int = 200
    body: bytes = b"OK"
    headers: Mapping[str, str] = field(default_factory=dict[str, str])
    delay_s: float = 0.0
    hold: asyncio.Event | None = None
    reset: Literal["before", "after"] | None = None
    taken: bool | None = None

    @property
    def is_taken(self) -> bool:
        """See `taken`."""
        if self.taken is not None:
            return self.taken
        return self.reset == "after" or (self.reset is None and self.status < 300)


class ScriptedHttpServer:
    """The server. `script` says how the next requests of a path are answered; after those, `respond` does.

    It has a free port unless it is to come back on one that was used before.

    Attributes:
        requests: everything that was asked, oldest first.
        port: where it listens.
    """

    def __init__(self, port: int = 0) -> None:
        self.port = port
        self.requests: list[Received] = []
        self._scripts: dict[str, deque[Answer]] = defaultdict(deque)
        self._server: asyncio.Server | None = None
        self._tasks: set[asyncio.Task[None]] = set()
        self._failures: list[BaseException] = []

    @property
    def origin(self) -> str:
        """`http://host:port`."""
        assert self.port, "the server is not started"
        return f"http://127.0.0.1:{self.port}"

    def script(self, path: str, *answers: Answer) -> None:
        """Answer the next requests of this path like that, one after the other."""
        self._scripts[path].extend(answers)

    def received(self, path: str) -> list[Received]:
        """The requests of this path so far."""
        return [request for request in self.requests if request.path == path]

    async def respond(self, request: Received) -> Answer:
        """The answer to a request that no script is left for."""
        raise NotImplementedError

    async def take(self, request: Received, answer: Answer) -> None:
        """Called before the answer goes out, for requests that count as carried out."""

    def start(self, work: "asyncio.Task[None]") -> None:
        """Keep work in the background; it is cancelled with the server, and what it raises fails the test."""
        self._tasks.add(work)
        work.add_done_callback(self._ended)

    def _ended(self, work: "asyncio.Task[None]") -> None:
        self._tasks.discard(work)
        if not work.cancelled() and (error := work.exception()) is not None:
            self._failures.append(error)

    async def __aenter__(self) -> Self:
        self._server = await asyncio.start_server(self._accept, "127.0.0.1", self.port)
        self.port = self._server.sockets[0].getsockname()[1]
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.stop()
        if self._failures and error is None:
            raise self._failures[0]

    async def stop(self) -> None:
        """Go away: connections are cut, and nobody listens any more. Safe to repeat."""
        if self._server is None:
            return
        self._server.close()
        tasks = list(self._tasks)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await self._server.wait_closed()
        self._server = None

    def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.start(asyncio.create_task(self._serve(reader, writer)))

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            await self._answer(reader, writer)
        except (ConnectionError, asyncio.IncompleteReadError):
            pass  # the client went away, which is its right
        finally:
            writer.close()

    async def _answer(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = await read_head(reader)
        script = self._scripts[head.path]
        answer = script.popleft() if script else None
        if answer is not None and answer.reset == "before":
            self.requests.append(head)
            _reset(writer)
            return
        request = await read_body(reader, head)
        self.requests.append(request)
        answer = answer or await self.respond(request)
        if answer.is_taken:
            await self.take(request, answer)
        await asyncio.sleep(answer.delay_s)
        if answer.hold is not None:
            await answer.hold.wait()
        if answer.reset == "after":
            _reset(writer)
            return
        writer.write(_head(answer) + answer.body)
        await writer.drain()


def _head(answer: Answer) -> bytes:
    headers = {"connection": "close", "content-length": str(len(answer.body)), **answer.headers}
    return response_head(answer.status, headers)


def _reset(writer: asyncio.StreamWriter) -> None:
    # Lingering for no time makes the kernel send RST, as a process that dies with unread data does.
    sock: socket.socket = writer.get_extra_info("socket")
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    writer.transport.abort()
