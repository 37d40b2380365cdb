"""What every failure of a model call becomes."""

import httpx2
import pytest
from pydantic_ai import exceptions as wire
from temporalio.exceptions import ApplicationError

from activities.model_errors import cause_of, decisive, failure, has_forgotten, may_fall_back
from perdure.errors import (
    ConfigurationError,
    ModelError,
    StepSealed,
    StoreError,
    StoreUnavailable,
    ThreadNotFound,
    UsageError,
)
from perdure.policy import ErrorType


def http(category: type[wire.ModelRateLimitError | wire.ModelRequestRejectedError], status: int) -> Exception:
    """An HTTP error of a category."""
    return wire.ModelHTTPError.for_category(category, status_code=status, model_name="m", body="why")


@pytest.mark.parametrize(
    ("error", "type", "retryable", "words"),
    [
        (wire.ModelQuotaExceededError("m", "x"), ErrorType.MODEL, False, "credit is used up"),
        (http(wire.ModelRateLimitError, 429), ErrorType.MODEL, True, "rate limit"),
        (wire.ModelOverloadedError("m", "x"), ErrorType.MODEL, True, "overloaded"),
        (wire.ModelServerError("m", "x"), ErrorType.MODEL, True, "failed"),
        (wire.ModelTimeoutError("m", "x"), ErrorType.MODEL, True, "cannot be reached"),
        (wire.ModelRequestTimeout("m", 3.0), ErrorType.MODEL, True, "cannot be reached"),
        (http(wire.ModelContextWindowExceededError, 400), ErrorType.TOO_LONG, False, "too long"),
        (http(wire.ModelRequestRejectedError, 422), ErrorType.MODEL, False, "refused the request"),
        (wire.ContentFilterError("x"), ErrorType.MODEL, False, "content filter"),
        (wire.ModelHTTPError(409, "m"), ErrorType.MODEL, True, "409"),
        (wire.ModelHTTPError(418, "m"), ErrorType.MODEL, False, "418"),
        (wire.UnexpectedModelBehavior("x"), ErrorType.MODEL, True, "cannot be read"),
        (httpx2.ReadError("reset"), ErrorType.MODEL, True, "ReadError"),
        (TimeoutError(), ErrorType.MODEL, True, "TimeoutError"),
        (ModelError("said", retryable=False), ErrorType.MODEL, False, "said"),
        (wire.UserError("wrong settings"), ErrorType.CONFIGURATION, False, "wrong settings"),
        (ConfigurationError("no key"), ErrorType.CONFIGURATION, False, "no key"),
        (StoreUnavailable("away"), ErrorType.STORE, True, "away"),
        (StoreError("no blob"), ErrorType.STORE, False, "no blob"),
        (StepSealed("late"), ErrorType.SEALED, False, "late"),
        (ThreadNotFound("t"), ErrorType.USAGE, False, "no thread"),
        (UsageError("no agent"), ErrorType.USAGE, False, "no agent"),
        (KeyError("x"), ErrorType.BUG, False, "bug: KeyError"),
    ],
    ids=lambda value: type(value).__name__ if isinstance(value, Exception) else None,
)
def test_each_failure_has_its_type_its_sentence_and_its_retry(
    error: Exception, type: str, retryable: bool, words: str
) -> None:
    """One line says what happened; whether another try makes sense is decided here and nowhere else."""
    found = failure(error, "openai:gpt-5")
    assert (found.type, found.non_retryable) == (type, not retryable)
    assert words in found.message
    assert "\n" not in found.message


def test_a_failure_is_kept_as_it_is() -> None:
    """What is a Temporal failure already goes through."""
    known = ApplicationError("x", type="y")
    assert failure(known, "m") is known


def test_long_and_odd_details_are_clipped_to_one_line() -> None:
    """A provider may answer with a page of HTML."""
    found = failure(wire.ModelServerError("m", "<html>\n" + "x" * 10_000 + "\ud800"), "m")
    assert len(found.message) < 500
    assert "\n" not in found.message
    found.message.encode("utf-8")


@pytest.mark.parametrize(
    ("error", "falls_back"),
    [
        (wire.ModelQuotaExceededError("m", "x"), True),
        (wire.ModelOverloadedError("m", "x"), True),
        (wire.ModelTimeoutError("m", "x"), True),
        (http(wire.ModelContextWindowExceededError, 400), True),
        (http(wire.ModelRequestRejectedError, 422), True),
        (wire.UnexpectedModelBehavior("x"), True),
        (wire.UserError("no such setting"), True),
        (ConfigurationError("no key"), True),
        (wire.ContentFilterError("x"), False),
        (StepSealed("late"), False),
        (StoreUnavailable("away"), False),
        (UsageError("no agent"), False),
        (ApplicationError("a provider of context", type="x"), False),
        (KeyError("x"), False),
    ],
    ids=lambda value: type(value).__name__ if isinstance(value, Exception) else None,
)
def test_another_model_is_asked_for_what_is_wrong_with_this_one(error: Exception, falls_back: bool) -> None:
    """Not for what is wrong here, and not for what was filtered."""
    assert may_fall_back(error) is falls_back


def test_the_failure_that_something_can_be_done_about_is_reported() -> None:
    """Too long before busy before the rest; among equals the first."""
    key, busy = wire.ModelAuthenticationError("m", "x"), wire.ModelOverloadedError("m", "x")
    too_long = http(wire.ModelContextWindowExceededError, 400)
    found = [failure(error, f"m{number}") for number, error in enumerate((key, busy, busy, too_long))]
    assert decisive(found) is found[3]
    assert decisive(found[:3]) is found[1]
    assert decisive(found[:1]) is found[0]


def test_a_refused_key_has_no_cause() -> None:
    """Temporal keeps causes, and a provider may quote the key; of others the cause helps."""
    busy = wire.ModelOverloadedError("m", "x")
    assert cause_of(wire.ModelAuthenticationError("m", "sk-secret is wrong")) is None
    assert cause_of(busy) is busy


def test_only_a_refusal_may_mean_that_a_service_has_forgotten() -> None:
    """Not one for its length or its key, and no trouble of the provider."""
    assert has_forgotten(http(wire.ModelRequestRejectedError, 400))
    for other in (None, wire.ModelOverloadedError("m", "x"), http(wire.ModelContextWindowExceededError, 400)):
        assert not has_forgotten(other)
