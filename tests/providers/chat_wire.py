"""OpenAI's chat completions, as they stream."""

import json
from collections.abc import Iterator
from typing import Any

from tests.fakes.http_wire import Received
from tests.providers.dialect import KEY, Failure, Reply, Thought, decoded, pieces
from tests.providers.model_server import Answer, sse

FAILURES: dict[str, tuple[int, str, str | None, str]] = {
    "rate_limit": (429, "tokens", "rate_limit_exceeded", "Rate limit reached for gpt-4o."),
    "too_long": (
        400,
        "invalid_request_error",
        "context_length_exceeded",
        "This model's maximum context length is 128000 tokens.",
    ),
    "bad_key": (401, "invalid_request_error", "invalid_api_key", f"Incorrect API key provided: {KEY}."),
    "overloaded": (503, "service_unavailable_error", None, "That model is currently overloaded."),
    "quota": (429, "insufficient_quota", "insufficient_quota", "You exceeded your current quota."),
    "not_found": (404, "invalid_request_error", "model_not_found", "The model does not exist."),
}
_STOPS = {"stop": "stop", "length": "length", "content_filter": "content_filter"}


def failure(kind: Failure) -> Answer:
    """An error body; a rate limit with its delay. Both of OpenAI's interfaces have the same."""
    status, type, code, message = FAILURES[kind]
    headers = {"retry-after": "3"} if kind == "rate_limit" else {}
    return Answer(
        status=status,
        headers=headers,
        body={"error": {"message": message, "type": type, "param": None, "code": code}},
    )


class Chat:
    """See the module. Thoughts come and go in `reasoning_content`, unsigned, as compatible servers have it."""

    name = "openai-chat"
    model = "openai-chat:gpt-4o"
    thinks = False

    def base_url(self, url: str) -> str:
        """With the version."""
        return f"{url}/v1"

    def answer(self, reply: Reply) -> Answer:
        """Chunks, one with the usage, and `[DONE]`."""
        return Answer([*(sse(chunk) for chunk in _chunks(reply)), sse("[DONE]")])

    def broken_stream(self, reply: Reply) -> Answer:
        """The stream up to its middle, and an error in the place of a chunk."""
        chunks = list(_chunks(reply))
        error = {"error": {"message": "Overloaded.", "type": "server_error", "code": "server_is_overloaded"}}
        return Answer([sse(chunk) for chunk in (*chunks[: len(chunks) // 2], error)])

    def failure(self, kind: Failure) -> Answer:
        """See `failure`."""
        return failure(kind)

    def tools(self, request: Received) -> list[str]:
        """See the protocol."""
        return [tool["function"]["name"] for tool in request.json.get("tools", [])]

    def must_call(self, request: Received) -> bool:
        """See the protocol."""
        return bool(request.json.get("tool_choice") == "required")

    def words(self, request: Received) -> list[str]:
        """See the protocol."""
        return [block["text"] for block in _blocks(request) if block["type"] == "text"]

    def thoughts(self, request: Received) -> list[Thought]:
        """See the protocol."""
        messages = request.json["messages"]
        return [Thought(each["reasoning_content"], "") for each in messages if "reasoning_content" in each]

    def calls(self, request: Received) -> list[tuple[str, dict[str, Any]]]:
        """See the protocol."""
        made = [call["function"] for each in request.json["messages"] for call in each.get("tool_calls", [])]
        return [(call["name"], json.loads(call["arguments"])) for call in made]

    def results(self, request: Received) -> list[str]:
        """See the protocol."""
        return [each["content"] for each in request.json["messages"] if each["role"] == "tool"]

    def files(self, request: Received) -> list[tuple[str, bytes]]:
        """See the protocol."""
        urls = [
            block["image_url"]["url"] if block["type"] == "image_url" else block["file"]["file_data"]
            for block in _blocks(request)
            if block["type"] in ("image_url", "file")
        ]
        return [decoded(url) for url in urls]

    def effort(self, request: Received) -> Any:
        """See the protocol."""
        return request.json.get("reasoning_effort")


def _chunks(reply: Reply) -> Iterator[dict[str, Any]]:
    deltas: list[dict[str, Any]] = [{"role": "assistant", "content": ""}]
    deltas += [{"reasoning_content": piece} for thought in reply.thoughts for piece in pieces(thought.text)]
    deltas += [{"content": piece} for piece in pieces(reply.text)]
    for index, call in enumerate(reply.calls):
        function = {"name": call.name, "arguments": ""}
        deltas.append({"tool_calls": [{"index": index, "id": call.id, "type": "function", "function": function}]})
        deltas += [
            {"tool_calls": [{"index": index, "function": {"arguments": piece}}]} for piece in pieces(call.arguments)
        ]
    finish = "tool_calls" if reply.calls and reply.finish == "stop" else _STOPS[reply.finish]
    yield from (_chunk(reply, [{"index": 0, "delta": delta, "finish_reason": None}]) for delta in deltas)
    yield _chunk(reply, [{"index": 0, "delta": {}, "finish_reason": finish}])
    taken, given, cached = reply.usage
    usage = {"prompt_tokens": taken, "completion_tokens": given, "total_tokens": taken + given}
    yield {**_chunk(reply, []), "usage": {**usage, "prompt_tokens_details": {"cached_tokens": cached}}}


def _chunk(reply: Reply, choices: list[dict[str, Any]]) -> dict[str, Any]:
    return {
        "id": f"chatcmpl-{reply.number}",
        "object": "chat.completion.chunk",
        "created": 1_700_000_000,
        "model": "gpt-4o",
        "choices": choices,
    }


def _blocks(request: Received) -> list[dict[str, Any]]:
    blocks: list[dict[str, Any]] = []
    for message in request.json["messages"]:
        if message["role"] == "user":
            content = message["content"]
            blocks += [{"type": "text", "text": content}] if isinstance(content, str) else content
    return blocks
