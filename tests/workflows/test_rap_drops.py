"""What comes from a RAP server and belongs to nothing: what is dropped, where, and what is taken in its place.

The protocol wants what belongs to nothing discarded. Here the gateway refuses it with 4xx, so that its server learns of
it; what gets past the gateway, since a call was settled at the same moment, is dropped by the thread, which counts it.
"""

from collections.abc import AsyncGenerator
from typing import Any

import pytest

from perdure.inputs import Event, ToolResult
from perdure.rap.token import CALLBACK_KEY, callback_token
from perdure.records import Summary
from perdure.testing import Call
from tests.eventually import eventually
from tests.fakes.rap_server import FakeRapServer, FakeTool, Invocation
from tests.workflows.rap_stack import RapStack


@pytest.fixture
async def server() -> AsyncGenerator[FakeRapServer]:
    """A server whose tools say what the test says."""
    async with FakeRapServer(FakeTool("ask"), FakeTool("other"), FakeTool("subscribe")) as server:
        yield server


async def signal(stack: RapStack, thread: str, content: Event | ToolResult) -> None:
    """What the gateway would send if it saw the thread as it was a moment ago."""
    await stack.handle(thread).signal(content.kind, content)


@pytest.mark.parametrize(
    "body",
    [
        b"{",
        {"type": "greeting"},
        {"type": "tool_result", "text": "done"},
        {"type": "subscription_event", "text": "rain"},
        {"type": "tool_result", "id": 7, "text": "done"},
    ],
)
async def test_drop_malformed_callback(stack: RapStack, server: FakeRapServer, thread: str, body: Any) -> None:
    """Bad JSON, an unknown type, a missing or wrong field: 400, nothing changes, and the call takes its result."""
    invocation = await stack.called(thread, server, Call("ask"))
    before = await stack.stored(thread)
    body = body if isinstance(body, bytes) else {"group_id": thread} | body
    assert (await server.post(invocation, body)).status == 400
    assert await stack.stored(thread) == before
    assert (await server.result(invocation, "done")).status == 200
    await stack.heard(thread, "heard done")


async def test_drop_unknown_display_or_content_type(stack: RapStack, server: FakeRapServer, thread: str) -> None:
    """Unlike the reference, which loses the whole result, only what nobody knows is skipped."""
    invocation = await stack.called(thread, server, Call("ask"))
    content = [{"type": "smell", "data": "x"}, {"type": "text", "text": "done"}]
    display = [{"type": "hologram", "content": {"depth": 3}}]
    assert (await server.result(invocation, content=content, display_as=display)).status == 200
    await stack.heard(thread, "heard done")


async def test_drop_unknown_thread(stack: RapStack, server: FakeRapServer, thread: str) -> None:
    """404 for a thread that is not stored, token and all, and none is made; the thread that exists takes it."""
    invocation = await stack.called(thread, server, Call("ask"))
    gone = f"{thread}-gone"
    token = callback_token(await stack.store.get_key(CALLBACK_KEY), gone, invocation.id)
    url = invocation.callback_url.replace(thread, gone).rsplit("/", 1)[0] + f"/{token}"
    body = {"type": "tool_result", "group_id": gone, "id": invocation.id, "text": "done"}
    assert (await server.post(invocation, body, url)).status == 404
    assert await stack.gateway.signals(gone) == []
    assert (await server.result(invocation, "done")).status == 200
    await stack.heard(thread, "heard done")


async def test_drop_closed_thread(stack: RapStack, server: FakeRapServer, thread: str) -> None:
    """410 for everything, the final event of a subscription too, which the closing has ended; before it was taken."""
    invocation = await stack.subscribed(thread, server)
    assert (await server.event(invocation, "rain", associative=True)).status == 200
    await stack.heard(thread, "heard rain")
    await stack.control(thread, "close")
    await stack.asleep(thread)
    before = await stack.stored(thread)
    for final in (False, True):
        assert (await server.event(invocation, "late", associative=True, final=final)).status == 410
    assert (await server.result(invocation, "late")).status == 410
    assert await stack.stored(thread) == before
    assert await stack.store.get_active_subscriptions(thread) == ()


