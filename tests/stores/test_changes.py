"""What readers get: a snapshot, then every change once and in order, and hints when to look."""

import asyncio
from collections.abc import AsyncGenerator

from perdure.batch import CommitResults
from perdure.messages import Status
from perdure.ports import Store
from perdure.records import Change, Choice
from perdure.watch import View
from tests.stores.builders import (
    DONE,
    THREAD,
    assistant,
    call,
    commit,
    delta,
    result,
    settle,
    started,
    text,
    user,
    with_calls,
    write,
)


def kinds(changes: tuple[Change, ...]) -> list[str]:
    """What each change tells."""
    return [
        next(
            name
            for name, told in {
                "message": change.message,
                "part": change.part,
                "call": change.call,
                "chunk": change.chunk,
                "attempt": change.new_attempt,
            }.items()
            if told
        )
        for change in changes
    ]


async def test_changes_of_a_turn_in_order(store: Store) -> None:
    """A message comes before its parts; each change has a number of its own."""
    await started(store)
    await store.append_chunks(THREAD, 1, 0, 1, [delta("Hel"), delta("lo")])
    changes = await store.read_changes(THREAD, 0)
    assert kinds(changes) == ["message", "part", "message", "attempt", "chunk", "chunk"]
    assert [change.seq for change in changes] == [1, 2, 3, 4, 5, 6]
    assert changes[-1].seq == (await store.get_thread(THREAD)).seq


async def test_committed_parts_take_the_place_of_chunks(store: Store) -> None:
    """Chunks of a committed step are gone; what is told instead are parts with their positions, then the status."""
    await started(store)
    await store.append_chunks(THREAD, 1, 0, 1, [delta("Hello")])
    seen = (await store.get_thread(THREAD)).seq
    await store.finish_step(THREAD, 1, 0, 1, (text("Hello"), call("c")), DONE, [])
    await write(store, 2, commit("a"), CommitResults(message_id="a", start=2, call_ids=("c",), results=(result("c"),)))
    await write(store, 3, settle("a"))
    changes = await store.read_changes(THREAD, seen)
    assert kinds(changes) == ["part", "part", "part", "message"]
    assert [(change.message_id, change.position) for change in changes[:3]] == [("a", 0), ("a", 1), ("a", 2)]
    assert changes[-1].message is not None
    assert changes[-1].message.status.state == "complete"


async def test_a_message_is_first_told_as_it_was_added(store: Store) -> None:
    """A read that covers a whole turn tells its end after its parts: nobody takes it for settled before its words."""
    await started(store)
    await store.finish_step(THREAD, 1, 0, 1, (text("Hello"),), DONE, [])
    stopped = Status(state="incomplete", reason="cancelled", detail="stopped")
    await write(store, 2, commit("a"), settle("a", stopped))
    told = [change for change in await store.read_changes(THREAD, 0) if change.part or change.message]
    ends = [(change.message.id, change.message.status) if change.message else change.message_id for change in told]
    assert ends == [("u", Status()), "u", ("a", Status(state="running")), "a", ("a", stopped)]


async def test_a_new_attempt_is_told_before_its_chunks(store: Store) -> None:
    """So that a reader drops what it has shown of the one before."""
    await started(store)
    await store.append_chunks(THREAD, 1, 0, 1, [delta("first")])
    seen = (await store.get_thread(THREAD)).seq
    await store.append_chunks(THREAD, 1, 0, 2, [delta("second")])
    changes = await store.read_changes(THREAD, seen)
    assert kinds(changes) == ["attempt", "chunk"]
    assert [change.attempt for change in changes] == [2, 2]


async def test_calls_are_told_when_they_start_and_when_they_have_a_result(store: Store) -> None:
    """An open call that nobody has started is told by its part alone."""
    await with_calls(store, "c1", "c2")
    seen = (await store.get_thread(THREAD)).seq
    assert await store.read_changes(THREAD, seen) == ()
    await store.start_call(THREAD, "c1")
    (change,) = await store.read_changes(THREAD, seen)
    assert change.call is not None
    assert (change.call.call_id, change.call.started) == ("c1", 1)
    await store.stage_result(THREAD, result("c2"))
    changes = await store.read_changes(THREAD, change.seq)
    assert [change.call and change.call.result for change in changes] == [result("c2")]


