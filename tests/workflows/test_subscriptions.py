"""Subscriptions: how they begin, where their events go, and how they end (RAP, server/subscription-events)."""

import json
import re

import pytest
from pydantic_ai.messages import ModelMessage, ModelRequest, ModelResponse, ToolCallPart, ToolReturnPart
from temporalio.client import Client

from perdure.inputs import INLINE_BYTES
from perdure.messages import ToolResultPart
from perdure.testing import Call
from stores.postgres import PostgresStore
from tests.eventually import eventually
from tests.fakes.rap_server import CANCEL, FakeRapServer, FakeTool
from tests.workflows.rap_stack import RapStack

PRICES = {"symbol": "ACME"}


# -- how they begin --------------------------------------------------------------------------------------------------


async def test_obligation_21_subscription_true_tracks(stack: RapStack, server: FakeRapServer, thread: str) -> None:
    """A result that says so makes its call a subscription, in the status and the store; another one does not."""
    plain = await stack.called(thread, server, Call("subscribe"))
    await server.result(plain, "not now")
    await stack.heard(thread, "not now")
    assert await stack.store.get_active_subscriptions(thread) == ()
    invocation = await stack.called(thread, server, Call("subscribe", PRICES))
    await server.result(invocation, "subscribed", subscription=True)
    await stack.heard(thread, "heard subscribed")
    (known,) = await stack.store.get_active_subscriptions(thread)
    assert (known.call_id, known.tool, json.loads(known.arguments)) == (invocation.id, "subscribe", PRICES)
    (shown,) = (await stack.status(thread)).subscriptions
    assert (shown.call_id, shown.tool, shown.received, shown.paused) == (invocation.id, "subscribe", 0, None)
    # The model could not cancel what it has no name for.
    assert invocation.id in str(stack.model.requests[-1].results[-1])


@pytest.mark.parametrize("text", ["Error: symbol is missing", "MCP tool error: gone"])
async def test_an_error_result_tracks_nothing(stack: RapStack, server: FakeRapServer, thread: str, text: str) -> None:
    """The protocol has no type for errors: a text that begins like one is one, whatever its `subscription` says."""
    invocation = await stack.called(thread, server, Call("subscribe"))
    assert (await server.result(invocation, text, subscription=True)).status == 200
    await stack.heard(thread, text)
    assert (await stack.results(thread))[-1].outcome == "error"
    assert (await stack.status(thread)).subscriptions == ()
    assert await stack.store.get_active_subscriptions(thread) == ()
    assert (await server.event(invocation, "rain", associative=True)).status == 410


async def test_an_error_result_in_content_tracks_nothing(stack: RapStack, server: FakeRapServer, thread: str) -> None:
    """The same for words in `content`; an error in the middle of a text is none."""
    invocation = await stack.called(thread, server, Call("subscribe"))
    content = [{"type": "text", "text": "Error: no"}]
    await server.result(invocation, content=content, subscription=True)
    await stack.heard(thread, "Error: no")
    assert (await stack.status(thread)).subscriptions == ()
    fine = await stack.called(thread, server, Call("subscribe"))
    await server.result(fine, "I will tell of every Error: yes", subscription=True)
    await stack.heard(thread, "every Error")
    assert [known.call_id for known in (await stack.status(thread)).subscriptions] == [fine.id]


async def test_the_first_event_may_overtake_the_confirmation(
    stack: RapStack, server: FakeRapServer, thread: str
) -> None:
    """It waits for the confirmation, and then follows it; the model reads both, in this order."""
    invocation = await stack.called(thread, server, Call("subscribe"))
    assert (await server.event(invocation, "rain", associative=True)).status == 200
    await stack.deferred(thread, 1)
    assert await stack.events(thread) == []
    await server.result(invocation, "subscribed", subscription=True)
    await stack.heard(thread, "heard rain")
    told = _results(stack.model.requests[-1].messages)
    assert [text.partition("\n")[0] for _, text in told] == ["subscribed", "rain"]
    (known,) = (await stack.status(thread)).subscriptions
    assert known.received == 1


