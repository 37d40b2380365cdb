"""Answers other than 200: a status and one sentence, as JSON."""

from collections.abc import Mapping

from fastapi import Request
from fastapi.responses import JSONResponse
from starlette.exceptions import HTTPException

RETRY_AFTER_S = 5


class Refusal(Exception):
    """Ends a request with a 4xx status: it changed nothing, and sending it again would not help."""

    def __init__(self, status: int, sentence: str) -> None:
        super().__init__(sentence)
        self.status = status
        self.sentence = sentence


def refused(_: Request, error: Exception) -> JSONResponse:
    """Answer with what a `Refusal` says."""
    assert isinstance(error, Refusal)
    return answer(error.status, error.sentence)


def http_error(_: Request, error: Exception) -> JSONResponse:
    """Answer in our form what the framework refuses by itself: unknown paths and wrong methods."""
    assert isinstance(error, HTTPException)
    sentence = {404: "There is nothing at this path.", 405: "This path takes another method."}
    return answer(error.status_code, sentence.get(error.status_code, error.detail), error.headers)


def try_again(sentence: str) -> JSONResponse:
    """Answer 503: nothing is recorded, and the same request may be sent again."""
    return answer(503, sentence, {"Retry-After": str(RETRY_AFTER_S)})


def answer(status: int, sentence: str, headers: Mapping[str, str] | None = None) -> JSONResponse:
    """An error as JSON: `{"error": sentence}`."""
    return JSONResponse({"error": sentence}, status, headers)
