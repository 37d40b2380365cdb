"""The tail, accepted ids and metadata."""

import asyncio

import pytest

from perdure.batch import AppendParts, CommitResults
from perdure.codec import digest
from perdure.messages import Message
from perdure.ports import Store
from perdure.records import ThreadRecord
from tests.stores.builders import (
    DONE,
    THREAD,
    assistant,
    call,
    commit,
    result,
    settle,
    started,
    text,
    user,
    with_calls,
    write,
)


async def test_the_tail_of_an_empty_thread(store: Store) -> None:
    """There is a thread, and nothing else."""
    await store.create_thread(ThreadRecord(thread_id=THREAD, agent="demo"))
    tail = await store.load_tail(THREAD)
    assert (tail.message, tail.parts, tail.step, tail.calls, tail.processed) == (None, 0, 0, (), ())


async def test_the_tail_has_the_head_without_its_parts(store: Store) -> None:
    """With their number, the open calls in call order, and who wrote the version."""
    await with_calls(store, "c2", "c1")
    tail = await store.load_tail(THREAD)
    assert isinstance(tail.message, Message)
    assert (tail.message.id, tail.message.parts, tail.parts) == ("a", (), 2)
    assert [open_call.call_id for open_call in tail.calls] == ["c2", "c1"]
    assert tail.thread.version == 2


async def test_the_step_of_the_tail(store: Store) -> None:
    """It is that of the open calls; without any the one that comes next; a new turn begins at 0."""
    await with_calls(store, "c1")
    assert (await store.load_tail(THREAD)).step == 0
    await write(store, 3, CommitResults(message_id="a", start=1, call_ids=("c1",), results=(result("c1"),)))
    assert (await store.load_tail(THREAD)).step == 1
    await write(store, 4, commit("a", start=2, step=1).with_(discard=True))
    assert (await store.load_tail(THREAD)).step == 2
    await write(store, 5, settle("a"), user("u2"), assistant("a2", 2))
    assert (await store.load_tail(THREAD)).step == 0


async def test_the_step_of_a_turn_without_a_turn_buffer(store: Store) -> None:
    """Parts that were appended tell it as well."""
    await started(store)
    await write(store, 2, AppendParts(message_id="a", start=0, parts=(text("one").with_(step=1),)))
    assert (await store.load_tail(THREAD)).step == 2


async def test_the_newest_inputs_are_in_the_tail_oldest_first(store: Store) -> None:
    """No more than asked for, whatever else was written in between."""
    await started(store)
    await store.finish_step(THREAD, 1, 0, 1, (text("x"),), DONE, [])
    await write(store, 2, commit("a"), settle("a"), *(user(f"m{n}", f"words {n}") for n in range(5)))
    tail = await store.load_tail(THREAD, processed=3)
    assert tail.processed == tuple((f"in-m{n}", digest(f"words {n}")) for n in (2, 3, 4))
    assert (await store.load_tail(THREAD, processed=0)).processed == ()


async def test_processed_ids_are_found_by_name(store: Store) -> None:
    """Only those that were accepted, by this thread, with their digests."""
    await started(store)
    assert await store.get_processed_ids(THREAD, ("in-u", "other")) == {"in-u": digest("hi")}
    assert await store.get_processed_ids(THREAD, ()) == {}
    await store.create_thread(ThreadRecord(thread_id="t2", agent="demo"))
    assert await store.get_processed_ids("t2", ("in-u",)) == {}


async def test_the_same_input_id_in_two_threads(store: Store) -> None:
    """Ids of inputs are unique within a thread only."""
    await started(store)
    await store.create_thread(ThreadRecord(thread_id="t2", agent="demo"))
    report = await write(store, 1, user("other", input_id="in-u"), thread_id="t2")
    assert not report.refused


async def test_metadata_is_merged(store: Store) -> None:
    """New values join, None removes, nested values and key order stay."""
    await started(store)
    assert await store.get_metadata(THREAD) == {}
    await store.set_metadata(THREAD, {"z": {"b": 1, "a": 2}, "gone": 1, "\x00": "\ud800"})
    await store.set_metadata(THREAD, {"gone": None, "never": None, "big": 10**30})
    metadata = await store.get_metadata(THREAD)
    assert metadata == {"z": {"b": 1, "a": 2}, "\x00": "\ud800", "big": 10**30}
    assert list(metadata["z"]) == ["b", "a"]


async def test_metadata_of_writers_at_once_is_all_there(store: Store) -> None:
    """No merge is lost to another one that started from the same values."""
    await started(store)
    await asyncio.gather(*(store.set_metadata(THREAD, {f"key{n}": n}) for n in range(8)))
    assert await store.get_metadata(THREAD) == {f"key{n}": n for n in range(8)}


async def test_metadata_is_a_copy(store: Store) -> None:
    """Changing what was read or written does not change what is stored."""
    await started(store)
    values = {"list": [1]}
    await store.set_metadata(THREAD, values)
    values["list"].append(2)
    (await store.get_metadata(THREAD))["list"].append(3)
    assert await store.get_metadata(THREAD) == {"list": [1]}


async def test_nan_is_refused(store: Store) -> None:
    """JSON has no word for it, so it would come back as something else."""
    await started(store)
    with pytest.raises(ValueError, match="JSON"):
        await store.set_metadata(THREAD, {"x": float("nan")})
    assert await store.get_metadata(THREAD) == {}


async def test_open_calls_carry_their_arguments(store: Store) -> None:
    """Tool and arguments come back exactly as the model wrote them."""
    await started(store)
    odd = call("c1", "tool\x00\ud800", '{"b": 1.0, "a": 1e2, "n": 2512292042121000001}')
    await store.finish_step(THREAD, 1, 0, 1, (odd,), DONE, [])
    await write(store, 2, commit("a"))
    found = await store.start_call(THREAD, "c1")
    assert (found.tool, found.arguments) == (odd.tool, odd.arguments)
