"""The hand-written MCP server as a program that speaks over stdin and stdout; its arguments say how it misbehaves.

chatter: prints what is no message before it begins.
slow: begins late.
strict: ends if it is not greeted in the old way.
page FILE: offers only the tools of a JSON file.
endless: always names a next page.
shut: closes its stdin when it has listed its tools, and lives on.
deaf: closes its stdin when it has been asked to call a tool, does not answer, and lives on.
tidy FILE: writes a file when its stdin has ended.
stubborn FILE: ignores the end of its stdin and SIGTERM, and has a child, whose pid it writes to a file.
"""

import asyncio
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[2]))

from tests.fakes.mcp_tools import FakeMcpServer, Message, Send


async def serve(server: FakeMcpServer, flags: list[str]) -> None:
    """Read messages until stdin ends."""
    reader = asyncio.StreamReader(limit=2**27)
    await asyncio.get_running_loop().connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), sys.stdin)
    while line := await reader.readline():
        message: Message = json.loads(line)
        if "strict" in flags and message.get("method") == "server/discover":
            return
        if "endless" in flags and message.get("method") == "tools/list":
            await write({"jsonrpc": "2.0", "id": message["id"], "result": {"tools": [], "nextCursor": "1"}})
            continue
        if "deaf" in flags and message.get("method") == "tools/call":
            os.close(sys.stdin.fileno())
            await asyncio.sleep(600)
        await server.take(message, write)
        if "shut" in flags and message.get("method") == "tools/list":
            os.close(sys.stdin.fileno())
            await asyncio.sleep(600)


async def write(message: Message) -> None:
    """One line for one message."""
    sys.stdout.write(json.dumps(message) + "\n")
    sys.stdout.flush()


def main(flags: list[str]) -> None:
    """Serve as the flags say."""
    server = FakeMcpServer()
    if "page" in flags:
        page: list[Message] = json.loads(Path(flags[flags.index("page") + 1]).read_text(encoding="utf-8"))
        server.pages = (tuple(page),)
    if "slow" in flags:
        time.sleep(1)
    if "chatter" in flags:
        sys.stdout.buffer.write(b'Starting up...\n{"half": \n\xff\xfe\n\n[1,2]\n')
        sys.stdout.flush()
    if "stubborn" in flags:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        child = subprocess.Popen([sys.executable, "-S", "-c", "import time; time.sleep(600)"])
        Path(flags[flags.index("stubborn") + 1]).write_text(f"{child.pid}", encoding="utf-8")
    asyncio.run(serve(server, flags))
    if "tidy" in flags:
        time.sleep(0.3)
        Path(flags[flags.index("tidy") + 1]).touch()
    if "stubborn" in flags:
        time.sleep(600)


_: Send = write

if __name__ == "__main__":
    main(sys.argv[1:])
