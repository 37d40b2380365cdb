"""What is left of deleted messages: that they were, and nothing that was said in them."""

import pytest

from perdure.approval import ApprovalRequest, Decision
from perdure.batch import CommitResults, Decide, Refused, ShowInterim, StoreLateResult, TrackSubscription
from perdure.errors import BlobNotFound, CallNotOpen, StepSealed
from perdure.messages import EventPart, FilePart, FileRef, Part, Status, TextPart, ToolResultPart
from perdure.ports import Store
from perdure.records import Choice, StepOutcome, Summary, ThreadRecord
from perdure.turn_buffer import Chunk
from tests.stores.builders import RUNNING, call, commit, delta, result, settle, text, user
from tests.stores.secret_words import SECRET, WORDS, Deletion, Traces, by_deletion, secretive, ways
from tests.stores.trees import (
    annotate,
    answer,
    conversation,
    delete,
    imported,
    item,
    path,
    refused,
    said,
    switch,
    written,
)


@ways
async def test_words_are_gone(store: Store, traces: Traces, way: Deletion) -> None:
    """Of a message of the user with its metadata, whatever its parts are."""
    await conversation(store)
    parts = (TextPart(text=WORDS), EventPart(event_id="e", origin_call_id="c", content=WORDS, origin_arguments=WORDS))
    operation = said("s", WORDS)
    message = operation.message.with_(parts=parts, metadata={"note": WORDS})
    await written(store, operation.with_(message=message, digest=SECRET))
    await written(store, annotate("s", rating=WORDS))
    assert await traces()
    await way(store, "s")
    assert await traces() == []
    assert await path(store) == ["u1", "a1", "u2", "a2"]


@ways
async def test_calls_are_gone_with_all_that_hangs_on_them(store: Store, traces: Traces, way: Deletion) -> None:
    """Arguments, questions, decisions, staged and interim results, choices, the status of the message."""
    asked = call("c1", SECRET, f'"{WORDS}"').with_(approval=ApprovalRequest(prompt=WORDS))
    other = call("c2", arguments=f'"{WORDS}"')
    await conversation(store)
    await written(store, said("u3"), answer("s", 3, status=RUNNING))
    await store.finish_step("t", 3, 0, 1, (text("hm"), asked, other), StepOutcome(), [])
    await written(store, commit("s", turn=3), settle("s", Status(state="requires_action", detail=WORDS)))
    await written(store, Decide(call_id="c1", decision=Decision(approved=True, reason=WORDS)))
    await written(store, ShowInterim(result=result("c2", WORDS)))
    await store.put_choice("t", Choice(id="q", call_id="c2", prompt=WORDS, choices=(WORDS,)))
    await store.stage_result("t", result("c1", WORDS))
    assert await traces()
    await way(store, "s")
    assert await traces() == []
    assert (await store.load_tail("t")).calls == ()
    assert await store.get_choices("t") == ()
    for call_id in ("c1", "c2"):
        with pytest.raises(CallNotOpen):
            await store.stage_result("t", result(call_id, WORDS))


async def test_a_subscription_goes_on_without_the_words_of_its_call(store: Store, traces: Traces) -> None:
    """Which call it belongs to stays, what that asked for does not."""
    tracked = TrackSubscription(call_id="c1", tool="feed", arguments=WORDS, received=3)
    other = TrackSubscription(call_id="c2", tool="feed", arguments="mine")
    await secretive(
        store,
        traces,
        answer("s", 3, call("c1", arguments=f'"{WORDS}"'), result("c1")),
        tracked,
        answer("s2", 4, call("c2")),
        other,
    )
    await by_deletion(store, "s")
    assert await traces() == []
    first, second = await store.get_active_subscriptions("t")
    assert (first.call_id, first.tool, first.arguments, first.received) == ("c1", "feed", "{}", 3)
    assert second.arguments == "mine"


@ways
@pytest.mark.parametrize("done", [False, True])
async def test_a_turn_that_streams_is_gone_with_what_has_streamed(
    store: Store, traces: Traces, way: Deletion, *, done: bool
) -> None:
    """And whoever still writes is refused: the words would come back."""
    await conversation(store)
    await written(store, said("u3"), answer("s", 3, status=RUNNING))
    if done:
        outcome = StepOutcome(detail=WORDS)
        await store.finish_step("t", 3, 0, 1, (text(WORDS),), outcome, [Chunk(index=0, part=text(WORDS))])
    else:
        await store.append_chunks("t", 3, 0, 1, [delta(WORDS)])
    assert await traces()
    await way(store, "s")
    assert await traces() == []
    assert (await store.snapshot("t")).live is None
    with pytest.raises(StepSealed):
        await store.append_chunks("t", 3, 0, 1, [delta(WORDS)])
    with pytest.raises(StepSealed):
        await store.begin_step("t", 3, 1, 5)
    with pytest.raises(StepSealed):
        await store.finish_step("t", 3, 0, 1, (text(WORDS),), StepOutcome(), [])
    await written(store, said("u4"), answer("a4", 4, status=RUNNING))
    await store.begin_step("t", 4, 0, 1)


