"""What a model call cost: tokens as the provider counts them, and their price.

Prices are those of the package `genai-prices`, which come with it and are never asked for over the network, or the
agent's own. Providers tell what an answer took at its end, and some of them what the request took at its beginning.
So of an answer that was broken off, or whose server counts nothing, what is not told is estimated: a budget that took
it for nothing could be spent many times over by somebody who stops every answer.
"""

from collections.abc import Iterable, Sequence
from copy import copy
from decimal import Decimal
from typing import Any, cast

import structlog
from pydantic_ai.exceptions import UserError
from pydantic_ai.messages import ModelMessage, ModelResponse, ToolCallPart
from pydantic_ai.models import Model
from pydantic_ai.models.fallback import FallbackModel
from pydantic_ai.usage import RequestUsage

from perdure.limits import Price, nano_usd
from perdure.messages import Usage

TOKEN_BYTES = 4
"""How much text makes a token, in UTF-8: the rule of thumb of an estimate."""

_WHOLE = ("complete", "suspended")


def usage_of(response: ModelResponse, price: Price | None, request: Iterable[ModelMessage] = ()) -> Usage:
    """The usage of one model call that has answered, or that was broken off in the middle.

    What is an estimate counts as `unpriced`, and so does what has no price.

    Args:
        response: what has come.
        price: the agent's own.
        request: what the model was sent, for the estimate of a call that was broken off.
    """
    is_told = response.state in _WHOLE and not response.usage.unmeasured_requests
    counted = response.usage if is_told else _estimated(response, request)
    nano = _by_agent(counted, price) if price else _by_provider(response, counted)
    return Usage(
        requests=1,
        input_tokens=counted.input_tokens,
        output_tokens=counted.output_tokens,
        cached_tokens=counted.cache_read_tokens,
        nano_usd=nano or 0,
        unpriced=int(nano is None or not is_told),
    )


def usage_of_unanswered(request: Iterable[ModelMessage], model: Model[Any], price: Price | None) -> Usage:
    """The usage of a model call that was stopped before anything of an answer had come: an estimate of its request."""
    return usage_of(_response(model), price, request)


def has_price(model: Model[Any], price: Price | None) -> bool:
    """Whether anybody knows what an answer of the model costs."""
    if price is not None:
        return True
    if isinstance(model, FallbackModel):
        return all(has_price(one, None) for one in model.models)
    probe = RequestUsage(input_tokens=1, output_tokens=1)
    return _by_provider(_response(model), probe) is not None


def _by_agent(usage: RequestUsage, price: Price) -> int:
    return price.nano_usd(usage.input_tokens, usage.output_tokens, min(usage.cache_read_tokens, usage.input_tokens))


def _by_provider(response: ModelResponse, usage: RequestUsage) -> int | None:
    usd = _usd(response, usage)
    return None if usd is None else nano_usd(usd)


def _usd(response: ModelResponse, usage: RequestUsage) -> Decimal | None:
    if usage.cost is not None:
        # Whoever stands between us and the provider has told what it charges.
        return usage.cost
    if not response.model_name:
        return None
    priced = copy(response)
    priced.usage = usage
    try:
        return priced.cost().total_price
    except (LookupError, ValueError):
        # A model that is not in the list, or counts that contradict each other.
        return None
    except Exception:  # of a list that is not ours: an answer that is paid for is not to be lost for its price
        structlog.get_logger("perdure.usage").exception("a price cannot be told", model=response.model_name)
        return None


def _estimated(response: ModelResponse, request: Iterable[ModelMessage]) -> RequestUsage:
    """What is told of the usage, or if more, what the texts come to. Files are not in it."""
    usage = copy(response.usage)
    usage.unmeasured_requests = 0
    usage.cost = None
    if not usage.input_tokens:
        usage.input_tokens = _tokens(request)
    usage.output_tokens = max(usage.output_tokens, _tokens([response]))
    return usage


def _tokens(messages: Iterable[ModelMessage]) -> int:
    size = sum(len(text.encode("utf-8", "surrogatepass")) for message in messages for text in _texts(message))
    return -(-size // TOKEN_BYTES)


def _texts(message: ModelMessage) -> Iterable[str]:
    for part in message.parts:
        content: object = part.args_as_json_str() if isinstance(part, ToolCallPart) else getattr(part, "content", "")
        pieces = cast("Sequence[object]", content) if isinstance(content, list | tuple) else (content,)
        yield from (piece for piece in pieces if isinstance(piece, str))


def _response(model: Model[Any]) -> ModelResponse:
    """An answer of the model in which nothing is."""
    try:
        url = model.base_url
    except (AttributeError, UserError):
        # Not every client has one before its first request.
        url = None
    return ModelResponse(
        parts=[], model_name=model.model_name, provider_name=model.system, provider_url=url, state="incomplete"
    )
