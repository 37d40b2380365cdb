"""What tools ask people: choices, links to open, and views beside the conversation.

RAP, server/{user-choice,oauth,view-updates}.
"""

import asyncio
from collections.abc import AsyncGenerator
from contextlib import aclosing, asynccontextmanager
from datetime import timedelta

import pytest
from temporalio.client import Client, WorkflowUpdateFailedError

from perdure.limits import Limits
from perdure.records import Choice
from perdure.testing import Call
from perdure.watch import View
from stores.postgres import PostgresStore
from tests.eventually import eventually
from tests.fakes.rap_server import CHOICE, Answer, FakeRapServer, FakeTool
from tests.fakes.rap_tools import list_mail, open_sandbox
from tests.workflows.rap_stack import RapStack

LINK = "https://login.example/authorize?state=s1"


@pytest.fixture
async def server() -> AsyncGenerator[FakeRapServer]:
    """A server that asks for a grant, for a login, and for nothing."""
    async with FakeRapServer(open_sandbox(), list_mail(LINK), FakeTool("ask")) as server:
        yield server


async def question(stack: RapStack, thread: str) -> Choice:
    """The one question that a new reader is shown, as soon as there is one."""

    async def asked() -> tuple[Choice, ...]:
        return (await stack.store.snapshot(thread)).choices

    (choice,) = await eventually(asked)
    return choice


async def choose(stack: RapStack, thread: str, **answer: object) -> None:
    """Answer through the workflow's update."""
    await stack.handle(thread).execute_update("choose", answer)  # pyright: ignore[reportUnknownMemberType]  # the SDK's


@asynccontextmanager
async def watching(stack: RapStack, thread: str) -> AsyncGenerator[View]:
    """What somebody sees who watches the thread all the time."""
    view = View()

    async def watch() -> None:
        async with aclosing(stack.client.watch(thread)) as events:
            async for event in events:
                view.apply(event)

    watcher = asyncio.create_task(watch())
    await eventually(lambda: view.messages)
    yield view
    watcher.cancel()
    await asyncio.gather(watcher, return_exceptions=True)


# -- choices ---------------------------------------------------------------------------------------------------------


async def test_obligation_32_a_choice_is_shown_answered_and_gone(
    stack: RapStack, server: FakeRapServer, thread: str
) -> None:
    """The call stays open; the answer is posted once to where the server wants it; the result ends the call."""
    call = await stack.called(thread, server, Call("open_sandbox_direct"))
    asked = await question(stack, thread)
    assert (asked.kind, asked.call_id, asked.default) == ("choice", call.id, 2)
    assert (asked.prompt, asked.choices) == (
        "Allow this thread to run commands?",
        ("Always here", "Once", "No"),
    )
    assert (await stack.status(thread)).open_calls[0].state == "waiting"
    await choose(stack, thread, choice_id=asked.id, selected=1)
    (answer,) = server.received(CHOICE)
    assert answer.json == {"id": call.id, "selected": 1}
    assert (await stack.store.snapshot(thread)).choices == ()
    # Not re-invoked, and an answer that comes again is not posted again.
    await choose(stack, thread, choice_id=asked.id, selected=0)
    assert (len(server.invocations), len(server.received(CHOICE))) == (1, 1)
    assert (await stack.status(thread)).state == "waiting"
    await server.result(call, "opened")
    await stack.heard(thread, "heard opened")


async def test_a_dismissed_choice_is_answered_with_its_default(
    stack: RapStack, server: FakeRapServer, thread: str
) -> None:
    """Without `selected` the server hears its own default."""
    call = await stack.called(thread, server, Call("open_sandbox_direct"))
    asked = await question(stack, thread)
    await choose(stack, thread, choice_id=asked.id)
    assert [request.json for request in server.received(CHOICE)] == [{"id": call.id, "selected": 2}]


async def test_a_choice_that_is_none_is_refused(stack: RapStack, server: FakeRapServer, thread: str) -> None:
    """A number that is out of range posts nothing and leaves the question; the right one is taken after it."""
    await stack.called(thread, server, Call("open_sandbox_direct"))
    asked = await question(stack, thread)
    for wrong in (3, -1):
        with pytest.raises(WorkflowUpdateFailedError):
            await choose(stack, thread, choice_id=asked.id, selected=wrong)
    assert server.received(CHOICE) == []
    assert await question(stack, thread) == asked
    await choose(stack, thread, choice_id=asked.id, selected=0)
    assert len(server.received(CHOICE)) == 1


