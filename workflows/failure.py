"""Failures in a sentence, for people and for the model."""

from temporalio import workflow
from temporalio.exceptions import ApplicationError

with workflow.unsafe.imports_passed_through():
    from perdure.codec import clip
    from perdure.policy import ErrorType

SENTENCE_CHARS = 500


_BEFORE_THE_MODEL = (ErrorType.CONFIGURATION, ErrorType.USAGE, ErrorType.CONTEXT)
"""Failures of a model call for which no model was asked: agent, model or a context provider was not to be had."""


def sentence(error: BaseException, what: str) -> str:
    """What happened and why: the first failure of ours in the chain says it best, else the innermost cause."""
    return clip(f"{what}: {_why(_cause(error))}", SENTENCE_CHARS)


def model_failure(error: BaseException) -> str:
    """Why a model call brought nothing, for people."""
    cause = _cause(error)
    if isinstance(cause, ApplicationError) and cause.type in _BEFORE_THE_MODEL:
        return clip(_why(cause), SENTENCE_CHARS)
    return sentence(error, "The model call failed")


def _cause(error: BaseException) -> BaseException:
    cause: BaseException = error
    while cause.__cause__ is not None and not isinstance(cause, ApplicationError):
        cause = cause.__cause__
    return cause


def _why(cause: BaseException) -> str:
    return getattr(cause, "message", None) or str(cause) or type(cause).__name__
