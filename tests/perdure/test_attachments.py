"""Files that go along with words: read, checked, stored, and sent as references."""

import os
from pathlib import Path
from typing import Any

import pytest

from perdure.attachments import (
    ANY_BYTES,
    FILE_BYTES,
    FILES,
    Attachment,
    File,
    media_type_of,
    put_files,
    read_files,
)
from perdure.errors import BlobNotFound, ThreadNotFound, UsageError
from perdure.messages import FileRef
from perdure.records import ThreadRecord
from stores.memory import MemoryStore

PNG = b"\x89PNG\r\n\x1a\nx"


@pytest.fixture
async def store() -> MemoryStore:
    """A store with a thread t."""
    store = MemoryStore()
    await store.create_thread(ThreadRecord(thread_id="t", agent="a"))
    return store


@pytest.mark.parametrize(
    ("data", "name", "media_type"),
    [
        (PNG, None, "image/png"),
        (PNG, "cat.jpg", "image/png"),
        (b"\xff\xd8\xff\xe0", None, "image/jpeg"),
        (b"GIF89a...", None, "image/gif"),
        (b"RIFF\x00\x00\x00\x00WEBPVP8 ", None, "image/webp"),
        (b"RIFF\x00\x00\x00\x00WAVEfmt ", "a.webm", "video/webm"),
        (b"%PDF-1.7", None, "application/pdf"),
        (b"a,b", "a.csv", "text/csv"),
        (b"words", "noext", "text/plain"),
        ("é".encode(), None, "text/plain"),
        (b"a\x00b", None, ANY_BYTES),
        (b"\xff\xfe\x00", "x.unknown-kind", ANY_BYTES),
    ],
)
def test_the_media_type_follows_from_the_content_or_else_the_name(
    data: bytes, name: str | None, media_type: str
) -> None:
    """What the bytes say wins: a name may be wrong, and a provider refuses an image of another type."""
    assert media_type_of(data, name) == media_type


async def test_files_of_every_kind_become_references(store: MemoryStore, tmp_path: Path) -> None:
    """A path, given as text or not, bytes with a type of their own, and what the thread holds already."""
    path = tmp_path / "cat.png"
    path.write_bytes(PNG)
    known = await store.put_blob("t", b"known", "text/plain")
    given: list[File] = [
        path,
        str(path),
        Attachment(b"{}", "application/json", "a.json"),
        Attachment(b"words"),
        FileRef(media_type="text/plain", blob=known),
    ]
    stored = await put_files(store, "t", await read_files(given))
    assert [(one.media_type, one.name, one.size_bytes) for one in stored] == [
        ("image/png", "cat.png", 9),
        ("image/png", "cat.png", 9),
        ("application/json", "a.json", 2),
        ("text/plain", None, 5),
        ("text/plain", None, 5),
    ]
    assert [await store.get_blob("t", one.blob) for one in stored] == [PNG, PNG, b"{}", b"words", b"known"]
    assert stored == await put_files(store, "t", await read_files(given)), "the same files are the same references"


@pytest.mark.parametrize(
    ("file", "reason"),
    [
        ("/nowhere/cat.png", r"The file /nowhere/cat\.png cannot be read: No such file or directory\."),
        ("/", "cannot be read: Is a directory"),
        ("a\x00b", "cannot be read: "),
        ("/dev/zero", "The file zero is too large: at most 20,971,520 bytes can be sent"),
        (Attachment(b"x" * (FILE_BYTES + 1)), "The file given as bytes is too large"),
        (Attachment(b"", name="e"), "The file e is empty"),
        (os.devnull, "is empty"),
        (Attachment(b"x", "png"), "'png'; give one such as `image/png`"),
        (Attachment(b"x", "image/"), "give one such as"),
        (Attachment(b"x", "image/p\nng"), "give one such as"),
        (Attachment(b"x", "image/" + "x" * 200), "give one such as"),
    ],
)
async def test_what_cannot_be_sent_is_said(file: File, reason: str) -> None:
    """With the file's name, before anything is stored."""
    with pytest.raises(UsageError, match=reason):
        await read_files([file])


@pytest.mark.parametrize(
    ("files", "advice"),
    [
        ([b"raw"], r"give Attachment\(bytes, \.\.\.\)"),
        ([bytearray(b"raw")], r"give Attachment\(bytes, \.\.\.\)"),
        ([3], "A file cannot be of the type int; give a path or "),
        ("a.txt", "`files` is of the type str; give a list"),
        (Path("a.txt"), "give a list"),
        (Attachment(b"x"), "of the type Attachment; give a list"),
        (b"raw", "give a list"),
        (3, "give a list"),
    ],
)
async def test_what_is_no_list_of_files_is_said(files: Any, advice: str) -> None:
    """A text is a sequence of letters, none of which is a file."""
    with pytest.raises(UsageError, match=advice):
        await read_files(files)


async def test_a_file_and_a_message_have_room_for_so_much_and_no_more() -> None:
    """The control: as many files, and as large a one, as there may be."""
    (largest,) = await read_files([Attachment(b"x" * FILE_BYTES)])
    assert isinstance(largest, Attachment)
    assert len(await read_files([Attachment(b"x")] * FILES)) == FILES
    with pytest.raises(UsageError, match="21 files were given, and a message takes at most 20"):
        await read_files([Attachment(b"x")] * (FILES + 1))


async def test_a_reference_to_what_is_not_there_is_refused(store: MemoryStore) -> None:
    """Whoever sends it is told, and not the model; so it is of a thread that is not there."""
    with pytest.raises(BlobNotFound):
        await put_files(store, "t", [FileRef(media_type="text/plain", blob="0" * 64)])
    with pytest.raises(ThreadNotFound):
        await put_files(store, "nope", [Attachment(b"x")])
