"""Questions to people: they wait with their call, and readers hear of them in order with everything else."""

import asyncio

import pytest

from perdure.batch import CommitResults
from perdure.errors import CallNotOpen
from perdure.ports import Store
from perdure.records import Choice
from tests.stores.builders import THREAD, result, with_calls, write


def ask(choice_id: str, call_id: str = "c1", prompt: str = "Which?") -> Choice:
    """A question with an answer to send somewhere."""
    return Choice(
        id=choice_id,
        call_id=call_id,
        prompt=prompt,
        choices=("yes", "no"),
        default=1,
        response_url="https://tools.test/answer?secret",
    )


async def seq(store: Store) -> int:
    """The thread's number of changes."""
    return (await store.get_thread(THREAD)).seq


async def ids(store: Store) -> list[str]:
    """What waits, which a snapshot says as well."""
    choices = await store.get_choices(THREAD)
    assert (await store.snapshot(THREAD)).choices == choices
    return [choice.id for choice in choices]


async def told(store: Store, after: int) -> list[Choice | None]:
    """The choices of the changes after a number."""
    return [change.choice for change in await store.read_changes(THREAD, after)]


async def test_a_question_waits_and_is_told(store: Store) -> None:
    """As it was asked, with the number under which readers hear of it."""
    await with_calls(store, "c1")
    before = await seq(store)
    await store.put_choice(THREAD, ask("q"))
    assert await store.get_choices(THREAD) == (ask("q").with_(seq=before + 1),)
    assert await told(store, before) == [ask("q").with_(seq=before + 1)]
    assert await ids(store) == ["q"]
    assert await store.get_choices("nobody") == ()


async def test_the_same_question_again_changes_nothing(store: Store) -> None:
    """A delivery that came twice is one question."""
    await with_calls(store, "c1")
    await store.put_choice(THREAD, ask("q"))
    before = await seq(store)
    await store.put_choice(THREAD, ask("q"))
    await store.put_choice(THREAD, ask("q").with_(seq=7, answered=True))
    assert await seq(store) == before
    assert await ids(store) == ["q"]


async def test_another_question_under_the_same_id_replaces_the_first(store: Store) -> None:
    """It is told anew and is the newest of those that wait; it may be another call's."""
    await with_calls(store, "c1", "c2")
    for choice_id in ("b", "a"):
        await store.put_choice(THREAD, ask(choice_id))
    before = await seq(store)
    await store.put_choice(THREAD, ask("b", "c2", "And now?"))
    assert await ids(store) == ["a", "b"]
    assert await told(store, before) == [ask("b", "c2", "And now?").with_(seq=before + 1)]
    everything = [choice.id for choice in await told(store, 0) if choice]
    assert everything == ["a", "b"], "what was replaced is told no more"


async def test_an_answered_question_is_told_without_its_words(store: Store) -> None:
    """Readers take it away; the links are kept no longer than needed. A second answer changes nothing."""
    await with_calls(store, "c1")
    await store.put_choice(THREAD, ask("q"))
    await store.put_choice(THREAD, Choice(id="o", call_id="c1", kind="oauth", auth_url="https://auth.test/?secret"))
    before = await seq(store)
    for choice_id in ("o", "q", "o", "never"):
        await store.remove_choice(THREAD, choice_id)
    assert await told(store, before) == [
        Choice(id="o", call_id="c1", kind="oauth", answered=True, seq=before + 1),
        Choice(id="q", call_id="c1", answered=True, seq=before + 2),
    ]
    assert await ids(store) == []
    assert await seq(store) == before + 2


async def test_an_answered_question_may_be_asked_again(store: Store) -> None:
    """Else a tool that asks twice would wait for ever."""
    await with_calls(store, "c1")
    for _ in range(2):
        await store.put_choice(THREAD, ask("q"))
        assert await ids(store) == ["q"]
        await store.remove_choice(THREAD, "q")
        assert await ids(store) == []


