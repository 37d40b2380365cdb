"""The client of an MCP toolset against a real server in a process of its own."""

import asyncio
import json
import logging
import subprocess
import sys
from dataclasses import replace
from datetime import timedelta
from pathlib import Path

import pytest

from activities.mcp_client import McpClient
from perdure.errors import ToolsetUnavailable
from perdure.mcp import McpToolset
from tests.activities.mcp_calls import calling, runs_with, stdio_toolset
from tests.eventually import eventually
from tests.fakes.mcp_tools import BIG, BIG_CHARS, PAGES, PIXEL


async def test_all_pages_are_listed() -> None:
    """The listing is plain JSON with the schemas as the server gave them, in its order, over all pages."""
    client = McpClient(stdio_toolset("mcp_server.py"))
    try:
        listing = json.loads(json.dumps(await client.fetch()))
    finally:
        await client.close()
    offered = [entry for page in PAGES for entry in page]
    assert [entry["name"] for entry in listing["tools"]] == [entry["name"] for entry in offered]
    assert [entry["inputSchema"] for entry in listing["tools"]] == [entry["inputSchema"] for entry in offered]
    tools = {tool.name: tool for tool in client.tools(listing)}
    assert tools["stats"].retry_safe
    assert tools["twice"].retry_safe
    assert not tools["sleep"].retry_safe
    assert tools["echo"].kind == "mcp"
    assert tools["echo"].toolset == "fake"


async def test_one_connection_serves_all_calls() -> None:
    """Calls at once and one after the other reach the same process."""
    async with calling(stdio_toolset("mcp_server.py")) as caller:
        at_once = await asyncio.gather(*(caller.stats() for _ in range(20)))
        assert {seen["pid"] for seen in at_once} == {(await caller.stats())["pid"]}


async def test_calls_at_once_share_the_opening() -> None:
    """Calls that find no connection wait for one process, they do not start one each."""
    async with calling(stdio_toolset("mcp_server.py")) as caller:
        await caller.call("leave")
        at_once = await asyncio.gather(*(caller.stats() for _ in range(10)))
        assert len({seen["pid"] for seen in at_once}) == 1


async def test_a_server_that_ended_is_started_again() -> None:
    """Between two calls the server ends; the next call gets its result from a new process."""
    async with calling(stdio_toolset("mcp_server.py")) as caller:
        before = (await caller.stats())["pid"]
        assert (await caller.call("leave")).content == "bye"
        assert (await caller.stats())["pid"] != before


async def test_a_call_whose_server_died_has_an_unknown_outcome() -> None:
    """The server dies during a call: an error that says so, one execution, and the next call works."""
    async with calling(stdio_toolset("mcp_server.py")) as caller:
        output = await caller.call("die")
        assert output.outcome == "error"
        assert "its outcome is unknown" in output.content
        assert (await caller.call("echo", {"text": "on"})).outcome == "ok"


async def test_a_retry_safe_call_is_made_again(tmp_path: Path) -> None:
    """The server dies during a call of an idempotent tool: the call is made once more, and returns that result."""
    async with calling(stdio_toolset("mcp_server.py")) as caller:
        assert (await caller.call("twice", {"mark": str(tmp_path / "a")})).content == "ran again"
        caller.tools["twice"] = replace(caller.tools["twice"], retry_safe=False)
        assert (await caller.call("twice", {"mark": str(tmp_path / "b")})).outcome == "error"


async def test_others_learn_of_the_death() -> None:
    """All calls that were under way when the server died get an error at once, not at their timeout."""
    async with calling(stdio_toolset("mcp_server.py")) as caller:
        waiting = [caller.begin("sleep") for _ in range(3)]

        async def all_run() -> bool:
            return (await caller.stats())["running"] == 3

        await eventually(all_run)
        await caller.call("die")
        outputs = await asyncio.wait_for(asyncio.gather(*waiting), 5)
        assert all("its outcome is unknown" in output.content for output in outputs)


