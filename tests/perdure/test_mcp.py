"""The declaration of an MCP server."""

from datetime import timedelta
from typing import Any

import pytest

from perdure.errors import ConfigurationError
from perdure.mcp import McpOptions, McpToolset
from perdure.tools import ApprovalRule


def test_nothing_secret_is_shown() -> None:
    """Arguments, variables, headers and all of a URL but its host are left out where a toolset is printed."""
    local = McpToolset.stdio("files", "npx", ["--key=sesame"], env={"KEY": "sesame"})
    remote = McpToolset.http("web", "https://me:sesame@example.com:8443/sesame?k=sesame", headers={"X-Key": "sesame"})
    assert repr(local) == "McpToolset(name='files', command='npx')"
    assert repr(remote) == "McpToolset(name='web', url='https://example.com:8443')"
    assert "sesame" not in f"{local} {remote}"


def test_a_toolset_does_not_change_with_what_it_was_made_of() -> None:
    """Lists and dicts are copied, and a toolset can be a key."""
    arguments, variables, names = ["-y"], {"A": "1"}, ["read"]
    toolset = McpToolset.stdio("files", "npx", arguments, env=variables, tools=names)
    arguments.append("x")
    variables["B"] = "2"
    names.append("write")
    assert (toolset.args, toolset.env, toolset.tools) == (("-y",), {"A": "1"}, ("read",))
    assert toolset == McpToolset.stdio("files", "npx", ["-y"], env={"A": "1"}, tools=("read",))
    assert len({toolset, McpToolset.stdio("files", "npx", ["-y"], env={"A": "1"}, tools=("read",))}) == 1
    approvals: dict[str, ApprovalRule] = {"drop": "always"}
    asking = McpToolset.stdio("files", "npx", approval=approvals)
    approvals.clear()
    assert asking.approval == {"drop": "always"}
    assert len({asking, McpToolset.stdio("files", "npx"), McpToolset.stdio("files", "npx", approval="always")}) == 3


@pytest.mark.parametrize(
    ("fields", "sentence"),
    [
        ({"name": " ", "command": "a"}, "An MCP toolset needs a name."),
        ({"name": "x"}, "give either a command or a URL"),
        ({"name": "x", "command": "a", "url": "http://a"}, "give either a command or a URL"),
        ({"name": "x", "command": " "}, "the command is empty"),
        ({"name": "x", "command": "a", "args": "-y b"}, "give `args` as a list, not as one text"),
        ({"name": "x", "command": "a", "tools": "read"}, "give `tools` as a list"),
        ({"name": "x", "command": "a", "exclude": "read"}, "give `exclude` as a list"),
        ({"name": "x", "command": "a", "headers": {"A": "b"}}, "headers are for a URL"),
        ({"name": "x", "command": "a", "env": {"A": "b\0"}}, "cannot hold a NUL"),
        ({"name": "x", "command": "a", "tools": ["r"], "exclude": ["r"]}, "'r' is both among the tools and excluded"),
        ({"name": "x", "command": "a", "timeout": timedelta(0)}, "longer than nothing"),
        ({"name": "x", "command": "a", "approval": {"drop": True}}, "MCP toolset 'x', tool 'drop': `approval` is"),
        ({"name": "x", "command": "a", "connect_timeout": timedelta(seconds=-1)}, "longer than nothing"),
        ({"name": "x", "url": "http://a", "env": {"A": "b"}}, "are for a command"),
        ({"name": "x", "url": "example.com/mcp"}, "must begin with http:// or https://"),
        ({"name": "x", "url": "ftp://example.com"}, "must begin with http:// or https://"),
        ({"name": "x", "url": "http://"}, "must begin with http:// or https://"),
        ({"name": "x", "url": "http://a:99999/"}, "must begin with http:// or https://"),
        ({"name": "x", "url": "http://[::1/"}, "must begin with http:// or https://"),
        ({"name": "x", "url": "http://a/b c"}, "must begin with http:// or https://"),
        ({"name": "x", "url": "http://a", "headers": {"Authorization": "Bearer\r\nX: y"}}, "one line of ASCII"),
        ({"name": "x", "url": "http://a", "headers": {"Authorization": "ключ"}}, "one line of ASCII"),
    ],
)
def test_what_cannot_be(fields: dict[str, Any], sentence: str) -> None:
    """A mistake is refused where the toolset is declared, by a sentence that names it."""
    with pytest.raises(ConfigurationError) as raised:
        McpToolset(**fields)
    assert sentence in str(raised.value)


def test_options_of_both_kinds() -> None:
    """Prefix, choice of tools, other names and timeouts are the same for a command and a URL."""
    options = McpOptions(
        prefix="p_", exclude=["a"], rename={"b": "c"}, timeout=timedelta(1), connect_timeout=timedelta(2)
    )
    for toolset in (McpToolset.stdio("x", "a", **options), McpToolset.http("x", "http://a", **options)):
        assert (toolset.prefix, toolset.exclude, toolset.rename) == ("p_", ("a",), {"b": "c"})
        assert (toolset.timeout, toolset.connect_timeout) == (timedelta(1), timedelta(2))
