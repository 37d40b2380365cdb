"""A RAP tool server over real HTTP, for tests: it takes calls, posts callbacks, and misbehaves where it is told to.

A server has tools, and each tool has work: a coroutine function that is given the server and the invocation, and posts
what it has to say. It runs in the background after the call was acknowledged. `tests/fakes/rap_tools.py` has tools
that act like those of real servers. Everything that was asked and everything that was posted is recorded::

    async with FakeRapServer(get_time()) as server:
        toolset = RapToolset(server.url)
        ...
        invocation = await server.invoked()               # waits for the first call
        assert server.received("/cancel_tool_call") == []

A test may speak for a tool whose work does nothing (`FakeTool("ask")`), at any time and as often as it likes::

    posted = await server.result(invocation, "done")      # or .event, .oauth, .choice, .view, .post for anything else
    assert posted.status == 200

How the next requests of a path are answered, `/` being the endpoint's::

    server.script("/", Answer(status=500), Answer(status=500))             # then as usual
    server.script("/", Answer(hold=asyncio.Event(), taken=True))           # carried out, never acknowledged
    server.script("/", Answer(reset="after"), Answer(reset="before"))      # the connection breaks
    server.script("/", Answer(status=307, headers={"location": "http://..."}))
    server.script("/.well-known/rap-toolset", Answer(body=b"x" * 2**24))
    server.result_first = True                                             # the work ends before the acknowledgement
    server.second_result = True     # as real servers do: another result, an error, when a callback is not answered 2xx
"""

import asyncio
import json
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from types import TracebackType
from typing import Any, Literal

import httpx2

from tests.eventually import eventually
from tests.fakes.http_wire import Received
from tests.fakes.rap_http import Answer, ScriptedHttpServer

DISCOVERY = "/.well-known/rap-toolset"
CLOSE, CANCEL, CHOICE = "/close_thread", "/cancel_tool_call", "/user_choice_response"

__all__ = ["CANCEL", "CHOICE", "CLOSE", "DISCOVERY", "Answer", "FakeRapServer", "FakeTool", "Invocation", "Posted"]


Dialect = Literal["js", "rust"]
"""Real servers say `"call_id":null` and never `associative`, or leave a null `call_id` out and always say it."""


@dataclass(frozen=True)
class Invocation:
    """A call as the server reads it; `body` is the whole message."""

    body: Mapping[str, Any] = field(repr=False)

    @property
    def operation(self) -> str:
        """The tool's name."""
        return str(self.body["operation"])

    @property
    def arguments(self) -> Mapping[str, Any]:
        """They may be absent, as real servers allow."""
        arguments: Mapping[str, Any] = self.body.get("arguments") or {}
        return arguments

    @property
    def id(self) -> str:
        """The call."""
        return str(self.body["id"])

    @property
    def group_id(self) -> str:
        """The thread."""
        return str(self.body["group_id"])

    @property
    def callback_url(self) -> str:
        """Where everything about the call goes."""
        return str(self.body["callback_url"])

    def echo(self, dialect: Dialect) -> dict[str, Any]:
        """What callbacks say of the call."""
        call_id = self.body.get("call_id")
        ids = {"group_id": self.group_id, "id": self.id}
        return ids if dialect == "rust" and call_id is None else ids | {"call_id": call_id}


@dataclass(frozen=True)
class Posted:
    """A callback that the server made, and what was answered; status 0: nobody did."""

    body: Any
    status: int
    text: str = ""


Work = Callable[["FakeRapServer", Invocation], Awaitable[None]]


async def nothing(server: "FakeRapServer", invocation: Invocation) -> None:
    """The work of a tool that the test speaks for."""


@dataclass(frozen=True)
class FakeTool:
    """A tool of the manifest, and what it does when it is called."""

    name: str
    work: Work = nothing
    description: str = "A tool of a test."
    schema: Mapping[str, Any] = field(default_factory=lambda: {"type": "object"})
    annotations: Mapping[str, Any] | None = None

    def entry(self) -> dict[str, Any]:
        """The tool in the manifest."""
        entry = {"name": self.name, "description": self.description, "inputSchema": dict(self.schema)}
        return entry | ({"annotations": dict(self.annotations)} if self.annotations is not None else {})


