"""OpenAI's responses, as they stream: every item is opened, filled piece by piece, and closed with all it holds."""

import json
from collections.abc import Iterator
from typing import Any

from tests.fakes.http_wire import Received
from tests.providers.chat_wire import failure
from tests.providers.dialect import Call, Failure, Reply, Thought, decoded, pieces
from tests.providers.model_server import Answer, sse

Event = dict[str, Any]


class Responses:
    """See the module."""

    name = "openai-responses"
    model = "openai-responses:gpt-5"
    thinks = True

    def base_url(self, url: str) -> str:
        """With the version."""
        return f"{url}/v1"

    def answer(self, reply: Reply) -> Answer:
        """From `response.created` to `response.completed`, or `response.incomplete`."""
        return Answer([_event(number, event) for number, event in enumerate(_events(reply))])

    def broken_stream(self, reply: Reply) -> Answer:
        """The stream up to its middle, and `response.failed`."""
        events = list(_events(reply))[: len(list(_events(reply))) // 2]
        error = {"code": "server_is_overloaded", "message": "Our servers are currently overloaded."}
        failed = {"type": "response.failed", "response": {**_response(reply, "failed", []), "error": error}}
        return Answer([_event(number, event) for number, event in enumerate([*events, failed])])

    def failure(self, kind: Failure) -> Answer:
        """The same as with chat completions."""
        return failure(kind)

    def tools(self, request: Received) -> list[str]:
        """See the protocol."""
        return [tool["name"] for tool in request.json.get("tools", [])]

    def must_call(self, request: Received) -> bool:
        """See the protocol."""
        return bool(request.json.get("tool_choice") == "required")

    def words(self, request: Received) -> list[str]:
        """See the protocol."""
        return [block["text"] for block in _blocks(request) if block["type"] == "input_text"]

    def thoughts(self, request: Received) -> list[Thought]:
        """See the protocol."""
        items = [item for item in request.json["input"] if item.get("type") == "reasoning"]
        return [Thought("".join(part["text"] for part in item["summary"]), item["encrypted_content"]) for item in items]

    def calls(self, request: Received) -> list[tuple[str, dict[str, Any]]]:
        """See the protocol."""
        items = [item for item in request.json["input"] if item.get("type") == "function_call"]
        return [(item["name"], json.loads(item["arguments"])) for item in items]

    def results(self, request: Received) -> list[str]:
        """See the protocol."""
        return [item["output"] for item in request.json["input"] if item.get("type") == "function_call_output"]

    def files(self, request: Received) -> list[tuple[str, bytes]]:
        """See the protocol."""
        urls = [
            block["image_url"] if block["type"] == "input_image" else block["file_data"]
            for block in _blocks(request)
            if block["type"] in ("input_image", "input_file")
        ]
        return [decoded(url) for url in urls]

    def effort(self, request: Received) -> Any:
        """See the protocol."""
        return request.json.get("reasoning", {}).get("effort")


def _events(reply: Reply) -> Iterator[Event]:
    yield {"type": "response.created", "response": _response(reply, "in_progress", [])}
    yield {"type": "response.in_progress", "response": _response(reply, "in_progress", [])}
    items: list[Event] = []
    for thought in reply.thoughts:
        yield from _reasoning(f"rs_{reply.number}_{len(items)}", len(items), thought, items)
    if reply.text:
        yield from _message(f"msg_{reply.number}_{len(items)}", len(items), reply.text, items)
    for call in reply.calls:
        yield from _function_call(f"fc_{reply.number}_{len(items)}", len(items), call, items)
    if reply.finish == "stop":
        yield {"type": "response.completed", "response": _response(reply, "completed", items)}
        return
    reason = "max_output_tokens" if reply.finish == "length" else "content_filter"
    incomplete = {**_response(reply, "incomplete", items), "incomplete_details": {"reason": reason}}
    yield {"type": "response.incomplete", "response": incomplete}


def _reasoning(id: str, index: int, thought: Thought, items: list[Event]) -> Iterator[Event]:
    place = {"item_id": id, "output_index": index, "summary_index": 0}
    opened: Event = {"id": id, "type": "reasoning", "summary": [], "encrypted_content": None, "status": None}
    yield {"type": "response.output_item.added", "output_index": index, "item": opened}
    part = {"type": "summary_text", "text": thought.text}
    if thought.text:
        empty = {"type": "summary_text", "text": ""}
        yield {"type": "response.reasoning_summary_part.added", **place, "part": empty}
        for piece in pieces(thought.text):
            yield {"type": "response.reasoning_summary_text.delta", **place, "delta": piece}
        yield {"type": "response.reasoning_summary_text.done", **place, "text": thought.text}
        yield {"type": "response.reasoning_summary_part.done", **place, "part": part}
    items.append({**opened, "summary": [part] if thought.text else [], "encrypted_content": thought.signature})
    yield {"type": "response.output_item.done", "output_index": index, "item": items[-1]}


def _message(id: str, index: int, text: str, items: list[Event]) -> Iterator[Event]:
    place = {"item_id": id, "output_index": index, "content_index": 0}
    opened: Event = {"id": id, "type": "message", "status": "in_progress", "role": "assistant", "content": []}
    part: Event = {"type": "output_text", "text": text, "annotations": [], "logprobs": []}
    yield {"type": "response.output_item.added", "output_index": index, "item": opened}
    yield {"type": "response.content_part.added", **place, "part": {**part, "text": ""}}
    for piece in pieces(text):
        yield {"type": "response.output_text.delta", **place, "delta": piece, "logprobs": []}
    yield {"type": "response.output_text.done", **place, "text": text, "logprobs": []}
    yield {"type": "response.content_part.done", **place, "part": part}
    items.append({**opened, "status": "completed", "content": [part]})
    yield {"type": "response.output_item.done", "output_index": index, "item": items[-1]}


def _function_call(id: str, index: int, call: Call, items: list[Event]) -> Iterator[Event]:
    place = {"item_id": id, "output_index": index}
    opened = {
        "id": id,
        "type": "function_call",
        "status": "in_progress",
        "call_id": call.id,
        "name": call.name,
        "arguments": "",
    }
    yield {"type": "response.output_item.added", "output_index": index, "item": opened}
    for piece in pieces(call.arguments):
        yield {"type": "response.function_call_arguments.delta", **place, "delta": piece}
    yield {"type": "response.function_call_arguments.done", **place, "name": call.name, "arguments": call.arguments}
    items.append({**opened, "status": "completed", "arguments": call.arguments})
    yield {"type": "response.output_item.done", "output_index": index, "item": items[-1]}


def _response(reply: Reply, status: str, items: list[Event]) -> Event:
    taken, given, cached = reply.usage
    done = status != "in_progress"
    usage = {
        "input_tokens": taken,
        "input_tokens_details": {"cached_tokens": cached, "cache_write_tokens": 0},
        "output_tokens": given,
        "output_tokens_details": {"reasoning_tokens": 0},
        "total_tokens": taken + given,
    }
    return {
        "id": f"resp_{reply.number}",
        "object": "response",
        "created_at": 1_700_000_000,
        "status": status,
        "error": None,
        "incomplete_details": None,
        "instructions": None,
        "metadata": {},
        "model": "gpt-5",
        "output": items,
        "parallel_tool_calls": True,
        "temperature": 1.0,
        "tool_choice": "auto",
        "tools": [],
        "top_p": 1.0,
        "usage": usage if done else None,
    }


def _event(number: int, event: Event) -> bytes:
    return sse({**event, "sequence_number": number}, event["type"])


def _blocks(request: Received) -> list[dict[str, Any]]:
    blocks: list[dict[str, Any]] = []
    for item in request.json["input"]:
        if item.get("role") == "user":
            content = item["content"]
            blocks += [{"type": "input_text", "text": content}] if isinstance(content, str) else content
    return blocks
