"""What an MCP server offers: the JSON that is kept of it, and the tools that an agent gets from that."""

from collections.abc import Mapping
from typing import Any

from pydantic import BaseModel, Field, ValidationError

from perdure.codec import clip
from perdure.errors import ConfigurationError, ToolsetUnavailable
from perdure.mcp import McpToolset
from perdure.tools import Tool, approval_of, approvals_by_name


class _Hints(BaseModel):
    read_only: bool = Field(default=False, alias="readOnlyHint")
    idempotent: bool = Field(default=False, alias="idempotentHint")
    destructive: bool = Field(default=True, alias="destructiveHint")


class _Entry(BaseModel):
    name: str
    title: str | None = None
    description: str | None = None
    parameters: dict[str, Any] = Field(alias="inputSchema")
    hints: _Hints | None = Field(default=None, alias="annotations")

    @property
    def destructive(self) -> bool:
        """What says nothing of itself is, by the protocol."""
        return self.hints is None or (self.hints.destructive and not self.hints.read_only)


class _Listing(BaseModel):
    tools: list[_Entry]


def listed_tools(toolset: McpToolset, listing: Mapping[str, Any]) -> tuple[Tool, ...]:
    """The tools of a listing, as far as the toolset asks for them, in the server's order.

    A name that no provider takes is not changed in silence, since a person would look for the server's own: it makes
    the toolset unavailable until it is excluded or renamed.

    Raises:
        ToolsetUnavailable: with a sentence, if the listing is not valid.
    """
    try:
        entries = _Listing.model_validate(dict(listing)).tools
    except ValidationError as error:
        raise ToolsetUnavailable(f"What MCP server {toolset.name!r} offers is not a valid list of tools.") from error
    offered = {entry.name for entry in entries}
    # A misspelt name must not leave the tool that was meant without its approval.
    for name in (*(toolset.tools or ()), *toolset.rename, *(approvals_by_name(toolset.approval) or ())):
        if name not in offered:
            raise ToolsetUnavailable(f"MCP server {toolset.name!r} offers no tool {name!r}.")
    tools: dict[str, Tool] = {}
    for entry in entries:
        if entry.name in toolset.exclude or (toolset.tools is not None and entry.name not in toolset.tools):
            continue
        tool = _tool(toolset, entry)
        if tool.name in tools:
            raise ToolsetUnavailable(f"MCP server {toolset.name!r} offers two tools named {tool.name!r}.")
        tools[tool.name] = tool
    return tuple(tools.values())


def check_schemas(toolset: McpToolset, tools: tuple[Tool, ...]) -> None:
    """Refuse schemas that are none: a provider that is sent one refuses the whole request, and the thread with it.

    Raises:
        ToolsetUnavailable: with a sentence.
    """
    # Imported when a server is asked, since it takes a tenth of a second and most workers have no MCP server.
    from jsonschema import SchemaError
    from jsonschema.validators import validator_for

    for tool in tools:
        schema = dict(tool.parameters)
        try:
            validator_for(schema).check_schema(schema)
        except SchemaError as error:
            raise ToolsetUnavailable(
                f"MCP server {toolset.name!r} describes the arguments of {tool.operation!r} by what is no JSON schema: "
                f"{clip(error.message, 200)}."
            ) from error


def _tool(toolset: McpToolset, entry: _Entry) -> Tool:
    name = toolset.prefix + toolset.rename.get(entry.name, entry.name)
    try:
        return Tool(
            name=name,
            description=entry.description or entry.title or "",
            parameters=entry.parameters,
            kind="mcp",
            retry_safe=entry.hints is not None and (entry.hints.read_only or entry.hints.idempotent),
            timeout=toolset.timeout,
            toolset=toolset.name,
            operation=entry.name,
            approval=approval_of(toolset.approval, entry.name, destructive=entry.destructive),
        )
    except ConfigurationError as error:
        raise ToolsetUnavailable(
            f"MCP server {toolset.name!r}: no model takes a tool named {name!r} (1 to 64 letters, digits, `_` or `-`). "
            "Leave it out with `exclude`, or give it another name with `rename`."
        ) from error