async def test_a_reader_that_takes_small_bites_misses_nothing(store: Store) -> None:
    """Whatever the limit, going on after the last number gives the same changes."""
    await started(store)
    await store.append_chunks(THREAD, 1, 0, 1, [delta(str(n)) for n in range(10)])
    await write(store, 2, user("u2"))
    everything = await store.read_changes(THREAD, 0)
    for limit in (1, 2, 3, 7):
        bites: list[Change] = []
        while bite := await store.read_changes(THREAD, bites[-1].seq if bites else 0, limit):
            assert len(bite) <= limit
            bites += bite
        assert tuple(bites) == everything


async def test_changes_on_a_snapshot_are_the_next_snapshot(store: Store) -> None:
    """Wherever a reader joins, it ends up with the same messages."""
    await started(store)
    views = [await joined(store)]
    await store.append_chunks(THREAD, 1, 0, 1, [delta("void")])
    views.append(await joined(store))
    await store.append_chunks(THREAD, 1, 0, 2, [delta("   "), delta("Hel", 1)])
    views.append(await joined(store))
    await store.finish_step(THREAD, 1, 0, 2, (text("Hello"), call("c")), DONE, [delta("lo", 1)])
    views.append(await joined(store))
    for view in views:
        assert await caught_up(store, view) == (text("Hello"),)
    await write(store, 2, commit("a"))
    await store.start_call(THREAD, "c")
    views.append(await joined(store))
    await write(store, 3, CommitResults(message_id="a", start=2, call_ids=("c",), results=(result("c"),)))
    await write(store, 4, settle("a"), user("u2"), assistant("a2", 2))
    expected = await joined(store)
    for view in views:
        await caught_up(store, view)
        assert view.messages == expected.messages
        assert view.calls == expected.calls == {}
        assert view.live is None


async def joined(store: Store) -> View:
    """A reader that comes now."""
    view = View()
    view.apply(await store.snapshot(THREAD))
    return view


async def caught_up(store: Store, view: View) -> object:
    """Fold what is new; returns what streams."""
    for change in await store.read_changes(THREAD, view.seq):
        view.apply(change)
    return view.live.parts if view.live else None


async def test_listen_yields_at_the_start(store: Store) -> None:
    """Whoever comes looks once, without waiting for a change."""
    await started(store)
    hints = store.listen(THREAD)
    async with asyncio.timeout(10):
        await anext(hints)
    await hints.aclose()


async def test_every_reader_hears_of_every_kind_of_write(store: Store) -> None:
    """Batches, steps, chunks, calls, questions and views: a reader that looks when told to sees all, as they happen."""
    await with_calls(store, "c1")
    seen = [(await store.get_thread(THREAD)).seq] * 2
    readers = [store.listen(THREAD), store.listen(THREAD)]
    for write_one in (
        lambda: store.begin_step(THREAD, 1, 1, 1),
        lambda: store.append_chunks(THREAD, 1, 1, 1, [delta("x")]),
        lambda: store.finish_step(THREAD, 1, 1, 1, (text("x"),), DONE, [delta("y")]),
        lambda: store.start_call(THREAD, "c1"),
        lambda: store.put_choice(THREAD, Choice(id="q", call_id="c1")),
        lambda: store.remove_choice(THREAD, "q"),
        lambda: store.put_view(THREAD, "diff", "1"),
        lambda: store.stage_result(THREAD, result("c1")),
        lambda: write(store, 3, user("u2")),
    ):
        await write_one()
        for index, reader in enumerate(readers):
            seen[index] = await next_change(store, reader, seen[index])
    assert seen == [(await store.get_thread(THREAD)).seq] * 2
    for reader in readers:
        await reader.aclose()


async def next_change(store: Store, hints: AsyncGenerator[None], seen: int) -> int:
    """Look whenever there is a hint, until there is something new; returns its number."""
    async with asyncio.timeout(10):
        async for _ in hints:
            if changes := await store.read_changes(THREAD, seen):
                return changes[-1].seq
    raise AssertionError("a listener never ends by itself")
