"""The user that PostgreSQL runs as. It refuses to run as root, so root lends it to an account that exists."""

import os
import pwd
import stat
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TypedDict

from perdure.errors import ConfigurationError


class RunAs(TypedDict, total=False):
    """The arguments of `subprocess` that choose the user; none for our own."""

    user: int
    group: int
    extra_groups: list[int]


@dataclass(frozen=True)
class Account:
    """A user of this machine; `lent` if it is another one than ours."""

    name: str
    uid: int
    gid: int
    lent: bool

    @classmethod
    def for_folder(cls, folder: Path) -> "Account":
        """Ours; if we are root, the owner of the folder, or else `postgres` or `nobody`.

        Raises:
            ConfigurationError: if the folder belongs to somebody whose server we may not start.
        """
        owner = folder.stat().st_uid if folder.exists() else None
        if os.geteuid() != 0:
            if owner not in (None, os.geteuid()):
                raise ConfigurationError(
                    f"The data folder {folder} belongs to {_name(owner)}. Start as that user, or choose another folder."
                )
            return cls(_name(os.geteuid()), os.geteuid(), os.getegid(), lent=False)
        if owner:
            return cls._lent(pwd.getpwuid(owner))
        for name in ("postgres", "nobody"):
            try:
                return cls._lent(pwd.getpwnam(name))
            except KeyError:
                continue
        raise ConfigurationError(
            "PostgreSQL does not run as root, and this machine has neither a user `postgres` nor `nobody`. Start as "
            "another user, or set PERDURE_DATABASE_URL to a running server."
        )

    @classmethod
    def _lent(cls, entry: pwd.struct_passwd) -> "Account":
        return cls(entry.pw_name, entry.pw_uid, entry.pw_gid, lent=True)

    @property
    def options(self) -> RunAs:
        """What `subprocess` needs to run a program as this user."""
        return {"user": self.uid, "group": self.gid, "extra_groups": []} if self.lent else {}

    def reaches(self, path: Path) -> bool:
        """Whether the user may pass through every folder above the path, and through it if it is a folder."""
        if not self.lent:
            return True
        folders = (path, *path.parents) if path.is_dir() else path.parents
        return all(self._passes(folder) for folder in folders)

    def own(self, folder: Path) -> None:
        """Make a folder for this user alone, or take one that is theirs or ours.

        Raises:
            ConfigurationError: if it belongs to somebody else, or is a link: paths in the folder for temporary files
                can be guessed, and root must not give away what somebody has put there.
        """
        with suppress(FileExistsError):
            folder.mkdir(mode=0o700)
        found = folder.lstat()
        if not stat.S_ISDIR(found.st_mode) or found.st_uid not in (self.uid, os.geteuid()):
            raise ConfigurationError(f"{folder} is needed for PostgreSQL, but it belongs to somebody else.")
        if self.lent:
            os.chown(folder, self.uid, self.gid, follow_symlinks=False)

    def _passes(self, folder: Path) -> bool:
        status = folder.stat()
        if status.st_uid == self.uid:
            return bool(status.st_mode & 0o100)
        if status.st_gid == self.gid:
            return bool(status.st_mode & 0o010)
        return bool(status.st_mode & 0o001)


def _name(uid: int | None) -> str:
    try:
        return pwd.getpwuid(uid or 0).pw_name
    except KeyError:
        return f"user {uid}"
