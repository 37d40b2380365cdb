"""A local HTTP server that speaks the streaming format of OpenAI's chat completions, by script.

It exists so that the real client can be run: what it sends is recorded, what it gets comes in the shapes that the real
service and its many imitators use, tool calls in fragments, and it can fail in the ways they fail.
"""

import asyncio
import json
from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import dataclass, field
from types import TracebackType
from typing import Any, Self

from tests.fakes.http_wire import Received, chunk, read_request, response_head


@dataclass(frozen=True)
class Completion:
    """One answer.

    Attributes:
        text: the words.
        reasoning: what streams before them in the field `reasoning_content`.
        calls: (id, name, arguments); an id of None is left out.
        finish: the finish reason, found out when left out.
        fragment: how many characters stream at a time.
        status, headers: other than 200 means an error body instead of a stream.
        drop_after: the connection is cut after so many events.
        delay_s: before each event.
        usage: prompt and completion tokens.
    """

    text: str = ""
    reasoning: str = ""
    calls: Sequence[tuple[str | None, str, str]] = ()
    finish: str | None = None
    fragment: int = 5
    status: int = 200
    headers: Mapping[str, str] = field(default_factory=dict[str, str])
    drop_after: int | None = None
    delay_s: float = 0.0
    usage: tuple[int, int] = (11, 7)

    def events(self) -> list[dict[str, Any]]:
        """The chunks, in order, without the closing `[DONE]`."""
        deltas: list[dict[str, Any]] = [{"role": "assistant", "content": ""}]
        deltas += [{"reasoning_content": piece} for piece in self._pieces(self.reasoning)]
        deltas += [{"content": piece} for piece in self._pieces(self.text)]
        for index, (call_id, name, arguments) in enumerate(self.calls):
            opened = {"index": index, "type": "function", "function": {"name": name, "arguments": ""}}
            deltas.append({"tool_calls": [opened | ({} if call_id is None else {"id": call_id})]})
            deltas += [
                {"tool_calls": [{"index": index, "function": {"arguments": piece}}]}
                for piece in self._pieces(arguments)
            ]
        finish = self.finish or ("tool_calls" if self.calls else "stop")
        prompt, completion = self.usage
        return [
            *(_chunk([{"index": 0, "delta": delta, "finish_reason": None}]) for delta in deltas),
            _chunk([{"index": 0, "delta": {}, "finish_reason": finish}]),
            _chunk([])
            | {
                "usage": {
                    "prompt_tokens": prompt,
                    "completion_tokens": completion,
                    "total_tokens": prompt + completion,
                }
            },
        ]

    def _pieces(self, text: str) -> list[str]:
        return [text[start : start + self.fragment] for start in range(0, len(text), self.fragment)]


class FakeOpenAI:
    """The server. Answers come in the order of the script, one for each HTTP request.

    Attributes:
        requests: what was asked, oldest first.
        broken_off: how many clients closed the connection before their answer was complete.
    """

    def __init__(self, script: Sequence[Completion]) -> None:
        self._script = list(script)
        self._server: asyncio.Server | None = None
        self._clients: set[asyncio.Task[None]] = set()
        self.requests: list[Received] = []
        self.broken_off = 0

    @property
    def url(self) -> str:
        """The base URL for a client."""
        assert self._server is not None
        return f"http://127.0.0.1:{self._server.sockets[0].getsockname()[1]}/v1"

    async def __aenter__(self) -> Self:
        self._server = await asyncio.start_server(self._accept, "127.0.0.1", 0)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        assert self._server is not None
        self._server.close()
        for client in self._clients:
            client.cancel()
        await asyncio.gather(*self._clients, return_exceptions=True)
        await self._server.wait_closed()

    def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        client = asyncio.create_task(self._serve(reader, writer))
        self._clients.add(client)
        client.add_done_callback(self._clients.discard)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            request = await read_request(reader)
            self.requests.append(request)
            if not self._script or request.path != "/v1/chat/completions":
                await _send_error(writer, Completion(status=404))
                return
            completion = self._script.pop(0)
            if completion.status != 200:
                await _send_error(writer, completion)
            else:
                await self._stream(reader, writer, completion)
        except (ConnectionError, asyncio.IncompleteReadError):
            self.broken_off += 1
        finally:
            writer.close()

    async def _stream(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, completion: Completion) -> None:
        writer.write(_head(200, {"content-type": "text/event-stream", "transfer-encoding": "chunked"}))
        gone = asyncio.create_task(reader.read(1))
        try:
            async for number, event in _paced(completion):
                if completion.drop_after == number:
                    writer.transport.abort()
                    return
                if gone.done():
                    raise ConnectionResetError
                await _send_chunk(writer, f"data: {event}\n\n".encode())
            await _send_chunk(writer, b"")
        finally:
            gone.cancel()


async def _paced(completion: Completion) -> AsyncIterator[tuple[int, str]]:
    lines = [json.dumps(event) for event in completion.events()]
    for number, line in enumerate([*lines, "[DONE]"]):
        await asyncio.sleep(completion.delay_s)
        yield number, line


async def _send_error(writer: asyncio.StreamWriter, completion: Completion) -> None:
    body = json.dumps({"error": {"message": "scripted", "type": "scripted", "code": None}}).encode()
    headers = {"content-type": "application/json", "content-length": str(len(body)), **completion.headers}
    writer.write(_head(completion.status, headers) + body)
    await writer.drain()


async def _send_chunk(writer: asyncio.StreamWriter, data: bytes) -> None:
    writer.write(chunk(data))
    await writer.drain()


def _head(status: int, headers: Mapping[str, str]) -> bytes:
    return response_head(status, {"connection": "close", **headers})


def _chunk(choices: list[dict[str, Any]]) -> dict[str, Any]:
    return {
        "id": "chatcmpl-1",
        "object": "chat.completion.chunk",
        "created": 1_700_000_000,
        "model": "fake-model",
        "choices": choices,
    }