async def test_big_integers_are_exact_both_ways() -> None:
    """Case B69: 19 digits and 10**30 reach the server and come back as they were, as text and as structured content."""
    async with calling(stdio_toolset("mcp_server.py")) as caller:
        sent = {"text": "n", "id": BIG, "more": 10**30, "none": None, "list": [-BIG, 0.1]}
        assert (await caller.call("echo", sent)).content == json.dumps(sent)
        told = (await caller.call("structured")).content
        assert told == f'It is warm.\n{{"id": {BIG}, "more": {10**30}, "none": null}}'


async def test_files_of_a_result() -> None:
    """Images, audio and blobs become files, each with a line in its place; text and links stay text."""
    async with calling(stdio_toolset("mcp_server.py")) as caller:
        output = await caller.call("items")
    assert output.content.splitlines() == [
        "Look:",
        "[image, image/png, 70 bytes: file 1 of this result]",
        "[audio, audio/wav, 2 bytes: file 2 of this result]",
        "[file:///a.txt]",
        "inside",
        "[file:///b.bin, application/octet-stream, 2 bytes: file 3 of this result]",
        "[link to file:///c: c]",
        "[image, image/png: left out, since the server did not encode it as base64]",
    ]
    assert [(file.media_type, file.data) for file in output.files] == [
        ("image/png", PIXEL),
        ("audio/wav", b"la"),
        ("application/octet-stream", b"\0\1"),
    ]


async def test_errors_of_a_tool_and_of_the_server() -> None:
    """`isError`, an error answer, an answer that is no result, and arguments that are none are error results."""
    async with calling(stdio_toolset("mcp_server.py")) as caller:
        wrong = await caller.call("wrong")
        assert (wrong.outcome, wrong.content) == ("error", "It went wrong.")
        refused = await caller.call("refuse")
        assert (refused.outcome, refused.content) == ("error", "MCP server 'fake' answered: There is no refuse.")
        odd = await caller.call("odd")
        assert odd.outcome == "error"
        assert odd.content == "MCP server 'fake' answered, but not as MCP has it (at `content`)."
        assert (await caller.call("echo", "[1]")).outcome == "error"
        half = await caller.call("echo", '{"text": "\\ud83d"}')
        assert half.content == "The arguments hold half a surrogate pair, which no server can be sent."
        assert (await caller.stats())["calls"] == 3


async def test_half_a_surrogate_pair_in_a_result() -> None:
    """A server that cuts a text in the middle of an emoji is understood, and the call does not wait for ever."""
    async with calling(stdio_toolset("mcp_server.py")) as caller:
        assert (await caller.call("half", timeout_s=5)).content == "a smile: ?"


async def test_a_huge_result() -> None:
    """Five million characters arrive whole."""
    async with calling(stdio_toolset("mcp_server.py")) as caller:
        assert len((await caller.call("huge")).content) == BIG_CHARS


async def test_noise() -> None:
    """Notices, questions to the client, answers to nobody and lines that are no messages disturb nothing."""
    async with calling(stdio_toolset("mcp_server.py", "chatter")) as caller:
        assert (await caller.call("noise")).content == "after all that"
        assert (await caller.call("ask")).content == "after all that"
        assert (await caller.stats())["calls"] == 2


async def test_a_slow_start() -> None:
    """A server that takes its time is waited for, as long as the toolset says and no longer."""
    async with calling(stdio_toolset("mcp_server.py", "slow")) as caller:
        assert (await caller.call("stats")).outcome == "ok"
    client = McpClient(stdio_toolset("mcp_server.py", "slow", connect_timeout=timedelta(seconds=0.2)))
    with pytest.raises(ToolsetUnavailable, match=r"^MCP server 'fake' did not answer within 0\.2 s\.$"):
        await client.fetch()
    await eventually(lambda: not runs_with("slow"))
    await client.close()


async def test_a_server_of_the_old_protocol_that_ends_at_the_new_one() -> None:
    """A server that takes the newer protocol's first question for an error and ends is greeted in the old way."""
    async with calling(stdio_toolset("mcp_server.py", "strict")) as caller:
        assert (await caller.call("echo", {"text": "a"})).outcome == "ok"


