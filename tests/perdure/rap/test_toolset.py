"""Declarations of RAP toolsets, and where their credentials may go."""

from datetime import timedelta
from typing import Any

import pytest

from perdure.errors import ConfigurationError
from perdure.rap.toolset import RapToolset, is_web_address
from perdure.tools import ApprovalRule


def test_a_url_is_enough() -> None:
    """A slash at its end means nothing; the name is what people recognise, and stays the same."""
    toolset = RapToolset("https://tools.example.com:8443/finance/")
    assert toolset.base_url == "https://tools.example.com:8443/finance"
    assert toolset.name == "tools.example.com:8443/finance"
    assert toolset == RapToolset("https://tools.example.com:8443/finance")
    assert RapToolset("http://h", name="mine").name == "mine"
    assert len({toolset, RapToolset("http://h")}) == 2


def test_secrets_are_not_shown() -> None:
    """Neither by repr nor by the sentence about a header that cannot be."""
    assert "s3cret" not in repr(RapToolset("http://h", headers={"Authorization": "Bearer s3cret"}))
    with pytest.raises(ConfigurationError, match="'Authorization'") as refusal:
        RapToolset("http://h", headers={"Authorization": "Bearer s3cret\n"})
    assert "s3cret" not in str(refusal.value)
    with pytest.raises(ConfigurationError) as refusal:
        RapToolset("https://user:s3cret@h")
    assert "s3cret" not in str(refusal.value)


@pytest.mark.parametrize(
    "url",
    [
        *("", "tools.example.com", "/finance", "ftp://h", "http://", "http://h:0", "http://h:x"),
        *("http://h/?a=1", "http://h/#a", "http://h /", "http://h\n", "http://hé/", "http://user@h"),
    ],
)
def test_what_is_no_base_url_is_refused(url: str) -> None:
    """Relative ones, other schemes, queries, and users in it."""
    with pytest.raises(ConfigurationError, match="needs the absolute URL of its server"):
        RapToolset(url)


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        ({"timeout": timedelta(0)}, "longer than nothing"),
        ({"expires": timedelta(0)}, "longer than nothing"),
        ({"trusted_hosts": "example.com"}, "as a list"),
        ({"trusted_hosts": ["https://example.com"]}, "is no host"),
        ({"trusted_hosts": ["example.com/x"]}, "is no host"),
        ({"headers": {"a b": "x"}}, "characters that no header can hold"),
        ({"approval": "ask"}, "`approval` is"),
        ({"approval": {"drop": True}}, "tool 'drop': `approval` is"),
    ],
)
def test_options_that_cannot_work_are_refused_when_declared(options: dict[str, Any], reason: str) -> None:
    """With a sentence that names the toolset."""
    with pytest.raises(ConfigurationError, match=reason) as refusal:
        RapToolset("http://h", **options)
    assert str(refusal.value).startswith("RAP toolset ")


def test_it_does_not_change_with_what_it_was_made_of() -> None:
    """Nor by assignment."""
    headers, hosts = {"a": "1"}, ["x"]
    approvals: dict[str, ApprovalRule] = {"drop": "always"}
    toolset = RapToolset("http://h", headers=headers, trusted_hosts=hosts, approval=approvals)
    headers["b"] = "2"
    hosts.append("y")
    approvals.clear()
    assert (toolset.headers, toolset.trusted_hosts) == ({"a": "1"}, ("x",))
    assert toolset.approval == {"drop": "always"}
    assert len({toolset, RapToolset("http://h", headers={"a": "1"}, trusted_hosts=["x"])}) == 2
    with pytest.raises(AttributeError):
        toolset.name = "other"  # type: ignore[misc]  # the point of the test


@pytest.mark.parametrize(
    ("base", "url", "trusted"),
    [
        ("http://h/a", "http://h/b", True),
        ("http://h", "http://h:80/", True),
        ("http://H", "http://h/", True),
        ("http://h", "http://h:81/", False),
        ("http://h", "https://h/", True),
        ("https://h", "http://h/", False),
        ("http://h:8080", "https://h/", False),
        ("http://h", "http://h.example/", False),
        ("http://h", "http://other/", False),
        ("http://h", "http://ok.example:99/", True),
        ("https://h", "http://ok.example/", True),
        ("http://h", "http://sub.ok.example/", False),
        ("http://h", "http://port.example:8443/", True),
        ("http://h", "http://port.example/", False),
        ("http://h", "https://h@other/", False),
        ("http://[::1]:80", "http://[::1]/", True),
    ],
)
def test_credentials_go_to_the_own_host_and_to_trusted_ones(base: str, url: str, trusted: bool) -> None:
    """Another port is another server, and HTTPS is not given up; a trusted host is trusted as it was written."""
    toolset = RapToolset(base, trusted_hosts=["OK.example", "port.example:8443"])
    assert toolset.trusts(url) is trusted


def test_an_endpoint_is_trusted_where_it_is_named() -> None:
    """For answers of people, which go to it anyway; not for credentials."""
    toolset = RapToolset("http://h")
    assert toolset.trusts("http://other:1/answer", "http://other:1/invoke")
    assert not toolset.trusts("http://other:2/answer", "http://other:1/invoke")


@pytest.mark.parametrize("url", ["http://[", "http://h:-1", "x", "http://\ud800/", "http://h\x00"])
def test_broken_urls_are_no_addresses(url: str) -> None:
    """They come from servers, so they may be anything."""
    assert not is_web_address(url)
