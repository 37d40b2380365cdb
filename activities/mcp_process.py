"""An MCP server as a process of this worker, spoken to over its stdin and stdout.

The SDK's own transport puts every piece of a line together with all that came before, so a result of 20 MB costs the
event loop half a minute, and it keeps a line in memory however long it gets. This one reads in linear time, up to a
limit. On Windows, where a process group is something else, the SDK's is used.
"""

import asyncio
import json
import os
import shutil
import signal
import sys
from collections.abc import AsyncGenerator
from contextlib import AbstractAsyncContextManager, asynccontextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Final

import anyio
from anyio.streams.memory import MemoryObjectReceiveStream, MemoryObjectSendStream
from mcp.client.stdio import StdioServerParameters, get_default_environment, stdio_client
from mcp.shared.message import SessionMessage
from mcp_types import jsonrpc_message_adapter

from activities import mcp_guard
from activities.tool_output import RESULT_CHARS
from perdure.codec import loads
from perdure.errors import ToolsetUnavailable
from perdure.mcp import McpToolset

if TYPE_CHECKING:
    from mcp.client._transport import TransportStreams

LINE_BYTES: Final = 2 * RESULT_CHARS
"""The longest line: a result is longer on the wire than in the end."""

_FLUSH_S: Final = 0.5
_GRACE_S: Final = 2.0
"""How long a server may take to end after its stdin was closed, by either side, and its guard to end it after that."""

_Incoming = MemoryObjectSendStream[SessionMessage | Exception]


def process_transport(toolset: McpToolset) -> "AbstractAsyncContextManager[TransportStreams]":
    """Start the server, and end it and all that it has started at the end of the block.

    Raises:
        ToolsetUnavailable: with a sentence, if the command cannot be started.
    """
    variables = get_default_environment() | dict(toolset.env)
    command = [_found(toolset, variables), *toolset.args]
    if sys.platform == "win32":
        parameters = StdioServerParameters(
            command=command[0], args=command[1:], env=variables, cwd=toolset.cwd, encoding_error_handler="replace"
        )
        return stdio_client(parameters)
    return _transport([sys.executable, "-I", "-S", mcp_guard.__file__, *command], variables, toolset.cwd)


def _found(toolset: McpToolset, variables: dict[str, str]) -> str:
    """The program, looked for here, since the guard could only say to stderr that there is none."""
    command, folder = toolset.command or "", Path(toolset.cwd or ".")
    if not folder.is_dir():
        raise ToolsetUnavailable(f"MCP server {toolset.name!r} cannot be started: there is no folder {toolset.cwd!r}.")
    found = shutil.which(folder / command if os.path.dirname(command) else command, path=variables.get("PATH"))
    if found is None:
        raise ToolsetUnavailable(f"MCP server {toolset.name!r} cannot be started: there is no command {command!r}.")
    return str(Path(found).absolute())


@asynccontextmanager
async def _transport(
    command: list[str], variables: dict[str, str], folder: str | None
) -> "AsyncGenerator[TransportStreams]":
    # A session of its own makes the guard the leader of a process group, and keeps a terminal's Ctrl-C from it.
    process = await asyncio.create_subprocess_exec(
        *command,
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
        env=variables,
        cwd=folder,
        start_new_session=True,
        limit=LINE_BYTES,
    )
    assert process.stdin is not None
    assert process.stdout is not None
    arrived, incoming = anyio.create_memory_object_stream[SessionMessage | Exception](0)
    outgoing, sent = anyio.create_memory_object_stream[SessionMessage](0)
    reader = asyncio.create_task(_read(process.stdout, arrived))
    writer = asyncio.create_task(_write(sent, process.stdin, arrived))
    watcher = asyncio.create_task(_end_if_deaf(process.stdin, reader, arrived))
    try:
        yield incoming, outgoing
    finally:
        watcher.cancel()
        incoming.close()
        outgoing.close()
        try:
            await _end(process, process.stdin, writer)
            await asyncio.wait({reader}, timeout=_FLUSH_S)
        finally:
            reader.cancel()
            writer.cancel()
            if process.returncode is None:
                with suppress(ProcessLookupError):
                    os.killpg(process.pid, signal.SIGKILL)


async def _read(stdout: asyncio.StreamReader, arrived: _Incoming) -> None:
    """Hand over the messages, one a line, until the server closes its side; what is no message is left out."""
    async with arrived:
        # A line above the limit ends the connection: the call that it answers would wait for ever.
        with suppress(
            anyio.BrokenResourceError,
            anyio.ClosedResourceError,
            asyncio.IncompleteReadError,
            asyncio.LimitOverrunError,
        ):
            while True:
                message = _message(await stdout.readuntil(b"\n"))
                if message is not None:
                    await arrived.send(message)
    # A server that cannot get rid of what it writes does not see the end of its stdin.
    while await stdout.read(2**16):
        pass


async def _write(
    sent: MemoryObjectReceiveStream[SessionMessage], stdin: asyncio.StreamWriter, arrived: _Incoming
) -> None:
    async with sent:
        async for item in sent:
            try:
                stdin.write(item.message.model_dump_json(by_alias=True, exclude_unset=True).encode() + b"\n")
                await stdin.drain()
            except OSError:
                # The server may live on, but nothing can be asked of it: that is the end for whoever waits.
                await arrived.aclose()
                return


async def _end_if_deaf(stdin: asyncio.StreamWriter, reader: asyncio.Task[None], arrived: _Incoming) -> None:
    """End the connection when the server has closed its stdin.

    A call that was in the pipe by then was written without an error and is read by nobody: whoever waits for its answer
    would wait until its time is over. What the server answers on its way out is still read.
    """
    with suppress(OSError):
        await stdin.wait_closed()
    await asyncio.wait({reader}, timeout=_GRACE_S)
    await arrived.aclose()


def _message(line: bytes) -> SessionMessage | None:
    try:
        return SessionMessage(jsonrpc_message_adapter.validate_json(line, by_name=False))
    except ValueError:
        return _mended(line)


def _mended(line: bytes) -> SessionMessage | None:
    """Read a line that the SDK cannot read.

    Servers that cut a text in the middle of an emoji send half a surrogate pair, which is JSON and no UTF-8. Without
    this the answer would be thrown away, and the call would wait until its time is over.
    """
    try:
        text = json.dumps(loads(line), ensure_ascii=False).encode("utf-8", "replace").decode("utf-8")
        return SessionMessage(jsonrpc_message_adapter.validate_json(text, by_name=False))
    except ValueError:
        return None


async def _end(process: asyncio.subprocess.Process, stdin: asyncio.StreamWriter, writer: asyncio.Task[None]) -> None:
    """Close stdin, which is how a server is asked to end; the guard ends one that does not, and what it left."""
    await asyncio.wait({writer}, timeout=_FLUSH_S)
    stdin.close()
    for ask_again in (process.terminate, process.kill):
        with suppress(TimeoutError):
            async with asyncio.timeout(_GRACE_S):
                await process.wait()
                return
        with suppress(ProcessLookupError):
            ask_again()