async def test_a_turn_that_runs_keeps_its_mark_when_a_newer_one_goes(store: Store) -> None:
    """Its own late writers are refused as before, and it goes on with the step that is next."""
    await conversation(store)
    await written(store, said("u3"), answer("a3", 3, status=RUNNING))
    await store.finish_step("t", 3, 0, 1, (text("step"), call("c1")), StepOutcome(finish="tool_calls"), [])
    await written(store, commit("a3", turn=3))
    await written(store, await imported(store, item("s", "u1", role="assistant")))
    await by_deletion(store, (await path(store))[-1])
    with pytest.raises(StepSealed):
        await store.append_chunks("t", 3, 0, 1, [delta("late")])
    await written(store, CommitResults(message_id="a3", start=2, call_ids=("c1",), results=(result("c1"),)))
    assert (await store.load_tail("t")).step == 1
    await store.append_chunks("t", 3, 1, 1, [delta("next")])


@ways
async def test_an_input_is_known_and_nothing_of_what_it_said(store: Store, traces: Traces, way: Deletion) -> None:
    """To bring it again is to bring what was there, whatever it says: no digest is kept to tell."""
    operation = said("s", WORDS)
    await secretive(store, traces, operation)
    await way(store, "s")
    assert await store.get_processed_ids("t", ("in-s",)) == {"in-s": ""}
    assert ("in-s", "") in (await store.load_tail("t")).processed
    for digest in (operation.digest, "another"):
        assert await refused(store, operation.with_(digest=digest)) == (Refused(input_id="in-s"),)


# -- blobs -----------------------------------------------------------------------------------------------------


def naming(blob: str) -> tuple[Part, ...]:
    """Every kind of part that can name a blob."""
    return (
        TextPart(text="", blob=blob),
        FilePart(media_type="image/png", blob=blob),
        ToolResultPart(call_id="c", blob=blob),
        ToolResultPart(call_id="c", files=(FileRef(media_type="image/png", blob=blob),)),
        ToolResultPart(call_id="c", display=f'[{{"blob":"{blob}"}}]'),
        EventPart(event_id="e", origin_call_id="c", blob=blob),
    )


@pytest.mark.parametrize("number", range(6))
async def test_a_blob_goes_with_the_last_part_that_names_it(store: Store, traces: Traces, number: int) -> None:
    """Whatever part that is; the blobs of other messages stay."""
    await conversation(store)
    blob, other = await store.put_blob("t", WORDS.encode()), await store.put_blob("t", b"other")
    part = naming(blob)[number]
    await written(store, answer("s", 3, part), answer("s2", 4, part, text("x")), answer("s3", 5, naming(other)[number]))
    await by_deletion(store, "s")
    assert await store.get_blob("t", blob) == WORDS.encode()
    await by_deletion(store, "s2")
    with pytest.raises(BlobNotFound):
        await store.get_blob("t", blob)
    assert await store.get_blob("t", other) == b"other"
    assert await traces() == []


async def test_a_blob_of_a_staged_result_goes_with_the_call(store: Store) -> None:
    """It was named by nothing else."""
    await conversation(store)
    blob, interim = await store.put_blob("t", WORDS.encode()), await store.put_blob("t", b"interim")
    await written(store, answer("s", 3, status=RUNNING))
    await store.finish_step("t", 3, 0, 1, (call("c1"), call("c2")), StepOutcome(), [])
    await written(store, commit("s", turn=3), ShowInterim(result=result("c2").with_(blob=interim)))
    await store.stage_result("t", result("c1").with_(blob=blob))
    await by_deletion(store, "s")
    for gone in (blob, interim):
        with pytest.raises(BlobNotFound):
            await store.get_blob("t", gone)


