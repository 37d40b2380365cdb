"""What a worker asks of a toolset's server, whatever protocol it speaks."""

from collections.abc import Mapping
from typing import Any, Protocol

from activities.tool_output import Pending, ToolOutput
from perdure.contract import DispatchRequest
from perdure.records import OpenCall
from perdure.tools import Tool


class ToolsetClient(Protocol):
    """The way to one toolset's server; connections are opened when they are first needed, and used again."""

    @property
    def name(self) -> str:
        """The toolset's name: what its tools carry as `Tool.toolset`."""
        ...

    async def fetch(self) -> dict[str, Any]:
        """What the server offers, as the JSON that `tools` reads; kept with the conversation.

        Raises:
            ToolsetUnavailable: with a sentence, if the server does not answer or what it offers is not valid.
        """
        ...

    def tools(self, listing: Mapping[str, Any]) -> tuple[Tool, ...]:
        """The tools of a listing that `fetch` gave, now or long ago, in the server's order.

        Raises:
            ToolsetUnavailable: with a sentence, if the listing is not valid.
        """
        ...

    async def call(self, tool: Tool, call: OpenCall, request: DispatchRequest) -> ToolOutput | Pending:
        """Have the server carry out a call. What goes wrong is a result with the outcome `error`.

        Cancelled when nobody waits for the call any more. `call.started` above 1 says that an earlier execution may
        have reached the server.
        """
        ...

    async def close(self) -> None:
        """Close all connections."""
        ...
