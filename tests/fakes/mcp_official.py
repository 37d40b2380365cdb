"""An MCP server made with the official SDK, which speaks the newest protocol; over stdio when run as a program."""

import anyio
from mcp.server.mcpserver import Context, Image, MCPServer
from mcp_types import ToolAnnotations

PIXEL = b"\x89PNG\r\n\x1a\n"


class Seen:
    """What the server saw."""

    running = 0
    cancelled = 0


def official_server() -> MCPServer:
    """A server with a tool that sleeps, one that counts, and ones with images and structured results."""
    server = MCPServer("official", log_level="CRITICAL")
    seen = Seen()

    @server.tool()
    async def sleep(ctx: Context) -> str:
        """Sleep for long."""
        seen.running += 1
        try:
            await anyio.sleep(30)
        except anyio.get_cancelled_exc_class():
            seen.cancelled += 1
            raise
        finally:
            seen.running -= 1
        return "slept"

    @server.tool(annotations=ToolAnnotations(read_only_hint=True))
    async def stats() -> dict[str, int]:
        """What the server saw."""
        return {"running": seen.running, "cancelled": seen.cancelled}

    @server.tool()
    async def draw() -> list[Image | str]:
        """Draw."""
        return ["a picture", Image(data=PIXEL, format="png")]

    @server.tool()
    async def double(number: int) -> int:
        """Twice a number."""
        return 2 * number

    return server


if __name__ == "__main__":
    official_server().run("stdio")
