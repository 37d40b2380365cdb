"""What people decide about threads: questions answered, subscriptions ended and resumed, threads closed."""

import json
from collections.abc import AsyncGenerator
from datetime import timedelta

import pytest
from temporalio.client import Client, WorkflowExecutionStatus

from perdure.agent import Agent
from perdure.client import PerdureClient
from perdure.errors import PerdureError, ThreadClosed, ThreadNotFound, Unreachable, UsageError
from perdure.limits import Limits
from perdure.rap.toolset import RapToolset
from perdure.testing import Asked, Call, Reply, ScriptedModel
from stores.postgres import PostgresStore
from tests.eventually import eventually
from tests.fakes.rap_server import CHOICE, Answer, FakeRapServer, FakeTool, Invocation
from tests.gateway.served import Served
from tests.stack import Stack

SOON = timedelta(seconds=1)


def script(asked: Asked) -> Reply:
    """A tool of the user's words is called; what its result and later events say is repeated."""
    if asked.user_text in ("ask", "subscribe") and not asked.results:
        return Reply(Call(asked.user_text))
    return Reply(f"heard {asked.results[-1]}" if asked.results else f"you said {asked.user_text}")


class Tools:
    """A stack whose agent has the tools of a server, which the test speaks for."""

    def __init__(self, stack: Stack, server: FakeRapServer, thread: str) -> None:
        self.stack = stack
        self.client = stack.client
        self.server = server
        self.thread = thread

    async def call(self, tool: str) -> Invocation:
        """Have the thread call a tool; returns when the server has the call."""
        await self.client.send(self.thread, tool)
        return await self.server.invoked()

    async def subscribed(self) -> str:
        """Have the thread subscribe; returns the call."""
        invocation = await self.call("subscribe")
        await self.server.result(invocation, "subscribed", subscription=True)
        await eventually(lambda: self.stack.store.get_active_subscriptions(self.thread))
        await self.client.wait_settled(self.thread)
        return invocation.id

    @property
    def answers(self) -> list[object]:
        """What the server was told of people's choices."""
        return [json.loads(received.body) for received in self.server.received(CHOICE)]

    async def asleep(self) -> None:
        """Wait until the thread hibernates."""

        async def is_asleep() -> bool:
            described = await self.stack.handle(self.thread).describe()
            return described.status is WorkflowExecutionStatus.COMPLETED

        await eventually(is_asleep)


@pytest.fixture
async def tools(temporal: Client, store: PostgresStore, thread: str) -> AsyncGenerator[Tools]:
    """Questions and subscriptions over real HTTP, in a thread that hibernates as soon as it can."""
    async with FakeRapServer(FakeTool("ask"), FakeTool("subscribe")) as server:
        limits = Limits(idle=timedelta(seconds=0.1), events_per_subscription=2)
        agent = Agent("a", model=ScriptedModel(script), toolsets=[RapToolset(server.url)], limits=limits)
        stack = Stack(temporal, store, [agent])
        async with Served(temporal, store, task_queue=stack.settings.task_queue) as gateway:
            stack.settings = stack.settings.model_copy(update={"gateway_url": gateway.base})
            async with stack:
                yield Tools(stack, server, thread)


async def test_a_question_is_answered_by_number(tools: Tools) -> None:
    """The status shows it without the server's address; the server gets the number, and the question is gone.

    The thread sleeps meanwhile, and wakes for the answer.
    """
    invocation = await tools.call("ask")
    await tools.server.choice(invocation, "May I?", "once", "always", "no", default=2)
    await tools.asleep()
    status = await tools.client.status(tools.thread)
    (question,) = status.choices
    assert (status.state, question.prompt, question.choices) == ("waiting", "May I?", ("once", "always", "no"))
    assert (question.call_id, question.default, question.response_url) == (invocation.id, 2, None)
    await tools.client.choose(tools.thread, question.id, 1)
    assert tools.answers == [{"id": invocation.id, "selected": 1}]
    assert (await tools.client.status(tools.thread)).choices == ()
    with pytest.raises(UsageError, match=r"No question .* waits"):
        await tools.client.choose(tools.thread, question.id, 1)
    await tools.server.result(invocation, "done")
    await eventually(lambda: tools.client.wait_settled(tools.thread))