async def test_a_final_event_may_overtake_the_confirmation(stack: RapStack, server: FakeRapServer, thread: str) -> None:
    """A subscription that is over before it is confirmed is not left active."""
    invocation = await stack.called(thread, server, Call("subscribe"))
    await server.event(invocation, "that was all", associative=True, final=True)
    await stack.deferred(thread, 1)
    await server.result(invocation, "subscribed", subscription=True)
    await stack.heard(thread, "heard that was all")
    assert (await stack.status(thread)).subscriptions == ()
    assert (await server.event(invocation, "late", associative=True)).status == 410


# -- where events go -------------------------------------------------------------------------------------------------


async def test_obligation_25_associative_events_come_inline_in_order(
    stack: RapStack, server: FakeRapServer, thread: str
) -> None:
    """Each joins the conversation as a call that nobody made and its result; the subscribing call keeps its own."""
    invocation = await stack.called(thread, server, Call("subscribe", PRICES))
    await server.result(invocation, "subscribed", subscription=True)
    await stack.heard(thread, "subscribed")
    for number in range(5):
        assert (await server.event(invocation, f"price {number}", associative=True)).status == 200
    await stack.heard(thread, "price 4")
    assert await stack.events(thread) == [f"price {number}" for number in range(5)]
    asked = stack.model.requests[-1]
    told = _results(asked.messages)
    assert [text.partition("\n")[0] for _, text in told] == ["subscribed", *(f"price {n}" for n in range(5))]
    calls = _calls(asked.messages)
    assert [call.tool_name for call in calls] == ["subscribe", *["receive_event__injected"] * 5]
    assert len({call.tool_call_id for call in calls}) == 6
    assert calls[-1].args_as_dict() == {
        "original_tool_name": "subscribe",
        "original_tool_call_id": invocation.id,
        "original_args": PRICES,
    }
    # Obligation 24: one result of the call itself, and the reserved name is offered to nobody.
    assert [call_id for call_id, _ in told].count(calls[0].tool_call_id) == 1
    assert "receive_event__injected" not in asked.tools


async def test_obligation_24_the_model_may_not_call_the_reserved_name(
    stack: RapStack, server: FakeRapServer, thread: str
) -> None:
    """It gets an error result and one more round, and nothing is injected."""
    await stack.asked(thread, Call("receive_event__injected", {"original_tool_name": "subscribe"}))
    await stack.heard(thread, "heard")
    (result,) = await stack.results(thread)
    assert result.outcome == "error"
    assert await stack.events(thread) == []


async def test_obligation_25_other_events_get_a_child_thread(
    stack: RapStack, server: FakeRapServer, thread: str
) -> None:
    """The child reads the parent's conversation, that it was spawned, and the event; the parent does not notice it.

    In this order: spawn call, its result, the injected call, the event as its result.
    """
    invocation = await stack.called(thread, server, Call("subscribe", PRICES))
    await server.result(invocation, "subscribed", subscription=True)
    await stack.heard(thread, "subscribed")
    rounds, before = len(stack.model.requests), await stack.client.history(thread)
    assert (await server.event(invocation, "price 7")).status == 200
    (child,) = await eventually(lambda: stack.store.get_children(thread))
    await stack.heard(child.thread_id, "heard price 7")
    assert (child.kind, child.parent_thread_id) == ("event", thread)
    asked = stack.model.requests[-1]
    inherited = stack.model.requests[rounds - 1].messages
    assert _without_times(asked.messages[: len(inherited)]) == _without_times(inherited)
    *_, subscribed, spawned, injected = _calls(asked.messages)
    assert [call.tool_name for call in (subscribed, spawned, injected)] == [
        "subscribe",
        "spawn_thread",
        "receive_event__injected",
    ]
    assert spawned.args_as_dict()["child_of"] == [thread]
    assert injected.args_as_dict()["original_tool_call_id"] == invocation.id
    (_, task), (_, event) = _results(asked.messages)[-2:]
    assert child.thread_id in task
    assert thread in task
    assert event == "price 7"
    assert len(stack.model.requests) == rounds + 1
    assert await stack.client.history(thread) == before
    (known,) = (await stack.status(thread)).subscriptions
    assert known.received == 1


