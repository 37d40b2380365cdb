"""Sessions in files: whole or not at all, inside their folder, never thrown away."""

import asyncio
import json
from pathlib import Path

import pytest

from perdure.errors import UsageError
from perdure.session import Session, UnknownVersion
from perdure.session_files import CorruptSession, FileSessionStore, encoded
from tests.perdure.session_messages import message


async def session(id: str = "s", tenant: str = "default", messages: int = 1) -> Session:
    """A session with messages."""
    made = Session(id, tenant=tenant)
    await made.add_messages_batch([message(str(number)) for number in range(messages)])
    return made


def files(root: Path) -> list[Path]:
    """All files below a folder."""
    return sorted(path for path in root.rglob("*") if path.is_file())


async def test_a_session_is_saved_loaded_replaced_and_deleted(tmp_path: Path) -> None:
    """One file at any time, none afterwards."""
    store = FileSessionStore(tmp_path)
    assert await store.load("s") is None
    for count in (1, 2):
        await store.save(await session(messages=count))
        loaded = await store.load("s")
        assert loaded is not None
        assert loaded.get_message_count() == count
        assert len(files(tmp_path)) == 1
    await store.delete("s")
    await store.delete("s")
    assert files(tmp_path) == []
    assert await store.load("s") is None


def test_names_are_encoded_one_to_one() -> None:
    """Also where the case of letters does not count, and for names that are too long for a file."""
    names = ["a", "A", "%41", "../a", "a/b", "a\\b", "", ".", "..", "con", "NUL", "x" * 300, "X" * 300, "\ud800", "ä"]
    made = [encoded(name) for name in names]
    assert len({name.lower() for name in made}) == len(names)
    assert all(len(name) < 200 and set(name) <= set("abcdefghijklmnopqrstuvwxyz0123456789-_%") for name in made)


@pytest.mark.parametrize("broken", [b"", b"{", b"\xff\xfe", b'{"version":1}', b"[]"])
async def test_a_broken_file_is_moved_aside_whole(tmp_path: Path, broken: bytes) -> None:
    """Once for each, under a name that no session has; then there is none of the id, and a new one can be saved."""
    store = FileSessionStore(tmp_path)
    await store.save(await session())
    (path,) = files(tmp_path)
    asides: list[Path] = []
    for _ in range(2):
        path.write_bytes(broken)
        with pytest.raises(CorruptSession, match="'s' cannot be read") as caught:
            await store.load("s")
        asides.append(caught.value.aside)
        assert caught.value.aside.read_bytes() == broken
        assert await store.load("s") is None
    assert len(set(asides)) == 2
    await store.save(await session())
    assert len(files(tmp_path)) == 3


async def test_a_save_over_a_broken_file_keeps_that_aside(tmp_path: Path) -> None:
    """Nothing is deleted, though nobody has looked at it yet."""
    store = FileSessionStore(tmp_path)
    await store.save(await session())
    (path,) = files(tmp_path)
    path.write_bytes(b"{")
    await store.save(await session())
    assert sorted(one.read_bytes() == b"{" for one in files(tmp_path)) == [False, True]


async def test_a_file_of_a_later_release_stays(tmp_path: Path) -> None:
    """Loading and saving both refuse, and say why."""
    store = FileSessionStore(tmp_path)
    await store.save(await session())
    (path,) = files(tmp_path)
    later = json.dumps({"version": 7, "anything": "else"})
    path.write_text(later)
    with pytest.raises(UnknownVersion, match="has the version 7"):
        await store.load("s")
    with pytest.raises(UnknownVersion):
        await store.save(await session())
    assert files(tmp_path) == [path]
    assert path.read_text() == later


async def test_a_write_that_fails_leaves_the_old_file_and_no_other(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The disk is full in mid-write."""
    store = FileSessionStore(tmp_path)
    await store.save(await session())
    before = files(tmp_path)

    def full(_: int) -> None:
        raise OSError("No space left on device")

    monkeypatch.setattr("os.fsync", full)
    with pytest.raises(OSError, match="No space"):
        await store.save(await session(messages=2))
    assert files(tmp_path) == before
    loaded = await store.load("s")
    assert loaded is not None
    assert loaded.get_message_count() == 1


async def test_of_saves_at_once_the_last_state_is_what_is_kept(tmp_path: Path) -> None:
    """Each takes the state when its turn to write has come, so an older one is never written over a newer one."""
    store = FileSessionStore(tmp_path)
    grown = Session("s")
    saves: list[asyncio.Task[None]] = []
    for number in range(20):
        await grown.add_messages_batch([message(str(number))])
        saves.append(asyncio.create_task(store.save(grown)))
        await asyncio.sleep(0)
    await asyncio.gather(*saves)
    loaded = await store.load("s")
    assert loaded is not None
    assert loaded.get_message_count() == 20


async def test_state_that_cannot_be_stored_leaves_the_file_as_it_is(tmp_path: Path) -> None:
    """It is refused before anything is written."""
    store = FileSessionStore(tmp_path)
    odd = await session()
    await store.save(odd)
    before = [path.read_bytes() for path in files(tmp_path)]
    odd.set_state("memory", {"value": object()})
    with pytest.raises(UsageError, match="object is not JSON"):
        await store.save(odd)
    assert [path.read_bytes() for path in files(tmp_path)] == before
