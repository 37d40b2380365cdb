"""The title of a thread that was named after its first words, when these go."""

import pytest

from perdure.codec import clip
from perdure.messages import EventPart, Part, TextPart
from perdure.ports import Store
from perdure.records import ThreadRecord
from stores.title import BEGINNING_BYTES
from tests.stores.builders import text, write
from tests.stores.trees import answer, delete, imported, item, reset, said, written

WORDS = "first  words\n\x07 " + "of many " * 20
TITLE = clip(WORDS, 80)


async def named(store: Store, title: str | None, *parts: Part) -> Store:
    """A thread of this title with words `u`, their answer `a`, and words `v`."""
    await store.create_thread(ThreadRecord(thread_id="t", agent="demo", title=title))
    first = said("u", WORDS)
    if parts:
        first = first.with_(message=first.message.with_(parts=parts))
    await written(store, first, answer("a", 1, text(TITLE)))
    await written(store, said("v", "other words"))
    return store


async def title_of(store: Store) -> str | None:
    """What the thread is called."""
    return (await store.get_thread("t")).title


@pytest.mark.parametrize("length", [80, 200])
async def test_a_title_goes_with_the_words_that_it_is_made_of(store: Store, length: int) -> None:
    """With them alone; the report says so, also when it is asked for again, and nothing else is said of no title."""
    await named(store, clip(WORDS, length))
    report = await written(store, delete("v", input_id="d1"))
    assert report.tree is not None
    assert not report.tree.untitled
    report = await written(store, delete("a", input_id="d2"))
    assert report.tree is not None
    assert (report.tree.untitled, await title_of(store)) == (False, clip(WORDS, length))
    report = await written(store, delete("u", input_id="d3"))
    assert report.tree is not None
    assert (report.tree.untitled, await title_of(store)) == (True, None)
    assert (await store.load_tail("t")).thread.title is None
    report = await written(store, said("w", at_root=True))
    assert report.tree is not None
    assert not report.tree.untitled


async def test_a_repeated_deletion_reports_the_same(store: Store) -> None:
    """A reply was lost."""
    await named(store, TITLE)
    first = await written(store, delete("u"))
    record = await store.get_thread("t")
    assert first.tree is not None
    assert first.tree.untitled
    assert await write(store, record.version, delete("u")) == first


@pytest.mark.parametrize("title", ["first words", "first words of", TITLE + ".", "of many", None])
async def test_a_title_that_was_given_stays(store: Store, title: str | None) -> None:
    """Although it resembles the words."""
    await named(store, title)
    report = await written(store, delete("u"))
    assert report.tree is not None
    assert await title_of(store) == title
    assert report.tree.untitled == (title is None)


async def test_a_title_goes_with_a_reset_and_with_other_content(store: Store) -> None:
    """The words are gone as well when an import brings others in their place."""
    await named(store, TITLE)
    await written(store, await imported(store, item("u", None, text("other")), head_id="u"))
    assert await title_of(store) is None


async def test_a_reset_takes_the_title_along(store: Store) -> None:
    """All that is below goes, and all that it names."""
    await named(store, TITLE)
    await written(store, reset("a", "r1"))
    assert await title_of(store) == TITLE
    await written(store, reset(None, "r2"))
    assert await title_of(store) is None


@pytest.mark.parametrize("filler", ["x", "\u00e9", "\u20ac", "\U0001f600", "\ud800"])
@pytest.mark.parametrize("shift", [0, 1, 2, 3])
async def test_a_title_that_is_made_of_large_words(store: Store, filler: str, shift: int) -> None:
    """They are in a blob, which is read as far as need be, wherever that cuts a character."""
    words = "z" * shift + filler * BEGINNING_BYTES
    await store.create_thread(ThreadRecord(thread_id="t", agent="demo", title=clip(words, 80)))
    blob = await store.put_blob("t", words.encode("utf-8", "surrogatepass"))
    await named(store, None, TextPart(text="", blob=blob))
    await written(store, delete("v", input_id="d1"))
    assert await title_of(store) == clip(words, 80)
    await written(store, delete("u", input_id="d2"))
    assert await title_of(store) is None


async def test_a_title_that_is_made_of_an_event(store: Store) -> None:
    """So are those of threads that were made for one."""
    await named(store, clip(WORDS, 200), EventPart(event_id="e", origin_call_id="c", content=WORDS))
    await written(store, delete("u"))
    assert await title_of(store) is None


async def test_words_whose_blob_is_gone_take_no_title_along(store: Store) -> None:
    """Nobody knows what they were."""
    await named(store, "", TextPart(text="", blob="nowhere"), TextPart(text="", blob="0" * 64))
    await written(store, delete("u"))
    assert await title_of(store) == ""
