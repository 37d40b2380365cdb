"""Folders for the user that PostgreSQL runs as: only what is nobody else's is taken."""

import os
import pwd
from pathlib import Path

import pytest

from perdure.errors import ConfigurationError
from stores.embedded_account import Account

IS_ROOT = os.geteuid() == 0


def account() -> Account:
    """The user that a server would run as here: ours, or the one that root lends it to."""
    if not IS_ROOT:
        return Account("us", os.geteuid(), os.getegid(), lent=False)
    nobody = pwd.getpwnam("nobody")
    return Account("nobody", nobody.pw_uid, nobody.pw_gid, lent=True)


def test_a_link_is_refused_and_what_it_points_to_is_left_alone(tmp_path: Path) -> None:
    """Whoever can guess the path could have root give any folder away."""
    victim = tmp_path / "victim"
    victim.mkdir()
    link = tmp_path / "link"
    link.symlink_to(victim)
    before = victim.stat()
    with pytest.raises(ConfigurationError, match="belongs to somebody else"):
        account().own(link)
    assert (victim.stat().st_uid, victim.stat().st_ctime_ns) == (before.st_uid, before.st_ctime_ns)


@pytest.mark.skipif(not IS_ROOT, reason="only root can make a folder of somebody else")
def test_a_folder_of_somebody_else_is_refused(tmp_path: Path) -> None:
    """It stays theirs, and no socket is put where they can replace it."""
    foreign = tmp_path / "foreign"
    foreign.mkdir()
    os.chown(foreign, 12_345, 12_345)
    with pytest.raises(ConfigurationError, match="belongs to somebody else"):
        account().own(foreign)
    assert foreign.stat().st_uid == 12_345


def test_a_folder_is_made_or_taken_again(tmp_path: Path) -> None:
    """Control: a new one, and one that was made before, are the user's alone."""
    folder = tmp_path / "ours"
    for _ in range(2):
        account().own(folder)
        assert (folder.stat().st_uid, folder.stat().st_mode & 0o777) == (account().uid, 0o700)


def test_a_file_in_its_place_is_refused(tmp_path: Path) -> None:
    """It is no folder, whoever made it."""
    (tmp_path / "file").touch()
    with pytest.raises(ConfigurationError, match="belongs to somebody else"):
        account().own(tmp_path / "file")
