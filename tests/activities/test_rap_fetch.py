"""Manifests of RAP servers over HTTP: how they are asked for, and the sentence for each way to fail."""

import asyncio
import json
from datetime import timedelta
from typing import Any

import pytest

from perdure.errors import ToolsetUnavailable
from tests.activities.rap_calls import calling
from tests.fakes.rap_server import DISCOVERY, Answer, FakeRapServer, FakeTool
from tests.fakes.rap_tools import get_time, open_sandbox


async def test_a_manifest_is_asked_for_below_the_base_url() -> None:
    """By what the toolset was given; credentials go with it. What nobody reads is not kept."""
    server = FakeRapServer(get_time(), open_sandbox(), prefix="/tools")
    async with server, calling(server, headers={"Authorization": "Bearer s3cret"}) as caller:
        server.manifest["needsMigration"] = True
        listing = await caller.client.fetch()
        assert listing.keys() == {"name", "endpoint", "tools"}
        assert [tool.name for tool in caller.client.tools(listing)] == ["get_time", "open_sandbox_direct"]
        (request,) = server.requests
        assert (request.method, request.path) == ("GET", f"/tools{DISCOVERY}")
        assert request.headers["accept"] == "application/json"
        assert request.headers["authorization"] == "Bearer s3cret"


async def test_a_listing_says_the_same_after_it_was_kept() -> None:
    """It is JSON, so another worker reads the same tools from it years later."""
    async with FakeRapServer(get_time()) as server, calling(server) as caller:
        listing = await caller.client.fetch()
        assert caller.client.tools(json.loads(json.dumps(listing))) == caller.client.tools(listing)


async def test_a_toolset_says_whether_people_are_asked() -> None:
    """For all tools of a server, or by its names for some. A name that is not there must not go unnoticed."""
    async with FakeRapServer(get_time(), open_sandbox()) as server:
        for approval, expected in [
            (None, [None, None]),
            ("always", ["always", "always"]),
            ({"get_time": "always"}, ["always", None]),
        ]:
            async with calling(server, approval=approval) as caller:
                tools = caller.client.tools(await caller.client.fetch())
                assert [tool.approval for tool in tools] == expected
        async with calling(server, approval={"get_tiem": "always"}) as caller:
            with pytest.raises(ToolsetUnavailable, match="offers no tool 'get_tiem', whose approval is declared"):
                await caller.client.fetch()


@pytest.mark.parametrize(
    ("annotations", "asked"),
    [
        (None, False),
        ({}, False),
        ({"destructive": False}, False),
        ({"destructive": None}, False),
        ({"readOnly": True}, False),
        ({"destructive": True}, True),
        ({"destructive": "yes"}, True),
        ({"destructive": True, "idempotent": True}, True),
    ],
)
async def test_people_are_asked_about_what_is_destructive(annotations: dict[str, Any] | None, asked: bool) -> None:
    """If the toolset says so, before a tool that its server marks; what marks it in an unknown way counts as a mark."""
    async with FakeRapServer(FakeTool("drop", annotations=annotations)) as server:
        for approval, expected in (("destructive", "always" if asked else None), (None, None)):
            async with calling(server, approval=approval) as caller:
                (tool,) = caller.client.tools(await caller.client.fetch())
                assert tool.approval == expected


@pytest.mark.parametrize("mark", [b"", b"\xef\xbb\xbf"], ids=["plain", "byte order mark"])
@pytest.mark.parametrize("status", [200, 203])
async def test_content_type_and_the_exact_status_do_not_matter(mark: bytes, status: int) -> None:
    """Servers behind some gateways set none."""
    async with FakeRapServer(get_time()) as server, calling(server) as caller:
        body = mark + json.dumps(await caller.client.fetch()).encode()
        server.script(DISCOVERY, Answer(status=status, body=body))
        assert len(caller.client.tools(await caller.client.fetch())) == 1


@pytest.mark.parametrize(
    ("answers", "reason"),
    [
        ([Answer(status=404)], "answers the request for its manifest with HTTP 404"),
        ([Answer(status=500)] * 3, "with HTTP 500"),
        ([Answer(status=302, headers={"location": "http://127.0.0.1:9/"})], "with HTTP 302"),
        ([Answer(status=200, body=b"x" * 1_000_001)], "longer than 1,000,000 bytes"),
        ([Answer(body=b"<html>")], "is not JSON"),
        ([Answer(body=b"\xff")], "is not JSON"),
        ([Answer(body=b"[" * 100_000)], "is not JSON"),
        ([Answer(body=b"[]")], "is not a JSON object"),
        ([Answer(body=b"{}")], "since its manifest is not valid"),
        ([Answer(hold=asyncio.Event())], "does not send its manifest"),
        ([Answer(reset="after")] * 3, "does not send its manifest"),
    ],
)
async def test_a_manifest_that_cannot_be_had_is_a_sentence(answers: list[Answer], reason: str) -> None:
    """It names the toolset and what went wrong with it."""
    hangs = answers[0].hold is not None
    timeout = timedelta(seconds=0.2 if hangs else 10)
    async with FakeRapServer(get_time()) as server, calling(server, timeout=timeout) as caller:
        server.script(DISCOVERY, *answers)
        with pytest.raises(ToolsetUnavailable, match="fake") as failure:
            await caller.client.fetch()
        assert reason in str(failure.value)
        assert len(server.requests) == len(answers)


async def test_a_server_that_is_away_is_a_sentence() -> None:
    """After a few tries."""
    async with FakeRapServer(get_time()) as server, calling(server) as caller:
        await server.stop()
        with pytest.raises(ToolsetUnavailable, match="The tool server fake cannot be reached"):
            await caller.client.fetch()


@pytest.mark.parametrize("answer", [Answer(status=503), Answer(reset="before"), Answer(reset="after")])
async def test_a_moment_of_weakness_is_waited_out(answer: Answer) -> None:
    """Asking twice does no harm."""
    async with FakeRapServer(get_time()) as server, calling(server) as caller:
        server.script(DISCOVERY, answer)
        assert await caller.client.fetch()
        assert len(server.requests) == 2


async def test_a_redirect_on_the_same_host_is_followed() -> None:
    """As a proxy sends one to the right path, whatever kind of redirect it uses."""
    server = FakeRapServer(get_time(), prefix="/new")
    async with server, calling(server, url=f"{server.origin}/old") as caller:
        for status in (301, 302, 303, 307, 308):
            server.script(f"/old{DISCOVERY}", Answer(status=status, headers={"location": f"/new{DISCOVERY}"}))
            assert await caller.client.fetch()


async def test_a_packed_bomb_is_not_unpacked() -> None:
    """The server is asked not to pack, and what it packs nevertheless is no JSON."""
    async with FakeRapServer(get_time()) as server, calling(server) as caller:
        server.script(DISCOVERY, Answer(body=b"\x1f\x8b" + b"\0" * 100, headers={"content-encoding": "gzip"}))
        with pytest.raises(ToolsetUnavailable, match="is not JSON"):
            await caller.client.fetch()
        assert server.requests[0].headers["accept-encoding"] == "identity"


async def test_a_tool_that_is_not_valid_hides_all() -> None:
    """The protocol wants the manifest refused as a whole."""
    bad = FakeTool("bad", schema={"type": "string"})
    async with FakeRapServer(get_time(), bad) as server, calling(server) as caller:
        with pytest.raises(ToolsetUnavailable, match=r"None of the tools of fake are offered.*'bad'"):
            await caller.client.fetch()
