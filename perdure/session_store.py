"""Where sessions are kept between two uses: in memory, or as files."""

from typing import Protocol

from perdure.codec import dumps, loads_object
from perdure.session import Session


class SessionStore(Protocol):
    """Keeps sessions by tenant and id. What is saved is a snapshot: later changes of the object change nothing."""

    async def save(self, session: Session) -> None:
        """Keep the session as it is now, in place of an earlier one. Safe to repeat.

        Raises:
            UsageError: if it holds provider state that cannot be stored. Nothing is written then.
        """
        ...

    async def load(self, session_id: str, tenant: str = "default") -> Session | None:
        """The session as it was saved last, None if this tenant has none of this id."""
        ...

    async def delete(self, session_id: str, tenant: str = "default") -> None:
        """Forget a session. Safe to repeat."""
        ...


class MemorySessionStore:
    """Keeps them for as long as the process lives."""

    def __init__(self) -> None:
        self._saved: dict[tuple[str, str], str] = {}

    async def save(self, session: Session) -> None:
        """See `SessionStore`."""
        self._saved[session.tenant, session.id] = dumps(session.to_dict())

    async def load(self, session_id: str, tenant: str = "default") -> Session | None:
        """See `SessionStore`."""
        saved = self._saved.get((tenant, session_id))
        return None if saved is None else Session.from_dict(loads_object(saved))

    async def delete(self, session_id: str, tenant: str = "default") -> None:
        """See `SessionStore`."""
        self._saved.pop((tenant, session_id), None)
