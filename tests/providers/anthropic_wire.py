"""Anthropic's messages API, as it streams."""

import base64
from collections.abc import Iterator
from typing import Any

from tests.fakes.http_wire import Received
from tests.providers.dialect import Call, Failure, Reply, Thought, pieces
from tests.providers.model_server import Answer, sse

_STOPS = {"stop": "end_turn", "length": "max_tokens", "content_filter": "refusal"}
_FAILURES: dict[str, tuple[int, str, str]] = {
    "rate_limit": (429, "rate_limit_error", "This request would exceed your organization's rate limit."),
    "too_long": (400, "invalid_request_error", "prompt is too long: 210000 tokens > 200000 maximum"),
    "bad_key": (401, "authentication_error", "invalid x-api-key"),
    "overloaded": (529, "overloaded_error", "Overloaded"),
    "quota": (400, "invalid_request_error", "Your credit balance is too low to access the Anthropic API."),
    "not_found": (404, "not_found_error", "model: claude-sonnet-5-5"),
}


class Anthropic:
    """See the module."""

    name = "anthropic"
    model = "anthropic:claude-sonnet-5-5"
    thinks = True

    def base_url(self, url: str) -> str:
        """The client adds the version."""
        return url

    def answer(self, reply: Reply) -> Answer:
        """Message start, blocks with a ping among them, message delta, message stop."""
        return Answer([_event(each) for each in _events(reply)])

    def broken_stream(self, reply: Reply) -> Answer:
        """The stream up to its middle, and an error event."""
        events = list(_events(reply))
        error = {"type": "error", "error": {"type": "overloaded_error", "message": "Overloaded"}}
        return Answer([_event(each) for each in (*events[: len(events) // 2], error)])

    def failure(self, kind: Failure) -> Answer:
        """An error body; a rate limit with its delay."""
        status, type, message = _FAILURES[kind]
        headers = {"retry-after": "3"} if kind == "rate_limit" else {}
        body = {"type": "error", "error": {"type": type, "message": message}, "request_id": "req_1"}
        return Answer(status=status, headers=headers, body=body)

    def tools(self, request: Received) -> list[str]:
        """See the protocol."""
        return [tool["name"] for tool in request.json.get("tools", [])]

    def must_call(self, request: Received) -> bool:
        """See the protocol."""
        return request.json.get("tool_choice", {}).get("type") in ("any", "tool")

    def words(self, request: Received) -> list[str]:
        """See the protocol."""
        return [block["text"] for block in _blocks(request, "user") if block["type"] == "text"]

    def thoughts(self, request: Received) -> list[Thought]:
        """See the protocol."""
        found: list[Thought] = []
        for block in _blocks(request, "assistant"):
            if block["type"] == "thinking":
                found.append(Thought(block["thinking"], block["signature"]))
            elif block["type"] == "redacted_thinking":
                found.append(Thought("", block["data"]))
        return found

    def calls(self, request: Received) -> list[tuple[str, dict[str, Any]]]:
        """See the protocol."""
        blocks = _blocks(request, "assistant")
        return [(block["name"], block["input"]) for block in blocks if block["type"] == "tool_use"]

    def results(self, request: Received) -> list[str]:
        """See the protocol."""
        return [_text(block["content"]) for block in _blocks(request, "user") if block["type"] == "tool_result"]

    def files(self, request: Received) -> list[tuple[str, bytes]]:
        """See the protocol."""
        sources = [b["source"] for b in _blocks(request, "user") if b["type"] in ("image", "document")]
        return [(source["media_type"], base64.b64decode(source["data"])) for source in sources]

    def effort(self, request: Received) -> Any:
        """See the protocol."""
        return request.json.get("thinking"), request.json.get("output_config")


def cache_marks(request: Received) -> int:
    """How many places of a request are marked to be kept."""
    return request.body.count(b'"cache_control"')


def _events(reply: Reply) -> Iterator[dict[str, Any]]:
    taken, given, cached = reply.usage
    usage = {
        "input_tokens": taken - cached,
        "cache_creation_input_tokens": 0,
        "cache_read_input_tokens": cached,
        "output_tokens": 1,
    }
    message: dict[str, Any] = {
        "id": f"msg_{reply.number}",
        "type": "message",
        "role": "assistant",
        "model": "claude-sonnet-5-5",
        "content": [],
        "stop_reason": None,
        "stop_sequence": None,
        "usage": usage,
    }
    yield {"type": "message_start", "message": message}
    for index, (block, deltas) in enumerate(_content(reply)):
        yield {"type": "content_block_start", "index": index, "content_block": block}
        if index == 0:
            yield {"type": "ping"}
        for delta in deltas:
            yield {"type": "content_block_delta", "index": index, "delta": delta}
        yield {"type": "content_block_stop", "index": index}
    stop = "tool_use" if reply.calls and reply.finish == "stop" else _STOPS[reply.finish]
    delta = {"stop_reason": stop, "stop_sequence": None}
    yield {"type": "message_delta", "delta": delta, "usage": {"output_tokens": given}}
    yield {"type": "message_stop"}


def _content(reply: Reply) -> Iterator[tuple[dict[str, Any], list[dict[str, Any]]]]:
    for thought in reply.thoughts:
        if not thought.text:
            yield {"type": "redacted_thinking", "data": thought.signature}, []
            continue
        deltas = [{"type": "thinking_delta", "thinking": piece} for piece in pieces(thought.text)]
        signed = {"type": "signature_delta", "signature": thought.signature}
        yield {"type": "thinking", "thinking": "", "signature": ""}, [*deltas, signed]
    if reply.text:
        yield {"type": "text", "text": ""}, [{"type": "text_delta", "text": piece} for piece in pieces(reply.text)]
    for call in reply.calls:
        yield _opened(call), [{"type": "input_json_delta", "partial_json": piece} for piece in _cut(call.arguments)]


def _opened(call: Call) -> dict[str, Any]:
    return {"type": "tool_use", "id": call.id, "name": call.name, "input": {}}


def _cut(arguments: str) -> list[str]:
    """The first piece is empty, as it is there."""
    return ["", *pieces(arguments)]


def _event(data: dict[str, Any]) -> bytes:
    return sse(data, data["type"])


def _blocks(request: Received, role: str) -> list[dict[str, Any]]:
    blocks: list[dict[str, Any]] = []
    for message in request.json["messages"]:
        if message["role"] == role:
            content = message["content"]
            blocks += [{"type": "text", "text": content}] if isinstance(content, str) else content
    return blocks


def _text(content: Any) -> str:
    return content if isinstance(content, str) else "".join(each["text"] for each in content if "text" in each)