class FakeRapServer(ScriptedHttpServer):
    """The server.

    Args:
        *tools: what it offers.
        name: its name in the manifest.
        prefix: of the base URL, such as `/tools`.
        path: of the endpoint, after the prefix: `/` as Node servers have it, `/invoke` as Rust servers do.
        dialect: what its callbacks leave out.
        port: where it listens; a free one if left out.

    Attributes:
        manifest: fields that replace those of the real manifest.
        invocations: the calls that were carried out, oldest first.
        posted: the callbacks, oldest first.
        subscriptions: calls that opened one and were not cancelled, by call id.
        result_first: the work ends before the call is acknowledged.
        second_result: a callback that is not answered with 2xx is followed by another result, which is an error.
    """

    def __init__(
        self,
        *tools: FakeTool,
        name: str = "fake",
        prefix: str = "",
        path: str = "/",
        dialect: Dialect = "js",
        port: int = 0,
    ) -> None:
        super().__init__(port)
        self._tools = {tool.name: tool for tool in tools}
        self._name = name
        self._prefix = prefix
        self._path = prefix + path
        self._dialect: Dialect = dialect
        self._client = httpx2.AsyncClient(timeout=30, trust_env=False)
        self.manifest: dict[str, Any] = {}
        self.invocations: list[Invocation] = []
        self.posted: list[Posted] = []
        self.subscriptions: dict[str, Invocation] = {}
        self.result_first = False
        self.second_result = False

    @property
    def url(self) -> str:
        """The base URL."""
        return self.origin + self._prefix

    @property
    def endpoint(self) -> str:
        """Where calls go, unless `manifest` names another place; without a `/` at its end, as real ones are."""
        return self.origin + self._path.rstrip("/")

    async def invoked(self, number: int = 1) -> Invocation:
        """The call of this number, as soon as it has come."""
        await eventually(lambda: len(self.invocations) >= number)
        return self.invocations[number - 1]

    async def result(self, invocation: Invocation, text: str | None = None, **fields: Any) -> Posted:
        """Settle a call. `fields`: `content`, `display_as`, `subscription`, or others instead of the true ids."""
        words = {} if text is None else {"text": text}
        return await self.post(invocation, {"type": "tool_result", **invocation.echo(self._dialect), **words, **fields})

    async def event(self, invocation: Invocation, text: str, **fields: Any) -> Posted:
        """An event of a subscription; `associative` and `final` are what the dialect has unless they are given."""
        message = {"type": "subscription_event", "group_id": invocation.group_id, "tool_call_id": invocation.id}
        implied = {"associative": False} if self._dialect == "rust" else {}
        return await self.post(invocation, {**message, "text": text, **implied, **fields})

    async def oauth(self, invocation: Invocation, auth_url: str, **fields: Any) -> Posted:
        """Ask a person to open a link."""
        return await self.post(
            invocation, {"type": "oauth", **invocation.echo(self._dialect), "auth_url": auth_url, **fields}
        )

    async def choice(self, invocation: Invocation, prompt: str, *choices: str, **fields: Any) -> Posted:
        """Ask a person to choose; the answer comes to `CHOICE`. `default` is absent unless it is given."""
        message = {"type": "user_choice", **invocation.echo(self._dialect), "prompt": prompt, "choices": choices}
        return await self.post(invocation, {**message, "response_url": self.url + CHOICE, **fields})

    async def view(self, invocation: Invocation, view_type: str, content: Any, **fields: Any) -> Posted:
        """Show something beside the conversation."""
        message = {"type": "view_update", "group_id": invocation.group_id, "view_type": view_type}
        return await self.post(invocation, {**message, "content": content, **fields})

    async def post(
        self, invocation: Invocation, body: Any, url: str | None = None, headers: Mapping[str, str] | None = None
    ) -> Posted:
        """Post anything to a call's callback URL or another one: bytes as they are, all else as JSON."""
        data = body if isinstance(body, bytes) else json.dumps(body).encode()
        try:
            answer = await self._client.post(
                url or invocation.callback_url,
                content=data,
                headers={"content-type": "application/json", **(headers or {})},
            )
            posted = Posted(body, answer.status_code, answer.text)
        except httpx2.TransportError as error:
            posted = Posted(body, 0, type(error).__name__)
        self.posted.append(posted)
        if self.second_result and not 200 <= posted.status < 300:
            self.second_result = False
            await self.result(invocation, f"Error: RAP receiver returned {posted.status}: {posted.text}")
        return posted

    async def respond(self, request: Received) -> Answer:
        """See the base class: discovery, the endpoint, and what is told to every server."""
        match request.method, request.path.removeprefix(self._prefix):
            case "GET", path if path == DISCOVERY:
                body = json.dumps(self.offer()).encode()
                return Answer(body=body, headers={"content-type": "application/json"}, taken=False)
            case "POST", path if path in (CLOSE, CANCEL, CHOICE) or self._is_endpoint(request):
                return Answer()
            case _:
                return Answer(status=404)

    def _is_endpoint(self, request: Received) -> bool:
        return request.path.rstrip("/") == self._path.rstrip("/")

    def offer(self) -> dict[str, Any]:
        """The manifest as it is sent."""
        tools = [tool.entry() for tool in self._tools.values()]
        return {"name": self._name, "endpoint": self.endpoint, "tools": tools} | self.manifest

    async def take(self, request: Received, answer: Answer) -> None:
        """See the base class: start the work of a call, forget a cancelled subscription."""
        if request.path == self._prefix + CANCEL:
            self.subscriptions.pop(str(request.json["tool_call_id"]), None)
        if request.method != "POST" or not self._is_endpoint(request):
            return
        invocation = Invocation(request.json)
        self.invocations.append(invocation)
        work = asyncio.create_task(self._work(invocation))
        self.start(work)
        if self.result_first:
            await asyncio.wait({work})

    async def _work(self, invocation: Invocation) -> None:
        # An unknown operation is answered by whatever is there, as the smallest of the real servers do.
        first = next(iter(self._tools.values()))
        await self._tools.get(invocation.operation, first).work(self, invocation)

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            await super().__aexit__(kind, error, trace)
        finally:
            await self._client.aclose()
