"""The scripted model that is shipped for tests and demos."""

import asyncio
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from pydantic_ai.direct import model_request, model_request_stream
from pydantic_ai.exceptions import ModelConnectionError, ModelHTTPError, ModelRateLimitError
from pydantic_ai.messages import (
    ModelMessage,
    ModelRequest,
    ModelResponse,
    PartDeltaEvent,
    TextPart,
    ThinkingPart,
    ToolCallPart,
    ToolReturnPart,
)

from perdure.errors import UsageError
from perdure.messages import Usage
from perdure.testing import Asked, Call, Failure, Reply, ScriptedModel, Think
from perdure.view import EVENT_TOOL


def said(text: str) -> ModelRequest:
    """Words of the user."""
    return ModelRequest.user_text_prompt(text)


async def answer(model: ScriptedModel, messages: Sequence[ModelMessage]) -> ModelResponse:
    """The response, streamed to its end."""
    async with model_request_stream(model, messages) as stream:
        async for _ in stream:
            pass
        return stream.get()


async def test_replies_come_in_the_order_of_the_script() -> None:
    """The number of answers in the request says which reply is next, also for a new object in another process."""
    script = ["one", "two", "three"]
    messages: list[ModelMessage] = []
    for expected in script:
        messages.append(said("next"))
        response = await answer(ScriptedModel(script), messages)
        assert response.text == expected
        messages.append(response)


async def test_the_same_request_gets_the_same_reply() -> None:
    """Asking again does not move the script on."""
    model = ScriptedModel(["one", "two"])
    assert [(await answer(model, [said("hi")])).text for _ in range(3)] == ["one"] * 3
    assert len(model.requests) == 3


async def test_injected_events_do_not_count_as_answers() -> None:
    """An event in the conversation is no answer of the model."""
    injected = ModelResponse(parts=[ToolCallPart(EVENT_TOOL, "{}", "e")])
    result = ModelRequest(parts=[ToolReturnPart(tool_name=EVENT_TOOL, content="rain", tool_call_id="e")])
    model = ScriptedModel(["one"])
    assert (await answer(model, [said("hi"), injected, result])).text == "one"
    assert model.requests[0].results == ("rain",)


async def test_the_end_of_the_script_is_told() -> None:
    """One request too many is an error that says so."""
    with pytest.raises(UsageError, match="ends after 1 replies"):
        await answer(ScriptedModel(["one"]), [said("hi"), ModelResponse(parts=[TextPart("one")]), said("more")])


async def test_a_function_chooses_by_what_was_asked() -> None:
    """A script may look at the request."""

    def script(asked: Asked) -> str:
        return f"{asked.answered}: {asked.user_text}"

    assert (await answer(ScriptedModel(script), [said("a"), said("b")])).text == "0: b"


async def test_items_stream_in_order_and_in_chunks() -> None:
    """Thought, words and calls keep their order; the pieces are as long as the reply says and join to the whole."""
    reply = Reply(Think("because", "sig"), "some words", Call("f", {"x": 1}, id="p1"), chunk_chars=4)
    deltas = 0
    async with model_request_stream(ScriptedModel([reply]), [said("hi")]) as stream:
        async for event in stream:
            deltas += isinstance(event, PartDeltaEvent)
        response = stream.get()
    assert deltas >= 5
    thought, words, call = response.parts
    assert isinstance(thought, ThinkingPart)
    assert (thought.content, thought.signature, thought.provider_name) == ("because", "sig", "scripted")
    assert isinstance(words, TextPart)
    assert words.content == "some words"
    assert isinstance(call, ToolCallPart)
    assert (call.tool_name, call.args, call.tool_call_id) == ("f", '{"x": 1}', "p1")
    assert response.finish_reason == "tool_call"


async def test_arguments_given_as_text_go_out_as_they_are() -> None:
    """Half of a JSON text stays half of a JSON text."""
    response = await answer(ScriptedModel([Reply(Call("f", '{"x":'), finish="length")]), [said("hi")])
    assert isinstance(response.parts[0], ToolCallPart)
    assert response.parts[0].args == '{"x":'
    assert response.finish_reason == "length"


async def test_usage_is_estimated_or_given() -> None:
    """Token counts are there in any case."""
    estimated = await answer(ScriptedModel(["four words of text"]), [said("hi")])
    assert estimated.usage.output_tokens > 0
    assert estimated.usage.input_tokens > 0
    given = Reply("x", usage=Usage(input_tokens=7, output_tokens=9, cached_tokens=3))
    usage = (await answer(ScriptedModel([given]), [said("hi")])).usage
    assert (usage.input_tokens, usage.output_tokens, usage.cache_read_tokens) == (7, 9, 3)


async def test_the_first_attempts_fail_as_told() -> None:
    """One failure an attempt, each as a provider's client would raise it; then the reply."""
    failures = [Failure(429, retry_after_s=2.0), Failure(None), Failure(500, after_chunks=1)]
    model = ScriptedModel([Reply("fine", chunk_chars=1, failures=failures)])
    with pytest.raises(ModelRateLimitError) as limited:
        await answer(model, [said("hi")])
    assert limited.value.retry_after == 2.0
    with pytest.raises(ModelConnectionError):
        await answer(model, [said("hi")])
    with pytest.raises(ModelHTTPError) as broken:
        await answer(model, [said("hi")])
    assert broken.value.in_stream
    assert (await answer(model, [said("hi")])).text == "fine"


async def test_attempts_are_counted_across_processes(tmp_path: Path) -> None:
    """With a folder, an attempt that another process made counts; without, it does not."""

    def model(**options: Any) -> ScriptedModel:
        return ScriptedModel([Reply("fine", failures=[Failure(500)])], **options)

    with pytest.raises(ModelHTTPError):
        await answer(model(state_dir=tmp_path), [said("hi")])
    assert (await answer(model(state_dir=tmp_path), [said("hi")])).text == "fine"
    with pytest.raises(ModelHTTPError):
        await answer(model(), [said("hi")])


async def test_a_hanging_reply_waits_until_it_is_cancelled() -> None:
    """After its last chunk it says nothing more, and a cancellation ends it at once."""
    running = asyncio.create_task(answer(ScriptedModel([Reply("a", hang=True)]), [said("hi")]))
    done, _ = await asyncio.wait({running}, timeout=0.1)
    assert not done
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running


async def test_it_answers_without_streaming_too() -> None:
    """The plain request gives the same response."""
    assert (await model_request(ScriptedModel(["one"]), [said("hi")])).text == "one"