async def test_an_interrupted_call_asks_nothing_more(stack: RapStack, server: FakeRapServer, thread: str) -> None:
    """The question is gone and nothing is posted, not by the interruption and not by an answer that comes too late."""
    call = await stack.called(thread, server, Call("open_sandbox_direct"))
    asked = await question(stack, thread)
    await stack.client.send(thread, "never mind", id="m")
    await stack.heard(thread, "never mind")
    assert (await stack.store.snapshot(thread)).choices == ()
    await choose(stack, thread, choice_id=asked.id, selected=0)
    assert server.received(CHOICE) == []
    again = await server.choice(call, "Still?", "yes")
    assert again.status == 410
    assert (await stack.store.snapshot(thread)).choices == ()


@pytest.mark.parametrize("end", ["answer", "result", "words"])
async def test_who_watches_sees_the_question_come_and_go(
    stack: RapStack, server: FakeRapServer, thread: str, end: str
) -> None:
    """Whatever ends it: an answer of another person, the result without one, or words that give the call up."""
    call = await stack.called(thread, server, Call("ask"))
    async with watching(stack, thread) as watched:
        await server.choice(call, "Really?", "yes", "no")
        await eventually(lambda: watched.choices)
        (asked,) = watched.choices.values()
        assert (asked.prompt, asked.choices) == ("Really?", ("yes", "no"))
        if end == "answer":
            await choose(stack, thread, choice_id=asked.id, selected=0)
        elif end == "result":
            await server.result(call, "done")
        else:
            await stack.client.send(thread, "never mind", id="m")
        await eventually(lambda: not watched.choices)


@pytest.mark.parametrize("address", ["http://127.0.0.1:{other}/user_choice_response", "http://evil.example/"])
async def test_an_answer_is_never_posted_to_a_foreign_host(
    stack: RapStack, server: FakeRapServer, thread: str, address: str
) -> None:
    """Another port is another server: the person is told, and that server hears nothing; the call can go on."""
    async with FakeRapServer(FakeTool("x")) as other:
        call = await stack.called(thread, server, Call("ask"))
        url = address.format(other=other.port)
        assert (await server.choice(call, "Pay?", "yes", "no", response_url=url)).status == 200
        asked = await question(stack, thread)
        with pytest.raises(WorkflowUpdateFailedError) as failure:
            await choose(stack, thread, choice_id=asked.id, selected=0)
        refused = failure.value.__cause__
        assert refused is not None
        assert "trusted_hosts" in str(refused.__cause__)
        assert other.requests == []
        assert server.received(CHOICE) == []
        await server.result(call, "done")
        await stack.heard(thread, "heard done")


async def test_a_server_that_does_not_take_the_answer_is_asked_again(
    stack: RapStack, server: FakeRapServer, thread: str
) -> None:
    """A failure of the server is tried again; one that it refuses is told to the person, and the question stays."""
    await stack.called(thread, server, Call("open_sandbox_direct"))
    asked = await question(stack, thread)
    server.script(CHOICE, Answer(status=400))
    with pytest.raises(WorkflowUpdateFailedError):
        await choose(stack, thread, choice_id=asked.id, selected=0)
    assert await question(stack, thread) == asked
    server.script(CHOICE, Answer(status=503))
    await choose(stack, thread, choice_id=asked.id, selected=0)
    assert len(server.received(CHOICE)) == 3
    assert (await stack.store.snapshot(thread)).choices == ()


async def test_a_server_that_hangs_over_an_answer_holds_nothing_up(
    temporal: Client, store: PostgresStore, server: FakeRapServer, thread: str
) -> None:
    """While it is handed over the thread takes results and words, also when its run has become long."""
    opens = asyncio.Event()
    async with RapStack(temporal, store, server, limits=Limits(history_events=10)) as stack:
        call = await stack.called(thread, server, Call("open_sandbox_direct"))
        asked = await question(stack, thread)
        server.script(CHOICE, Answer(hold=opens))
        choosing = asyncio.create_task(choose(stack, thread, choice_id=asked.id, selected=0))
        await eventually(lambda: server.received(CHOICE))
        await server.result(call, "opened")
        await stack.heard(thread, "heard opened", timeout=8)
        await stack.client.send(thread, "go on", id="m")
        await stack.heard(thread, "go on", timeout=8)
        assert not choosing.done()
        opens.set()
        await choosing


