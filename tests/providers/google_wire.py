"""Google's `streamGenerateContent`, as it streams: server-sent events without names, lines ended by CR LF."""

import base64
import json
from collections.abc import Iterator
from typing import Any

from tests.fakes.http_wire import Received
from tests.providers.dialect import Failure, Reply, Thought, pieces
from tests.providers.model_server import Answer, sse

_STOPS = {"stop": "STOP", "length": "MAX_TOKENS", "content_filter": "SAFETY"}
_FAILURES: dict[str, tuple[int, str, str]] = {
    "rate_limit": (429, "RESOURCE_EXHAUSTED", "You exceeded your current quota."),
    "too_long": (
        400,
        "INVALID_ARGUMENT",
        "The input token count (1200000) exceeds the maximum number of tokens allowed (1048576).",
    ),
    "bad_key": (400, "INVALID_ARGUMENT", "API key not valid. Please pass a valid API key."),
    "overloaded": (503, "UNAVAILABLE", "The model is overloaded. Please try again later."),
    "quota": (429, "RESOURCE_EXHAUSTED", "You exceeded your current quota."),
    "not_found": (404, "NOT_FOUND", "models/gemini-2.5-pro is not found for API version v1beta."),
}
_DETAILS: dict[str, dict[str, Any]] = {
    "rate_limit": {"@type": "type.googleapis.com/google.rpc.RetryInfo", "retryDelay": "3s"},
    "bad_key": {
        "@type": "type.googleapis.com/google.rpc.ErrorInfo",
        "reason": "API_KEY_INVALID",
        "domain": "googleapis.com",
    },
    "quota": {
        "@type": "type.googleapis.com/google.rpc.QuotaFailure",
        "violations": [{"quotaId": "GenerateRequestsPerDayPerProjectPerModel-FreeTier"}],
    },
}


class Google:
    """See the module."""

    name = "google"
    model = "google:gemini-2.5-pro"
    thinks = True

    def base_url(self, url: str) -> str:
        """The client adds the version."""
        return url

    def answer(self, reply: Reply) -> Answer:
        """Each chunk is a whole response; a signature comes with the part that follows the thought."""
        return Answer([_event(chunk) for chunk in _chunks(reply)])

    def broken_stream(self, reply: Reply) -> Answer:
        """The stream up to its middle, and an error in the place of a chunk."""
        chunks = list(_chunks(reply))
        error = {"error": {"code": 503, "message": "The model is overloaded.", "status": "UNAVAILABLE"}}
        return Answer([_event(chunk) for chunk in (*chunks[: len(chunks) // 2], error)])

    def failure(self, kind: Failure) -> Answer:
        """An error body, in whose details the delay of a rate limit is."""
        status, name, message = _FAILURES[kind]
        details = [_DETAILS[kind]] if kind in _DETAILS else []
        error = {"code": status, "message": message, "status": name, "details": details}
        return Answer(status=status, body={"error": error})

    def tools(self, request: Received) -> list[str]:
        """See the protocol."""
        return [tool["name"] for group in request.json.get("tools", []) for tool in group["functionDeclarations"]]

    def must_call(self, request: Received) -> bool:
        """See the protocol."""
        config = request.json.get("toolConfig", {}).get("functionCallingConfig", {})
        return bool(config.get("mode") == "ANY")

    def words(self, request: Received) -> list[str]:
        """See the protocol."""
        return [part["text"] for part in _parts(request, "user") if "text" in part]

    def thoughts(self, request: Received) -> list[Thought]:
        """The signatures; the text of a thought does not go back."""
        parts = _parts(request, "model")
        return [Thought("", part["thoughtSignature"]) for part in parts if "thoughtSignature" in part]

    def calls(self, request: Received) -> list[tuple[str, dict[str, Any]]]:
        """See the protocol."""
        calls = [part["functionCall"] for part in _parts(request, "model") if "functionCall" in part]
        return [(call["name"], call.get("args", {})) for call in calls]

    def results(self, request: Received) -> list[str]:
        """See the protocol."""
        found = [part["functionResponse"] for part in _parts(request, "user") if "functionResponse" in part]
        return [_text(each["response"]) for each in found]

    def files(self, request: Received) -> list[tuple[str, bytes]]:
        """See the protocol."""
        found = [part["inlineData"] for part in _parts(request, "user") if "inlineData" in part]
        return [(data.get("mimeType") or data["mime_type"], _decoded(data["data"])) for data in found]

    def effort(self, request: Received) -> Any:
        """See the protocol."""
        return request.json.get("generationConfig", {}).get("thinkingConfig")


def _chunks(reply: Reply) -> Iterator[dict[str, Any]]:
    parts = list(_content(reply))
    taken, given, cached = reply.usage
    for place, part in enumerate(parts):
        last = place == len(parts) - 1
        candidate: dict[str, Any] = {"content": {"parts": [part], "role": "model"}, "index": 0}
        usage: dict[str, Any] = {"promptTokenCount": taken, "totalTokenCount": taken}
        if last:
            candidate["finishReason"] = _STOPS[reply.finish]
            usage |= {"candidatesTokenCount": given, "totalTokenCount": taken + given}
        if cached:
            usage["cachedContentTokenCount"] = cached
        yield {
            "candidates": [candidate],
            "usageMetadata": usage,
            "modelVersion": "gemini-2.5-pro",
            "responseId": f"google_{reply.number}",
        }


def _content(reply: Reply) -> Iterator[dict[str, Any]]:
    signatures = [thought.signature for thought in reply.thoughts]
    for thought in reply.thoughts:
        yield {"text": thought.text, "thought": True}
    parts: list[dict[str, Any]] = [{"text": piece} for piece in pieces(reply.text)]
    calls: list[dict[str, Any]] = [{"functionCall": _call(call.id, call.name, call.arguments)} for call in reply.calls]
    # The signature of a thought comes with a call if there is one, else with the first words.
    signed = calls or parts
    for part, signature in zip(signed, signatures, strict=False):
        part["thoughtSignature"] = signature
    yield from (*parts, *calls) or ({"text": ""},)


def _call(id: str, name: str, arguments: str) -> dict[str, Any]:
    return {"id": id, "name": name, "args": json.loads(arguments)}


def _event(chunk: dict[str, Any]) -> bytes:
    return sse(chunk, end="\r\n")


def _parts(request: Received, role: str) -> list[dict[str, Any]]:
    return [part for content in request.json["contents"] if content["role"] == role for part in content["parts"]]


def _text(response: dict[str, Any]) -> str:
    value = next(iter(response.values()))
    return value if isinstance(value, str) else json.dumps(value)


def _decoded(data: str) -> bytes:
    """Either alphabet, as the service takes both."""
    return base64.b64decode(data.replace("-", "+").replace("_", "/") + "=" * (-len(data) % 4))
