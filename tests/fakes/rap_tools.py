"""Tools that act on the wire like those of real RAP servers, with all their ways of leaving fields out."""

import base64
import json
from typing import Any, Final

from tests.fakes.rap_server import FakeRapServer, FakeTool, Invocation

NOON: Final = "Monday, November 30, 2026 at 12:00:00 PM GMT"

PIXEL: Final = base64.b64decode(
    "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5ErkJggg=="
)
"""A PNG image of one pixel."""


def get_time() -> FakeTool:
    """Answers at once; an invalid zone is a result that begins with `Error: `."""

    async def work(server: FakeRapServer, invocation: Invocation) -> None:
        zone = invocation.arguments.get("timezone", "UTC")
        known = zone in ("UTC", "Europe/London")
        text = f"Current time in {zone}: {NOON}" if known else f"Error: Invalid time zone specified: {zone}"
        await server.result(invocation, text)

    zone = {"type": "string", "description": "IANA timezone name (e.g., 'Europe/London')."}
    schema = {"type": "object", "properties": {"timezone": zone}, "required": list[str]()}
    return FakeTool("get_time", work, "Get the current time in a specified timezone or UTC.", schema)


def subscribe(name: str = "subscribe_prices", *, event_first: bool = False, confirms: bool = True) -> FakeTool:
    """Opens a subscription; events are sent by the test: `server.event(server.subscriptions[id], ...)`.

    The test confirms it itself if `confirms` is false. With `event_first` an event overtakes the confirmation. Without
    a `symbol` it answers with an error that says `subscription` all the same, as a real server does.
    """

    async def work(server: FakeRapServer, invocation: Invocation) -> None:
        symbol = invocation.arguments.get("symbol")
        if not symbol:
            await server.result(invocation, "Error: symbol is missing", subscription=True)
            return
        server.subscriptions[invocation.id] = invocation
        if event_first:
            await server.event(invocation, json.dumps({"symbol": symbol, "price": 1}), associative=True)
        if confirms:
            await server.result(invocation, f"Subscribed to {symbol}", subscription=True)

    return FakeTool(name, work, "Tells of every change of a price.", {"type": "object", "properties": {"symbol": {}}})


def watch_repository() -> FakeTool:
    """A webhook receiver: always subscribed, and its events say neither `associative` nor `final`.

    Send them with `server.event(invocation, webhook_text("push", {...}))`.
    """

    async def work(server: FakeRapServer, invocation: Invocation) -> None:
        server.subscriptions[invocation.id] = invocation
        await server.result(invocation, "Watching.", subscription=True)

    required = {"owner": {"type": "string"}, "repo": {"type": "string"}}
    schema = {"type": "object", "properties": required, "required": ["owner", "repo"], "additionalProperties": False}
    return FakeTool("subscribe_github_events", work, "Tells of what happens in a repository.", schema)


def webhook_text(event_type: str, payload: dict[str, Any]) -> str:
    """The text of such an event."""
    return json.dumps({"event_type": event_type, "payload": payload}, indent=2)


def read_image() -> FakeTool:
    """A result of `content` without `text`: words, then an image; people are shown the image, or else the words."""

    async def work(server: FakeRapServer, invocation: Invocation) -> None:
        image = {"data": base64.b64encode(PIXEL).decode(), "mediaType": "image/png"}
        words = "An image of one pixel."
        content = [{"type": "text", "text": words}, {"type": "image", **image}]
        display = [{"type": "image", "content": image}, {"type": "text", "content": words}]
        await server.result(invocation, content=content, display_as=display)

    return FakeTool("read_image", work, "Read an image.")


def edit_file() -> FakeTool:
    """A view of the change comes before the result, which people are shown as a diff, without a text after it."""

    async def work(server: FakeRapServer, invocation: Invocation) -> None:
        file = {"path": "a.txt", "status": "modified", "oldContents": "1\n", "newContents": "2\n"}
        await server.view(invocation, "diff", {"files": [file]})
        patch = "--- a.txt\n+++ a.txt\n@@ -1 +1 @@\n-1\n+2\n"
        display = [{"type": "diff", "content": {"path": "a.txt", "patch": patch}}]
        await server.result(invocation, "Edited a.txt", display_as=display)

    return FakeTool("edit_file", work, "Change a file.")


def unknown_display() -> FakeTool:
    """A result that people are to be shown in a way that nobody knows yet."""

    async def work(server: FakeRapServer, invocation: Invocation) -> None:
        display = [{"type": "hologram", "content": {"depth": 3}}, {"type": "text", "content": "seen"}]
        await server.result(invocation, "said", display_as=display)

    return FakeTool("show_hologram", work, "Show something new.")


def list_mail(auth_url: str = "https://login.example/authorize?state=s1") -> FakeTool:
    """Asks for a login first; the test lets it go on: `server.result(invocation, "2 mails")`."""

    async def work(server: FakeRapServer, invocation: Invocation) -> None:
        await server.oauth(invocation, auth_url)

    return FakeTool("list_mail", work, "List the mail.", annotations={"requiresAuth": "example"})


def open_sandbox() -> FakeTool:
    """Asks a person for a grant, the last choice being the default; the test goes on when the answer has come."""

    async def work(server: FakeRapServer, invocation: Invocation) -> None:
        await server.choice(invocation, "Allow this thread to run commands?", "Always here", "Once", "No", default=2)

    return FakeTool("open_sandbox_direct", work, "Open a place to run commands in.", annotations={"destructive": True})