async def test_a_choice_outlasts_restarts(stack: RapStack, server: FakeRapServer, thread: str) -> None:
    """It is a row: whoever comes later is shown it, and another worker hands the answer over."""
    call = await stack.called(thread, server, Call("open_sandbox_direct"))
    asked = await question(stack, thread)
    await stack.restart_worker()
    assert await question(stack, thread) == asked
    await choose(stack, thread, choice_id=asked.id, selected=1)
    assert [request.json for request in server.received(CHOICE)] == [{"id": call.id, "selected": 1}]
    await server.result(call, "opened")
    await stack.heard(thread, "heard opened")
    assert len(server.invocations) == 1


# -- links -----------------------------------------------------------------------------------------------------------


async def test_obligation_31_a_link_is_shown_until_the_result(
    temporal: Client, store: PostgresStore, server: FakeRapServer, thread: str
) -> None:
    """The call stays open, over hibernation too, and is not made again; the link is gone with the result."""
    async with RapStack(temporal, store, server, limits=Limits(idle=timedelta(seconds=0.3))) as stack:
        await stack.asked(thread, Call("list_mail"))
        call = await server.invoked()
        asked = await question(stack, thread)
        assert (asked.kind, asked.auth_url, asked.call_id) == ("oauth", LINK, call.id)
        await stack.asleep(thread)
        assert await question(stack, thread) == asked
        await server.result(call, "2 mails")
        await stack.heard(thread, "heard 2 mails")
        assert (await store.snapshot(thread)).choices == ()
        assert len(server.invocations) == 1
        # The message never enters the conversation.
        assert LINK not in str([request.messages for request in stack.model.requests])


async def test_a_link_can_be_dismissed_but_not_chosen_from(stack: RapStack, server: FakeRapServer, thread: str) -> None:
    """Nothing is posted to anybody; the call waits on for whatever its server makes of it."""
    call = await stack.called(thread, server, Call("list_mail"))
    asked = await question(stack, thread)
    with pytest.raises(WorkflowUpdateFailedError):
        await choose(stack, thread, choice_id=asked.id, selected=0)
    await choose(stack, thread, choice_id=asked.id)
    assert (await stack.store.snapshot(thread)).choices == ()
    assert server.received(CHOICE) == []
    assert (await stack.status(thread)).state == "waiting"
    await server.result(call, "Error: not logged in")
    await stack.heard(thread, "not logged in")


# -- views -----------------------------------------------------------------------------------------------------------


async def test_obligation_33_the_newest_view_is_kept_and_replayed(
    stack: RapStack, server: FakeRapServer, thread: str
) -> None:
    """One for each type, told to those who watch and shown to those who come later; empty content clears one.

    It wakes nothing and settles nothing.
    """
    call = await stack.called(thread, server, Call("ask"))
    async with watching(stack, thread) as watched:
        signals = await stack.gateway.signals(thread)
        for content in ({"patch": "1"}, {"patch": "2"}):
            assert (await server.view(call, "diff", content)).status == 200
        assert (await server.view(call, "plan", ["a"])).status == 200
        kept = {"diff": '{"patch":"2"}', "plan": '["a"]'}
        assert {view.view_type: view.content for view in (await stack.store.snapshot(thread)).views} == kept
        await eventually(lambda: {name: view.content for name, view in watched.shown.items()} == kept)
        assert await stack.gateway.signals(thread) == signals
        assert (await stack.status(thread)).state == "waiting"
        await server.view(call, "plan", "")
        await eventually(lambda: list(watched.shown) == ["diff"])
    await server.result(call, "done")
    await stack.heard(thread, "heard done")
    assert (await server.view(call, "diff", {"patch": "3"})).status == 200
    shown = (await stack.store.snapshot(thread)).views
    assert ("diff", '{"patch":"3"}') in {(view.view_type, view.content) for view in shown}
