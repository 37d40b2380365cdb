"""RAP servers as toolsets: which server, how long it is waited for, and who may see its credentials.

A declaration only: nothing is asked of the server before a thread of the agent needs its tools.
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Final
from urllib.parse import SplitResult, urlsplit

from perdure.errors import ConfigurationError
from perdure.tools import ToolsetApproval, approvals_by_name, check_toolset_approval

_PORTS: Final = {"http": 80, "https": 443}
_host = re.compile(r"[A-Za-z0-9._-]+(:\d{1,5})?|\[[0-9A-Fa-f:.]+\](:\d{1,5})?")
_header_name = re.compile(r"[A-Za-z0-9!#$%&'*+.^_`|~-]+")
_header_value = re.compile(r"[\x20-\x7e\t]*")


@dataclass(frozen=True)
class RapToolset:
    """The tools of a server of the Reactive Agent Protocol. Results may come days after a call.

    Example:
        >>> RapToolset("https://tools.example.com/finance", headers={"Authorization": "Bearer ..."})
        RapToolset(base_url='https://tools.example.com/finance', name='tools.example.com/finance')

    Attributes:
        base_url: where discovery and the messages about threads and calls go. It holds no secret: it is shown.
        name: the toolset's name, in messages and in `Tool.toolset`; host and path of the URL if left out.
        timeout: how long the server may take to acknowledge a call; for its manifest it has ten seconds at most.
        expires: a call without a result is given up after this; None: it may take for ever.
        trusted_hosts: hosts (`host` or `host:port`), beside that of the URL, that credentials may be sent to, and
            that answers of people may be posted to.
        headers: credentials, for instance `Authorization`; sent to the URL's own host and trusted ones alone.
        approval: whether people are asked before a call is sent: for all tools, for those that the server marks as
            `"destructive"`, or a mapping by the server's names. None, and what is not among these, leaves it to the
            agent.
    """

    base_url: str
    name: str = ""
    timeout: timedelta = field(default=timedelta(seconds=30), repr=False)
    expires: timedelta | None = field(default=None, repr=False)
    trusted_hosts: Sequence[str] = field(default=(), repr=False)
    headers: Mapping[str, str] = field(default_factory=dict[str, str], hash=False, repr=False)
    approval: ToolsetApproval | None = field(default=None, hash=False, repr=False)

    def __post_init__(self) -> None:
        """Refuse what cannot work when it is declared, and not when a thread needs it."""
        place = _place(self.base_url)
        if isinstance(self.trusted_hosts, str):
            raise self._wrong("give `trusted_hosts` as a list, not as one text")
        # Copies, so that it does not change with the lists and dicts of whoever declared it.
        object.__setattr__(self, "base_url", self.base_url.rstrip("/"))
        object.__setattr__(self, "name", self.name.strip() or f"{place.netloc}{place.path.rstrip('/')}")
        object.__setattr__(self, "trusted_hosts", tuple(host.lower() for host in self.trusted_hosts))
        object.__setattr__(self, "headers", dict(self.headers))
        if self.timeout <= timedelta(0) or (self.expires is not None and self.expires <= timedelta(0)):
            raise self._wrong("`timeout` and `expires` must be longer than nothing")
        if odd := next((host for host in self.trusted_hosts if not _host.fullmatch(host)), None):
            raise self._wrong(f"{odd!r} is no host; write `example.com` or `example.com:8443`")
        for name, value in self.headers.items():
            # The value is not quoted: it is a secret.
            if not _header_name.fullmatch(name) or not _header_value.fullmatch(value):
                raise self._wrong(f"the header {name!r} has characters that no header can hold")
        if (named := approvals_by_name(self.approval)) is not None:
            object.__setattr__(self, "approval", dict(named))
        check_toolset_approval(f"RAP toolset {self.name!r}", self.approval)

    def trusts(self, url: str, *also: str) -> bool:
        """Whether a URL leads to the server's own host, to that of one of `also`, or to a trusted one.

        Another port is another server. HTTPS is not given up for HTTP, other than for a trusted host.
        """
        target = urlsplit(url)
        if target.hostname in self.trusted_hosts or _host_and_port(target) in self.trusted_hosts:
            return True
        return any(_is_same(urlsplit(known), target) for known in (self.base_url, *also))

    def _wrong(self, reason: str) -> ConfigurationError:
        return ConfigurationError(f"RAP toolset {self.name or self.base_url!r}: {reason}.")


def is_web_address(url: str) -> bool:
    """Whether it is an absolute http or https URL without a user and password in it."""
    try:
        place = urlsplit(url)
        is_whole = place.scheme in _PORTS and bool(place.hostname) and place.port != 0 and place.username is None
    except ValueError:
        return False
    return is_whole and url.isascii() and url.isprintable() and " " not in url


def _place(base_url: str) -> SplitResult:
    place = urlsplit(base_url) if is_web_address(base_url) else None
    if place is None or place.query or place.fragment:
        # It is not quoted: what is wrong with it may be a password in it.
        raise ConfigurationError(
            "A RAP toolset needs the absolute URL of its server, such as https://tools.example.com/finance, "
            "without a query; give credentials as `headers`."
        )
    return place


def _is_same(known: SplitResult, target: SplitResult) -> bool:
    if known.hostname != target.hostname:
        return False
    if known.scheme == target.scheme:
        return _host_and_port(known) == _host_and_port(target)
    return target.scheme == "https" and known.port in (None, 80) and target.port in (None, 443)


def _host_and_port(place: SplitResult) -> str:
    host = f"[{place.hostname}]" if ":" in (place.hostname or "") else place.hostname
    return f"{host}:{place.port or _PORTS[place.scheme]}"