async def test_events_close_together_get_children_of_their_own(
    stack: RapStack, server: FakeRapServer, thread: str
) -> None:
    """Each event is one child's, however many come at once."""
    invocation = await stack.subscribed(thread, server)
    for number in range(6):
        assert (await server.event(invocation, f"price {number}")).status == 200

    async def all_have_answered() -> bool:
        children = await stack.store.get_children(thread)
        return len(children) == 6 and all([await _is_settled(stack, child.thread_id) for child in children])

    await eventually(all_have_answered, timeout=20)
    told = [await stack.events(child.thread_id) for child in await stack.store.get_children(thread)]
    assert sorted(told) == [[f"price {number}"] for number in range(6)]


@pytest.mark.parametrize("associative", [True, False])
async def test_large_events_come_whole(stack: RapStack, server: FakeRapServer, thread: str, associative: bool) -> None:
    """Their words are stored first; the thread, or the child that handles the event, has all of them."""
    invocation = await stack.subscribed(thread, server)
    text = f"begin {'é' * INLINE_BYTES} end"
    assert (await server.event(invocation, text, associative=associative)).status == 200
    handler = thread
    if not associative:
        (child,) = await eventually(lambda: stack.store.get_children(thread))
        handler = child.thread_id
    await stack.heard(handler, "heard begin")
    assert await stack.events(handler) == [text]


@pytest.mark.parametrize("associative", [True, False])
async def test_obligation_22_final_untracks(
    stack: RapStack, server: FakeRapServer, thread: str, associative: bool
) -> None:
    """The last event is taken, inline or in a child, and ends the subscription; what is sent after it is refused."""
    invocation = await stack.subscribed(thread, server)
    assert (await server.event(invocation, "the end", associative=associative, final=True)).status == 200
    if associative:
        await stack.heard(thread, "heard the end")
    else:
        (child,) = await eventually(lambda: stack.store.get_children(thread))
        await stack.heard(child.thread_id, "heard the end")
    assert await stack.store.get_active_subscriptions(thread) == ()
    assert (await stack.status(thread)).subscriptions == ()
    assert (await server.event(invocation, "more", associative=associative)).status == 410
    # The server has ended it itself, so it is told nothing.
    assert server.received(CANCEL) == []


# -- how they are ended ----------------------------------------------------------------------------------------------


async def test_obligation_26_cancel_subscription(temporal: Client, store: PostgresStore, thread: str) -> None:
    """Only an id that is active here; it is untracked, every server is told, and the result comes in the same turn."""
    async with (
        FakeRapServer(FakeTool("subscribe")) as server,
        FakeRapServer(FakeTool("ask")) as unused,
        RapStack(temporal, store, server, unused) as stack,
    ):
        kept, ended = [await stack.subscribed(thread, server) for _ in range(2)]
        turns = (await stack.status(thread)).turn
        await stack.asked(thread, Call("cancel_subscription", {"tool_call_id": ended.id}))
        await stack.heard(thread, f"{ended.id} is cancelled")
        assert (await stack.status(thread)).turn == turns + 1
        (result,) = (part for part in await _last_parts(stack, thread) if isinstance(part, ToolResultPart))
        assert result.outcome == "ok"
        await eventually(lambda: server.received(CANCEL) and unused.received(CANCEL))
        for request in (*server.received(CANCEL), *unused.received(CANCEL)):
            assert request.json == {"thread_id": thread, "tool_call_id": ended.id}
        assert (len(server.received(CANCEL)), len(unused.received(CANCEL))) == (1, 1)
        assert [known.call_id for known in await store.get_active_subscriptions(thread)] == [kept.id]
        assert (await server.event(ended, "late", associative=True)).status == 410
        assert (await server.event(kept, "rain", associative=True)).status == 200
        await stack.heard(thread, "heard rain")


