"""The hand-written MCP server over streamable HTTP of before 2026: with a session, and answers as event streams."""

import asyncio
import json
import socket
import uuid
from collections.abc import AsyncIterator
from types import TracebackType
from typing import Any, Self

import uvicorn
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response, StreamingResponse
from starlette.routing import Route

from tests.eventually import eventually
from tests.fakes.mcp_tools import FakeMcpServer, Message


class HttpServer:
    """Any ASGI app on a free port of this process."""

    def __init__(self, app: Any, port: int = 0) -> None:
        self._socket = socket.create_server(("127.0.0.1", port))
        self.port: int = self._socket.getsockname()[1]
        config = uvicorn.Config(app, log_level="critical", timeout_graceful_shutdown=0)
        self._server = uvicorn.Server(config)

    async def __aenter__(self) -> Self:
        self._task = asyncio.create_task(self._server.serve(sockets=[self._socket]))
        await eventually(lambda: self._server.started)
        return self

    async def __aexit__(
        self, exc_type: type[BaseException] | None, exc_val: BaseException | None, exc_tb: TracebackType | None
    ) -> None:
        self._server.should_exit = True
        await self._task
        self._socket.close()


class FakeHttpMcp:
    """The app, and what it saw.

    Attributes:
        sessions: the ids that it knows; a test may forget them.
        refuse: answer every request with this status.
        lost_status: the status for a session that it does not know.
        headers: those of the last request.
        as_json: answer calls by one JSON body, not by a stream.
        drop: end the stream of a call without an answer.
        cut: how many calls are answered by JSON that breaks off in the middle.
        mute_notices: never answer a notice.
    """

    def __init__(self) -> None:
        self.server = FakeMcpServer()
        self.sessions: set[str] = set()
        self.opened = 0
        self.closed = 0
        self.refuse = 0
        self.lost_status = 404
        self.headers: dict[str, str] = {}
        self.as_json = False
        self.drop = False
        self.cut = 0
        self.mute_notices = False
        self.app = Starlette(routes=[Route("/mcp", self._serve, methods=["GET", "POST", "DELETE"])])

    async def _serve(self, request: Request) -> Response:
        self.headers = dict(request.headers)
        if self.refuse:
            return Response(status_code=self.refuse)
        if request.method == "GET":
            return Response(status_code=405)
        session = request.headers.get("mcp-session-id")
        if request.method == "DELETE":
            self.sessions.discard(session or "")
            self.closed += 1
            return Response(status_code=204)
        message: Message = await request.json()
        if message.get("method") == "initialize":
            session = uuid.uuid4().hex
            self.sessions.add(session)
            self.opened += 1
        elif session not in self.sessions:
            said = {"code": -32000, "message": "Bad Request: No valid session ID provided"}
            return JSONResponse({"jsonrpc": "2.0", "error": said, "id": None}, self.lost_status if session else 400)
        if "id" not in message:
            if self.mute_notices and message["method"] != "notifications/initialized":
                await asyncio.sleep(30)
            await self.server.take(message, _nowhere)
            return Response(status_code=202)
        return await self._answer(message, session or "")

    async def _answer(self, message: Message, session: str) -> Response:
        answers: asyncio.Queue[Message] = asyncio.Queue()
        headers = {"mcp-session-id": session}
        await self.server.take(message, answers.put)
        if self.cut and message["method"] == "tools/call":
            self.cut -= 1
            return StreamingResponse(iter(['{"js']), media_type="application/json", headers={"content-length": "99"})
        if self.as_json:
            return JSONResponse(await answers.get(), headers=headers)

        async def events() -> AsyncIterator[str]:
            if self.drop and message["method"] == "tools/call":
                return
            while True:
                answer = await answers.get()
                yield f"event: message\ndata: {json.dumps(answer)}\n\n"
                if answer.get("id") == message["id"]:
                    return

        return StreamingResponse(events(), media_type="text/event-stream", headers=headers)


async def _nowhere(_: Message) -> None:
    """Notices have no answers."""
