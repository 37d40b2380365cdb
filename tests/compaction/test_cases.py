"""Cases from bug reports about compaction, over the activity and a store."""

import asyncio

import pytest

from perdure.messages import FileRef, Status, ToolResultPart
from perdure.summary_plan import MIN_SUMMARY_CHARS
from perdure.summary_text import body
from perdure.testing import Asked
from perdure.view import SUMMARY_HEADING, ModelText, Request, Result, UserText
from tests.compaction.driven import Held, Talk, agent, asked, earlier_of, first_text, piece_of
from tests.compaction.paths import RUNNING, call, result, text
from tests.perdure.view_rules import items, violations


async def abc(talk: Talk) -> None:
    """The conversation of case B02."""
    await talk.user("a", "the first words " + "x" * 100)
    await talk.answer("b", "b" * 10)
    await talk.user("c", "c" * 10)
    await talk.answer("r", status=RUNNING)


async def test_b02_what_is_stored_while_a_compaction_runs_stays() -> None:
    """Words that come while the summariser works are there once, after what the summary stands for."""
    held = Held()
    talk = await Talk.begin(agent(model=held.model, keep=0.5))
    await abc(talk)
    compacting = asyncio.create_task(talk.compact("c"))
    await held.reached.wait()
    await talk.extend("r", 0, text("answer"))
    await talk.user("d", "d")
    held.release.set()
    assert (await compacting).outcome == "done"
    assert await talk.ids() == ["a", "b", "c", "r", "d"]
    assert await talk.kept() == ["b", "c", "r", "d"]
    seen = await talk.view()
    assert violations(seen) == []
    assert SUMMARY_HEADING in first_text(seen)
    assert "the first words" in first_text(seen)
    said = [item.text for item in items(seen) if isinstance(item, UserText | ModelText)]
    assert said[1:] == ["b" * 10, "c" * 10, "answer", "d"]


async def test_b02_a_worker_that_dies_before_the_summary_is_stored_changes_nothing() -> None:
    """No summary, the same conversation; the next try brings one, and a third finds it without asking the model."""
    held = Held()
    talk = await Talk.begin(agent(model=held.model, keep=0.5))
    await abc(talk)
    request = talk.request("c")
    dying = asyncio.create_task(talk.activities.execute(request))
    await held.reached.wait()
    dying.cancel()
    await asyncio.wait({dying})
    path = await talk.path()
    assert path.summary is None
    assert [message.id for message in path.messages] == ["a", "b", "c", "r"]
    held.release.set()
    first = await talk.activities.execute(request, 2)
    assert first.outcome == "done"
    assert await talk.kept() == ["b", "c", "r"]
    asked_so_far = len(held.model.requests)
    assert await talk.activities.execute(request, 3) == first
    assert len(held.model.requests) == asked_so_far
    await talk.activities.close()
    assert (await talk.store.get_thread("t")).usage.requests == 2, "the try that was cut off is paid for too"


@pytest.mark.parametrize("strategy", ["summary", "trace", "window"])
@pytest.mark.parametrize("keep", [0.0, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7])
async def test_b13_no_budget_and_no_strategy_cuts_a_tool_group(strategy: str, keep: float) -> None:
    """Whatever is kept, the view is valid, what stays is a suffix, and the words beside a result are not lost."""
    talk = await Talk.begin(agent(strategy=strategy, keep=keep))
    await talk.user("U1", "one")
    await talk.answer("A1", call("c1"), call("c2"), result("c1"), result("c2"), text("mid", 1))
    await talk.user("U2", "two")
    await talk.answer("A2", call("c3"))
    await talk.user("U3", result("c3"), "also do Z")
    await talk.answer("A3", "end")
    await talk.user("U4", "four")
    await talk.answer("A4", call("c4"), status=RUNNING)
    assert (await talk.compact("A4")).outcome == "done"
    kept = await talk.kept()
    assert kept == (await talk.ids())[-len(kept) :]
    assert kept[-2:] == ["U4", "A4"]
    seen = await talk.view()
    assert violations(seen) == []
    shown = [item.text for item in items(seen) if isinstance(item, UserText)]
    read = [asked(request) for request in talk.summariser.requests]
    if strategy != "window":
        assert any("also do Z" in words for words in (*shown, *read))
    answered = [item for item in items(seen) if isinstance(item, Result) and item.call_id == "c4"]
    assert [item.outcome for item in answered] == ["cancelled"], "as ever for a call that is open when a view is made"
    assert not any(isinstance(part, ToolResultPart) for part in (await talk.whole()).messages[-1].parts)


