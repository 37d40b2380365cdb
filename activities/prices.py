"""What a model call cost: tokens as the provider counts them, and their price."""

from pydantic_ai.messages import ModelResponse

from perdure.limits import Price
from perdure.messages import Usage


def usage_of(response: ModelResponse, price: Price | None) -> Usage:
    """The usage of one model call that has answered, or that was broken off in the middle."""
    usage = response.usage
    return Usage(
        requests=1,
        input_tokens=usage.input_tokens,
        output_tokens=usage.output_tokens,
        cached_tokens=usage.cache_read_tokens,
    )
