"""Calls of an answer that must not run."""

import pytest
from pydantic_ai.messages import ModelResponse
from pydantic_ai.messages import ToolCallPart as WireCall

from activities.model_calls import CUT_OFF
from perdure.limits import Limits
from perdure.testing import Call, Reply
from tests.activities.conversation import Conversation, requests_of, scripted, with_write


@pytest.mark.parametrize("hint", ["stop reason", "token count"])
async def test_b31_a_call_cut_off_by_the_output_limit_is_refused_and_the_model_asked_once_more(hint: str) -> None:
    """B31: the complete call may run, the cut one carries an error; a second cut in a row ends the turn."""
    by_reason = hint == "stop reason"
    cut = Reply(Call("read", {}), Call("write", '{"path":"a.txt"'), finish="length" if by_reason else None)
    settings = {} if by_reason else {"max_tokens": 5}
    thread = await Conversation.start(with_write(scripted([cut, cut], settings=settings)))
    await thread.say("write it")
    outlined = await thread.complete()
    assert [call.error is None for call in outlined.calls] == [True, False]
    assert (outlined.calls[1].error or "").startswith(CUT_OFF)
    assert outlined.finish == "tool_calls"
    await thread.commit(outlined, "read it")
    second = await thread.complete()
    assert (second.finish, second.calls) == ("length", ())
    model = requests_of(thread.agent)
    sent = [message for message in model.requests[1].messages if isinstance(message, ModelResponse)]
    assert [part.args for part in sent[0].parts if isinstance(part, WireCall)] == ["{}", "{}"]
    assert "cut off" in model.requests[1].results[1]


async def test_b31_the_last_call_of_a_cut_answer_does_not_run_even_if_it_parses() -> None:
    """B31: `{}` may be what is left of longer arguments."""
    thread = await Conversation.start(with_write(scripted([Reply(Call("read", {}), finish="length"), "ok"])))
    await thread.say("go")
    assert (await thread.complete()).calls[0].error is not None


async def test_b31_words_after_the_calls_mean_that_the_calls_are_whole() -> None:
    """B31, the control: an answer that was cut off in its words leaves its calls alone."""
    reply = Reply(Call("read", {}), "and then I", finish="length")
    thread = await Conversation.start(with_write(scripted([reply, "ok"])))
    await thread.say("go")
    outlined = await thread.complete()
    assert [call.error for call in outlined.calls] == [None]
    assert outlined.finish == "tool_calls"


@pytest.mark.parametrize(
    ("call", "sentence"),
    [
        (Call("nobody", {}), "There is no tool 'nobody'. The tools are: write, read, read_result."),
        (Call("write", "[1]"), "not a JSON object"),
        (Call("write", '{"path":NaN}'), "not a JSON object"),
        (Call("write", '{"path":'), "not a JSON object"),
        (Call("write", {"path": 7}), "path"),
        (Call("write", {}), "path"),
        (Call("read", {"more": 1}), "more"),
    ],
)
async def test_a_call_that_cannot_run_gets_a_sentence_for_the_model(call: Call, sentence: str) -> None:
    """Unknown tools, arguments that are no object, arguments that do not fit: an error, and another round."""
    thread = await Conversation.start(with_write(scripted([Reply(call), "sorry"])))
    await thread.say("go")
    outlined = await thread.complete()
    assert outlined.finish == "tool_calls"
    assert sentence in (outlined.calls[0].error or "")
    await thread.commit(outlined)
    assert (await thread.complete()).preview == "sorry"
    assert sentence in requests_of(thread.agent).requests[1].results[0]


async def test_empty_arguments_are_an_empty_object() -> None:
    """Some models write nothing at all for a tool without parameters."""
    thread = await Conversation.start(with_write(scripted([Reply(Call("read", "")), "ok"])))
    await thread.say("go")
    assert (await thread.complete()).calls[0].error is None


async def test_more_calls_than_allowed_are_refused() -> None:
    """Of many parallel calls only as many run as the agent's limits allow."""
    reply = Reply(*(Call("read", {}) for _ in range(4)))
    thread = await Conversation.start(with_write(scripted([reply], limits=Limits(parallel_calls=2))))
    await thread.say("go")
    assert [call.error is None for call in (await thread.complete()).calls] == [True, True, False, False]


async def test_a_filtered_answer_runs_no_call() -> None:
    """A content filter ends the turn with what was said."""
    reply = Reply("I will", Call("read", {}), finish="content_filter")
    thread = await Conversation.start(with_write(scripted([reply])))
    await thread.say("go")
    outlined = await thread.complete()
    assert (outlined.finish, outlined.calls, outlined.parts) == ("content_filter", (), 1)