async def test_a_question_is_dismissed_with_its_default(tools: Tools) -> None:
    """Nobody's choice is the tool's own."""
    invocation = await tools.call("ask")
    await tools.server.choice(invocation, "May I?", "once", "no", default=1)
    (question,) = (await tools.client.status(tools.thread)).choices
    await tools.client.choose(tools.thread, question.id)
    assert tools.answers == [{"id": invocation.id, "selected": 1}]


async def test_an_answer_that_cannot_be_is_refused_and_the_question_stays(tools: Tools) -> None:
    """A number that is not among the choices, a question that nobody asked, a server that does not take it."""
    invocation = await tools.call("ask")
    await tools.server.choice(invocation, "May I?", "once", "no")
    (question,) = (await tools.client.status(tools.thread)).choices
    for selected in (-1, 2):
        with pytest.raises(UsageError, match=f"no choice {selected}: the question has 2, counted from 0"):
            await tools.client.choose(tools.thread, question.id, selected)
    with pytest.raises(UsageError, match="No question 'other' waits"):
        await tools.client.choose(tools.thread, "other", 0)
    with pytest.raises(ThreadNotFound):
        await tools.client.choose("nope", question.id, 0)
    tools.server.script(CHOICE, Answer(status=404))
    with pytest.raises(PerdureError, match="404"):
        await tools.client.choose(tools.thread, question.id, 0)
    assert (await tools.client.status(tools.thread)).choices == (question,)


async def test_a_link_to_open_waits_like_a_question(tools: Tools) -> None:
    """It is shown while its call is open, and gone with it; it is nowhere in the conversation."""
    invocation = await tools.call("ask")
    await tools.server.oauth(invocation, "https://login.example/start")
    (link,) = (await tools.client.status(tools.thread)).choices
    assert (link.kind, link.auth_url) == ("oauth", "https://login.example/start")
    await tools.server.result(invocation, "signed in")
    await tools.client.wait_settled(tools.thread)
    assert (await tools.client.status(tools.thread)).choices == ()
    assert "login.example" not in str(await tools.client.history(tools.thread))


async def test_a_subscription_is_cancelled(tools: Tools) -> None:
    """Its server is told, and what it sends afterwards changes nothing; the thread wakes for it."""
    call_id = await tools.subscribed()
    await tools.asleep()
    (known,) = (await tools.client.status(tools.thread)).subscriptions
    assert (known.call_id, known.tool, known.received, known.paused) == (call_id, "subscribe", 0, None)
    await tools.client.cancel_subscription(tools.thread, call_id)
    assert (await tools.client.status(tools.thread)).subscriptions == ()
    await eventually(lambda: tools.server.received("/cancel_tool_call"))
    await tools.client.event(tools.thread, call_id, "too late", id="e1")
    for again in (tools.client.cancel_subscription, tools.client.resume_subscription):
        with pytest.raises(UsageError, match="is no active subscription"):
            await again(tools.thread, call_id)
    assert "too late" not in await tools.client.transcript(tools.thread)


async def test_a_paused_subscription_is_resumed(tools: Tools) -> None:
    """The status says why it is paused; what came meanwhile is dropped, what comes afterwards is taken in."""
    call_id = await tools.subscribed()
    for number in range(2):
        await tools.client.event(tools.thread, call_id, f"event {number}", id=f"e{number}")

    async def is_told(text: str) -> bool:
        return text in await tools.client.transcript(tools.thread)

    await eventually(lambda: is_told("Assistant: heard event 1"))
    await tools.client.event(tools.thread, call_id, "event 2", id="e2")
    (known,) = (await tools.client.status(tools.thread)).subscriptions
    assert (known.received, known.paused) == (2, "it has sent 2 events, as many as one subscription may")
    await tools.client.resume_subscription(tools.thread, call_id)
    await tools.client.resume_subscription(tools.thread, call_id)
    (known,) = (await tools.client.status(tools.thread)).subscriptions
    assert (known.received, known.paused) == (0, None)
    await tools.client.event(tools.thread, call_id, "event again", id="e9")
    await eventually(lambda: is_told("Assistant: heard event again"))
    assert "event 2" not in await tools.client.transcript(tools.thread)


