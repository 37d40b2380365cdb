"""Cancellation of MCP calls (case B65): the server is told, stops, and the connection goes on."""

import asyncio
import time

import pytest

from activities.mcp_client import McpClient
from perdure.mcp import McpToolset
from tests.activities.mcp_calls import Caller, calling, runs_with, stdio_toolset
from tests.eventually import eventually
from tests.fakes.mcp_http import FakeHttpMcp, HttpServer
from tests.fakes.mcp_official import official_server


async def interrupt(caller: Caller, name: str, count: int, begun_before: int = 0) -> None:
    """Begin calls at once, and cancel them when the server runs them all."""
    calls = [caller.begin(name) for _ in range(count)]

    async def all_run() -> bool:
        return (await caller.stats())["running"] == count + begun_before

    await eventually(all_run)
    for call in calls:
        call.cancel()
    await asyncio.wait(calls)
    assert all(call.cancelled() for call in calls)


async def test_b65_cancelled_calls_stop_on_the_server() -> None:
    """50 calls interrupted and one out of time: 51 notices, nothing runs on, the connection takes the next call."""
    async with calling(stdio_toolset("mcp_server.py")) as caller:
        process = (await caller.stats())["pid"]
        await interrupt(caller, "sleep", 50)
        late = await caller.call("sleep", timeout_s=0.1)
        assert late.outcome == "error"
        assert late.content == (
            "sleep did not return within 0.1 s. The server was told to stop; whether the call took effect is unknown."
        )

        async def is_told() -> bool:
            seen = await caller.stats()
            return seen["cancelled"] == 51 and seen["running"] == 0

        await eventually(is_told, timeout=2)
        assert (await caller.call("echo", {"text": "still here"})).content == '{"text": "still here"}'
        assert (await caller.stats())["pid"] == process


async def test_one_by_one() -> None:
    """Calls that are interrupted one after the other are told one by one, each under its own id."""
    async with calling(stdio_toolset("mcp_server.py")) as caller:
        for number in range(10):
            await interrupt(caller, "sleep", 1)

            async def is_told(expected: int = number + 1) -> bool:
                return (await caller.stats())["cancelled"] == expected

            await eventually(is_told)
        assert (await caller.stats())["running"] == 0


async def test_late_answers_are_ignored() -> None:
    """A server that answers cancelled calls, even twice, disturbs nobody: the answers of others are their own."""
    async with calling(stdio_toolset("mcp_server.py")) as caller:
        process = (await caller.stats())["pid"]
        await interrupt(caller, "deaf", 10)

        async def none_runs() -> bool:
            return (await caller.stats())["running"] == 0

        await eventually(none_runs)
        answers = await asyncio.gather(*(caller.call("echo", {"text": str(number)}) for number in range(20)))
        assert [answer.content for answer in answers] == [f'{{"text": "{number}"}}' for number in range(20)]
        assert (await caller.stats())["pid"] == process


async def test_others_are_not_disturbed() -> None:
    """A call that runs while another is cancelled returns its result."""
    async with calling(stdio_toolset("mcp_server.py")) as caller:
        stays = asyncio.create_task(caller.call("sleep", timeout_s=20))
        await interrupt(caller, "sleep", 3, begun_before=1)

        async def one_runs() -> bool:
            seen = await caller.stats()
            return seen["running"] == 1 and seen["cancelled"] == 3

        await eventually(one_runs)
        assert not stays.done()
        stays.cancel()
        await asyncio.wait({stays})


async def test_a_cancelled_opening_is_not_lost_for_others() -> None:
    """Of two calls that wait for the same server to start, one is cancelled and the other gets its result."""
    async with calling(stdio_toolset("mcp_server.py")) as listed:
        caller = Caller(McpClient(stdio_toolset("mcp_server.py", "slow")), listed.tools)
        first, second = caller.begin("stats"), caller.begin("stats")
        await eventually(lambda: runs_with("slow"))
        first.cancel()
        await asyncio.wait({first})
        assert first.cancelled()
        assert (await second).outcome == "ok"
        await caller.client.close()


async def test_b65_over_http() -> None:
    """Over HTTP with a session: notices with the requests' ids, nothing runs on, one session for all."""
    fake = FakeHttpMcp()
    async with (
        HttpServer(fake.app) as server,
        calling(McpToolset.http("fake", f"http://127.0.0.1:{server.port}/mcp")) as caller,
    ):
        await interrupt(caller, "sleep", 10)
        assert (await caller.call("sleep", timeout_s=0.2)).outcome == "error"
        await eventually(lambda: len(fake.server.cancelled) == 11 and not fake.server.running)
        await interrupt(caller, "deaf", 3)
        await eventually(lambda: not fake.server.running)
        assert (await caller.call("echo", {"text": "still here"})).outcome == "ok"
        assert fake.opened == 1
        assert len(set(map(str, fake.server.cancelled))) == 14
    assert fake.closed == 1


@pytest.mark.parametrize("transport", ["stdio", "http"])
async def test_the_newest_protocol(transport: str) -> None:
    """The official server speaks the protocol of 2026, where over HTTP the end of a request's stream is the notice."""
    if transport == "stdio":
        async with calling(stdio_toolset("mcp_official.py")) as caller:
            await check_official(caller)
        return
    app = official_server().streamable_http_app()
    async with (
        HttpServer(app) as server,
        calling(McpToolset.http("fake", f"http://127.0.0.1:{server.port}/mcp")) as caller,
    ):
        await check_official(caller)


async def check_official(caller: Caller) -> None:
    """Interrupt calls of the official server, and call it again."""
    await interrupt(caller, "sleep", 5)
    await caller.call("sleep", timeout_s=0.2)

    async def is_told() -> bool:
        seen = await caller.stats()
        return seen["cancelled"] == 6 and seen["running"] == 0

    await eventually(is_told)
    drawn = await caller.call("draw")
    assert drawn.content.startswith("a picture\n[image, image/png, 8 bytes")
    assert [file.media_type for file in drawn.files] == ["image/png"]
    assert (await caller.call("double", {"number": 10**30})).content == str(2 * 10**30)


async def test_a_server_that_does_not_listen_keeps_nobody_waiting(monkeypatch: pytest.MonkeyPatch) -> None:
    """A server that never answers the notice: the cancelled call ends at once, and other calls go on."""
    monkeypatch.setattr("activities.mcp_transport.FAREWELL_S", 0.5)
    fake = FakeHttpMcp()
    fake.mute_notices = True
    async with (
        HttpServer(fake.app) as server,
        calling(McpToolset.http("fake", f"http://127.0.0.1:{server.port}/mcp")) as caller,
    ):
        call = caller.begin("sleep")
        await eventually(lambda: fake.server.running)
        began = time.monotonic()
        call.cancel()
        await asyncio.wait({call})
        assert time.monotonic() - began < 0.5
        assert (await caller.call("echo", {"text": "on"}, timeout_s=20)).outcome == "ok"
