"""Structured output with each provider: the tool that the model answers with, on the wire and in the thread."""

import json
from typing import Any

from pydantic import BaseModel, Field

from perdure.agent import Agent
from perdure.messages import ReasoningPart, TextPart
from perdure.output import FINAL_RESULT
from tests.providers.conftest import Talks
from tests.providers.dialect import Call, Dialect, Reply, Thought


class Forecast(BaseModel):
    """A forecast."""

    city: str
    degrees: float = Field(ge=-90, le=60)


GOOD = '{"city": "Paris", "degrees": 21.5}'
BAD = '{"city": "Paris", "degrees": 451}'


async def test_the_answer_is_a_checked_object(talks: Talks, dialect: Dialect) -> None:
    """The tool is offered last, the model must call one, and what it gives is the answer, without words."""
    # Newer models cannot be made to call a tool, since they think unasked.
    older = "anthropic:claude-sonnet-4-6" if dialect.name == "anthropic" else None
    reply = Reply("Here it is:", calls=[Call("f", FINAL_RESULT, GOOD)])
    talk = await talks(dialect, reply, output=Forecast, model=older)
    await talk.thread.say("Weather?")
    outcome = await talk.thread.complete()
    assert (outcome.finish, outcome.calls) == ("stop", ())
    (request,) = talk.server.requests
    assert dialect.tools(request)[:2] == ["weather", "clock"]
    assert dialect.tools(request)[-1] == FINAL_RESULT
    assert dialect.must_call(request)
    await talk.thread.commit(outcome)
    (answer,) = await talk.thread.parts()
    assert isinstance(answer, TextPart)
    assert json.loads(answer.text) == json.loads(GOOD)
    assert _value(talk.thread.agent, answer) == Forecast(city="Paris", degrees=21.5)


async def test_what_does_not_fit_is_said_and_asked_for_again(talks: Talks, dialect: Dialect) -> None:
    """The model reads why, and its next try counts; the turn ends with that."""
    talk = await talks(
        dialect,
        Reply(calls=[Call("f", FINAL_RESULT, BAD)], number=1),
        Reply(calls=[Call("g", FINAL_RESULT, GOOD)], number=2),
        output=Forecast,
    )
    await talk.thread.say("Weather?")
    refused = await talk.thread.complete()
    assert refused.finish == "tool_calls"
    await talk.thread.commit(refused)
    assert (await talk.thread.complete()).finish == "stop"
    (said,) = dialect.results(talk.server.requests[1])
    assert "degrees" in said
    assert "60" in said


async def test_tools_run_before_the_answer_counts(talks: Talks, dialect: Dialect) -> None:
    """What comes beside calls of tools was said without their results: these run, and the model answers again."""
    calls = [Call("f", FINAL_RESULT, GOOD), Call("c", "clock", "{}")]
    talk = await talks(
        dialect,
        Reply(calls=calls, number=1),
        Reply(calls=[Call("g", FINAL_RESULT, GOOD)], number=2),
        output=Forecast,
    )
    await talk.thread.say("Weather?")
    both = await talk.thread.complete()
    assert [(call.tool, call.error is None) for call in both.calls] == [(FINAL_RESULT, False), ("clock", True)]
    await talk.thread.commit(both, "noon")
    assert (await talk.thread.complete()).finish == "stop"
    first, second = dialect.results(talk.server.requests[1])
    assert "other calls" in first
    assert second == "noon"


async def test_words_are_asked_for_again(talks: Talks, dialect: Dialect) -> None:
    """Where a provider cannot be made to call a tool, words that are no answer get another round."""
    talk = await talks(
        dialect, Reply("Warm.", number=1), Reply(calls=[Call("g", FINAL_RESULT, GOOD)], number=2), output=Forecast
    )
    await talk.thread.say("Weather?")
    words = await talk.thread.complete()
    assert words.finish == "tool_calls"
    await talk.thread.commit(words)
    assert (await talk.thread.complete()).finish == "stop"
    (said,) = dialect.results(talk.server.requests[1])
    assert FINAL_RESULT in said


async def test_words_that_are_the_answer_are_taken(talks: Talks, dialect: Dialect) -> None:
    """An object as text is as good as one in a call."""
    talk = await talks(dialect, Reply(GOOD), output=Forecast)
    await talk.thread.say("Weather?")
    outcome = await talk.thread.complete()
    assert (outcome.finish, outcome.calls) == ("stop", ())


async def test_b47_a_thought_does_not_go_back_without_its_call(talks: Talks, dialect: Dialect) -> None:
    """B47: the answer takes the place of its call, so the thought before it is there to be read and not sent again."""
    talk = await talks(
        dialect,
        Reply(thoughts=[Thought("Hm.", "c2ln")], calls=[Call("f", FINAL_RESULT, GOOD)], number=1),
        Reply(calls=[Call("g", FINAL_RESULT, GOOD)], number=2),
        output=Forecast,
        settings={"thinking": "high"},
    )
    await talk.thread.say("Weather?")
    await talk.thread.commit(await talk.thread.complete())
    thought, answer = await talk.thread.parts()
    assert isinstance(thought, ReasoningPart)
    assert (thought.text, thought.signature) == ("Hm.", None)
    assert isinstance(answer, TextPart)
    await talk.thread.say("And tomorrow?")
    assert (await talk.thread.complete()).finish == "stop"
    second = talk.server.requests[1]
    assert dialect.thoughts(second) == []
    assert dialect.calls(second) == []
    assert json.dumps(answer.text)[1:-1].encode() in second.body


async def test_a_json_schema_will_do(talks: Talks, dialect: Dialect) -> None:
    """An output declared as a schema is checked by it and read as a dict."""
    schema = {"type": "object", "properties": {"answer": {"type": "integer"}}, "required": ["answer"]}
    talk = await talks(
        dialect,
        Reply(calls=[Call("f", FINAL_RESULT, '{"answer": "x"}')], number=1),
        Reply(calls=[Call("g", FINAL_RESULT, '{"answer": 42}')], number=2),
        output=schema,
    )
    await talk.thread.say("The question?")
    await talk.thread.commit(await talk.thread.complete())
    outcome = await talk.thread.complete()
    await talk.thread.commit(outcome)
    answer = (await talk.thread.parts())[-1]
    assert isinstance(answer, TextPart)
    assert _value(talk.thread.agent, answer) == {"answer": 42}


def _value(agent: Agent, answer: TextPart) -> Any:
    assert agent.output is not None
    return agent.output.value(answer.text)
