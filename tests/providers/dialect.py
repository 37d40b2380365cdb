"""What all providers' protocols can say, and what a test looks for in a request of any of them."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, Protocol

from tests.fakes.http_wire import Received
from tests.providers.model_server import Answer

KEY = "sk-a-very-secret-key-0123456789"
"""What each client sends as its key; some servers quote it when they refuse it."""

Failure = Literal["rate_limit", "too_long", "bad_key", "overloaded", "quota", "not_found"]
Finish = Literal["stop", "length", "content_filter"]


@dataclass(frozen=True)
class Thought:
    """A thought with the provider's signature; without text it is one that the provider does not show."""

    text: str
    signature: str


@dataclass(frozen=True)
class Call:
    """A tool call as the provider names it."""

    id: str
    name: str
    arguments: str


@dataclass(frozen=True)
class Reply:
    """One answer; text streams in pieces of a few characters. `usage` is input, output and cached tokens."""

    text: str = ""
    thoughts: Sequence[Thought] = ()
    calls: Sequence[Call] = ()
    finish: Finish = "stop"
    usage: tuple[int, int, int] = (100, 7, 0)
    number: int = 1
    options: Mapping[str, Any] = field(default_factory=dict[str, Any])


class Dialect(Protocol):
    """A provider's protocol: how it answers, and how its requests are read."""

    name: str
    model: str
    thinks: bool
    """Whether thoughts come back signed."""

    def base_url(self, url: str) -> str:
        """What the client is told of a server."""
        ...

    def answer(self, reply: Reply) -> Answer:
        """The stream of an answer."""
        ...

    def failure(self, kind: Failure) -> Answer:
        """How a request is refused."""
        ...

    def broken_stream(self, reply: Reply) -> Answer:
        """A stream in whose middle the provider says that it is overloaded."""
        ...

    def tools(self, request: Received) -> list[str]:
        """Names of the tools on offer, in order."""
        ...

    def must_call(self, request: Received) -> bool:
        """Whether the model has to call a tool."""
        ...

    def words(self, request: Received) -> list[str]:
        """What the user has said."""
        ...

    def thoughts(self, request: Received) -> list[Thought]:
        """The thoughts that go back."""
        ...

    def calls(self, request: Received) -> list[tuple[str, dict[str, Any]]]:
        """The calls that the model is shown: name and arguments."""
        ...

    def results(self, request: Received) -> list[str]:
        """The results that the model is shown, in order."""
        ...

    def files(self, request: Received) -> list[tuple[str, bytes]]:
        """Files in the user's words: media type and content."""
        ...

    def effort(self, request: Received) -> Any:
        """How hard the model is to think."""
        ...


def pieces(text: str, size: int = 5) -> list[str]:
    """A text as it streams."""
    return [text[start : start + size] for start in range(0, len(text), size)]


def decoded(url: str) -> tuple[str, bytes]:
    """Media type and content of a `data:` URL."""
    import base64

    head, _, data = url.removeprefix("data:").partition(";base64,")
    return head, base64.b64decode(data)