async def test_only_a_call_that_waits_can_ask(store: Store) -> None:
    """Not one that is unknown, settled, or has its result while others of its step go on; nothing is told then."""
    await with_calls(store, "c1", "c2", "c3")
    await store.stage_result(THREAD, result("c1"))
    before = await seq(store)
    for call_id in ("never", "c1"):
        with pytest.raises(CallNotOpen, match=call_id):
            await store.put_choice(THREAD, ask("q", call_id))
    assert await seq(store) == before
    results = (result("c2"),)
    await write(store, 3, CommitResults(message_id="a", start=3, call_ids=("c1", "c2"), results=results))
    for call_id in ("c1", "c2"):
        with pytest.raises(CallNotOpen, match=call_id):
            await store.put_choice(THREAD, ask("q", call_id))
    await store.put_choice(THREAD, ask("control", "c3"))
    assert await ids(store) == ["control"]


async def test_a_result_ends_the_questions_of_its_call(store: Store) -> None:
    """They wait no more once it is staged, and are gone when it is committed: readers are told of the result alone."""
    await with_calls(store, "c1", "c2")
    for choice_id, call_id in (("q1", "c1"), ("q2", "c2"), ("q3", "c1")):
        await store.put_choice(THREAD, ask(choice_id, call_id))
    await store.remove_choice(THREAD, "q3")
    await store.stage_result(THREAD, result("c1"))
    assert await ids(store) == ["q2"]
    await store.remove_choice(THREAD, "q1")
    before = await seq(store)
    await write(store, 3, CommitResults(message_id="a", start=2, call_ids=("c1",)))
    assert [(change.part, change.choice) for change in await store.read_changes(THREAD, before)] == [
        (result("c1"), None)
    ]
    assert await ids(store) == ["q2"]
    assert [choice.id for choice in await told(store, 0) if choice] == ["q2"]
    await store.remove_choice(THREAD, "q1")
    assert await seq(store) == before + 1


async def test_a_batch_that_fails_leaves_the_questions(store: Store) -> None:
    """They go with the results of their calls, or not at all."""
    await with_calls(store, "c1", "c2")
    await store.put_choice(THREAD, ask("q"))
    group = CommitResults(message_id="a", start=2, call_ids=("c1", "c2"), results=(result("c1"),))
    with pytest.raises(Exception, match="without a result"):
        await write(store, 3, group)
    assert await ids(store) == ["q"]


async def test_questions_at_once_are_told_one_after_the_other(store: Store) -> None:
    """Each has a number of its own, and none is lost."""
    await with_calls(store, "c1")
    before = await seq(store)
    await asyncio.gather(*(store.put_choice(THREAD, ask(f"q{n}")) for n in range(8)))
    assert sorted(await ids(store)) == [f"q{n}" for n in range(8)]
    changes = await store.read_changes(THREAD, before)
    assert [change.seq for change in changes] == list(range(before + 1, before + 9))


@pytest.mark.parametrize("words", ["\x00\ud800", "'; drop table perdure.choices; --", "x" * 100_000, ""])
async def test_hostile_words_of_a_question(store: Store, words: str) -> None:
    """They come back as they were, in what waits and in what is told."""
    await with_calls(store, "c1")
    before = await seq(store)
    asked = ask("q", prompt=words).with_(choices=(words, "no"))
    await store.put_choice(THREAD, asked)
    assert await store.get_choices(THREAD) == (asked.with_(seq=before + 1),)
    assert await told(store, before) == [asked.with_(seq=before + 1)]


async def test_hostile_ids_of_questions(store: Store) -> None:
    """They are made by tool servers: any text names a question."""
    await with_calls(store, "c1")
    for choice_id in ("\x00", "'", "y" * 500):
        await store.put_choice(THREAD, ask(choice_id))
        assert await ids(store) == [choice_id]
        await store.remove_choice(THREAD, choice_id)
        assert await ids(store) == []
