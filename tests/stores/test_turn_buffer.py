"""Steps: streamed by one attempt, finished once, committed or sealed, and closed to everybody after that."""

import pytest

from perdure.errors import StepSealed, StoreError
from perdure.messages import Part, ReasoningPart, TextPart, Usage
from perdure.ports import Store
from perdure.records import StepOutcome
from perdure.turn_buffer import Chunk
from tests.stores.builders import (
    DONE,
    THREAD,
    assistant,
    call,
    commit,
    delta,
    settle,
    started,
    text,
    texts,
    user,
    write,
)

CALLS = StepOutcome(finish="tool_calls", model="m", usage=Usage(requests=1, output_tokens=5), detail="\x00\ud800")


def thought(words: str, signature: str | None = "sig") -> ReasoningPart:
    """A thought that the provider signed."""
    return ReasoningPart(text=words, signature=signature)


async def committed(store: Store) -> tuple[Part, ...]:
    """The parts of the assistant message."""
    return (await store.load_history_with_ancestors(THREAD)).messages[-1].parts


async def test_begin_step_opens_it(store: Store) -> None:
    """The step belongs to the attempt and is empty."""
    await started(store)
    step = await store.begin_step(THREAD, 1, 0, 1)
    assert (step.state, step.attempt, step.parts, step.outcome) == ("open", 1, (), None)


async def test_what_streams_is_live_and_not_history(store: Store) -> None:
    """A snapshot shows it; the path does not hold it before the commit."""
    await started(store)
    await store.begin_step(THREAD, 1, 0, 1)
    await store.append_chunks(THREAD, 1, 0, 1, [delta("Hel"), delta("lo")])
    await store.append_chunks(THREAD, 1, 0, 1, [Chunk(index=1, part=call("c"))])
    live = (await store.snapshot(THREAD)).live
    assert live is not None
    assert live.parts == (text("Hello"), call("c"))
    assert await committed(store) == ()


async def test_a_done_step_is_returned_instead_of_run_again(store: Store) -> None:
    """A retry after a lost reply finds parts and outcome, exactly; any attempt does."""
    await started(store)
    parts = (thought("hm"), text("so"), call("c1", arguments='{"b": 1, "a": 1.0}'))
    await store.finish_step(THREAD, 1, 0, 2, parts, CALLS, [])
    for attempt in (1, 2, 3):
        step = await store.begin_step(THREAD, 1, 0, attempt)
        assert (step.state, step.attempt, step.parts, step.outcome) == ("done", 2, parts, CALLS)


async def test_finish_step_opens_the_step_itself(store: Store) -> None:
    """An answer that came at once is one write."""
    await started(store)
    await store.finish_step(THREAD, 1, 0, 1, (text("Hello"),), DONE, [delta("Hel"), delta("lo")])
    snapshot = await store.snapshot(THREAD)
    assert snapshot.live is not None
    assert (snapshot.live.state, snapshot.live.parts) == ("done", (text("Hello"),))
    assert snapshot.chunks == (delta("Hel"), delta("lo"))


async def test_finish_step_again_changes_nothing(store: Store) -> None:
    """The reply of the first call was lost."""
    await started(store)
    await store.finish_step(THREAD, 1, 0, 1, (text("Hello"),), DONE, [delta("Hello")])
    before = await store.snapshot(THREAD)
    await store.finish_step(THREAD, 1, 0, 1, (text("Hello"),), DONE, [delta("Hello")])
    assert await store.snapshot(THREAD) == before


async def test_a_new_attempt_voids_what_the_earlier_one_streamed(store: Store) -> None:
    """However it begins: by itself, with chunks, or by finishing at once."""
    await started(store)
    await store.append_chunks(THREAD, 1, 0, 1, [delta("first try")])
    await store.begin_step(THREAD, 1, 0, 2)
    assert (await store.snapshot(THREAD)).chunks == ()
    await store.append_chunks(THREAD, 1, 0, 2, [delta("second try")])
    await store.append_chunks(THREAD, 1, 0, 3, [delta("third try")])
    assert (await store.snapshot(THREAD)).chunks == (delta("third try"),)
    await store.finish_step(THREAD, 1, 0, 4, (text("fourth"),), DONE, [delta("fourth")])
    assert (await store.snapshot(THREAD)).chunks == (delta("fourth"),)
    await write(store, 2, commit("a"))
    assert await committed(store) == (text("fourth"),)


