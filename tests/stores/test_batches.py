"""Batches: applied once, whole, in order, or not at all."""

import asyncio

import pytest

from perdure.batch import (
    AppendMessage,
    AppendParts,
    CommitResults,
    Refused,
    SetStatus,
    StageResult,
    SyncBatch,
    SyncReport,
    TrackSubscription,
)
from perdure.errors import ContentConflict, StaleWriter, StoreError, ThreadNotFound
from perdure.messages import Message, Status, TextPart, Usage
from perdure.ports import Store
from perdure.records import Path, ThreadRecord
from tests.stores.builders import RUNNING, assistant, call, commit, result, settle, started, text, texts, user, write


async def state(store: Store) -> tuple[object, ...]:
    """All that a batch could have changed."""
    return (
        await store.get_thread("t"),
        await store.load_tail("t"),
        await store.snapshot("t"),
        await store.read_changes("t", 0),
    )


async def test_messages_follow_the_head(store: Store) -> None:
    """Without a parent a message hangs on the head of that moment, also one made by the same batch."""
    await started(store)
    await write(store, 2, settle("a"), user("u2"), assistant("a2", 2))
    path = await store.load_history_with_ancestors("t")
    assert [(message.id, message.parent_id) for message in path.messages] == [
        ("u", None),
        ("a", "u"),
        ("u2", "a"),
        ("a2", "u2"),
    ]
    thread = await store.get_thread("t")
    assert (thread.head_id, thread.version, thread.turn) == ("a2", 2, 2)


async def test_the_same_batch_again_is_applied_once(store: Store) -> None:
    """After a lost reply the batch is sent again: same report, nothing changed."""
    await started(store)
    batch = SyncBatch(thread_id="t", number=2, sync_id="s", operations=(settle("a"), user("u2"), commit("a")))
    report = await store.append_messages(batch)
    before = await state(store)
    assert await store.append_messages(batch) == report == SyncReport(number=2, steps=((1, 0),))
    assert await state(store) == before


async def test_the_same_batch_twice_at_once_is_applied_once(store: Store) -> None:
    """Two deliveries that overlap both hear that it is done."""
    await started(store)
    batch = SyncBatch(thread_id="t", number=2, sync_id="s", operations=(user("u2"),))
    reports = await asyncio.gather(*(store.append_messages(batch) for _ in range(5)))
    assert reports == [SyncReport(number=2)] * 5
    assert await texts(store) == ["hi", "hi"]


@pytest.mark.parametrize("number", [1, 3])
async def test_another_number_is_a_stale_writer(store: Store, number: int) -> None:
    """Only the batch after the thread's version is taken; an old one under another sync id is not the old one."""
    await started(store)
    before = await state(store)
    with pytest.raises(StaleWriter, match="version 1"):
        await store.append_messages(SyncBatch(thread_id="t", number=number, sync_id="other", operations=(user("u2"),)))
    assert await state(store) == before


async def test_of_two_writers_at_once_one_is_stale(store: Store) -> None:
    """Two owners of one thread cannot both write: one of them has to load again."""
    await started(store)
    batches = [
        SyncBatch(thread_id="t", number=2, sync_id=f"s{n}", operations=(user(f"m{n}", f"m{n}"),)) for n in range(4)
    ]
    outcomes = await asyncio.gather(*map(store.append_messages, batches), return_exceptions=True)
    assert sum(isinstance(outcome, StaleWriter) for outcome in outcomes) == 3
    winner = next(n for n, outcome in enumerate(outcomes) if isinstance(outcome, SyncReport))
    assert await texts(store) == ["hi", f"m{winner}"]


async def test_batch_for_an_unknown_thread(store: Store) -> None:
    """There is nothing to write to."""
    with pytest.raises(ThreadNotFound):
        await write(store, 1, user("u"))


async def test_a_known_input_refuses_the_whole_batch(store: Store) -> None:
    """Nothing of the batch is written; each known input is named, with a conflict if its content differs."""
    await started(store)
    before = await state(store)
    report = await write(
        store,
        2,
        settle("a"),
        user("new", input_id="fresh"),
        user("again", "hi", input_id="in-u"),
    )
    assert report == SyncReport(number=1, refused=(Refused(input_id="in-u"),))
    assert await state(store) == before
    report = await write(store, 2, user("again", "other words", input_id="in-u"))
    assert report.refused == (Refused(input_id="in-u", conflict=True),)
    assert await state(store) == before


async def test_a_refused_batch_may_be_sent_without_the_input(store: Store) -> None:
    """The number is not used up by the refusal."""
    await started(store)
    assert (await write(store, 2, user("again", input_id="in-u"))).refused
    assert await write(store, 2, user("u2", "second")) == SyncReport(number=2)
    assert await texts(store) == ["hi", "second"]


