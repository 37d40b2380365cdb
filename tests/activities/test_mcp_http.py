"""MCP over streamable HTTP: sessions that are lost, answers that do not come, what is refused."""

import asyncio
import logging
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from dataclasses import replace

import pytest

from activities.mcp_client import McpClient
from perdure.errors import ToolsetUnavailable
from perdure.mcp import McpToolset
from tests.activities.mcp_calls import Caller, calling
from tests.eventually import eventually
from tests.fakes.mcp_http import FakeHttpMcp, HttpServer


@asynccontextmanager
async def talking(fake: FakeHttpMcp) -> AsyncGenerator[Caller]:
    """A caller of a server."""
    async with HttpServer(fake.app) as server, calling(toolset(server.port)) as caller:
        yield caller


def toolset(port: int, secret: str = "sesame") -> McpToolset:
    """The toolset of a server on this machine."""
    url = f"http://127.0.0.1:{port}/mcp?key={secret}"
    return McpToolset.http("fake", url, headers={"Authorization": f"Bearer {secret}"})


@pytest.mark.parametrize("status", [404, 400])
async def test_a_lost_session_is_opened_again(status: int) -> None:
    """A server that forgot the session gets the call again in a new one, once."""
    fake = FakeHttpMcp()
    fake.lost_status = status
    async with talking(fake) as caller:
        await caller.call("echo", {"text": "a"})
        fake.sessions.clear()
        assert (await caller.call("echo", {"text": "b"})).content == '{"text": "b"}'
        assert (fake.opened, fake.server.calls) == (2, 2)


async def test_a_lost_session_leaves_running_calls_alone() -> None:
    """A call that still runs when the session is found lost ends by itself, and is cancelled as any other."""
    fake = FakeHttpMcp()
    async with talking(fake) as caller:
        running = caller.begin("sleep")
        await eventually(lambda: fake.server.running)
        known = set(fake.sessions)
        fake.sessions.clear()
        assert (await caller.call("echo", {"text": "b"})).outcome == "ok"
        assert not running.done()
        fake.sessions |= known
        running.cancel()
        await asyncio.wait({running})
        await eventually(lambda: not fake.server.running)


async def test_a_server_that_was_started_anew() -> None:
    """The server is gone and comes back on the same port: one call fails with a sentence, the next one works."""
    fake = FakeHttpMcp()
    async with HttpServer(fake.app) as first:
        port = first.port
        client = McpClient(toolset(port))
        tools = {tool.name: tool for tool in client.tools(await client.fetch())}
        caller = Caller(client, tools)
    away = await caller.call("echo", {"text": "a"})
    assert away.outcome == "error"
    assert away.content.startswith(f"MCP server 'fake' at http://127.0.0.1:{port} gave no answer: ")
    again = FakeHttpMcp()
    async with HttpServer(again.app, port):
        assert (await caller.call("echo", {"text": "a"})).outcome == "ok"
        assert again.server.calls == 1
        await client.close()


@pytest.mark.parametrize("flag", ["drop", "cut"])
async def test_an_answer_that_breaks_off_ends_its_own_call_only(flag: str) -> None:
    """The answer to one call breaks off: its outcome is unknown, another call that runs is not disturbed."""
    fake = FakeHttpMcp()
    async with talking(fake) as caller:
        running = caller.begin("sleep")
        await eventually(lambda: fake.server.running)
        setattr(fake, flag, 1)
        broken = await caller.call("echo", {"text": "a"})
        assert "its outcome is unknown" in broken.content
        assert fake.server.calls == 2
        setattr(fake, flag, 0)
        assert not running.done()
        assert (await caller.call("echo", {"text": "b"})).outcome == "ok"
        running.cancel()
        await asyncio.wait({running})
        await eventually(lambda: not fake.server.running)


async def test_a_retry_safe_call_whose_answer_breaks_off_is_made_again() -> None:
    """A read-only tool is asked once more when its answer was cut off."""
    fake = FakeHttpMcp()
    async with talking(fake) as caller:
        caller.tools["echo"] = replace(caller.tools["echo"], retry_safe=True)
        fake.cut = 1
        assert (await caller.call("echo", {"text": "a"})).content == '{"text": "a"}'
        assert fake.server.calls == 2


async def test_plain_json_answers() -> None:
    """A server may answer by a JSON body instead of a stream."""
    fake = FakeHttpMcp()
    fake.as_json = True
    async with talking(fake) as caller:
        assert (await caller.call("echo", {"text": "a", "big": 10**30})).content == f'{{"text": "a", "big": {10**30}}}'
        assert len((await caller.call("huge")).content) == 5_000_000


async def test_an_answer_above_the_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    """A body that is longer than what is read ends its own call only."""
    monkeypatch.setattr("activities.mcp_transport.LINE_BYTES", 1_000_000)
    fake = FakeHttpMcp()
    fake.as_json = True
    async with talking(fake) as caller:
        assert "its outcome is unknown" in (await caller.call("huge")).content
        assert (await caller.call("echo", {"text": "a"})).outcome == "ok"


async def test_a_huge_stream() -> None:
    """An answer of five million characters in one event arrives."""
    async with talking(FakeHttpMcp()) as caller:
        assert len((await caller.call("huge")).content) == 5_000_000


@pytest.mark.parametrize(
    ("status", "sentence"),
    [
        (401, "refused the credentials it was given (HTTP 401)."),
        (403, "refused the credentials it was given (HTTP 403)."),
        (404, "answered with HTTP 404: "),
        (500, "answered with HTTP 500: "),
        (307, "answered: "),
    ],
)
async def test_a_server_that_refuses(status: int, sentence: str, caplog: pytest.LogCaptureFixture) -> None:
    """One sentence with the status, and no key in it or in the logs; also for a call on an open connection."""
    caplog.set_level(logging.DEBUG)
    fake = FakeHttpMcp()
    async with talking(fake) as caller:
        assert fake.headers["authorization"] == "Bearer sesame"
        fake.refuse = status
        client = McpClient(toolset(int(fake.headers["host"].split(":")[1])))
        with pytest.raises(ToolsetUnavailable) as raised:
            await client.fetch()
        await client.close()
        assert sentence in str(raised.value)
        assert len(str(raised.value).splitlines()) == 1
        output = await caller.call("echo", {"text": "a"})
        assert output.outcome == "error"
        assert sentence in output.content
    assert "sesame" not in str(raised.value) + output.content + caplog.text


async def test_nobody_there() -> None:
    """No server at the address: a sentence with the address and the reason."""
    async with HttpServer(FakeHttpMcp().app) as server:
        port = server.port
    client = McpClient(toolset(port))
    with pytest.raises(ToolsetUnavailable, match=rf"at http://127\.0\.0\.1:{port} gave no answer: ") as raised:
        await client.fetch()
    await client.close()
    assert "sesame" not in str(raised.value)