async def test_the_same_attempt_that_begins_again_starts_afresh(store: Store) -> None:
    """A process that lost track of its stream must not add a second beginning to the first."""
    await started(store)
    await store.append_chunks(THREAD, 1, 0, 1, [delta("Hel")])
    await store.begin_step(THREAD, 1, 0, 1)
    await store.append_chunks(THREAD, 1, 0, 1, [delta("Hello")])
    assert (await store.snapshot(THREAD)).chunks == (delta("Hello"),)


async def test_an_earlier_attempt_is_refused(store: Store) -> None:
    """A zombie can not add a word, begin again or finish."""
    await started(store)
    await store.begin_step(THREAD, 1, 0, 2)
    await store.append_chunks(THREAD, 1, 0, 2, [delta("mine")])
    await refuse_all(store, attempt=1)
    assert (await store.snapshot(THREAD)).chunks == (delta("mine"),)


async def test_a_done_step_takes_no_more(store: Store) -> None:
    """Neither chunks of its own attempt nor another outcome."""
    await started(store)
    await store.finish_step(THREAD, 1, 0, 1, (text("Hello"),), DONE, [])
    with pytest.raises(StepSealed):
        await store.append_chunks(THREAD, 1, 0, 1, [delta("late")])
    with pytest.raises(StepSealed):
        await store.finish_step(THREAD, 1, 0, 2, (text("other"),), DONE, [])
    assert (await store.begin_step(THREAD, 1, 0, 3)).parts == (text("Hello"),)


@pytest.mark.parametrize("change", [{}, {"sealed": True}, {"discard": True}])
async def test_a_committed_step_is_closed_to_everybody(store: Store, change: dict[str, bool]) -> None:
    """Its rows are gone, yet later writers are refused: also for earlier steps, not for later ones."""
    await started(store)
    await store.append_chunks(THREAD, 1, 2, 5, [delta("Hello")])
    await store.finish_step(THREAD, 1, 2, 5, (text("Hello"),), DONE, [])
    await write(store, 2, commit("a", step=2).with_(**change))
    for step, attempt in ((2, 5), (2, 99), (1, 1), (0, 1)):
        await refuse_all(store, step=step, attempt=attempt)
    snapshot = await store.snapshot(THREAD)
    assert (snapshot.live, snapshot.chunks) == (None, ())
    await store.begin_step(THREAD, 1, 3, 1)
    await store.begin_step(THREAD, 2, 0, 1)


async def test_a_step_that_never_began_commits_nothing_and_is_closed(store: Store) -> None:
    """The stop came before the model call: it must not begin afterwards."""
    await started(store)
    await write(store, 2, commit("a").with_(sealed=True), settle("a"))
    await refuse_all(store, attempt=1)
    assert await committed(store) == ()


async def test_a_sealed_step_keeps_the_words_and_whole_thoughts(store: Store) -> None:
    """Calls go, since none was durable; so does a thought that was cut off or that nobody signed."""
    await started(store)
    chunks = [
        Chunk(index=0, part=thought("signed")),
        Chunk(index=1, part=thought("unsigned", None)),
        Chunk(index=2, part=TextPart(text="Hel")),
        delta("lo", 2),
        Chunk(index=3, part=call("c1")),
        Chunk(index=4, part=thought("cut of")),
    ]
    await store.append_chunks(THREAD, 1, 0, 1, chunks)
    await write(store, 2, commit("a").with_(sealed=True))
    assert await committed(store) == (thought("signed"), text("Hello"))
    assert (await store.load_tail(THREAD)).calls == ()


async def test_sealing_a_step_that_has_just_finished(store: Store) -> None:
    """The stop was decided without its outcome, so nobody would answer its calls: they go too."""
    await started(store)
    await store.finish_step(THREAD, 1, 0, 1, (text("Hello"), call("c1")), CALLS, [])
    await write(store, 2, commit("a").with_(sealed=True))
    assert await committed(store) == (text("Hello"),)
    assert (await store.load_tail(THREAD)).calls == ()


async def test_committing_a_step_that_still_streams(store: Store) -> None:
    """What is not whole is treated as in a stop, even if the batch does not say so."""
    await started(store)
    await store.append_chunks(THREAD, 1, 0, 1, [delta("Hello"), Chunk(index=1, part=call("c1"))])
    report = await write(store, 2, commit("a"), settle("a"))
    assert report.steps == ((1, 0),)
    assert await committed(store) == (text("Hello"),)


