"""Open calls: started, answered once, committed in call order."""

import asyncio

import pytest

from perdure.batch import AppendParts, CommitResults, SetDue, StageResult
from perdure.errors import BlobNotFound, StoreError
from perdure.messages import FileRef, ToolResultPart
from perdure.ports import Store
from perdure.records import StepOutcome
from tests.stores.builders import THREAD, call, commit, result, settle, started, text, with_calls, write


def interrupted(call_id: str) -> ToolResultPart:
    """A result made by the workflow."""
    return ToolResultPart(call_id=call_id, outcome="interrupted", content="stopped")


async def results(store: Store) -> list[tuple[str, str]]:
    """Call ids and contents of the committed results."""
    parts = (await store.load_history_with_ancestors(THREAD)).messages[-1].parts
    return [(part.call_id, part.content) for part in parts if isinstance(part, ToolResultPart)]


async def test_each_start_is_counted(store: Store) -> None:
    """A second start tells the worker that there was one before, which may have had effects."""
    await with_calls(store, "c1")
    assert (await store.start_call(THREAD, "c1")).started == 1
    again = await store.start_call(THREAD, "c1")
    assert (again.started, again.tool, again.message_id, again.result) == (2, "search", "a", None)


async def test_a_start_under_the_same_name_is_counted_once(store: Store) -> None:
    """Whoever lost the reply may ask again; another one is counted, and so is the first when it comes after that."""
    await with_calls(store, "c1", "c2")
    for owner, started_times in (("one", 1), ("one", 1), ("two", 2), ("one", 3), (None, 4), (None, 5), ("one", 6)):
        assert (await store.start_call(THREAD, "c1", owner)).started == started_times
    assert (await store.start_call(THREAD, "c2", "one")).started == 1
    seen = (await store.get_thread(THREAD)).seq
    await store.start_call(THREAD, "c2", "one")
    assert (await store.get_thread(THREAD)).seq == seen


async def test_an_open_call_is_read_without_starting_it(store: Store) -> None:
    """With its result, if it has one; a call that is not open is an error."""
    await with_calls(store, "c1")
    assert (await store.get_call(THREAD, "c1")).started == 0
    await store.stage_result(THREAD, result("c1"))
    assert (await store.get_call(THREAD, "c1")).result == result("c1")
    for thread_id, call_id in ((THREAD, "other"), ("nobody", "c1")):
        with pytest.raises(StoreError, match="not open"):
            await store.get_call(thread_id, call_id)


async def test_the_first_staged_result_wins(store: Store) -> None:
    """A second one is told what the first one was; a start after it is not counted and brings it."""
    await with_calls(store, "c1")
    await store.start_call(THREAD, "c1")
    assert await store.stage_result(THREAD, result("c1", "first")) == result("c1", "first")
    assert await store.stage_result(THREAD, result("c1", "second")) == result("c1", "first")
    call = await store.start_call(THREAD, "c1")
    assert (call.started, call.result) == (1, result("c1", "first"))


async def test_results_staged_at_once_agree(store: Store) -> None:
    """Of many workers that finish the same call at one time all hear the same result."""
    await with_calls(store, "c1")
    staged = await asyncio.gather(*(store.stage_result(THREAD, result("c1", str(n))) for n in range(8)))
    assert len({part.content for part in staged}) == 1


async def test_a_result_that_comes_by_batch_is_staged_too(store: Store) -> None:
    """It is under the same rule: the first one wins."""
    await with_calls(store, "c1", "c2")
    await store.stage_result(THREAD, result("c1", "first"))
    await write(store, 3, StageResult(result=result("c1", "late")), StageResult(result=result("c2", "two")))
    calls = (await store.load_tail(THREAD)).calls
    assert [call.result for call in calls] == [result("c1", "first"), result("c2", "two")]


