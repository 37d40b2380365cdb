"""Statements about compaction, each test named after its number."""

import pytest

from perdure.batch import StoreLateResult
from perdure.messages import ToolCallPart
from perdure.turn_context import ContextMessage, ProviderContext, TurnContext
from perdure.view import SHORTENED_HEADING, SUMMARY_HEADING, Call, Request, Response, UserText, view
from tests.compaction.driven import Talk, agent, first_text
from tests.compaction.paths import RUNNING, call, result, text
from tests.perdure.view_rules import items, violations


async def turns(talk: Talk, count: int, start: int = 0) -> None:
    """Turns with a tool each."""
    for number in range(start, start + count):
        await talk.user(f"u{number}", f"question {number}")
        await talk.answer(f"a{number}", call(f"c{number}"), result(f"c{number}"), text(f"answer {number}", 1))


async def test_s21_words_that_come_when_the_prompt_was_replaced_are_stored() -> None:
    """A compaction and a `replace` alter what the model reads, and not what is stored or said next."""
    talk = await Talk.begin(agent())
    await turns(talk, 3)
    await talk.compact("a2")
    await talk.user("u3", "the next question")
    await talk.answer("a3", status=RUNNING)
    assert (await talk.ids())[-2:] == ["u3", "a3"]
    said = TurnContext(providers=(ProviderContext(source="p", replace=(ContextMessage(text="instead"),)),))
    seen = view(await talk.path(), said)
    assert [item.text for item in items(seen) if isinstance(item, UserText)] == ["instead", "the next question"]
    assert (await talk.summary()).covered > 0, "the summary is still there for the turn after that"


@pytest.mark.parametrize(("strategy", "heading"), [("summary", SUMMARY_HEADING), ("trace", SHORTENED_HEADING)])
async def test_s22_what_stands_for_the_rest_reaches_the_model(strategy: str, heading: str) -> None:
    """It stands on the user's side, where no client drops it, and before everything else."""
    talk = await Talk.begin(agent(strategy=strategy))
    await turns(talk, 3)
    await talk.compact("a2")
    seen = await talk.view()
    assert isinstance(seen[0], Request)
    assert heading in first_text(seen)
    assert "question 0" in "".join(item.text for item in seen[0].items if isinstance(item, UserText))


@pytest.mark.parametrize("strategy", ["summary", "trace", "window"])
async def test_s44_groups_are_kept_or_left_out_whole_and_the_newest_stays(strategy: str) -> None:
    """No call without its result, no result without its call, and the newest group is there however little is kept."""
    talk = await Talk.begin(agent(strategy=strategy, keep=0.01))
    await turns(talk, 5)
    assert (await talk.compact("a4")).outcome == "done"
    assert violations(await talk.view()) == []
    assert (await talk.kept())[-1] == "a4"
    newest = [item for item in items(await talk.view()) if not isinstance(item, UserText)]
    assert newest, "the last step of the turn stays"


async def test_s45_a_late_result_finds_its_call_though_a_summary_stands_for_it() -> None:
    """The group is whole again in what is stored; a summary that was being made of it without the result is void."""
    talk = await Talk.begin(agent())
    await talk.user("u0", "go")
    made_up = result("c0", "stopped").with_(outcome="interrupted")
    await talk.answer("a0", call("c0"), made_up, text("so", 1))
    await turns(talk, 2, start=1)
    before = await talk.path()
    await talk.compact("a2")
    summary = await talk.summary()
    late = result("c0", "the real result")
    await talk.sync(StoreLateResult(message_id="a0", result=late))
    whole = await talk.whole()
    stored = next(message for message in whole.messages if message.id == "a0")
    assert [part.kind for part in stored.parts] == ["tool_call", "tool_result", "text"]
    assert any(getattr(part, "content", "") == "the real result" for part in stored.parts)
    assert violations(view(whole)) == []
    assert violations(await talk.view()) == []
    outdated = summary.with_(id="other", shape=before.shape)
    assert not await talk.store.add_summary(outdated), "it was made of a path that is another one now"


async def test_s46_a_summariser_that_says_nothing_changes_nothing() -> None:
    """An empty answer, or one of blanks: the history is as it was. Telling after three is the thread's part."""
    for words in ("\n \t", ""):
        talk = await Talk.begin(agent([words]))
        await turns(talk, 3)
        before = await talk.view()
        assert (await talk.compact("a2")).outcome == "empty"
        assert await talk.view() == before
        assert (await talk.path()).summary is None
        await talk.activities.close()
        assert (await talk.store.get_thread("t")).usage.requests == 1, "it is paid for all the same"


async def test_s47_the_originals_stay_and_doing_it_again_changes_nothing() -> None:
    """All rows can be read; the summary names what it covers; the same compaction again is the same row."""
    talk = await Talk.begin(agent())
    await turns(talk, 4)
    before = await talk.whole()
    request = talk.request("a3")
    first = await talk.activities.execute(request)
    summary = await talk.summary()
    assert (await talk.whole()).messages == before.messages
    assert summary.message_id in {message.id for message in before.messages}
    assert summary.covered == len(before.messages) - len(await talk.kept())
    seen = await talk.view()
    asked = len(talk.summariser.requests)
    assert await talk.activities.execute(request) == first
    assert await talk.summary() == summary
    assert await talk.view() == seen
    assert len(talk.summariser.requests) == asked
    counts = await talk.store.get_message_counts("t")
    assert counts.total == len(before.messages)
    assert counts.visible == len(await talk.kept())


async def test_s48_a_compaction_sees_the_turn_that_has_just_finished() -> None:
    """It works on what is stored, whatever else is registered: nothing lags a turn behind."""
    talk = await Talk.begin(agent(keep=0.0))
    await turns(talk, 2)
    await talk.compact("a1")
    assert await talk.kept() == []
    assert "answer 1" in (await talk.summary()).text


def test_a_response_without_a_request_before_it_would_be_told() -> None:
    """Control of the rules that these tests rest on: a call without its result breaks them."""
    part = ToolCallPart(call_id="c", tool="t")
    assert violations((Response((Call(part.call_id, part.tool, "{}"),)),))
