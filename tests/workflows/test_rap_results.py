"""What a call sends and what its result may hold, from the server to the model and back (RAP, basic/tool-result)."""

import json
from collections.abc import AsyncGenerator
from datetime import timedelta
from typing import cast

import pytest
from pydantic_ai.messages import BinaryContent
from temporalio.client import Client

from perdure.builtins import Threads
from perdure.inputs import INLINE_BYTES, Event
from perdure.testing import Call
from perdure.thread_calls import ThreadCalls
from stores.postgres import PostgresStore
from tests.eventually import eventually
from tests.fakes.rap_server import Answer, FakeRapServer, FakeTool
from tests.fakes.rap_tools import PIXEL, edit_file, get_time, read_image
from tests.workflows.rap_stack import RapStack


@pytest.fixture
async def server() -> AsyncGenerator[FakeRapServer]:
    """A server with tools that act by themselves, and one that says what the test says."""
    async with FakeRapServer(FakeTool("ask"), get_time(), read_image(), edit_file()) as server:
        yield server


@pytest.fixture
async def stack(temporal: Client, store: PostgresStore, server: FakeRapServer) -> AsyncGenerator[RapStack]:
    """An agent with that server."""
    async with RapStack(temporal, store, server, toolsets=[Threads()]) as stack:
        yield stack


async def test_obligation_7_a_call_says_who_it_is_for(stack: RapStack, server: FakeRapServer, thread: str) -> None:
    """The user of the root thread, and for a child thread the threads above it; each call has an id of its own."""
    await stack.client.start(thread, user_id="ann")
    first = await stack.called(thread, server, Call("ask"))
    assert (first.body["thread_ancestors"], first.body["user_id"]) == (None, "ann")
    await server.result(first, "done")
    await stack.heard(thread, "heard done")
    await stack.asked(thread, Call("spawn_thread", {"instructions": "Help.", "child_of": [thread]}))
    await stack.heard(thread, "was started")
    (child,) = await stack.store.get_children(thread)
    await stack.heard(child.thread_id, "Help.")
    call = await stack.called(child.thread_id, server, Call("ask"))
    assert (call.group_id, call.body["thread_ancestors"], call.body["user_id"]) == (child.thread_id, [thread], "ann")
    assert call.id != first.id
    assert (await server.result(call, "for the child")).status == 200
    await stack.heard(child.thread_id, "heard for the child")
    assert "for the child" not in str(await stack.client.history(thread))


async def test_a_child_ends_its_own_subscriptions(stack: RapStack, server: FakeRapServer, thread: str) -> None:
    """What a child thread has subscribed to ends with it: the server is told, and its events are refused."""
    await stack.asked(thread, Call("spawn_thread", {"instructions": "Help.", "child_of": [thread]}))
    await stack.heard(thread, "was started")
    (child,) = await stack.store.get_children(thread)
    await stack.heard(child.thread_id, "Help.")
    subscription = await stack.subscribed(child.thread_id, server, "ask")
    assert (await server.event(subscription, "rain", associative=True)).status == 200
    await stack.heard(child.thread_id, "heard rain")
    await stack.asked(child.thread_id, Call("close_thread", {"thread_id": child.thread_id}))
    await eventually(lambda: server.received("/close_thread"))
    assert server.received("/close_thread")[0].json == {"thread_id": child.thread_id}
    (told,) = server.received("/cancel_tool_call")
    assert told.json == {"thread_id": child.thread_id, "tool_call_id": subscription.id}
    assert (await server.event(subscription, "late", associative=True)).status == 410


async def test_servers_hear_once_that_a_thread_is_closed(stack: RapStack, server: FakeRapServer, thread: str) -> None:
    """What wakes a closed thread, a child's report for one, is turned away and tells the servers nothing again."""
    await stack.subscribed(thread, server, "ask")
    await stack.control(thread, "close")
    await stack.asleep(thread)
    calls = ThreadCalls(stack.temporal, stack.settings.task_queue, timedelta(seconds=10))
    for number in range(2):
        late = Event(id=f"r{number}", call_id="c", content="late", source="child")
        await calls.signal_with_start(thread, "event", late)
        await stack.asleep(thread)
    assert [told.json for told in server.received("/close_thread")] == [{"thread_id": thread}]