async def test_results_are_committed_in_call_order(store: Store) -> None:
    """Whatever the order in which they came; then the calls are closed."""
    await with_calls(store, "c1", "c2", "c3")
    for call_id in ("c3", "c1", "c2"):
        await store.stage_result(THREAD, result(call_id, f"of {call_id}"))
    await write(store, 3, CommitResults(message_id="a", start=3, call_ids=("c1", "c2", "c3")))
    assert await results(store) == [("c1", "of c1"), ("c2", "of c2"), ("c3", "of c3")]
    assert (await store.load_tail(THREAD)).calls == ()


async def test_what_a_tool_returned_goes_before_what_the_workflow_made(store: Store) -> None:
    """A stop closes the open calls as interrupted, but not the one whose result is in (B06)."""
    await with_calls(store, "c1", "c2", "c3")
    await store.stage_result(THREAD, result("c2", "two"))
    made = tuple(interrupted(call_id) for call_id in ("c1", "c2", "c3"))
    await write(store, 3, CommitResults(message_id="a", start=3, call_ids=("c1", "c2", "c3"), results=made))
    assert await results(store) == [("c1", "stopped"), ("c2", "two"), ("c3", "stopped")]


async def test_a_settled_call_takes_nothing_more(store: Store) -> None:
    """A late worker hears that the call is not open; so does one that never was."""
    await with_calls(store, "c1")
    await write(store, 3, CommitResults(message_id="a", start=1, call_ids=("c1",), results=(interrupted("c1"),)))
    for call_id in ("c1", "never"):
        with pytest.raises(StoreError, match="not open"):
            await store.start_call(THREAD, call_id)
        with pytest.raises(StoreError, match="not open"):
            await store.stage_result(THREAD, result(call_id, "late"))
        with pytest.raises(StoreError, match="not open"):
            await write(store, 4, StageResult(result=result(call_id, "late")))
    assert await results(store) == [("c1", "stopped")]


async def test_a_group_is_not_closed_without_all_results(store: Store) -> None:
    """A call without a result would break every later request, so the batch is refused."""
    await with_calls(store, "c1", "c2")
    await store.stage_result(THREAD, result("c1"))
    with pytest.raises(StoreError, match="c2"):
        await write(store, 3, CommitResults(message_id="a", start=2, call_ids=("c1", "c2")))
    assert len((await store.load_tail(THREAD)).calls) == 2


async def test_results_of_calls_that_were_never_open(store: Store) -> None:
    """A call with an error is answered by the workflow alone."""
    await with_calls(store, "c1")
    await store.stage_result(THREAD, result("c1"))
    refused = ToolResultPart(call_id="broken", outcome="error", content="unknown tool")
    await write(store, 3, CommitResults(message_id="a", start=1, call_ids=("broken", "c1"), results=(refused,)))
    assert await results(store) == [("broken", "unknown tool"), ("c1", "found")]


async def test_a_refused_call_is_open_with_its_answer(store: Store) -> None:
    """A new owner of the thread finds the whole group with places and answers, and readers are told of it."""
    await started(store)
    parts = (text("So:"), call("c1"), call("c2").with_(error="There is no such tool."))
    await store.finish_step(THREAD, 1, 0, 1, parts, StepOutcome(finish="tool_calls"), [])
    seen = (await store.get_thread(THREAD)).seq
    await write(store, 2, commit("a"))
    refusal = ToolResultPart(call_id="c2", outcome="error", content="There is no such tool.")
    calls = (await store.load_tail(THREAD)).calls
    assert [(one.call_id, one.index, one.position, one.result) for one in calls] == [
        ("c1", 0, 1, None),
        ("c2", 1, 2, refusal),
    ]
    told = await store.read_changes(THREAD, seen)
    assert [change.call for change in told if change.call] == [calls[1]]
    assert [change.seq for change in told] == list(range(seen + 1, (await store.get_thread(THREAD)).seq + 1))
    await store.stage_result(THREAD, result("c1"))
    await write(store, 3, CommitResults(message_id="a", start=3, call_ids=("c1", "c2"), results=(refusal,)))
    assert await results(store) == [("c1", "found"), ("c2", "There is no such tool.")]
    assert (await store.load_tail(THREAD)).calls == ()