async def test_what_was_dropped_is_counted(stack: Stack, thread: str) -> None:
    """An event and a result that belong to nothing change the count and nothing else."""
    await stack.client.ask(thread, "hi")
    await stack.client.event(thread, "call_x", "news", id="e1")
    await stack.wake(thread, "call_x")

    async def are_dropped() -> bool:
        return (await stack.client.status(thread)).dropped == 2

    await eventually(are_dropped)
    assert len(await stack.client.history(thread)) == 2


async def test_an_event_that_is_not_associative_has_a_thread_of_its_own(tools: Tools) -> None:
    """It is a child of the thread that subscribed, which itself is not told."""
    call_id = await tools.subscribed()
    await tools.client.event(tools.thread, call_id, "a push", id="e1", associative=False)
    (child,) = await eventually(lambda: tools.client.children(tools.thread))
    assert (child.kind, child.parent_thread_id, child.title) == ("event", tools.thread, "a push")
    assert (await tools.client.status(tools.thread)).children
    assert "a push" not in await tools.client.transcript(tools.thread)
    with pytest.raises(ThreadNotFound):
        await tools.client.children("nope")


async def test_a_closed_thread_says_so_to_everybody(tools: Tools) -> None:
    """Closing stops the turn and ends subscriptions; then nothing is taken, asleep or not, and reading goes on."""
    call_id = await tools.subscribed()
    client = tools.client
    await client.close_thread(tools.thread)
    await client.close_thread(tools.thread)
    status = await client.status(tools.thread)
    assert (status.state, status.subscriptions, status.problems) == ("closed", (), ())
    for _ in range(2):
        for mode in ("interrupt", "queue", "steer", "reject"):
            with pytest.raises(ThreadClosed, match="is closed and takes nothing more; start another one"):
                await client.send(tools.thread, "hello?", mode=mode)
        await tools.asleep()
    for refused in (
        client.ask(tools.thread, "hello?"),
        client.event(tools.thread, call_id, "x", id="e1"),
        client.tool_result(tools.thread, call_id, "x"),
        client.choose(tools.thread, "q", 0),
    ):
        with pytest.raises(ThreadClosed):
            await refused
    assert (await client.stop(tools.thread)).turn == 0
    assert len(await client.history(tools.thread)) == 2
    with pytest.raises(ThreadNotFound):
        await client.close_thread("nope")


async def test_closing_stops_the_turn(stack: Stack, thread: str) -> None:
    """What had streamed stays, and the reason is said."""
    accepted = await stack.client.send(thread, "hang")
    await stack.client.close_thread(thread)
    answer = await stack.client.wait_settled(thread, accepted.message_id)
    assert (answer.status.reason, answer.status.detail) == ("cancelled", "The thread was closed.")


async def test_without_a_worker_a_thread_is_closed_later(stack: Stack, thread: str) -> None:
    """Whoever closes it is told so in time, and it is closed when a worker is there."""
    await stack.client.ask(thread, "hi")
    await stack.stop_worker()
    client = PerdureClient(stack.temporal, stack.store, task_queue=stack.settings.task_queue, patience=SOON)
    with pytest.raises(Unreachable, match="No worker answered within 1 s"):
        await client.close_thread(thread)
    await stack.start_worker()
    await stack.client.close_thread(thread)
    assert (await stack.client.status(thread)).state == "closed"


async def test_words_that_give_way_are_told_from_a_closed_thread(stack: Stack, thread: str) -> None:
    """In the mode `reject` a turn that is under way is the reason, and the sentence says so."""
    await stack.client.send(thread, "hang")
    assert (await stack.client.send(thread, "me too", mode="reject")).disposition == "rejected"
    with pytest.raises(UsageError, match="the thread is answering already") as raised:
        await stack.client.ask(thread, "me too", mode="reject")
    assert not isinstance(raised.value, ThreadClosed)
    await stack.client.stop(thread)