async def test_refused_inputs_come_in_the_order_of_the_batch(store: Store) -> None:
    """All of them are named at once, in order."""
    await started(store)
    await write(store, 2, user("m9"), user("m1"), user("m5"))
    report = await write(store, 3, user("x", input_id="in-m9"), user("y"), user("z", input_id="in-m1"))
    assert [refused.input_id for refused in report.refused] == ["in-m9", "in-m1"]


async def test_the_same_input_twice_in_one_batch_is_a_bug(store: Store) -> None:
    """The manager drops duplicates before it writes; both can not be accepted."""
    await started(store)
    with pytest.raises(StoreError, match="twice"):
        await write(store, 2, user("m1", input_id="i"), user("m2", input_id="i"))
    assert await texts(store) == ["hi"]


async def test_a_batch_that_fails_at_its_end_leaves_nothing(store: Store) -> None:
    """Everything before the operation that fails is undone."""
    await started(store)
    before = await state(store)
    operations = (
        settle("a"),
        user("u2"),
        TrackSubscription(call_id="c", tool="feed"),
        CommitResults(message_id="a", start=0, call_ids=("nobody",)),
    )
    with pytest.raises(StoreError, match="without a result"):
        await write(store, 2, *operations)
    assert await state(store) == before
    assert await store.get_processed_ids("t", ("in-u2",)) == {}


async def test_a_message_id_is_taken_once(store: Store) -> None:
    """Ids are unique over all threads: another message of the same id is refused, the first one stays."""
    await started(store)
    with pytest.raises(ContentConflict):
        await write(store, 2, user("u", "other", input_id="fresh"))
    assert await texts(store) == ["hi"]


async def test_parts_go_to_the_end_of_a_message_only(store: Store) -> None:
    """A start that is not the end would hide a bug: overwritten or missing parts."""
    await started(store)
    await write(store, 2, AppendParts(message_id="a", start=0, parts=(text("one"), text("two"))))
    for start in (0, 1, 3):
        with pytest.raises(StoreError, match="bug"):
            await write(store, 3, AppendParts(message_id="a", start=start, parts=(text("three"),)))
    for message_id in ("nobody", "elsewhere"):
        with pytest.raises(StoreError, match="bug"):
            await write(store, 3, AppendParts(message_id=message_id, start=0, parts=(text("three"),)))
    assert await texts(store) == ["hi", "one", "two"]


async def test_a_parent_must_be_stored(store: Store) -> None:
    """A message that hangs on nothing would cut the conversation short for every later reader."""
    await started(store)
    report = await write(store, 2, user("u2", parent_id="nobody"))
    assert report.refused == (Refused(input_id="in-u2", detail="There is no message 'nobody' in this thread."),)
    with pytest.raises(StoreError):
        await write(store, 2, assistant("a2", 2, parent_id="nobody"))
    assert await texts(store) == ["hi"]


async def test_messages_do_not_hang_on_themselves(store: Store) -> None:
    """Walking up from them would never end."""
    await started(store)
    for batch in ([user("m", parent_id="m")], [user("m", parent_id="n"), user("n", parent_id="m")]):
        with pytest.raises(StoreError, match="not stored"):
            await write(store, 2, *batch)
    assert await texts(store) == ["hi"]


async def test_appended_parts_open_their_calls(store: Store) -> None:
    """A loop without a turn buffer writes the parts itself; calls that must not run have their answer."""
    await started(store)
    broken = call("c2").with_(error="not JSON")
    parts = (text("let me see"), call("c1", arguments='{"q":1}'), broken, call("c3"))
    await write(store, 2, AppendParts(message_id="a", start=0, parts=parts))
    tail = await store.load_tail("t")
    assert [(item.call_id, item.index, item.position, item.turn, item.step) for item in tail.calls] == [
        ("c1", 0, 1, 1, 0),
        ("c2", 1, 2, 1, 0),
        ("c3", 2, 3, 1, 0),
    ]
    assert [item.result for item in tail.calls] == [None, broken.refusal, None]
    assert tail.calls[0].arguments == '{"q":1}'


async def test_the_first_settled_status_stays(store: Store) -> None:
    """B21: stop and finish race; whichever is written first is what everybody reads ever after."""
    await started(store)
    cancelled = Status(state="incomplete", reason="cancelled", detail="stopped \x00\ud800")
    await write(store, 2, SetStatus(message_id="a", status=cancelled))
    await write(store, 3, SetStatus(message_id="a", status=Status()))
    tail = await store.load_tail("t")
    assert tail.message is not None
    assert tail.message.status == cancelled


async def test_a_running_message_may_wait_and_go_on(store: Store) -> None:
    """`requires_action` is not settled."""
    await started(store)
    waiting = Status(state="requires_action", detail="approve")
    for number, status in ((2, waiting), (3, RUNNING), (4, Status())):
        await write(store, number, SetStatus(message_id="a", status=status))
        tail = await store.load_tail("t")
        assert tail.message is not None
        assert tail.message.status == status


