"""A connection that cannot be held open by sending slowly."""

import asyncio
from typing import Final

import h11
from uvicorn.protocols.http.h11_impl import H11Protocol

REQUEST_S: Final = 30.0
"""How long a client may take to send one request, its body included."""


class BoundedConnection(H11Protocol):
    """uvicorn's HTTP protocol with a deadline for each request.

    uvicorn itself waits without end for a client that has connected and says nothing, that sends its headers byte by
    byte, or that goes on sending a body which was refused. Each of them would hold one of the few connections.
    """

    request_s = REQUEST_S
    _deadline: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]  # as uvicorn narrows it
        """The first request is due from now on."""
        super().connection_made(transport)
        self._expect()

    def data_received(self, data: bytes) -> None:
        """The first bytes of a request start its time, the last ones end it."""
        if self._deadline is None:
            self._expect()
        super().data_received(data)
        if self.conn.their_state in (h11.DONE, h11.MUST_CLOSE, h11.CLOSED):
            self._relax()

    def connection_lost(self, exc: Exception | None) -> None:
        """Nothing is due any more."""
        self._relax()
        super().connection_lost(exc)

    def _expect(self) -> None:
        self._deadline = self.loop.call_later(self.request_s, self.transport.abort)

    def _relax(self) -> None:
        if self._deadline is not None:
            self._deadline.cancel()
            self._deadline = None
