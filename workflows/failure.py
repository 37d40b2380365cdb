"""Failures in a sentence, for people and for the model."""

from temporalio import workflow
from temporalio.exceptions import ApplicationError

with workflow.unsafe.imports_passed_through():
    from perdure.codec import clip

SENTENCE_CHARS = 500


def sentence(error: BaseException, what: str) -> str:
    """What happened and why: the first failure of ours in the chain says it best, else the innermost cause."""
    cause: BaseException = error
    while cause.__cause__ is not None and not isinstance(cause, ApplicationError):
        cause = cause.__cause__
    why = getattr(cause, "message", None) or str(cause) or type(cause).__name__
    return clip(f"{what}: {why}", SENTENCE_CHARS)
