"""Calls of an MCP toolset's tools as `dispatch` makes them."""

import asyncio
import json
import sys
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from datetime import timedelta
from pathlib import Path
from typing import Any, Unpack, cast

import psutil

from activities.mcp_client import McpClient
from activities.tool_output import ToolOutput
from perdure.contract import DispatchRequest
from perdure.mcp import McpOptions, McpToolset
from perdure.records import OpenCall
from perdure.tools import Tool

FAKES = Path(__file__).parents[1] / "fakes"


@dataclass
class Caller:
    """A client and what it listed."""

    client: McpClient
    tools: dict[str, Tool]

    async def call(
        self, name: str, arguments: dict[str, Any] | str = "{}", timeout_s: float | None = None
    ) -> ToolOutput:
        """Call a tool and wait for its result."""
        tool = self.tools[name]
        if timeout_s is not None:
            tool = replace(tool, timeout=timedelta(seconds=timeout_s))
        text = arguments if isinstance(arguments, str) else json.dumps(arguments)
        call = OpenCall(call_id="c", message_id="m", turn=1, step=0, index=0, tool=name, arguments=text, started=1)
        request = DispatchRequest(thread_id="t", agent="a", call_id="c")
        output = await self.client.call(tool, call, request)
        assert isinstance(output, ToolOutput)
        return output

    def begin(self, name: str) -> "asyncio.Task[ToolOutput]":
        """Call a tool without waiting."""
        return asyncio.create_task(self.call(name))

    async def stats(self) -> dict[str, int]:
        """What the server saw."""
        output = await self.call("stats")
        return cast("dict[str, int]", json.loads(output.content))


def stdio_toolset(program: str, *flags: str, **options: Unpack[McpOptions]) -> McpToolset:
    """A toolset whose server is a program among the fakes."""
    return McpToolset.stdio("fake", sys.executable, [str(FAKES / program), *flags], **options)


@asynccontextmanager
async def calling(toolset: McpToolset) -> AsyncGenerator[Caller]:
    """A client that has listed its tools; closed at the end."""
    client = McpClient(toolset)
    try:
        listing = await client.fetch()
        yield Caller(client, {tool.operation or "": tool for tool in client.tools(listing)})
    finally:
        await client.close()


def runs_with(flag: str) -> bool:
    """Whether a descendant of this process is a server with a flag."""
    return any(flag in _command(child) for child in psutil.Process().children(recursive=True))


def _command(process: psutil.Process) -> list[str]:
    try:
        return process.cmdline()
    except psutil.NoSuchProcess:
        return []