async def test_usage_is_counted_with_each_step(store: Store) -> None:
    """What a turn has used is in the thread before the turn ends; a repeated batch is not counted again."""
    await started(store)
    for number, step in ((2, 0), (3, 1), (3, 1)):
        used = Usage(requests=1, input_tokens=7, output_tokens=2, cached_tokens=3)
        await write(store, number, commit("a", step=step).with_(usage=used))
    usage = (await store.get_thread("t")).usage
    assert usage == Usage(requests=2, input_tokens=14, output_tokens=4, cached_tokens=6)


async def test_a_user_message_is_settled_from_the_start(store: Store) -> None:
    """Its status can not be changed."""
    await started(store)
    await write(store, 2, SetStatus(message_id="u", status=Status(state="incomplete", reason="error")))
    path = await store.load_history_with_ancestors("t")
    assert path.messages[0].status == Status()


async def test_a_status_of_a_message_elsewhere_is_a_bug(store: Store) -> None:
    """A status must not vanish without a word."""
    await started(store)
    with pytest.raises(StoreError, match="bug"):
        await write(store, 2, settle("nobody"))


async def test_a_batch_stages_commits_and_settles_in_one(store: Store) -> None:
    """The operations see what those before them did."""
    await started(store)
    await write(
        store,
        2,
        AppendParts(message_id="a", start=0, parts=(call("c1"), call("c2"))),
        StageResult(result=result("c1", "one")),
        CommitResults(message_id="a", start=2, call_ids=("c1", "c2"), results=(result("c2", "two"),)),
        AppendParts(message_id="a", start=4, parts=(text("done"),)),
        settle("a"),
    )
    path = await store.load_history_with_ancestors("t")
    assert path.messages[-1].parts == (call("c1"), call("c2"), result("c1", "one"), result("c2", "two"), text("done"))
    assert (await store.load_tail("t")).calls == ()


async def test_an_empty_batch_counts(store: Store) -> None:
    """It raises the version, so a new owner can fence off an old one."""
    await started(store)
    assert await write(store, 2) == SyncReport(number=2)
    with pytest.raises(StaleWriter):
        await store.append_messages(SyncBatch(thread_id="t", number=2, sync_id="old owner"))


async def test_metadata_of_messages_comes_back(store: Store) -> None:
    """Metadata keeps its key order and its integers."""
    await started(store)
    metadata = {"z": 10**30, "a": {"\x00": "\ud800"}, "m": [1.5, None, True]}
    message = Message(id="m", thread_id="t", role="user", metadata=metadata)
    await write(store, 2, AppendMessage(message=message))
    path: Path = await store.load_history_with_ancestors("t")
    found = path.messages[-1].metadata
    assert found == metadata
    assert found is not None
    assert list(found) == ["z", "a", "m"]


async def test_hundreds_of_inputs_in_one_batch(store: Store) -> None:
    """A storm comes as few large batches; all of it is there, in order, linked one after the other."""
    await started(store)
    await write(store, 2, *(user(f"m{n}", f"text {n}") for n in range(500)), assistant("a2", 2))
    path = await store.load_history_with_ancestors("t")
    assert [message.id for message in path.messages[2:-1]] == [f"m{n}" for n in range(500)]
    assert [message.seq for message in path.messages] == sorted(message.seq for message in path.messages)
    assert len((await store.load_tail("t", processed=1000)).processed) == 501


async def test_an_input_without_its_blob_is_refused(store: Store) -> None:
    """Nobody could read it. The batch is as if it had never come; a blob of the parent will do."""
    await started(store)
    await store.create_thread(ThreadRecord(thread_id="child", agent="demo", kind="child", parent_thread_id="t"))
    above = await store.put_blob("t", b"above")
    below = await store.put_blob("child", b"below")
    for thread_id, missing in (("t", ["in-m1", "in-m2", "in-m3"]), ("child", ["in-m1", "in-m3"])):
        words = [AppendMessage(message=in_blob(f"m{n}", blob)) for n, blob in enumerate((above, "00", below, "\ud800"))]
        version = (await store.get_thread(thread_id)).version
        report = await write(store, version + 1, *words, thread_id=thread_id)
        assert [(item.input_id, item.missing, item.conflict) for item in report.refused] == [
            (name, True, False) for name in missing
        ]
        assert (await store.get_thread(thread_id)).version == report.number == version
    assert not (await write(store, 1, AppendMessage(message=in_blob("m", above)), thread_id="child")).refused
    with pytest.raises(ThreadNotFound):
        await write(store, 1, AppendMessage(message=in_blob("n", above)), thread_id="nobody")
    with pytest.raises(StaleWriter):
        await write(store, 9, AppendMessage(message=in_blob("o", "00")), thread_id="child")


def in_blob(message_id: str, blob: str) -> Message:
    """A message whose words are in a blob."""
    part = TextPart(blob=blob)
    return Message(id=message_id, thread_id="t", role="user", parts=(part,), input_id=f"in-{message_id}")
