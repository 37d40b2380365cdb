"""What a model call cost, by the answer that came of it."""

from decimal import Decimal
from typing import Any

import pytest
from pydantic_ai.messages import (
    BinaryContent,
    ModelMessage,
    ModelRequest,
    ModelResponse,
    TextPart,
    ThinkingPart,
    ToolCallPart,
    ToolReturnPart,
    UserPromptPart,
)
from pydantic_ai.models.fallback import FallbackModel
from pydantic_ai.models.openai import OpenAIChatModel
from pydantic_ai.providers.openai import OpenAIProvider
from pydantic_ai.usage import RequestUsage

from activities.prices import has_price, usage_of, usage_of_unanswered
from perdure.limits import Price
from perdure.messages import Usage
from perdure.testing import ScriptedModel

OWN = Price(input=2, output=8, cached_input=1)


def response(*parts: Any, state: Any = "complete", model: str | None = "gpt-5", **usage: Any) -> ModelResponse:
    """An answer of OpenAI's."""
    return ModelResponse(
        parts=list(parts),
        model_name=model,
        provider_name="openai",
        provider_url="https://api.openai.com/v1/",
        usage=RequestUsage(**usage),
        state=state,
    )


def openai(name: str) -> OpenAIChatModel:
    """A model of OpenAI's, which nobody asks."""
    return OpenAIChatModel(name, provider=OpenAIProvider(api_key="none"))


def test_the_price_is_that_of_the_list_in_whole_billionths() -> None:
    """1.25 dollars for a million tokens in, a tenth of that for cached ones, 10 for those out."""
    answer = response(TextPart("hi"), input_tokens=1_000, output_tokens=500, cache_read_tokens=100)
    assert usage_of(answer, None) == Usage(
        requests=1, input_tokens=1_000, output_tokens=500, cached_tokens=100, nano_usd=6_137_500
    )


def test_the_agents_own_price_goes_before_the_list() -> None:
    """Whoever states a price pays that one."""
    answer = response(input_tokens=1_000, output_tokens=500, cache_read_tokens=100)
    assert usage_of(answer, OWN).nano_usd == 900 * 2_000 + 100 * 1_000 + 500 * 8_000
    assert usage_of(response(model="unheard-of", input_tokens=1), OWN) == Usage(
        requests=1, input_tokens=1, nano_usd=2_000
    )


@pytest.mark.parametrize(
    "answer",
    [
        response(model="unheard-of", input_tokens=10, output_tokens=2),
        response(model=None, input_tokens=10, output_tokens=2),
        response(input_tokens=10, output_tokens=2, cache_read_tokens=11),
    ],
    ids=["no such model", "no name", "counts that contradict each other"],
)
def test_what_nobody_can_price_is_counted_as_unpriced(answer: ModelResponse) -> None:
    """Tokens count, money does not, and the sum says that something is lacking."""
    usage = usage_of(answer, None)
    assert (usage.requests, usage.input_tokens, usage.nano_usd, usage.unpriced) == (1, 10, 0, 1)


def test_a_list_that_breaks_costs_no_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    """The answer has been paid for; the record says that its price is lacking."""

    def broken(_: ModelResponse) -> None:
        raise ZeroDivisionError

    monkeypatch.setattr(ModelResponse, "cost", broken)
    assert usage_of(response(input_tokens=10), None).unpriced == 1


def test_what_a_gateway_says_it_charges_is_the_price() -> None:
    """It knows better than the list, even that it is nothing."""
    assert usage_of(response(input_tokens=10, cost=Decimal("0.0000038005")), None).nano_usd == 3_801
    assert usage_of(response(input_tokens=10, cost=Decimal(0)), None) == Usage(requests=1, input_tokens=10)


def test_an_answer_that_breaks_off_before_its_usage_is_estimated() -> None:
    """By its texts and those of the request, four bytes a token, and marked; files are not in it."""
    request: list[ModelMessage] = [
        ModelRequest(parts=[UserPromptPart([("x" * 395), BinaryContent(b"\0" * 9_999, media_type="image/png")])]),
        ModelResponse(parts=[ToolCallPart("look", {"a": 1})]),
        ModelRequest(parts=[ToolReturnPart("look", "ü" * 50, "c1")]),
    ]
    cut = response(ThinkingPart("t" * 30), TextPart("w" * 11), state="incomplete")
    usage = usage_of(cut, OWN, request)
    assert (usage.input_tokens, usage.output_tokens) == ((395 + 7 + 100 + 3) // 4, (41 + 3) // 4)
    assert usage.nano_usd == usage.input_tokens * 2_000 + usage.output_tokens * 8_000
    assert usage.unpriced == 1


def test_what_a_provider_told_before_it_broke_off_is_no_estimate() -> None:
    """Some tell the input at the beginning, with a first token of the output; what came after that is estimated."""
    request: list[ModelMessage] = [ModelRequest(parts=[UserPromptPart("x" * 4_000)])]
    cut = response(TextPart("w" * 400), state="incomplete", input_tokens=70, output_tokens=1, cache_read_tokens=20)
    usage = usage_of(cut, OWN, request)
    assert (usage.input_tokens, usage.cached_tokens, usage.output_tokens, usage.unpriced) == (70, 20, 100, 1)
    told = usage_of(response(TextPart("w"), state="incomplete", input_tokens=70, output_tokens=90), OWN, request)
    assert told.output_tokens == 90


def test_a_server_that_counts_nothing_is_estimated_too() -> None:
    """Else a budget of tokens would never be used up with it. The control: one that counts is believed."""
    request: list[ModelMessage] = [ModelRequest(parts=[UserPromptPart("x" * 400)])]
    silent = usage_of(response(TextPart("w" * 40), unmeasured_requests=1), OWN, request)
    assert (silent.input_tokens, silent.output_tokens, silent.unpriced) == (100, 10, 1)
    assert usage_of(response(TextPart("w" * 40), input_tokens=7, output_tokens=3), OWN, request).unpriced == 0


def test_a_call_that_was_stopped_before_the_answer_began_has_sent_its_request() -> None:
    """The provider has read it by then, or may have."""
    request: list[ModelMessage] = [ModelRequest(parts=[UserPromptPart("x" * 400)])]
    usage = usage_of_unanswered(request, openai("gpt-5"), None)
    assert usage == Usage(requests=1, input_tokens=100, nano_usd=125_000, unpriced=1)


def test_words_that_are_no_text_can_be_estimated() -> None:
    """A lone surrogate is no reason to lose the count."""
    assert usage_of(response(TextPart("\ud800" * 4), state="incomplete"), OWN).output_tokens == 3


def test_whether_a_price_is_known_is_known_before_the_model_is_asked() -> None:
    """Of a chain of models all have to be known; the agent's own price is enough for any."""
    known, unknown = openai("gpt-5"), ScriptedModel([])
    assert has_price(known, None)
    assert has_price(openai("gpt-5-2025-08-07"), None)
    assert not has_price(openai("unheard-of"), None)
    assert not has_price(unknown, None)
    assert has_price(unknown, OWN)
    assert has_price(FallbackModel(known, known), None)
    assert not has_price(FallbackModel(known, unknown), None)
