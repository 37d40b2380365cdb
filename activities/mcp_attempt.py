"""One request to an MCP server: how far it got, and how it can fail."""

from contextvars import ContextVar
from dataclasses import dataclass


@dataclass
class Attempt:
    """What the transport notes of the request in whose context it works.

    Attributes:
        sent: it may have reached the server. False until it is handed to the transport, and again once it is known
            that the server has not taken it.
        status: the HTTP status, if that was an error.
        failure: why no answer came by HTTP.
        given_up: nobody waits for its answer; what is still sent is to tell the server so.
    """

    sent: bool = False
    status: int | None = None
    failure: str | None = None
    given_up: bool = False


current_attempt: ContextVar[Attempt] = ContextVar("current_attempt")
"""Of the task that sends a request. The SDK carries a sender's context to whatever it has done for it."""


class ConnectionLost(Exception):
    """The connection is of no use any more; `sent` says whether the request may have been carried out."""

    def __init__(self, sent: bool) -> None:
        super().__init__()
        self.sent = sent


class ServerError(Exception):
    """The server answered, but not with a result; the text is a sentence for the model."""
