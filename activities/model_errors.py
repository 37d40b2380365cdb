"""What a failed model call becomes: one function from exceptions to Temporal's failures.

Providers' clients do not retry, so this is where it is decided whether a call is tried again, when, and what a person
reads. The sentence says what happened and what to do; it never holds a key. Nor does it say that the call is tried
again: the last try's is what the turn ends with.
"""

from collections.abc import Sequence
from datetime import timedelta

from pydantic_ai import exceptions as wire
from temporalio.exceptions import ApplicationError, ApplicationErrorCategory

from perdure.codec import clip
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

DETAIL_CHARS = 300
_RETRYABLE_STATUS = frozenset({408, 409, 425, 429})
_BUGS = (TypeError, ValueError, LookupError, AttributeError, AssertionError, NotImplementedError, NameError)


def failure(error: Exception, model: str) -> ApplicationError:
    """The failure that Temporal records for an exception of a model call with this model."""
    match error:
        case ApplicationError():
            return error
        case StepSealed():
            # A stop does this to every call that it meets, so it is nothing to warn of.
            return ApplicationError(
                str(error), type=ErrorType.SEALED, non_retryable=True, category=ApplicationErrorCategory.BENIGN
            )
        case StoreUnavailable():
            return ApplicationError(str(error), type=ErrorType.STORE)
        case ThreadNotFound() | UsageError():
            return ApplicationError(str(error), type=ErrorType.USAGE, non_retryable=True)
        case StoreError():
            return ApplicationError(str(error), type=ErrorType.STORE, non_retryable=True)
        case ConfigurationError():
            return ApplicationError(str(error), type=ErrorType.CONFIGURATION, non_retryable=True)
        case wire.UserError():
            return ApplicationError(_clipped(error), type=ErrorType.CONFIGURATION, non_retryable=True)
        case wire.ModelContextWindowExceededError():
            return ApplicationError(str(model_error(error, model)), type=ErrorType.TOO_LONG, non_retryable=True)
        case _ if isinstance(error, _BUGS):
            text = f"bug: {type(error).__name__} while asking {model}: {_clipped(error)}"
            return ApplicationError(text, type=ErrorType.BUG, non_retryable=True)
        case _:
            return _model_failure(model_error(error, model))


def may_fall_back(error: Exception) -> bool:
    """Whether another model may have better luck with the same request.

    It may with whatever is wrong with this one: its limits, its server, its key, its name, what it takes. Not with what
    is wrong here (a bug, the store, a stop, a provider of context), nor with what was filtered: another model is not to
    be asked for what one has refused.
    """
    match error:
        case ApplicationError() | StoreError() | UsageError() | wire.ContentFilterError():
            return False
        case _:
            return not isinstance(error, _BUGS)


def has_forgotten(error: Exception | None) -> bool:
    """Whether a provider may have refused a request since it does not know what that was to go on from.

    They keep answers for some weeks. Any refusal counts, so that what a service keeps can never end a thread for good.
    """
    refused = isinstance(error, wire.ModelRequestRejectedError)
    return refused and not isinstance(error, wire.ModelContextWindowExceededError | wire.ModelAuthenticationError)


def decisive(failures: Sequence[ApplicationError]) -> ApplicationError:
    """Of the failures of several models, in the order in which they were asked, the one that is reported.

    A conversation that was too long for one can be made shorter; else the first that another try may help with, so
    that a fallback without a key does not end a turn that waiting would have saved; else the first.
    """
    too_long = (failure for failure in failures if failure.type == ErrorType.TOO_LONG)
    retryable = (failure for failure in failures if not failure.non_retryable)
    return next(too_long, None) or next(retryable, None) or failures[0]


def cause_of(error: Exception) -> Exception | None:
    """What Temporal records as the cause of the failure: nothing where a provider's own words may quote the key."""
    return None if isinstance(error, wire.ModelAuthenticationError) else error


def model_error(error: Exception, model: str) -> ModelError:
    """What a provider's error means: a sentence, and whether and when another try makes sense."""
    match error:
        case ModelError():
            return error
        case wire.ModelQuotaExceededError():
            return _final(
                error, f"{model}: the account's quota or credit is used up. Top it up or choose another model."
            )
        case wire.ModelRateLimitError():
            return _again(error, f"{model}: the provider's rate limit was reached.")
        case wire.ModelOverloadedError() | wire.ModelUnavailableError():
            return _again(error, f"{model}: the provider is overloaded or unavailable.")
        case wire.ModelServerError():
            return _again(error, f"{model}: the provider failed.")
        case wire.ModelConnectionError() | wire.ModelRequestTimeout():
            return _again(error, f"{model}: the provider cannot be reached or the answer broke off.")
        case wire.ModelAuthenticationError():
            # The provider's own text may quote the key, so it is left out.
            return ModelError(f"{model}: the key was refused. Check it and what it may be used for.", retryable=False)
        case wire.ModelNotFoundError():
            return _final(error, f"{model}: the provider has no such model. Check the name.")
        case wire.ModelContextWindowExceededError():
            return _final(error, f"{model}: the conversation is too long for this model. Choose one that takes more.")
        case wire.ModelRequestRejectedError():
            return _final(error, f"{model}: the provider refused the request.")
        case wire.ContentFilterError():
            return _final(error, f"{model}: the provider's content filter stopped the answer.")
        case wire.ModelHTTPError():
            return _by_status(error, model)
        case wire.ModelAPIError() | wire.UnexpectedModelBehavior():
            return _again(error, f"{model}: the provider answered in a way that cannot be read.")
        case _:
            return _again(error, f"{model}: the call failed ({type(error).__name__}).")


def _by_status(error: wire.ModelHTTPError, model: str) -> ModelError:
    sentence = f"{model}: the provider answered with HTTP status {error.status_code}."
    retryable = error.status_code >= 500 or error.status_code in _RETRYABLE_STATUS
    return _again(error, sentence) if retryable else _final(error, sentence)


def _model_failure(error: ModelError) -> ApplicationError:
    delay = None if error.retry_after_s is None else timedelta(seconds=error.retry_after_s)
    return ApplicationError(str(error), type=ErrorType.MODEL, non_retryable=not error.retryable, next_retry_delay=delay)


def _again(error: Exception, sentence: str) -> ModelError:
    retry_after_s = error.retry_after if isinstance(error, wire.ModelAPIError) else None
    return ModelError(f"{sentence} {_detail(error)}", retryable=True, retry_after_s=retry_after_s)


def _final(error: Exception, sentence: str) -> ModelError:
    return ModelError(f"{sentence} {_detail(error)}", retryable=False)


def _detail(error: Exception) -> str:
    return f"Details: {_clipped(error)}"


def _clipped(error: Exception) -> str:
    return clip(str(error) or type(error).__name__, DETAIL_CHARS)
