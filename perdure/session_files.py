"""Sessions as files: one JSON file each, in a folder for each tenant.

A file is replaced as a whole, so a reader finds the old one or the new one. Names are encoded, so an id may hold
anything and stays inside its folder. Nothing is ever deleted but by `delete`: a file that cannot be read is moved
aside, and one of a later release stays where it is.
"""

import asyncio
import hashlib
import os
import tempfile
from pathlib import Path
from typing import Final
from weakref import WeakValueDictionary

from perdure.codec import dumps, loads_object
from perdure.errors import PerdureError
from perdure.session import NoSession, Session, check_version

NAME_CHARS: Final = 180
"""File systems take 255 bytes; a suffix and a number have to fit too."""

_SUFFIX = ".json"
_PLAIN = frozenset(b"abcdefghijklmnopqrstuvwxyz0123456789-_")


class CorruptSession(PerdureError):
    """A session's file cannot be read. It was moved aside, whole."""

    def __init__(self, session_id: str, aside: Path, reason: Exception) -> None:
        super().__init__(f"The session {session_id!r} cannot be read ({reason}). Its file was moved to {aside}.")
        self.aside = aside


class FileSessionStore:
    """`perdure.session_store.SessionStore` over files. One process at a time should write a session.

    Args:
        root: the folder; made when something is saved.
    """

    def __init__(self, root: Path) -> None:
        self._root = root
        self._locks = WeakValueDictionary[Path, asyncio.Lock]()

    async def save(self, session: Session) -> None:
        """See `SessionStore`. Durable when it returns.

        Raises UnknownVersion too, if the file there is of a later release; that stays.
        """
        path = self._path(session.id, session.tenant)
        async with self._lock(path):
            # Taken when the turn has come: of two saves the later one writes the later state.
            content = dumps(session.to_dict())
            await asyncio.to_thread(_save, path, content)

    async def load(self, session_id: str, tenant: str = "default") -> Session | None:
        """See `SessionStore`.

        Raises:
            CorruptSession: if the file cannot be read; it was moved aside, so the next load finds none.
            UnknownVersion: if a later release has written it; it stays where it is.
            UsageError: if it holds provider state of a type that is not registered; it stays too.
        """
        path = self._path(session_id, tenant)
        async with self._lock(path):
            content = await asyncio.to_thread(_read, path)
            if content is None:
                return None
            try:
                return Session.from_dict(loads_object(content.decode("utf-8")))
            except (ValueError, NoSession) as error:
                aside = await asyncio.to_thread(_move_aside, path)
                raise CorruptSession(session_id, aside, error) from error

    async def delete(self, session_id: str, tenant: str = "default") -> None:
        """See `SessionStore`."""
        path = self._path(session_id, tenant)
        async with self._lock(path):
            await asyncio.to_thread(path.unlink, missing_ok=True)

    def _path(self, session_id: str, tenant: str) -> Path:
        return self._root / encoded(tenant) / (encoded(session_id) + _SUFFIX)

    def _lock(self, path: Path) -> asyncio.Lock:
        return self._locks.setdefault(path, asyncio.Lock())


def encoded(name: str) -> str:
    """A name as one that every file system takes: no other has it, whatever the case of its letters.

    It begins with a letter and a dash, so it is never a reserved one; a long name becomes its digest.
    """
    data = name.encode("utf-8", "surrogatepass")
    plain = "".join(chr(byte) if byte in _PLAIN else f"%{byte:02x}" for byte in data)
    return f"n-{plain}" if len(plain) <= NAME_CHARS else f"h-{hashlib.sha256(data).hexdigest()}"


def _read(path: Path) -> bytes | None:
    try:
        return path.read_bytes()
    except FileNotFoundError:
        return None


def _save(path: Path, content: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    _make_room(path)
    descriptor, name = tempfile.mkstemp(prefix=".", suffix=".tmp", dir=path.parent)
    try:
        with os.fdopen(descriptor, "w", encoding="ascii") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        Path(name).replace(path)
    except BaseException:  # whatever stops it: what is half written must not lie about
        Path(name).unlink(missing_ok=True)
        raise
    _sync_folder(path.parent)


def _make_room(path: Path) -> None:
    """See to what is there already: a later release's file is not replaced, and one that is broken is kept aside."""
    content = _read(path)
    if content is None:
        return
    try:
        values = loads_object(content.decode("utf-8"))
    except ValueError:
        _move_aside(path)
        return
    check_version(values)


def _move_aside(path: Path) -> Path:
    # No encoded name has a dot, so no session's file is ever called like this.
    number = 1
    while (aside := path.with_name(f"{path.stem}.corrupt-{number}{_SUFFIX}")).exists():
        number += 1
    return path.rename(aside)


def _sync_folder(folder: Path) -> None:
    # The new name is durable only once its folder is. Windows cannot open folders, and needs no such thing.
    if os.name == "nt":
        return
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