@pytest.mark.parametrize("target", ["call_none", "plain", "twice", "of another thread"])
async def test_obligation_26_cancel_subscription_of_what_is_none(
    stack: RapStack, server: FakeRapServer, thread: str, target: str
) -> None:
    """An error result that names the id, in the same turn; nobody is told, and what is active stays."""
    mine = await stack.subscribed(thread, server)
    other = await stack.subscribed(f"{thread}-other", server)
    plain = await stack.called(thread, server, Call("ask"))
    await server.result(plain, "plain")
    await stack.heard(thread, "plain")
    wrong = {"plain": plain.id, "of another thread": other.id, "twice": mine.id}.get(target, target)
    if target == "twice":
        await stack.asked(thread, Call("cancel_subscription", {"tool_call_id": mine.id}))
        await stack.heard(thread, "is cancelled")
        await eventually(lambda: server.received(CANCEL))
    told = len(server.received(CANCEL))
    await stack.asked(thread, Call("cancel_subscription", {"tool_call_id": wrong}))
    await stack.heard(thread, f"Error: '{wrong}' is no active subscription")
    assert (await stack.results(thread))[-1].outcome == "error"
    assert len(server.received(CANCEL)) == told
    active = [known.call_id for known in await stack.store.get_active_subscriptions(thread)]
    assert active == ([] if target == "twice" else [mine.id])
    assert len(await stack.store.get_active_subscriptions(f"{thread}-other")) == 1


async def test_cancel_subscription_without_an_id(stack: RapStack, server: FakeRapServer, thread: str) -> None:
    """An error result, like every call whose arguments do not fit."""
    await stack.subscribed(thread, server)
    await stack.asked(thread, Call("cancel_subscription"))
    await stack.heard(thread, "tool_call_id")
    assert (await stack.results(thread))[-1].outcome == "error"
    assert len(await stack.store.get_active_subscriptions(thread)) == 1


async def test_a_person_cancels_through_the_signal(stack: RapStack, server: FakeRapServer, thread: str) -> None:
    """`control` ends a subscription too: the server is told, and its events are refused."""
    invocation = await stack.subscribed(thread, server)
    await stack.control(thread, "cancel_subscription", invocation.id)
    await eventually(lambda: server.received(CANCEL))
    assert await stack.store.get_active_subscriptions(thread) == ()
    assert (await server.event(invocation, "late", associative=True)).status == 410


async def _is_settled(stack: RapStack, thread: str) -> bool:
    messages = await stack.client.history(thread)
    return messages[-1].role == "assistant" and messages[-1].status.state == "complete"


async def _last_parts(stack: RapStack, thread: str) -> tuple[object, ...]:
    return (await stack.client.history(thread))[-1].parts


def _without_times(messages: tuple[ModelMessage, ...]) -> str:
    return re.sub(r"datetime\.datetime\([^)]*\)", "", repr(messages))


def _calls(messages: tuple[ModelMessage, ...]) -> list[ToolCallPart]:
    return [
        part
        for message in messages
        if isinstance(message, ModelResponse)
        for part in message.parts
        if isinstance(part, ToolCallPart)
    ]


def _results(messages: tuple[ModelMessage, ...]) -> list[tuple[str, str]]:
    return [
        (part.tool_call_id, part.model_response_str())
        for message in messages
        if isinstance(message, ModelRequest)
        for part in message.parts
        if isinstance(part, ToolReturnPart)
    ]
