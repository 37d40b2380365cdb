"""What tool servers post to the gateway, and what has come of it."""

from typing import Any

from tests.gateway.served import Served
from tests.gateway.waiting import WaitingThread


def result(thread: WaitingThread, **fields: Any) -> dict[str, Any]:
    """A result of the first call."""
    return {"type": "tool_result", "group_id": thread.thread_id, "id": thread.calls[0], "text": "sunny"} | fields


def event(thread: WaitingThread, **fields: Any) -> dict[str, Any]:
    """An event of the first call."""
    origin = {"group_id": thread.thread_id, "tool_call_id": thread.calls[0]}
    return {"type": "subscription_event", **origin, "text": "rain"} | fields


def oauth(thread: WaitingThread, **fields: Any) -> dict[str, Any]:
    """The first call asks for a link to be opened."""
    call = {"group_id": thread.thread_id, "id": thread.calls[0]}
    return {"type": "oauth", **call, "auth_url": "https://id.example/authorize?x=1"} | fields


def choice(thread: WaitingThread, **fields: Any) -> dict[str, Any]:
    """The first call asks for a choice."""
    question = {"prompt": "Which?", "choices": ["a", "b"], "default": 1, "response_url": "http://127.0.0.1:1/answer"}
    return {"type": "user_choice", "group_id": thread.thread_id, "id": thread.calls[0], **question} | fields


def view(thread: WaitingThread, **fields: Any) -> dict[str, Any]:
    """A view."""
    content: dict[str, Any] = {"files": []}
    return {"type": "view_update", "group_id": thread.thread_id, "view_type": "diff", "content": content} | fields


KINDS = [result, event, oauth, choice, view]


async def is_untouched(served: Served, waiting: WaitingThread) -> bool:
    """Whether nothing has reached the thread."""
    snapshot = await served.store.snapshot(waiting.thread_id)
    return not (await served.signals(waiting.thread_id) or snapshot.choices or snapshot.views)


async def counted(served: Served, status: int) -> int:
    """How many callbacks the gateway says it has answered with a status."""
    counts: dict[str, int] = (await served.http.get(f"{served.base}/health")).json()["callbacks"]
    return counts.get(str(status), 0)