async def test_drop_event_of_a_call_that_never_was(stack: RapStack, server: FakeRapServer, thread: str) -> None:
    """410, whatever the token; one that gets past the gateway is dropped and counted, `final` too."""
    invocation = await stack.subscribed(thread, server)
    other = "call_0123456789abcdef0123456789abcdef"
    body = {"type": "subscription_event", "group_id": thread, "tool_call_id": other, "text": "rain", "final": True}
    assert (await server.post(invocation, body)).status == 403
    assert (await server.post(invocation, body, await stack.gateway.url(thread, other))).status == 410
    await signal(stack, thread, Event(id="e1", call_id=other, content="rain", final=True))
    await stack.dropped(thread, 1)
    assert await stack.events(thread) == []
    assert (await server.event(invocation, "sun", associative=True, final=True)).status == 200
    await stack.heard(thread, "heard sun")


async def test_drop_not_event_of_a_call_compacted_away(stack: RapStack, server: FakeRapServer, thread: str) -> None:
    """A summary orphans no subscription: the model is told what it had subscribed to, though it reads a summary."""
    invocation = await stack.subscribed(thread, server)
    head = (await stack.client.history(thread))[-1]
    summary = Summary(id="s1", thread_id=thread, message_id=head.id, parts=len(head.parts), text="It was about prices.")
    await stack.store.add_summary(summary)
    await stack.restart_worker()
    assert (await server.event(invocation, "rain", associative=True)).status == 200
    await stack.heard(thread, "heard rain")
    request = str(stack.model.requests[-1].messages)
    assert "It was about prices." in request
    assert "receive_event__injected" in request
    assert f'"original_tool_call_id":"{invocation.id}"' in request


async def test_drop_result_for_a_settled_call(stack: RapStack, server: FakeRapServer, thread: str) -> None:
    """200, since servers send an error otherwise, and nothing changes; the thread drops and counts what gets past."""
    invocation = await stack.called(thread, server, Call("ask"))
    assert (await server.result(invocation, "first")).status == 200
    await stack.heard(thread, "heard first")
    before = await stack.stored(thread)
    assert (await server.result(invocation, "second")).status == 200
    assert await stack.stored(thread) == before
    await signal(stack, thread, ToolResult(call_id=invocation.id, content="third"))
    await stack.dropped(thread, 1)
    assert [result.content for result in await stack.results(thread)] == ["first"]


async def test_drop_not_result_for_a_call_that_is_not_the_last(
    stack: RapStack, server: FakeRapServer, thread: str
) -> None:
    """All calls of a step run here, so each takes its result, in any order; the model reads them in call order."""
    await stack.asked(thread, Call("ask"), Call("other"))
    await server.invoked(2)
    by_tool = {invocation.operation: invocation for invocation in server.invocations}
    assert (await server.result(by_tool["other"], "second")).status == 200
    assert (await server.result(by_tool["ask"], "first")).status == 200
    await stack.heard(thread, "heard first | second")
    assert (await stack.status(thread)).dropped == 0


async def test_drop_result_of_a_turn_before(stack: RapStack, server: FakeRapServer, thread: str) -> None:
    """A call that was given up takes nothing, while another one waits: that one is not settled by it."""
    stale = await stack.called(thread, server, Call("ask"))
    fresh = await stack.called(thread, server, Call("ask"))
    before = await stack.stored(thread)
    assert (await server.result(stale, "stale")).status == 200
    assert await stack.stored(thread) == before
    await signal(stack, thread, ToolResult(call_id=stale.id, content="stale"))
    await stack.dropped(thread, 1)
    assert (await stack.status(thread)).state == "waiting"
    assert (await server.result(fresh, "fresh")).status == 200
    await stack.heard(thread, "heard fresh")


