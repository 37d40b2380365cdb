"""What a hand-written MCP server does with messages, whatever carries them: its tools, and what it saw.

It speaks the protocol of before 2026 (`initialize`), where a cancellation is a notice with the id of the request.
Written without the SDK, so that it also does what the SDK's server would not.
"""

import asyncio
import base64
import json
import os
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

Message = dict[str, Any]
Send = Callable[[Message], Awaitable[None]]

PIXEL = base64.b64decode(
    "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5ErkJggg=="
)
BIG = 2512292042121000001
BIG_CHARS = 5_000_000

_ANYTHING: Message = {"type": "object"}
_TEXT: Message = {"type": "object", "properties": {"text": {"type": "string"}}, "required": ["text"]}


def tool(name: str, schema: Message = _ANYTHING, **hints: bool) -> Message:
    """An entry of the listing."""
    return {"name": name, "description": f"The tool {name}.", "inputSchema": schema, "annotations": hints}


PAGES: tuple[tuple[Message, ...], ...] = (
    (tool("sleep"), tool("stats", readOnlyHint=True), tool("echo", _TEXT | {"additionalProperties": True})),
    (tool("deaf"), tool("die"), tool("leave"), tool("twice", idempotentHint=True)),
    (*(tool(name) for name in ("items", "huge", "noise", "half", "wrong", "refuse", "odd", "ask", "structured")),),
)


@dataclass
class FakeMcpServer:
    """One server, of one or more connections.

    Attributes:
        pages: what it offers.
        cancelled: the ids of the requests that it was told to cancel.
        calls: how often a tool was called, the control tool `stats` not counted.
    """

    pages: tuple[tuple[Message, ...], ...] = PAGES
    cancelled: list[object] = field(default_factory=list[object])
    calls: int = 0
    running: dict[object, asyncio.Task[None]] = field(default_factory=dict[object, "asyncio.Task[None]"])

    async def take(self, message: Message, send: Send) -> None:
        """Do what a message asks; a call runs in a task of its own, which answers by `send`."""
        method, request_id = message.get("method"), message.get("id")
        match method:
            case "initialize":
                version = message["params"]["protocolVersion"]
                about: Message = {"protocolVersion": version, "capabilities": {"tools": {}}}
                await send(_answer(request_id, about | {"serverInfo": {"name": "fake", "version": "1"}}))
            case "tools/list":
                number = int(message.get("params", {}).get("cursor", "0"))
                following = {} if number + 1 >= len(self.pages) else {"nextCursor": str(number + 1)}
                await send(_answer(request_id, {"tools": list(self.pages[number])} | following))
            case "tools/call":
                task = asyncio.create_task(self._call(request_id, message["params"], send))
                self.running[request_id] = task
                task.add_done_callback(lambda _: self.running.pop(request_id))
            case "notifications/cancelled":
                self.cancelled.append(message["params"]["requestId"])
                if running := self.running.get(message["params"]["requestId"]):
                    running.cancel()
            case _ if request_id is not None and method is not None:
                await send(_error(request_id, -32601, f"Method not found: {method}"))
            case _:
                pass

    async def _call(self, request_id: object, params: Message, send: Send) -> None:
        name: str = params["name"]
        arguments: Message = params.get("arguments", {})
        if name == "stats":
            seen = {"cancelled": len(self.cancelled), "running": len(self.running) - 1, "calls": self.calls}
            await send(_answer(request_id, _text(json.dumps(seen | {"pid": os.getpid()}))))
            return
        self.calls += 1
        if name in RESULTS:
            await send(_answer(request_id, RESULTS[name]))
        elif name == "echo":
            await send(_answer(request_id, _text(json.dumps(arguments)) | {"structuredContent": arguments}))
        elif name == "sleep":
            await asyncio.sleep(30)
            await send(_answer(request_id, _text("slept")))
        elif name == "deaf":
            await _answer_late(request_id, send)
        elif name in ("die", "leave", "twice"):
            await _end(name, arguments, lambda text: send(_answer(request_id, _text(text))))
        elif name in ("ask", "noise"):
            for message in _CHATTER[name]:
                await send(message)
            await send(_answer(request_id, _text("after all that")))
        else:
            # A code that servers use for all kinds of errors, and the SDK for the end of a connection.
            await send(_error(request_id, -32000, f"There is no {name}"))


async def _answer_late(request_id: object, send: Send) -> None:
    """Answer although the request was cancelled: an error, as some servers do, and a result after that."""
    try:
        await asyncio.sleep(30)
    except asyncio.CancelledError:
        await send(_error(request_id, 0, "Request cancelled"))
        await send(_answer(request_id, _text("too late")))


async def _end(name: str, arguments: Message, answer: Callable[[str], Awaitable[None]]) -> None:
    """End the process: before the answer, after it, or (`twice`) before it in the first of two processes."""
    if name == "twice" and Path(arguments["mark"]).exists():
        await answer("ran again")
        return
    if name == "twice":
        Path(arguments["mark"]).touch()
    if name == "leave":
        await answer("bye")
    os._exit(1)


def _answer(request_id: object, result: Message) -> Message:
    return {"jsonrpc": "2.0", "id": request_id, "result": result}


def _error(request_id: object, code: int, message: str) -> Message:
    return {"jsonrpc": "2.0", "id": request_id, "error": {"code": code, "message": message}}


def _text(text: str) -> Message:
    return {"content": [{"type": "text", "text": text}]}


def _file(kind: str, data: bytes, media_type: str) -> Message:
    return {"type": kind, "data": base64.b64encode(data).decode(), "mimeType": media_type}


def _notice(name: str, params: Message) -> Message:
    return {"jsonrpc": "2.0", "method": f"notifications/{name}", "params": params}


ITEMS: list[Message] = [
    {"type": "text", "text": "Look:"},
    _file("image", PIXEL, "image/png"),
    _file("audio", b"la", "audio/wav"),
    {"type": "resource", "resource": {"uri": "file:///a.txt", "mimeType": "text/plain", "text": "inside"}},
    {"type": "resource", "resource": {"uri": "file:///b.bin", "blob": base64.b64encode(b"\0\1").decode()}},
    {"type": "resource_link", "uri": "file:///c", "name": "c"},
    {"type": "image", "data": "no base64!", "mimeType": "image/png"},
]

RESULTS: dict[str, Message] = {
    "items": {"content": ITEMS},
    "huge": _text("x" * BIG_CHARS),
    "half": _text("a smile: \ud83d"),
    "wrong": _text("It went wrong.") | {"isError": True},
    "odd": {"content": "not a list"},
    "structured": _text("It is warm.") | {"structuredContent": {"id": BIG, "more": 10**30, "none": None}},
}

_SAMPLING: Message = {"messages": [{"role": "user", "content": {"type": "text", "text": "hi"}}], "maxTokens": 5}

_CHATTER: dict[str, list[Message]] = {
    "ask": [{"jsonrpc": "2.0", "id": "mine", "method": "sampling/createMessage", "params": _SAMPLING}],
    "noise": [
        *(_notice("progress", {"progressToken": "none", "progress": number}) for number in range(20)),
        _notice("unheard_of", {"a": [1]}),
        _answer(999_999, _text("to nobody")),
    ],
}
