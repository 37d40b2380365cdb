"""What becomes of an answer where an object is wanted, at its edges."""

from typing import Any

import pytest
from pydantic import BaseModel

from activities.complete import CompleteActivities
from perdure.agent import Agent, Agents
from perdure.messages import Part, ReasoningPart, TextPart, ToolCallPart
from perdure.output import FINAL_RESULT
from perdure.testing import Call, Reply, ScriptedModel, Think
from tests.activities.conversation import Conversation, requests_of


class Answer(BaseModel):
    """The answer."""

    number: int


GOOD = Call(FINAL_RESULT, '{"number": 42}')
BAD = Call(FINAL_RESULT, '{"number": "many"}')


async def asked(*script: Reply | str, **options: Any) -> Conversation:
    """A conversation in which a question was put to an agent that answers with a number."""
    agent = Agent("a", model=ScriptedModel(script), output=Answer, **options)

    @agent.tool
    async def look() -> str:
        return "seen"

    thread = await Conversation.start(agent)
    await thread.say("How many?")
    return thread


def texts(parts: tuple[Part, ...]) -> list[str]:
    """The words among the parts."""
    return [part.text for part in parts if isinstance(part, TextPart)]


async def test_the_tool_is_the_last_one_on_offer() -> None:
    """Also with tools of a provider or a server after the agent's own; words are not allowed."""
    thread = await asked(Reply(GOOD))
    await thread.complete()
    (request,) = requests_of(thread.agent).requests
    assert request.tools[0] == "look"
    assert request.tools[-1] == FINAL_RESULT
    assert not request.parameters.allow_text_output


async def test_an_agent_without_output_is_offered_no_such_tool() -> None:
    """The control: a call of it is a call of a tool that is not there."""
    thread = await Conversation.start(Agent("a", model=ScriptedModel([Reply(GOOD)])))
    await thread.say("go")
    (call,) = (await thread.complete()).calls
    assert "There is no tool 'final_result'" in (call.error or "")
    assert FINAL_RESULT not in requests_of(thread.agent).requests[0].tools


async def test_of_several_answers_the_first_that_fits_counts() -> None:
    """The others go, as do words beside them; the thought stays to be read."""
    other = Call(FINAL_RESULT, '{"number": 7}')
    thread = await asked(Reply(Think("hm", "sig"), "Well:", BAD, GOOD, other))
    outcome = await thread.complete()
    await thread.commit(outcome)
    assert (outcome.finish, outcome.preview, outcome.parts) == ("stop", '{"number": 42}', 2)
    assert await thread.parts() == (ReasoningPart(text="hm"), TextPart(text='{"number": 42}'))


@pytest.mark.parametrize("calls", [(Call(FINAL_RESULT, '{"number": 4'),), (GOOD, Call(FINAL_RESULT, '{"num'))])
async def test_b31_an_answer_that_was_cut_off_gets_one_more_round(calls: tuple[Call, ...]) -> None:
    """B31: whatever of it could be read does not count; after a second time in a row the turn is `length`."""
    thread = await asked(Reply(*calls, finish="length"), Reply(*calls, finish="length"))
    outcome = await thread.complete()
    assert outcome.finish == "tool_calls"
    assert all("cut off" in (call.error or "") for call in outcome.calls)
    await thread.commit(outcome)
    assert (await thread.complete()).finish == "length"


async def test_words_that_were_cut_off_are_not_asked_for_again() -> None:
    """With the same limit they would only be cut off again."""
    thread = await asked(Reply("Once upon a", finish="length"))
    assert (await thread.complete()).finish == "length"


async def test_a_filtered_answer_is_none() -> None:
    """An object that the filter has met does not count, be it whole or not."""
    thread = await asked(Reply("I", GOOD, finish="content_filter"))
    outcome = await thread.complete()
    await thread.commit(outcome)
    assert outcome.finish == "content_filter"
    assert texts(await thread.parts()) == ["I"]


async def test_a_blank_answer_is_asked_for_again() -> None:
    """Nothing at all is no object; the model reads that it has to call the tool."""
    thread = await asked(Reply(), Reply(GOOD))
    outcome = await thread.complete()
    assert outcome.finish == "tool_calls"
    await thread.commit(outcome)
    (call,) = [part for part in await thread.parts() if isinstance(part, ToolCallPart)]
    assert call.tool == FINAL_RESULT
    assert (await thread.complete()).finish == "stop"
    assert FINAL_RESULT in requests_of(thread.agent).requests[1].results[0]