async def test_a_blob_that_something_else_names_stays(store: Store) -> None:
    """A view, an open call's result, what streams, or a child thread, which reads it from here."""
    await conversation(store)
    await store.create_thread(ThreadRecord(thread_id="k", agent="demo", parent_thread_id="t"))
    blobs = [await store.put_blob("t", f"blob {count}".encode()) for count in range(5)]
    await written(store, answer("s", 3, *(TextPart(text="", blob=blob) for blob in blobs)))
    await store.put_view("t", "diff", f'{{"blob":"{blobs[0]}"}}')
    child = user("k1").with_(message=said("k1", thread_id="k").message.with_(parts=(TextPart(blob=blobs[1]),)))
    await written(store, child, thread_id="k")
    await written(store, answer("a", 4, status=RUNNING))
    await store.finish_step("t", 4, 0, 1, (call("c1"),), StepOutcome(), [])
    await written(store, commit("a", turn=4))
    await store.stage_result("t", result("c1").with_(blob=blobs[2]))
    await store.append_chunks("t", 4, 1, 1, [Chunk(index=0, part=TextPart(blob=blobs[3]))])
    await by_deletion(store, "s")
    for kept in blobs[:4]:
        assert await store.get_blob("t", kept)
    with pytest.raises(BlobNotFound):
        await store.get_blob("t", blobs[4])


async def test_a_blob_that_waits_for_its_message_stays(store: Store) -> None:
    """What nobody names yet was stored for a message that is on its way."""
    await conversation(store)
    blob = await store.put_blob("t", b"to come")
    await by_deletion(store, "u2")
    assert await store.get_blob("t", blob) == b"to come"


async def test_an_inherited_blob_is_not_the_childs_to_remove(store: Store) -> None:
    """It belongs to the thread that stored it."""
    await conversation(store)
    blob = await store.put_blob("t", b"of the parent")
    await written(store, answer("s", 3, TextPart(blob=blob)))
    await store.create_thread(ThreadRecord(thread_id="k", agent="demo", parent_thread_id="t", spawn_message_id="a1"))
    child = said("k1", thread_id="k")
    message = child.message.with_(parts=(TextPart(blob=blob),))
    await written(store, child.with_(message=message), thread_id="k")
    await written(store, delete("k1"), thread_id="k")
    assert await store.get_blob("t", blob) == b"of the parent"


# -- other ways that content goes ------------------------------------------------------------------------------


async def test_a_file_that_was_imported_is_gone_with_its_messages(store: Store, traces: Traces) -> None:
    """Both the messages and the file that brought them."""
    await conversation(store)
    operation = await imported(store, item("s", "a2", text(WORDS)))
    blob = await store.put_blob("t", WORDS.encode())
    await written(store, operation.with_(blob=blob))
    assert await traces()
    await by_deletion(store, (await path(store))[-1])
    assert await traces() == []


async def test_what_an_import_replaces_is_gone(store: Store, traces: Traces) -> None:
    """With its blobs, its open calls, and what they were asked."""
    await conversation(store)
    blob = await store.put_blob("t", WORDS.encode())
    await written(
        store,
        answer(
            "s", 3, text(WORDS), TextPart(blob=blob), call("c", SECRET).with_(approval=ApprovalRequest(prompt=WORDS))
        ),
    )
    assert await traces()
    await written(store, await imported(store, item("s", "a2", text("better"), role="assistant")))
    assert await traces() == []


async def test_what_a_late_result_replaces_is_gone(store: Store, traces: Traces) -> None:
    """A result that was made up says nothing of the call any more."""
    made_up = ToolResultPart(call_id="c1", outcome="cancelled", content=WORDS)
    await secretive(store, traces, answer("s", 3, call("c1"), made_up))
    await written(store, StoreLateResult(message_id="s", result=result("c1")))
    assert await traces() == []


@ways
async def test_summaries_of_what_is_gone_are_void(store: Store, traces: Traces, way: Deletion) -> None:
    """Those that hang on a message or below it were made of its words; the same one again is not stored again."""
    await conversation(store)
    await written(store, said("u3"), answer("a3", 3))
    summaries = [
        Summary(id=f"of-{name}", thread_id="t", message_id=name, parts=1, text=text_)
        for name, text_ in (("u1", "fine"), ("u2", WORDS), ("a2", WORDS), ("a3", WORDS))
    ]
    for summary in summaries:
        await store.add_summary(summary)
    assert await traces()
    await way(store, "u2")
    assert await traces() == []
    found = await store.load_history_with_ancestors("t")
    assert found.summary == summaries[0]
    for summary in summaries[2:] if way is by_deletion else ():
        await store.add_summary(summary)
    assert await traces() == []
    assert (await store.load_history_with_ancestors("t")).summary == summaries[0]


async def test_words_stay_where_nobody_deleted_them(store: Store, traces: Traces) -> None:
    """A search that found nothing because it cannot find would let all of these tests pass."""
    await secretive(store, traces, said("s", WORDS), answer("s2", 3, text(WORDS)))
    await by_deletion(store, "s")
    assert await traces() != []
    await written(store, switch("u1"))
    assert await traces() != []
