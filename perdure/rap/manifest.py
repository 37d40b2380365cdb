"""What a RAP server offers: its manifest (RAP, basic/toolsets), checked as a whole.

One invalid tool makes the whole manifest invalid, as the protocol wants it: nobody can tell what else is wrong with it.
Unknown fields are ignored. What a server says of itself is shown to models and people and steers nothing, other than
`idempotent`, which lets a call be sent again when it is not known whether it arrived, and `destructive`, for a toolset
that has people asked about such calls.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final, cast

from perdure.builtins import RESERVED
from perdure.codec import clip, digest, is_json
from perdure.errors import ToolsetUnavailable
from perdure.rap.toolset import is_web_address
from perdure.schema import object_schema
from perdure.tools import Tool

DISCOVERY: Final = "/.well-known/rap-toolset"

MAX_TOOLS: Final = 1_000
"""More than any model is offered; a bound on the work that a server can make."""

_NAME_CHARS, _OFFERED_CHARS, _DIGEST_CHARS = 128, 64, 8
_operation = re.compile(rf"[A-Za-z0-9_-]{{1,{_NAME_CHARS}}}")


@dataclass(frozen=True)
class RapTool(Tool):
    """A tool of a RAP server, and where its calls go.

    Attributes:
        endpoint: the URL; it comes from the server and may hold a secret, so it is not shown.
        destructive: whether the server says that it does what cannot be undone, or says it in a way that nobody knows.
    """

    endpoint: str = field(default="", repr=False)
    destructive: bool = False


@dataclass(frozen=True)
class Manifest:
    """A valid manifest. `name` is what the server calls itself; tools are in the server's order."""

    name: str
    tools: tuple[RapTool, ...]


def read_manifest(listing: Mapping[str, Any], toolset: str) -> Manifest:
    """The tools of a manifest, for the toolset of this name.

    Raises:
        ToolsetUnavailable: with one sentence that says what is wrong, and with which tool.
    """
    try:
        return _manifest(listing, toolset)
    except ValueError as error:
        raise ToolsetUnavailable(
            f"None of the tools of {toolset} are offered, since its manifest is not valid: {error}."
        ) from error


def essence(listing: Mapping[str, Any]) -> dict[str, Any]:
    """A valid manifest without what nobody reads: it is kept with every conversation."""
    fields = ("name", "description", "inputSchema", "annotations")
    tools = [{name: tool[name] for name in fields if name in tool} for tool in listing["tools"]]
    return {"name": listing["name"], "endpoint": listing["endpoint"], "tools": tools}


def _manifest(listing: Mapping[str, Any], toolset: str) -> Manifest:
    name, endpoint, entries = listing.get("name"), listing.get("endpoint"), listing.get("tools")
    if not isinstance(name, str) or not 1 <= len(name) <= _NAME_CHARS:
        raise ValueError(f"its `name` must be a text of 1 to {_NAME_CHARS} characters")
    if not isinstance(endpoint, str) or not is_web_address(endpoint):
        raise ValueError("its `endpoint` must be an absolute http or https URL")
    if not isinstance(entries, list) or not entries:
        raise ValueError("its `tools` must be a list of at least one tool")
    tools = cast("list[object]", entries)
    if len(tools) > MAX_TOOLS:
        raise ValueError(f"it has {len(tools):,} tools, more than the {MAX_TOOLS:,} that are taken")
    read = tuple(_tool(entry, number, toolset, endpoint) for number, entry in enumerate(tools, start=1))
    names = [tool.operation for tool in read]
    if twice := next((name for name in names if names.count(name) > 1), None):
        raise ValueError(f"it has two tools named {twice!r}")
    return Manifest(name, read)


def _tool(entry: object, number: int, toolset: str, endpoint: str) -> RapTool:
    if not isinstance(entry, dict) or not is_json(cast("object", entry)):
        raise ValueError(f"its tool {number} must be an object")
    tool = cast("dict[str, Any]", entry)
    name, description = tool.get("name"), tool.get("description")
    if not isinstance(name, str) or not _operation.fullmatch(name):
        said = clip(name, _OFFERED_CHARS) if isinstance(name, str) else "none"
        raise ValueError(
            f"the name of its tool {number} must be 1 to {_NAME_CHARS} letters, digits, `_` or `-` (it is {said!r})"
        )
    if name in RESERVED:
        raise ValueError(f"the tool name {name!r} is reserved")
    if not isinstance(description, str) or not description.strip():
        raise ValueError(f"the tool {name!r} needs a `description`")
    try:
        parameters = object_schema(tool.get("inputSchema"))
    except ValueError as error:
        raise ValueError(f"the `inputSchema` of the tool {name!r} is not valid: {error}") from error
    marks: object = tool.get("annotations")
    annotations = cast("dict[str, Any]", marks) if isinstance(marks, dict) else dict[str, Any]()
    return RapTool(
        name=_offered(name),
        description=description,
        parameters=parameters,
        kind="rap",
        # In doubt neither of the two makes anything easier.
        retry_safe=annotations.get("idempotent") is True,
        destructive=annotations.get("destructive") not in (None, False),
        toolset=toolset,
        operation=name,
        endpoint=endpoint,
    )


def _offered(name: str) -> str:
    """The name that models see: providers take half as many characters as the protocol.

    A longer one keeps its beginning; the digest keeps apart those that begin alike.
    """
    if len(name) <= _OFFERED_CHARS:
        return name
    return f"{name[: _OFFERED_CHARS - _DIGEST_CHARS - 1]}_{digest(name)[:_DIGEST_CHARS]}"