@pytest.mark.parametrize(
    ("tool", "sentence"),
    [
        ({"name": "read file", "inputSchema": {"type": "object"}}, "no model takes a tool named 'read file'"),
        ({"name": "a", "inputSchema": {"type": "object", "properties": {"x": {"type": "text"}}}}, "no JSON schema"),
        ({"name": "a", "inputSchema": {"type": "array"}}, "not as MCP has it"),
        ({"name": "a"}, "not as MCP has it"),
    ],
)
async def test_a_listing_that_is_not_valid(tmp_path: Path, tool: dict[str, object], sentence: str) -> None:
    """Names that no provider takes and schemas that are none make the toolset unavailable; the sentence says why."""
    page = tmp_path / "page.json"
    page.write_text(json.dumps([tool]), encoding="utf-8")
    client = McpClient(stdio_toolset("mcp_server.py", "page", str(page)))
    with pytest.raises(ToolsetUnavailable, match=sentence):
        await client.fetch()
    await client.close()


async def test_a_listing_without_an_end(monkeypatch: pytest.MonkeyPatch) -> None:
    """A server that always names a next page is given up."""
    monkeypatch.setattr("activities.mcp_connection.PAGES", 20)
    client = McpClient(stdio_toolset("mcp_server.py", "endless"))
    with pytest.raises(ToolsetUnavailable, match="without an end"):
        await client.fetch()
    await client.close()


@pytest.mark.parametrize(
    ("toolset", "sentence"),
    [
        (McpToolset.stdio("x", "no-such-command", ["--key=secret"]), "there is no command 'no-such-command'"),
        (McpToolset.stdio("x", "./no-such", env={"KEY": "secret"}), "there is no command './no-such'"),
        (McpToolset.stdio("x", sys.executable, cwd="/no/such"), "there is no folder '/no/such'"),
        (McpToolset.stdio("x", sys.executable, ["-c", "'secret'"]), "ended before it answered"),
        (McpToolset.stdio("x", sys.executable, ["-c", "'secret'"], env={"PATH": ""}), "ended before it answered"),
    ],
)
async def test_a_server_that_cannot_be_started(
    toolset: McpToolset, sentence: str, caplog: pytest.LogCaptureFixture
) -> None:
    """One sentence, with nothing of the arguments and variables, neither in it nor in the logs."""
    caplog.set_level(logging.DEBUG)
    client = McpClient(toolset)
    with pytest.raises(ToolsetUnavailable, match=sentence) as raised:
        await client.fetch()
    await client.close()
    assert "secret" not in str(raised.value) + caplog.text
    assert len(str(raised.value).splitlines()) == 1


async def test_a_closed_client_starts_nothing() -> None:
    """After `close`, which may be called twice, there is no connection and none is made."""
    async with calling(stdio_toolset("mcp_server.py")) as caller:
        await caller.client.close()
        await caller.client.close()
        output = await caller.call("stats")
        assert output.outcome == "error"
        assert "shutting down" in output.content


async def test_closing_while_a_call_runs() -> None:
    """A call that still runs when the worker closes the client gets an error, and close does not wait for its end."""
    async with calling(stdio_toolset("mcp_server.py")) as caller:
        running = caller.begin("sleep")

        async def runs() -> bool:
            return (await caller.stats())["running"] == 1

        await eventually(runs)
        await asyncio.wait_for(caller.client.close(), 5)
        assert "its outcome is unknown" in (await running).content


def test_a_worker_without_servers_does_not_import_mcp() -> None:
    """Declaring and importing the client leaves the heavy packages alone."""
    program = (
        "import sys, activities.mcp_client, perdure.mcp\n"
        "perdure.mcp.McpToolset.stdio('a', 'b')\n"
        "print([name for name in ('mcp', 'mcp_types', 'jsonschema') if name in sys.modules])"
    )
    run = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert run.stdout.strip() == "[]"
