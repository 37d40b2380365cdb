"""How each provider fails, and what becomes of it."""

import pytest
from temporalio.exceptions import ApplicationError

from perdure.messages import TextPart
from perdure.policy import ErrorType
from tests.activities.conversation import Conversation, failed
from tests.providers.conftest import Talks, agent_at
from tests.providers.dialect import KEY, Call, Dialect, Failure, Reply
from tests.providers.model_server import Answer, ModelServer


@pytest.mark.parametrize(
    ("kind", "type", "retryable", "words"),
    [
        ("rate_limit", ErrorType.MODEL, True, "rate limit"),
        ("overloaded", ErrorType.MODEL, True, "overloaded or unavailable"),
        ("too_long", ErrorType.TOO_LONG, False, "too long for this model"),
        ("bad_key", ErrorType.MODEL, False, "key was refused"),
        ("quota", ErrorType.MODEL, False, "used up"),
        ("not_found", ErrorType.MODEL, False, "no such model"),
    ],
)
async def test_a_refused_request_is_one_request_and_one_sentence(
    talks: Talks, dialect: Dialect, kind: Failure, type: str, retryable: bool, words: str
) -> None:
    """The client does not retry; the failure says what happened and whether Temporal should try again.

    The key is in none of it, the causes that Temporal records included.
    """
    talk = await talks(dialect, dialect.failure(kind), Reply("fine"))
    await talk.thread.say("go")
    failure = await failed(talk.thread.complete(1))
    assert (failure.type, failure.non_retryable) == (type, not retryable)
    assert words in failure.message
    assert "\n" not in failure.message
    assert dialect.model in failure.message
    assert KEY not in _all_said(failure)
    assert len(talk.server.requests) == 1
    await talk.thread.commit(await talk.thread.complete(2))
    assert [part.text for part in await talk.thread.parts() if isinstance(part, TextPart)] == ["fine"]


async def test_a_rate_limit_is_waited_for_as_long_as_it_says(talks: Talks, dialect: Dialect) -> None:
    """The delay of the provider is the delay of the next attempt; of other failures Temporal decides."""
    talk = await talks(dialect, dialect.failure("rate_limit"), dialect.failure("overloaded"))
    await talk.thread.say("go")
    limited = await failed(talk.thread.complete(1))
    assert limited.next_retry_delay is not None
    assert limited.next_retry_delay.total_seconds() == 3.0
    assert (await failed(talk.thread.complete(2))).next_retry_delay is None


async def test_a_filtered_answer_settles_as_such(talks: Talks, dialect: Dialect) -> None:
    """The words so far stay, the calls go, and the outcome says that it was the filter."""
    call = Call("c", "clock", "{}")
    talk = await talks(dialect, Reply("I should not", calls=[call], finish="content_filter"))
    await talk.thread.say("go")
    outcome = await talk.thread.complete()
    assert outcome.finish == "content_filter"
    assert outcome.calls == ()
    assert outcome.detail is not None
    assert "content filter" in outcome.detail


async def test_b31_an_answer_that_was_cut_off_says_so(talks: Talks, dialect: Dialect) -> None:
    """B31: at the output limit the answer is `length`, with the words so far."""
    talk = await talks(dialect, Reply("Once upon", finish="length"))
    await talk.thread.say("go")
    outcome = await talk.thread.complete()
    assert (outcome.finish, outcome.preview) == ("length", "Once upon")


async def test_a_broken_connection_is_tried_again(talks: Talks, dialect: Dialect) -> None:
    """What streamed is void; the next attempt is clean, and the thread has one answer."""
    whole = dialect.answer(Reply("some words that break off in the middle"))
    talk = await talks(dialect, Answer(whole.events, drop_after=len(whole.events) // 2), Reply("fine"))
    await talk.thread.say("go")
    failure = await failed(talk.thread.complete(1))
    assert (failure.type, failure.non_retryable) == (ErrorType.MODEL, False)
    await talk.thread.commit(await talk.thread.complete(2))
    assert [part.text for part in await talk.thread.parts() if isinstance(part, TextPart)] == ["fine"]
    assert len(talk.server.requests) == 2


async def test_an_error_in_the_middle_of_a_stream_is_tried_again(talks: Talks, dialect: Dialect) -> None:
    """A provider that is overloaded while it answers says so in the stream."""
    talk = await talks(dialect, dialect.broken_stream(Reply("some words that break off in the middle")), Reply("fine"))
    await talk.thread.say("go")
    failure = await failed(talk.thread.complete(1))
    assert (failure.type, failure.non_retryable) == (ErrorType.MODEL, False)
    assert len(talk.server.requests) == 1
    await talk.thread.commit(await talk.thread.complete(2))
    assert [part.text for part in await talk.thread.parts() if isinstance(part, TextPart)] == ["fine"]


async def test_a_provider_that_is_not_there_is_tried_again(dialect: Dialect) -> None:
    """Nothing listens at the address."""
    async with ModelServer([]) as server:
        agent = agent_at(server, dialect)
    thread = await Conversation.start(agent)
    await thread.say("go")
    failure = await failed(thread.complete())
    assert (failure.type, failure.non_retryable) == (ErrorType.MODEL, False)
    await thread.activities.close()


def _all_said(failure: ApplicationError) -> str:
    """The failure and everything that caused it, as Temporal records them."""
    said: list[str] = []
    error: BaseException | None = failure
    while error is not None:
        said.append(str(error))
        error = error.__cause__
    return "\n".join(said)