async def test_drop_subscription_of_a_dropped_result(stack: RapStack, server: FakeRapServer, thread: str) -> None:
    """`subscription: true` in a result that nobody waits for tracks nothing, so its events are refused."""
    stale = await stack.called(thread, server, Call("subscribe"))
    await stack.client.send(thread, "never mind", id="m")
    await stack.heard(thread, "never mind")
    assert (await server.result(stale, "subscribed", subscription=True)).status == 200
    await signal(stack, thread, ToolResult(call_id=stale.id, content="subscribed", subscription=True))
    await stack.dropped(thread, 1)
    assert (await stack.status(thread)).subscriptions == ()
    assert (await server.event(stale, "rain", associative=True)).status == 410
    kept = await stack.subscribed(thread, server)
    assert (await server.event(kept, "rain", associative=True)).status == 200
    await stack.heard(thread, "heard rain")


async def ended_subscription(stack: RapStack, server: FakeRapServer, thread: str, how: str) -> Invocation:
    """A call whose events nobody wants any more, or never has."""
    if how == "plain":
        invocation = await stack.called(thread, server, Call("ask"))
        await server.result(invocation, "plain")
        await stack.heard(thread, "plain")
        return invocation
    invocation = await stack.subscribed(thread, server)
    if how == "final":
        await server.event(invocation, "the end", associative=True, final=True)
        await stack.heard(thread, "the end")
    else:
        await stack.asked(thread, Call("cancel_subscription", {"tool_call_id": invocation.id}))
        await stack.heard(thread, "is cancelled")
    return invocation


@pytest.mark.parametrize("how", ["plain", "final", "cancelled"])
async def test_drop_event_of_what_is_no_subscription(
    stack: RapStack, server: FakeRapServer, thread: str, how: str
) -> None:
    """A plain call's events, and those after a final one or a cancellation: 410, and dropped where they get past."""
    invocation = await ended_subscription(stack, server, thread, how)
    before = await stack.stored(thread)
    for associative in (True, False):
        assert (await server.event(invocation, "late", associative=associative)).status == 410
    assert await stack.stored(thread) == before
    for number, associative in enumerate((True, False), start=1):
        late = Event(id=f"e{number}", call_id=invocation.id, content="late", associative=associative)
        await signal(stack, thread, late)
        await stack.dropped(thread, number)
    assert "late" not in await stack.events(thread)
    assert await stack.store.get_children(thread) == ()


async def test_drop_event_for_a_child_that_inherited_the_call(
    stack: RapStack, server: FakeRapServer, thread: str
) -> None:
    """A subscription is its own thread's: a child that can see the call takes no events of it, the parent does."""
    invocation = await stack.subscribed(thread, server)
    assert (await server.event(invocation, "rain")).status == 200
    (child,) = await eventually(lambda: stack.store.get_children(thread))
    await stack.heard(child.thread_id, "heard rain")
    body = {"type": "subscription_event", "group_id": child.thread_id, "tool_call_id": invocation.id, "text": "snow"}
    assert (await server.post(invocation, body)).status == 403
    assert (await server.post(invocation, body, await stack.gateway.url(child.thread_id, invocation.id))).status == 410
    await signal(stack, child.thread_id, Event(id="e1", call_id=invocation.id, content="snow"))
    await stack.dropped(child.thread_id, 1)
    assert "snow" not in await stack.events(child.thread_id)
    assert (await server.event(invocation, "sun", associative=True)).status == 200
    await stack.heard(thread, "heard sun")


async def test_drop_redelivered_event(stack: RapStack, server: FakeRapServer, thread: str) -> None:
    """With a request id the same event twice is one; without one both are told, since both may be real."""
    invocation = await stack.subscribed(thread, server)
    origin = {"group_id": thread, "tool_call_id": invocation.id}
    body = {"type": "subscription_event", **origin, "text": "rain", "associative": True}
    for _ in range(2):
        answer = await stack.gateway.post(thread, invocation.id, body, headers={"Idempotency-Key": "7"})
        assert answer.status_code == 200
    await stack.heard(thread, "heard rain")
    assert (await server.event(invocation, "sun", associative=True)).status == 200
    await stack.heard(thread, "heard sun")
    assert (await server.event(invocation, "sun", associative=True)).status == 200

    async def heard_both() -> bool:
        return await stack.events(thread) == ["rain", "sun", "sun"]

    await eventually(heard_both)