async def test_a_result_may_come_before_the_acknowledgement(
    stack: RapStack, server: FakeRapServer, thread: str
) -> None:
    """A server that is quick is heard, and the call is neither sent again nor waited for."""
    server.result_first = True
    await stack.asked(thread, Call("get_time"))
    await stack.heard(thread, "Current time in UTC")
    assert len(server.invocations) == 1
    assert server.received("/cancel_tool_call") == []
    assert [result.outcome for result in await stack.results(thread)] == ["ok"]


async def test_a_second_result_after_a_refusal_is_the_first_that_counts(
    stack: RapStack, server: FakeRapServer, thread: str
) -> None:
    """Real servers send an error when a callback is refused (section 7): it is a result like any other."""
    server.second_result = True
    call = await stack.called(thread, server, Call("ask"))
    assert (await server.result(call, content="not a list")).status == 400
    await stack.heard(thread, "Error: RAP receiver returned 400")
    assert (await server.result(call, "too late")).status == 200
    assert [result.outcome for result in await stack.results(thread)] == ["error"]


async def test_obligation_13_images_reach_the_model(stack: RapStack, server: FakeRapServer, thread: str) -> None:
    """With the words before them, and what people are shown instead beside them, not in them."""
    await stack.asked(thread, Call("read_image"))
    await stack.heard(thread, "An image of one pixel.")
    (result,) = await stack.results(thread)
    assert [(file.media_type, file.size_bytes) for file in result.files] == [("image/png", len(PIXEL))]
    assert result.files[0].blob is not None
    assert await stack.store.get_blob(thread, result.files[0].blob) == PIXEL
    assert [segment["type"] for segment in json.loads(result.display or "")] == ["image", "text"]
    assert PIXEL in [image.data for image in _images(stack)]


async def test_obligation_13_display_changes_nothing_for_the_model(
    stack: RapStack, server: FakeRapServer, thread: str
) -> None:
    """People see a diff, with the words as the last choice; the model reads the words alone."""
    await stack.asked(thread, Call("edit_file"))
    await stack.heard(thread, "heard Edited a.txt")
    (result,) = await stack.results(thread)
    assert [segment["type"] for segment in json.loads(result.display or "")] == ["diff", "text"]
    assert "@@" not in str(stack.model.requests[-1].messages)
    # The view that came before the result is there as well.
    (view,) = (await stack.store.snapshot(thread)).views
    assert view.view_type == "diff"


@pytest.mark.parametrize("text", ["", "\x00 \ud800 é 漢 🐈", "x" * (INLINE_BYTES + 1), '{"n": 2512292042121000001}'])
async def test_any_text_comes_through(stack: RapStack, server: FakeRapServer, thread: str, text: str) -> None:
    """Empty, unprintable, large or JSON: whole in the store, as it was sent."""
    call = await stack.called(thread, server, Call("ask"))
    assert (await server.result(call, text)).status == 200
    await stack.heard(thread, "heard")
    (result,) = await stack.results(thread)
    whole = text.encode("utf-8", "surrogatepass")
    assert result.size_bytes == len(whole)
    if result.blob is None:
        assert result.content == text
    else:
        assert await stack.store.get_blob(thread, result.blob) == whole


async def test_obligation_8_a_failing_server_is_asked_again_with_the_same_id(
    stack: RapStack, server: FakeRapServer, thread: str
) -> None:
    """Until it takes the call; there is one call and one result."""
    server.script("/", Answer(status=503), Answer(status=502))
    await stack.asked(thread, Call("ask"))
    call = await server.invoked()
    assert len(server.received("/")) == 3
    await server.result(call, "done")
    await stack.heard(thread, "heard done")
    assert len(server.invocations) == 1


def _images(stack: RapStack) -> list[BinaryContent]:
    found: list[BinaryContent] = []
    for message in stack.model.requests[-1].messages:
        for part in message.parts:
            content: object = getattr(part, "content", None)
            items = cast("list[object]", content) if isinstance(content, list) else [content]
            found += [item for item in items if isinstance(item, BinaryContent)]
    return found