async def test_b27_every_compaction_stands_on_the_one_before() -> None:
    """Five rounds: the summariser reads the summary so far once and what came since; nothing is forgotten or nested."""
    talk = await Talk.begin(agent(keep=0.1, at=0.9))
    number = 0
    covered_before: list[str] = []
    for compaction in range(1, 6):
        for _ in range(20):
            number += 1
            words = "F1" if number == 3 else f"m{number}"
            await (talk.user if number % 2 else talk.answer)(f"m{number}", words)
        before = (await talk.path()).summary
        result_ = await talk.compact(f"m{number}")
        assert result_.outcome == "done"
        summary, kept, whole = await talk.summary(), await talk.kept(), await talk.ids()
        assert summary.previous_id == (before.id if before else None)
        covered = whole[: len(whole) - len(kept)]
        assert whole == covered + kept
        assert len(covered) > len(covered_before)
        read = asked(talk.summariser.requests[-1])
        assert earlier_of(read) == (body(before.text) if before else "")
        since = [line.partition(": ")[2] for line in piece_of(read).split("\n")]
        assert since == ["F1" if name == "m3" else name for name in covered[len(covered_before) :]]
        assert body(summary.text).split("+") == ["F1" if name == "m3" else name for name in covered]
        assert f"stands for {len(covered)} messages" in summary.text
        assert summary.text.count('The first words of the user: "m1"') == 1
        seen = await talk.view()
        assert first_text(seen).count(SUMMARY_HEADING) == 1
        assert len(items(seen)) == 1 + len(kept)
        assert len(talk.summariser.requests) == compaction
        covered_before = covered


@pytest.mark.parametrize("strategy", ["trace", "window"])
async def test_b27_other_strategies_count_on_too(strategy: str) -> None:
    """What was left out is counted over all rounds, and the first words are quoted once."""
    talk = await Talk.begin(agent(strategy=strategy, keep=0.1))
    for compaction in range(1, 4):
        for number in range(10):
            await (talk.answer if number % 2 else talk.user)(f"m{compaction}-{number}", f"<{compaction}-{number}>")
        assert (await talk.compact(f"m{compaction}-9")).outcome == "done"
        summary = await talk.summary()
        left_out = len(await talk.ids()) - len(await talk.kept())
        assert f"stands for {left_out} messages" in summary.text
        assert summary.text.count('The first words of the user: "<1-0>"') == 1
        if strategy == "trace":
            shown = [item.text for item in items(await talk.view()) if isinstance(item, UserText | ModelText)]
            assert [shown.count(f"<{one}-{number}>") for one in range(1, compaction + 1) for number in range(10)] == (
                [1] * 10 * compaction
            )
    assert talk.summariser.requests == []


async def test_b39_the_start_of_the_prompt_changes_at_a_compaction_only() -> None:
    """What the model reads before a turn is the beginning of what it reads before the next, but for the compaction."""
    talk = await Talk.begin(agent(keep=0.3))
    broken: list[int] = []
    last: list[object] = []
    for number in range(10):
        await talk.user(f"u{number}", f"question {number}")
        await talk.answer(f"a{number}", call(f"c{number}"), result(f"c{number}", "r" * 2_000), text("ok", 1))
        if number == 5:
            await talk.compact("a5")
        seen: list[object] = [item for message in await talk.view() for item in message.items]
        if seen[: len(last)] != last:
            broken.append(number)
        last = seen
    assert broken == [5]


async def test_b54_no_image_and_no_more_than_fits_goes_to_the_summariser() -> None:
    """42 results with images of 0.8 MB: every request of the summariser is small, and the thread goes on."""
    talk = await Talk.begin(agent(context_window=8_000))
    for number in range(42):
        await talk.user(f"u{number}", f"look {number}")
        image = FileRef(media_type="image/png", blob=f"b{number}", size_bytes=800_000)
        shot = result(f"c{number}", "x" * 2_000).with_(files=(image,))
        await talk.answer(f"a{number}", call(f"c{number}"), shot, text("seen", 1))
    await talk.user("last", "status?")
    assert (await talk.compact("a41", forced=False)).outcome == "done"
    assert len(talk.summariser.requests) > 1, "it does not fit into one request, so it goes in pieces"
    for request in talk.summariser.requests:
        assert len(asked(request)) < 8_000 * 4
    assert first_text(await talk.view()).count("look 0") >= 1
    assert (await talk.ids())[-1] == (await talk.kept())[-1] == "last"
    assert violations(await talk.view()) == []


def rambling(request: Asked) -> str:
    """A summariser that does not keep to its limit."""
    return "blah " * 100_000


async def test_a_summary_that_is_too_long_is_cut_off() -> None:
    """A summariser that does not keep to its limit cannot make the conversation longer than it was."""
    talk = await Talk.begin(agent(rambling))
    await talk.user("u", "x" * 10_000)
    await talk.answer("a", "y")
    await talk.user("u2", "z")
    await talk.answer("a2", "w", status=Status())
    assert (await talk.compact("a2")).outcome == "done"
    assert len(body((await talk.summary()).text)) < MIN_SUMMARY_CHARS + 2_000


async def test_views_begin_with_words_of_the_users_side() -> None:
    """A summary stands on the user's side, and what follows it may be an answer."""
    talk = await Talk.begin(agent(keep=0.3))
    await abc(talk)
    await talk.compact("c")
    assert isinstance((await talk.view())[0], Request)
