"""Callbacks that are forged, by whoever has seen the address of another call: refused, and nothing changes (section 6).

Each test ends with the true callback, which is taken: what was refused would have been possible.
"""

from collections.abc import AsyncGenerator
from typing import Any

import pytest

from perdure.testing import Call
from tests.fakes.rap_server import FakeRapServer, FakeTool, Invocation
from tests.workflows.rap_stack import RapStack

KINDS = ("tool_result", "subscription_event", "oauth", "user_choice", "view_update")


@pytest.fixture
async def server() -> AsyncGenerator[FakeRapServer]:
    """A server whose tools say what the test says."""
    async with FakeRapServer(FakeTool("ask"), FakeTool("other"), FakeTool("subscribe")) as server:
        yield server


def message(kind: str, thread: str, call_id: str) -> dict[str, Any]:
    """A callback of this kind that is right in itself."""
    fields: dict[str, dict[str, Any]] = {
        "tool_result": {"id": call_id, "text": "forged"},
        "subscription_event": {"tool_call_id": call_id, "text": "forged", "associative": True},
        "oauth": {"id": call_id, "auth_url": "https://evil.example/login"},
        "user_choice": {"id": call_id, "prompt": "Pay?", "choices": ["yes"], "response_url": "http://evil.example/"},
        "view_update": {"view_type": "../../etc/passwd", "content": "forged"},
    }
    return {"type": kind, "group_id": thread, **fields[kind]}


def address(path_of: Invocation, token_of: Invocation) -> str:
    """The address of one call with the token of another."""
    return path_of.callback_url.rsplit("/", 1)[0] + "/" + token_of.callback_url.rsplit("/", 1)[1]


async def test_forged_for_another_thread(stack: RapStack, server: FakeRapServer, thread: str) -> None:
    """The address of a call of one thread says nothing to another thread, whose ids are no secret."""
    other = f"{thread}-other"
    mine, theirs = await stack.called(other, server, Call("ask")), await stack.called(thread, server, Call("ask"))
    before = [await stack.stored(known) for known in (thread, other)]
    for kind in KINDS:
        body = message(kind, thread, theirs.id)
        for url in (mine.callback_url, address(path_of=theirs, token_of=mine)):
            assert (await server.post(mine, body, url)).status == 403, kind
    assert [await stack.stored(known) for known in (thread, other)] == before
    assert (await server.result(theirs, "true")).status == 200
    await stack.heard(thread, "heard true")


async def test_forged_for_another_call(stack: RapStack, server: FakeRapServer, thread: str) -> None:
    """Nor to another call of the same thread, which may be one of another server."""
    await stack.asked(thread, Call("ask"), Call("other"))
    await server.invoked(2)
    await stack.waiting(thread)
    mine, theirs = server.invocations
    before = await stack.stored(thread)
    for kind in KINDS[:-1]:  # a view is the thread's, by whichever call
        body = message(kind, thread, theirs.id)
        for url in (mine.callback_url, address(path_of=theirs, token_of=mine)):
            assert (await server.post(mine, body, url)).status == 403, kind
    assert await stack.stored(thread) == before
    assert {(await server.result(call, call.operation)).status for call in (mine, theirs)} == {200}
    await stack.heard(thread, "heard ask | other")


async def test_forged_with_the_address_of_a_settled_call(stack: RapStack, server: FakeRapServer, thread: str) -> None:
    """An old address of a plain call asks nobody anything and tells the thread nothing; another result is ignored."""
    old = await stack.called(thread, server, Call("ask"))
    await server.result(old, "done")
    await stack.heard(thread, "heard done")
    before = await stack.stored(thread)
    for kind in ("subscription_event", "oauth", "user_choice"):
        assert (await server.post(old, message(kind, thread, old.id))).status == 410, kind
    assert (await server.post(old, message("tool_result", thread, old.id))).status == 200
    assert await stack.stored(thread) == before
    fresh = await stack.called(thread, server, Call("ask"))
    assert (await server.post(fresh, message("oauth", thread, fresh.id))).status == 200


async def test_forged_event_on_a_plain_call(stack: RapStack, server: FakeRapServer, thread: str) -> None:
    """While a plain call is open an event may be one that overtakes; without a subscription it goes nowhere.

    The gateway cannot know yet, so it takes the event; the thread drops it when the call ends as a plain one.
    """
    call = await stack.called(thread, server, Call("ask"))
    assert (await server.post(call, message("subscription_event", thread, call.id))).status == 200
    await stack.deferred(thread, 1)
    await server.result(call, "done")
    await stack.heard(thread, "heard done")
    assert await stack.events(thread) == []
    status = await stack.status(thread)
    assert (status.dropped, status.deferred) == (1, 0)


@pytest.mark.parametrize("kind", KINDS)
async def test_forged_with_the_address_of_a_closed_thread(
    stack: RapStack, server: FakeRapServer, thread: str, kind: str
) -> None:
    """410 for an address that was good until the thread was closed, and the thread is not woken."""
    call = await stack.called(thread, server, Call("ask"))
    await stack.control(thread, "close")
    await stack.asleep(thread)
    before = await stack.stored(thread)
    assert (await server.post(call, message(kind, thread, call.id))).status == 410
    assert await stack.stored(thread) == before
    await stack.asleep(thread)