async def test_rounds_after_tools_keep_their_calls_apart() -> None:
    """The call that was made up for words stands in its own step, after those of tools, under an id of its own."""
    thread = await asked(Reply(Call("look")), "Many.", Reply(GOOD))
    await thread.commit(await thread.complete(), "seen")
    await thread.commit(await thread.complete())
    calls = [part for part in await thread.parts() if isinstance(part, ToolCallPart)]
    assert [(call.tool, call.step) for call in calls] == [("look", 0), (FINAL_RESULT, 1)]
    assert calls[0].call_id != calls[1].call_id
    await thread.commit(await thread.complete())
    assert texts(await thread.parts()) == ["Many.", '{"number": 42}']


NEVER = "The answer did not fit Answer three times in a row: "


async def rounds(thread: Conversation, count: int) -> None:
    """So many steps that become history, each of which gives the model another round."""
    for _ in range(count):
        outcome = await thread.complete()
        assert outcome.finish == "tool_calls"
        await thread.commit(outcome, *["seen"] * sum(call.error is None for call in outcome.calls))


@pytest.mark.parametrize(
    ("last", "why"),
    [
        (BAD, "number: Input should be a valid integer, unable to parse string as an integer."),
        (Call(FINAL_RESULT, "{"), "not a JSON object"),
        ("Many.", "it came as words alone."),
    ],
)
async def test_after_three_answers_that_do_not_fit_the_turn_ends(last: Call | str, why: str) -> None:
    """Whatever they came as, it says what was wrong with the last one; the words beside it stay, the call does not."""
    thread = await asked(Reply(BAD), "Words.", Reply("Well.", *([last])), Reply(GOOD))
    await rounds(thread, 2)
    outcome = await thread.complete()
    assert (outcome.finish, outcome.calls) == ("error", ())
    assert (outcome.detail or "").startswith(NEVER)
    assert why in (outcome.detail or "")
    assert outcome.usage.requests == 1
    await thread.commit(outcome)
    assert "Well." in "".join(texts(await thread.parts()))
    assert len(requests_of(thread.agent).requests) == 3


async def test_the_third_answer_still_counts() -> None:
    """The control: one that fits ends the turn as any other."""
    thread = await asked(Reply(BAD), Reply(BAD), Reply(GOOD))
    await rounds(thread, 2)
    outcome = await thread.complete()
    assert (outcome.finish, outcome.preview) == ("stop", '{"number": 42}')


async def test_only_answers_in_a_row_are_counted() -> None:
    """A step with calls of tools begins anew, also one that has an answer too; so does another turn."""
    look = Call("look")
    thread = await asked(Reply(BAD), Reply(BAD), Reply(look), Reply(BAD), Reply(BAD, look), *[Reply(BAD)] * 5)
    await rounds(thread, 7)
    outcome = await thread.complete()
    assert outcome.finish == "error"
    await thread.commit(outcome)
    await thread.say("And now?")
    await rounds(thread, 2)


async def test_another_worker_and_a_retry_count_the_same() -> None:
    """What is counted stands in the thread, and a step that is done is not counted again."""
    thread = await asked(*[Reply(BAD)] * 3)
    await rounds(thread, 2)
    thread.activities = CompleteActivities(thread.store, Agents([thread.agent]))
    first = await thread.complete(1)
    second = await thread.complete(2)
    assert (first.finish, first.detail) == (second.finish, second.detail)
    assert second.finish == "error"
    assert len(requests_of(thread.agent).requests) == 3


async def test_the_model_reads_what_is_wrong_and_where() -> None:
    """In words: neither what it gave, which it knows, nor the library that found it."""
    thread = await asked(Reply(BAD), Reply(GOOD))
    await rounds(thread, 1)
    await thread.complete()
    (told,) = requests_of(thread.agent).requests[1].results
    assert told == "number: Input should be a valid integer, unable to parse string as an integer"


async def test_a_retry_returns_the_answer_without_asking() -> None:
    """The step is done: its stored parts are the answer."""
    thread = await asked(Reply(GOOD))
    first = await thread.complete(1)
    second = await thread.complete(2)
    assert (second.finish, second.preview, second.calls) == (first.finish, first.preview, ())
    assert len(requests_of(thread.agent).requests) == 1
