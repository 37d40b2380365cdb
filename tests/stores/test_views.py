"""Views: the newest content of each kind, shown to whoever comes and told to whoever watches."""

import asyncio
from collections import Counter

import pytest

from perdure.errors import TooManyViews
from perdure.ports import Store
from perdure.records import MAX_VIEWS, ThreadRecord, View
from tests.stores.builders import THREAD, started, text, user, write


async def shown(store: Store) -> list[tuple[str, str]]:
    """Types and contents of a snapshot's views."""
    return [(view.view_type, view.content) for view in (await store.snapshot(THREAD)).views]


async def told(store: Store, after: int) -> list[View]:
    """The views of the changes after a number."""
    return [change.view for change in await store.read_changes(THREAD, after) if change.view]


async def seq(store: Store) -> int:
    """The thread's number of changes."""
    return (await store.get_thread(THREAD)).seq


async def test_the_newest_content_of_each_type_is_kept(store: Store) -> None:
    """The view that changed last is at the end; what it was before is told no more."""
    await started(store)
    before = await seq(store)
    for view_type, content in (("diff", '{"a":1}'), ("tree", "[]"), ("diff", '{"a":2}')):
        await store.put_view(THREAD, view_type, content)
    expected = [
        View(view_type="tree", content="[]", seq=before + 2),
        View(view_type="diff", content='{"a":2}', seq=before + 3),
    ]
    assert list((await store.snapshot(THREAD)).views) == expected
    assert await told(store, before) == expected


async def test_views_are_told_in_order_with_everything_else(store: Store) -> None:
    """Between what was written before and after, whatever the size of the bites."""
    await started(store)
    before = await seq(store)
    await store.put_view(THREAD, "diff", "1")
    await write(store, 2, user("u2", "words"))
    await store.put_view(THREAD, "tree", "2")
    for limit in (1, 2, 1000):
        changes = [change for n in range(4) for change in await store.read_changes(THREAD, before + n, limit)]
        seen = {change.seq - before: change.view or change.part or change.message for change in changes}
        assert [seen[1], seen[3], seen[4]] == [
            View(view_type="diff", content="1", seq=before + 1),
            text("words"),
            View(view_type="tree", content="2", seq=before + 4),
        ]


async def test_the_same_content_again_is_not_told(store: Store) -> None:
    """The delivery came twice, or nothing changed."""
    await started(store)
    await store.put_view(THREAD, "diff", "1")
    before = await seq(store)
    await store.put_view(THREAD, "diff", "1")
    assert await seq(store) == before


@pytest.mark.parametrize("content", ["", '""', "null", "{}", " {}\n"])
async def test_empty_content_clears_a_view(store: Store, content: str) -> None:
    """Readers are told the empty content; who comes later sees nothing of it, until it is shown again."""
    await started(store)
    await store.put_view(THREAD, "diff", '{"a":1}')
    await store.put_view(THREAD, "tree", "[1]")
    before = await seq(store)
    await store.put_view(THREAD, "diff", content)
    assert await told(store, before) == [View(view_type="diff", content=content, seq=before + 1)]
    assert await shown(store) == [("tree", "[1]")]
    await store.put_view(THREAD, "diff", '{"a":1}')
    assert await shown(store) == [("tree", "[1]"), ("diff", '{"a":1}')]


@pytest.mark.parametrize("content", ["0", "false", "[]", '" "', '{"a":null}'])
async def test_other_content_is_shown(store: Store, content: str) -> None:
    """The control: only what says nothing at all clears."""
    await started(store)
    await store.put_view(THREAD, "diff", content)
    assert await shown(store) == [("diff", content)]


async def test_views_at_once_are_all_there(store: Store) -> None:
    """Each has a number of its own."""
    await started(store)
    before = await seq(store)
    await asyncio.gather(*(store.put_view(THREAD, f"type{n}", str(n)) for n in range(8)))
    assert sorted(await shown(store)) == [(f"type{n}", str(n)) for n in range(8)]
    assert [view.seq for view in await told(store, before)] == list(range(before + 1, before + 9))


@pytest.mark.parametrize("words", ["\x00\ud800", "'; drop table perdure.views; --", '{"n": 2512292042121000001}'])
async def test_hostile_words_of_a_view(store: Store, words: str) -> None:
    """Type and content come back as they were."""
    await started(store)
    before = await seq(store)
    await store.put_view(THREAD, words, words)
    assert await shown(store) == [(words, words)]
    assert await told(store, before) == [View(view_type=words, content=words, seq=before + 1)]


async def full(store: Store) -> None:
    """A thread that shows as many views as it may."""
    await started(store)
    for number in range(MAX_VIEWS):
        await store.put_view(THREAD, f"type{number}", str(number))


async def test_a_thread_shows_a_bounded_number_of_views(store: Store) -> None:
    """One more type is refused with a sentence that names the bound, and changes nothing; other threads have theirs."""
    await full(store)
    before = await store.get_thread(THREAD)
    with pytest.raises(TooManyViews, match=str(MAX_VIEWS)):
        await store.put_view(THREAD, "more", "1")
    assert await store.get_thread(THREAD) == before
    assert [content for _, content in await shown(store)] == [str(number) for number in range(MAX_VIEWS)]
    assert await told(store, before.seq) == []
    await store.create_thread(ThreadRecord(thread_id="other", agent="demo"))
    await store.put_view("other", "more", "1")
    assert [view.view_type for view in (await store.snapshot("other")).views] == ["more"]


async def test_a_full_thread_still_changes_and_clears_its_views(store: Store) -> None:
    """Content of a type that is shown is replaced, or comes again; empty content is taken, of an unknown type too."""
    await full(store)
    for view_type, content in (("type0", "[1]"), ("type0", "[1]"), ("unknown", "{}"), ("unknown", "null")):
        await store.put_view(THREAD, view_type, content)
    assert len(await shown(store)) == MAX_VIEWS
    assert (await shown(store))[-1] == ("type0", "[1]")


async def test_cleared_views_do_not_count(store: Store) -> None:
    """The place of a view that was cleared is free for another type; to be shown again it needs a place itself."""
    await full(store)
    await store.put_view(THREAD, "type0", " {}\n")
    await store.put_view(THREAD, "more", "1")
    assert (await shown(store))[-1] == ("more", "1")
    for view_type in ("type0", "still more"):
        with pytest.raises(TooManyViews):
            await store.put_view(THREAD, view_type, "1")
    await store.put_view(THREAD, "more", "")
    await store.put_view(THREAD, "type0", "1")
    assert len(await shown(store)) == MAX_VIEWS


async def test_views_at_once_keep_the_bound(store: Store) -> None:
    """Of many that come at once for the last places only so many are shown."""
    await full(store)
    for number in range(3):
        await store.put_view(THREAD, f"type{number}", "")
    news = (store.put_view(THREAD, f"new{number}", "1") for number in range(8))
    answers = await asyncio.gather(*news, return_exceptions=True)
    assert Counter(map(type, answers)) == {type(None): 3, TooManyViews: 5}
    assert len(await shown(store)) == MAX_VIEWS