async def test_trim_reasoning_drops_trailing_thoughts_only(store: Store) -> None:
    """V7: no committed step ends on a thought; those before something stay; calls keep their places."""
    await started(store)
    parts = (thought("one"), call("c1"), text("then"), call("c2"), thought("two"), thought("three"))
    await store.finish_step(THREAD, 1, 0, 1, parts, CALLS, [])
    await write(store, 2, commit("a").with_(trim_reasoning=True))
    assert await committed(store) == parts[:4]
    assert [(item.call_id, item.index) for item in (await store.load_tail(THREAD)).calls] == [("c1", 0), ("c2", 1)]


async def test_discard_drops_everything(store: Store) -> None:
    """Nothing of the step is history, and the report does not call it durable."""
    await started(store)
    await store.finish_step(THREAD, 1, 0, 1, (text("Hello"), call("c1")), CALLS, [])
    report = await write(store, 2, commit("a").with_(discard=True))
    assert report.steps == ()
    assert await committed(store) == ()
    assert (await store.load_tail(THREAD)).calls == ()


async def test_calls_that_must_not_run_are_never_started(store: Store) -> None:
    """A call with an error has that for its result, and whoever would run it is given that."""
    await started(store)
    await store.finish_step(THREAD, 1, 0, 1, (call("c1").with_(error="unknown tool"), call("c2")), CALLS, [])
    await write(store, 2, commit("a"))
    assert [(item.call_id, item.index) for item in (await store.load_tail(THREAD)).calls] == [("c1", 0), ("c2", 1)]
    refused = await store.start_call(THREAD, "c1")
    assert (refused.started, refused.result and refused.result.content) == (0, "unknown tool")


async def test_two_steps_of_one_turn_follow_each_other(store: Store) -> None:
    """The second step's parts come after the first one's; a start that is not the end is refused."""
    await started(store)
    await store.finish_step(THREAD, 1, 0, 1, (text("one"),), DONE, [])
    await write(store, 2, commit("a"))
    await store.finish_step(THREAD, 1, 1, 1, (text("two"),), DONE, [])
    with pytest.raises(StoreError, match="bug"):
        await write(store, 3, commit("a", start=0, step=1))
    await write(store, 3, commit("a", start=1, step=1))
    assert await texts(store) == ["hi", "one", "two"]


async def test_the_live_step_is_the_newest(store: Store) -> None:
    """Steps of the next turn show up after those of the last one are committed."""
    await started(store)
    await store.finish_step(THREAD, 1, 0, 1, (text("one"),), DONE, [])
    await write(store, 2, commit("a"), settle("a"), user("u2"), assistant("a2", 2))
    await store.append_chunks(THREAD, 2, 0, 1, [delta("two")])
    live = (await store.snapshot(THREAD)).live
    assert live is not None
    assert (live.turn, live.step, live.parts) == (2, 0, (text("two"),))


async def test_chunks_that_are_sent_again_are_taken_once(store: Store) -> None:
    """With their offset, chunks whose reply was lost may be repeated, alone or with more after them."""
    await started(store)
    await store.append_chunks(THREAD, 1, 0, 1, [delta("a"), delta("b")], first=0)
    await store.append_chunks(THREAD, 1, 0, 1, [delta("a"), delta("b")], first=0)
    await store.append_chunks(THREAD, 1, 0, 1, [delta("b"), delta("c")], first=1)
    await store.append_chunks(THREAD, 1, 0, 1, [delta("d")])
    assert [chunk.delta for chunk in (await store.snapshot(THREAD)).chunks] == ["a", "b", "c", "d"]
    with pytest.raises(StoreError, match="bug"):
        await store.append_chunks(THREAD, 1, 0, 1, [delta("f")], first=5)


async def refuse_all(store: Store, *, attempt: int, step: int = 0) -> None:
    """Whatever this writer tries is refused."""
    for late in (
        store.begin_step(THREAD, 1, step, attempt),
        store.append_chunks(THREAD, 1, step, attempt, [delta("late")]),
        store.finish_step(THREAD, 1, step, attempt, (text("late"),), DONE, [delta("late")]),
    ):
        with pytest.raises(StepSealed):
            await late


async def test_the_tail_tells_the_attempt_that_owns_the_turn_buffer(store: Store) -> None:
    """Whoever takes the thread over counts on from it; there is none before the first write and after the commit."""
    await started(store)
    assert (await store.load_tail(THREAD)).attempt == 0
    await store.append_chunks(THREAD, 1, 0, 3, [delta("Hel")])
    assert (await store.load_tail(THREAD)).attempt == 3
    await store.finish_step(THREAD, 1, 0, 3, (text("Hello"),), DONE, [])
    assert (await store.load_tail(THREAD)).attempt == 3
    await write(store, 2, commit("a"))
    assert (await store.load_tail(THREAD)).attempt == 0