async def test_a_refused_call_of_appended_parts_is_open_with_its_answer(store: Store) -> None:
    """As those of a committed step, each with the step of its part."""
    await started(store)
    parts = tuple(part.with_(step=3) for part in (call("c1").with_(error="no"), call("c2"), call("c3").with_(error="")))
    await write(store, 2, AppendParts(message_id="a", start=0, parts=parts))
    calls = (await store.load_tail(THREAD)).calls
    assert [(one.position, one.step, one.result and (one.result.content, one.result.step)) for one in calls] == [
        (0, 3, ("no", 3)),
        (1, 3, None),
        (2, 3, ("", 3)),
    ]


async def test_a_call_has_a_time_at_which_it_ends(store: Store) -> None:
    """The last one set, exactly, wherever the call is read, and told to readers; it changes nothing else of it."""
    await with_calls(store, "c1", "c2")
    await store.start_call(THREAD, "c1")
    seen = (await store.get_thread(THREAD)).seq
    first, last = 1796059200.123456, 1796059200
    await write(store, 3, SetDue(call_id="c1", due=first), SetDue(call_id="c2", due=first))
    await write(store, 4, SetDue(call_id="c1", due=last))
    calls = (await store.load_tail(THREAD)).calls
    assert [(one.call_id, one.due, one.started) for one in calls] == [("c1", last, 1), ("c2", first, 0)]
    assert (await store.snapshot(THREAD)).calls == calls
    assert (await store.get_call(THREAD, "c2")).due == first
    assert (await store.start_call(THREAD, "c1")).due == last
    told = [change.call for change in await store.read_changes(THREAD, seen) if change.call]
    assert [(one.call_id, one.due) for one in told] == [("c2", first), ("c1", last)]


async def test_a_time_for_a_call_that_is_gone_is_left_out(store: Store) -> None:
    """The batch is applied all the same, and nobody is told."""
    await with_calls(store, "c1")
    results = (interrupted("c1"),)
    await write(store, 3, CommitResults(message_id="a", start=1, call_ids=("c1",), results=results))
    seen = (await store.get_thread(THREAD)).seq
    report = await write(store, 4, SetDue(call_id="c1", due=1.5), SetDue(call_id="never", due=1.5))
    assert report.number == (await store.get_thread(THREAD)).version == 4
    assert await store.read_changes(THREAD, seen) == ()


async def test_a_result_whose_blobs_are_missing_can_be_loaded(store: Store) -> None:
    """It names them, whoever reads finds them missing, and the thread goes on: staged by a batch or by a worker."""
    await with_calls(store, "c1", "c2")
    files = (FileRef(media_type="image/png", blob="00" * 32), FileRef(media_type="image/png", blob="\x00 not hex"))
    wanted = tuple(result(name, "a preview").with_(blob="11" * 32, files=files, display="[]") for name in ("c1", "c2"))
    assert await store.stage_result(THREAD, wanted[0]) == wanted[0]
    await write(store, 3, StageResult(result=wanted[1]))
    await write(store, 4, CommitResults(message_id="a", start=2, call_ids=("c1", "c2")))
    parts = (await store.load_history_with_ancestors(THREAD)).messages[-1].parts
    assert parts[2:] == wanted
    assert [change.part for change in await store.read_changes(THREAD, 0) if change.part][-2:] == list(wanted)
    for blob in (wanted[0].blob, *(file.blob for file in files)):
        assert blob is not None
        with pytest.raises(BlobNotFound):
            await store.get_blob(THREAD, blob)
    await write(store, 5, settle("a"))
    assert (await store.load_tail(THREAD)).calls == ()
