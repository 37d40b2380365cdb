"""What the real clients of the providers tell of a call, whole and broken off in the middle."""

import pytest
from temporalio.exceptions import ApplicationError

from perdure.limits import Price
from perdure.messages import Usage
from tests.providers.chat_wire import Chat
from tests.providers.conftest import KEY_VARIABLE, Talks, dialect, talks
from tests.providers.dialect import KEY, Dialect, Reply

__all__ = ["dialect", "talks"]

PRICE = Price(input=3, output=15, cached_input=0.3)
TEXT = "Bonjour, le monde. " * 20


@pytest.fixture(autouse=True)
def key(monkeypatch: pytest.MonkeyPatch) -> None:
    """What the clients send as theirs."""
    monkeypatch.setenv(KEY_VARIABLE, KEY)


async def test_a_whole_answer_costs_what_the_provider_says(talks: Talks, dialect: Dialect) -> None:
    """Tokens from the cache cost less, and nothing is estimated."""
    talk = await talks(dialect, Reply(TEXT, usage=(120, 9, 64)), price=PRICE)
    await talk.thread.say("Hello?")
    usage = (await talk.thread.complete()).usage
    nano_usd = 56 * 3_000 + 64 * 300 + 9 * 15_000
    assert usage == Usage(requests=1, input_tokens=120, output_tokens=9, cached_tokens=64, nano_usd=nano_usd)


async def test_an_answer_that_breaks_off_costs_what_came_of_it(talks: Talks, dialect: Dialect) -> None:
    """Most have told the input by then, which is believed; OpenAI's chat tells all at the end, so all is estimated."""
    talk = await talks(dialect, dialect.broken_stream(Reply(TEXT, usage=(120, 9, 64))), price=PRICE)
    await talk.thread.say("Hello " * 40)
    with pytest.raises(ApplicationError):
        await talk.thread.complete()
    await talk.thread.activities.close()
    usage = (await talk.thread.store.get_thread(talk.thread.thread_id)).usage
    assert (usage.requests, usage.unpriced) == (1, 1)
    assert (usage.input_tokens, usage.cached_tokens) == ((60, 0) if dialect.name == Chat.name else (120, 64))
    assert 0 < usage.output_tokens < len(TEXT) // 4
    cached = usage.cached_tokens
    assert usage.nano_usd == (usage.input_tokens - cached) * 3_000 + cached * 300 + usage.output_tokens * 15_000
