"""MCP servers as toolsets: which server, how it is reached, and which of its tools an agent gets.

A declaration only: no process is started and no connection opened before a thread of the agent needs one.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Self, TypedDict, Unpack
from urllib.parse import urlsplit

from perdure.errors import ConfigurationError
from perdure.tools import ToolsetApproval, approvals_by_name, check_toolset_approval


class McpOptions(TypedDict, total=False):
    """What an MCP toolset may be given beside the server; see `McpToolset`."""

    prefix: str
    tools: Sequence[str] | None
    exclude: Sequence[str]
    rename: Mapping[str, str]
    timeout: timedelta
    connect_timeout: timedelta
    approval: ToolsetApproval | None


@dataclass(frozen=True)
class McpToolset:
    """The tools of an MCP server. Made by `McpToolset.stdio` or `McpToolset.http`.

    A tool that its server marks as read-only or idempotent is `retry_safe`. What may be secret is not shown by `repr`.

    Attributes:
        name: the toolset's name, in messages and in `Tool.toolset`.
        command: the program to start, for a server that speaks over stdin and stdout; else None.
        args: its arguments.
        env: variables for it. Of the worker's own it gets only HOME, PATH and the like.
        cwd: the folder in which it is started; the worker's own if None.
        url: the endpoint, for a server that speaks streamable HTTP; else None.
        headers: sent with every request, for instance `Authorization`.
        prefix: put in front of every tool's name.
        tools: the tools to offer, by the server's names; all if None.
        exclude: tools to leave out, by the server's names.
        rename: other names for tools, by the server's names; the prefix is put in front of these too.
        timeout: how long one call may take.
        connect_timeout: how long the server may take to start, and to list its tools.
        approval: whether people are asked before a call runs: for all tools, or a mapping by the server's names; with
            `"destructive"` for all but those that the server marks as read-only or not destructive. None, and what is
            not among these, leaves it to the agent.
    """

    name: str
    command: str | None = None
    args: Sequence[str] = ()
    env: Mapping[str, str] = field(default_factory=dict[str, str], hash=False)
    cwd: str | None = None
    url: str | None = None
    headers: Mapping[str, str] = field(default_factory=dict[str, str], hash=False)
    prefix: str = ""
    tools: Sequence[str] | None = None
    exclude: Sequence[str] = ()
    rename: Mapping[str, str] = field(default_factory=dict[str, str], hash=False)
    timeout: timedelta = timedelta(minutes=10)
    connect_timeout: timedelta = timedelta(minutes=1)
    approval: ToolsetApproval | None = field(default=None, hash=False)

    @classmethod
    def stdio(
        cls,
        name: str,
        command: str,
        args: Sequence[str] = (),
        *,
        env: Mapping[str, str] | None = None,
        cwd: str | None = None,
        **options: Unpack[McpOptions],
    ) -> Self:
        """A server that the worker starts, and that ends with it.

        Example:
            >>> McpToolset.stdio("files", "npx", ["-y", "@modelcontextprotocol/server-filesystem", "/data"])
            McpToolset(name='files', command='npx')

        Raises:
            ConfigurationError: with a sentence, if something of it cannot be.
        """
        return cls(name, command=command, args=args, env=env or {}, cwd=cwd, **options)

    @classmethod
    def http(
        cls, name: str, url: str, *, headers: Mapping[str, str] | None = None, **options: Unpack[McpOptions]
    ) -> Self:
        """A server that is reached by streamable HTTP.

        Example:
            >>> McpToolset.http("issues", "https://mcp.example.com/mcp", headers={"Authorization": "Bearer ..."})
            McpToolset(name='issues', url='https://mcp.example.com')

        Raises:
            ConfigurationError: with a sentence, if something of it cannot be.
        """
        return cls(name, url=url, headers=headers or {}, **options)

    def __post_init__(self) -> None:
        """Refuse what cannot work when it is declared, and not when a thread needs it."""
        if not self.name.strip():
            raise ConfigurationError("An MCP toolset needs a name.")
        self._freeze()
        if (self.command is None) == (self.url is None):
            raise self._wrong("give either a command or a URL")
        if self.command is not None:
            self._check_command(self.command)
        if self.url is not None:
            self._check_url(self.url)
        if self.timeout <= timedelta(0) or self.connect_timeout <= timedelta(0):
            raise self._wrong("the timeouts must be longer than nothing")
        if both := set(self.tools or ()) & set(self.exclude):
            raise self._wrong(f"{sorted(both)[0]!r} is both among the tools and excluded")
        check_toolset_approval(f"MCP toolset {self.name!r}", self.approval)

    def _freeze(self) -> None:
        # Copies, so that a toolset does not change with the lists and dicts of whoever declared it.
        for sequence in ("args", "tools", "exclude"):
            value: object = getattr(self, sequence)
            if isinstance(value, str):
                raise self._wrong(f"give `{sequence}` as a list, not as one text")
            if value is not None:
                object.__setattr__(self, sequence, tuple(getattr(self, sequence)))
        for mapping in ("env", "headers", "rename"):
            object.__setattr__(self, mapping, dict(getattr(self, mapping)))
        if (named := approvals_by_name(self.approval)) is not None:
            object.__setattr__(self, "approval", dict(named))

    def _check_command(self, command: str) -> None:
        if not command.strip():
            raise self._wrong("the command is empty")
        if self.headers:
            raise self._wrong("headers are for a URL; give a command its secrets by `env`")
        if any("\0" in text for text in (command, *self.args, *self.env, *self.env.values(), self.cwd or "")):
            raise self._wrong("the command, its arguments and variables cannot hold a NUL character")

    def _check_url(self, url: str) -> None:
        if self.args or self.env or self.cwd:
            raise self._wrong("arguments, variables and a folder are for a command, not for a URL")
        try:
            parts = urlsplit(url)
            is_right = parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
        except ValueError:
            is_right = False
        if not is_right or not url.isascii() or any(character.isspace() for character in url):
            # The URL itself may hold a key, so it is not repeated.
            raise self._wrong("the URL must begin with http:// or https:// and name a host")
        for name, value in self.headers.items():
            if not name.isascii() or not value.isascii() or {"\r", "\n", "\0"} & set(name + value):
                raise self._wrong(f"the header {name!r} must be one line of ASCII")

    def _wrong(self, reason: str) -> ConfigurationError:
        return ConfigurationError(f"MCP toolset {self.name!r}: {reason}.")

    def __repr__(self) -> str:
        """The name and the server, without what may be secret: arguments, variables, headers, the rest of the URL."""
        server = f"command={self.command!r}" if self.command is not None else f"url={self.endpoint!r}"
        return f"McpToolset(name={self.name!r}, {server})"

    @property
    def endpoint(self) -> str:
        """What may be shown of the server: the command, or the URL as far as its host."""
        if self.url is None:
            return self.command or ""
        parts = urlsplit(self.url)
        return f"{parts.scheme}://{parts.netloc.rpartition('@')[2]}"
