"""Tools that other programs carry out: Temporal activities on another task queue, and the user's side."""

import asyncio
import uuid
from collections.abc import AsyncGenerator, Callable, Coroutine
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from datetime import timedelta
from typing import Any

import pytest
from temporalio import activity
from temporalio.api.common.v1 import WorkflowType
from temporalio.client import Client
from temporalio.exceptions import ApplicationError
from temporalio.worker import Worker

from perdure.agent import Agent
from perdure.dev.temporal_server import TemporalServer
from perdure.messages import ToolResultPart
from perdure.policy import REMOTE_RESULT_BYTES
from perdure.testing import Call, Reply, ScriptedModel
from tests.eventually import eventually
from tests.workflows.conftest import StackFactory

BIG = 9_007_199_254_740_993_000 + 7
"""19 digits: a number that no double holds."""

ARGUMENTS = f'{{"id": {BIG}, "name": "Žluťoučký 🙂", "deep": {{"list": [1, 2.5, null, true]}}}}'
PARAMETERS = {"type": "object", "properties": {"id": {"type": "integer"}}}

Remote = Callable[[dict[str, Any]], Coroutine[Any, Any, Any]]
Serve = Callable[[Remote, str], AbstractAsyncContextManager[None]]


@pytest.fixture
async def serve(temporal_server: TemporalServer) -> Serve:
    """Serve one activity, `LookUp`, as somebody would who knows nothing of us: with the SDK alone, as it comes."""
    client = await Client.connect(temporal_server.address)

    @asynccontextmanager
    async def serving(function: Remote, queue: str) -> AsyncGenerator[None]:
        beat = timedelta(seconds=0.2)
        worker = Worker(
            client,
            task_queue=queue,
            activities=[activity.defn(name="LookUp")(function)],
            default_heartbeat_throttle_interval=beat,
            max_heartbeat_throttle_interval=beat,
        )
        async with worker:
            yield

    return serving


@pytest.fixture
def queue() -> str:
    """A task queue of its own."""
    return f"elsewhere-{uuid.uuid4()}"


def agent_with(queue: str, *replies: Reply | str, **options: Any) -> tuple[Agent, ScriptedModel]:
    """An agent whose model calls the tool, and the model."""
    model = ScriptedModel([Reply(Call("look_up", ARGUMENTS)), *(replies or ("done",))])
    agent = Agent("a", model=model)
    agent.activity_tool(
        "look_up", description="Look it up.", parameters=PARAMETERS, task_queue=queue, activity="LookUp", **options
    )
    return agent, model


async def result_of(stack: Any, thread: str) -> ToolResultPart:
    """The result in the last message."""
    parts = (await stack.client.history(thread))[-1].parts
    return next(part for part in parts if isinstance(part, ToolResultPart))


async def test_an_activity_gets_the_exact_arguments_and_its_result_is_the_tools(
    start_stack: StackFactory, serve: Serve, queue: str, thread: str
) -> None:
    """One JSON object whose numbers stay what they are; its id is the call's, what it returns comes back as JSON."""
    seen: list[tuple[dict[str, Any], str]] = []

    async def look_up(arguments: dict[str, Any]) -> dict[str, Any]:
        seen.append((arguments, activity.info().activity_id))
        return {"found": arguments["id"]}

    async with serve(look_up, queue):
        agent, model = agent_with(queue)
        stack = await start_stack(agent)
        assert await stack.client.ask(thread, "look") == "done"
    result = await result_of(stack, thread)
    deep = {"list": [1, 2.5, None, True]}
    assert seen == [({"id": BIG, "name": "Žluťoučký 🙂", "deep": deep}, result.call_id)]
    assert (result.outcome, result.content) == ("ok", f'{{"found":{BIG}}}')
    assert model.requests[1].results == (f'{{"found":{BIG}}}',)


async def test_a_text_comes_back_as_it_is(start_stack: StackFactory, serve: Serve, queue: str, thread: str) -> None:
    """Without the quotes that it has as JSON."""

    async def look_up(arguments: dict[str, Any]) -> str:
        return 'say "hi"\n'

    async with serve(look_up, queue):
        agent, model = agent_with(queue)
        stack = await start_stack(agent)
        await stack.client.ask(thread, "look")
    assert model.requests[1].results == ('say "hi"\n',)


@pytest.mark.parametrize("retry_safe", [True, False])
async def test_a_failure_is_an_error_result_and_retried_only_if_that_is_safe(
    start_stack: StackFactory, serve: Serve, queue: str, thread: str, retry_safe: bool
) -> None:
    """The first attempt fails: with `retry_safe` a second one makes it good, else the model reads why."""
    attempts: list[int] = []

    async def look_up(arguments: dict[str, Any]) -> str:
        attempts.append(activity.info().attempt)
        if attempts == [1]:
            raise RuntimeError("the catalogue is being written")
        return "found"

    async with serve(look_up, queue):
        agent, model = agent_with(queue, retry_safe=retry_safe)
        stack = await start_stack(agent)
        assert await stack.client.ask(thread, "look") == "done"
    result = await result_of(stack, thread)
    if retry_safe:
        assert (attempts, result.outcome, result.content) == ([1, 2], "ok", "found")
    else:
        assert (attempts, result.outcome) == ([1], "error")
        assert "the catalogue is being written" in model.requests[1].results[0]


async def test_a_failure_for_good_is_not_retried_even_if_that_is_safe(
    start_stack: StackFactory, serve: Serve, queue: str, thread: str
) -> None:
    """Whoever serves the tool knows best."""
    attempts: list[int] = []

    async def look_up(arguments: dict[str, Any]) -> str:
        attempts.append(activity.info().attempt)
        raise ApplicationError("there is no such entry", non_retryable=True)

    async with serve(look_up, queue):
        agent, _ = agent_with(queue, retry_safe=True)
        stack = await start_stack(agent)
        await stack.client.ask(thread, "look")
    result = await result_of(stack, thread)
    assert (attempts, result.outcome) == ([1], "error")
    assert "there is no such entry" in result.content


async def test_one_that_takes_too_long_is_given_up(
    start_stack: StackFactory, serve: Serve, queue: str, thread: str
) -> None:
    """After the tool's own time the model is told, and the thread goes on."""

    async def look_up(arguments: dict[str, Any]) -> str:
        await asyncio.sleep(3600)
        return "never"

    async with serve(look_up, queue):
        agent, _ = agent_with(queue, timeout=timedelta(seconds=1))
        stack = await start_stack(agent)
        assert await stack.client.ask(thread, "look") == "done"
        result = await result_of(stack, thread)
        assert (result.outcome, result.content) == ("error", "The tool could not be run: activity StartToClose timeout")


async def test_a_large_result_is_cut_with_a_note(
    start_stack: StackFactory, serve: Serve, queue: str, thread: str
) -> None:
    """Temporal takes no more than 2 MB, and no model so much; 300 KB become 256 with a word about it."""

    async def look_up(arguments: dict[str, Any]) -> str:
        return "é" * 150_000

    async with serve(look_up, queue):
        agent, _ = agent_with(queue)
        stack = await start_stack(agent)
        await stack.client.ask(thread, "look")
    result = await result_of(stack, thread)
    assert (result.outcome, result.size_bytes <= REMOTE_RESULT_BYTES + 100) == ("ok", True)
    assert result.content.startswith("éé")
    assert "300000 bytes" in result.content


UNREADABLE = "The tool ran, but what it returned is neither JSON nor text."


@pytest.mark.parametrize(
    ("returned", "outcome", "content"),
    [
        (float("nan"), "ok", "NaN"),
        ({"low": float("-inf")}, "ok", '{"low":-Infinity}'),
        (b"plain bytes", "ok", "plain bytes"),
        (b"\xff\xfe", "error", UNREADABLE),
        (WorkflowType(name="w"), "ok", '{"name":"w"}'),
        (None, "ok", "null"),
    ],
    ids=["nan", "infinity", "bytes", "binary", "protobuf", "nothing"],
)
async def test_a_result_that_is_no_json_is_read_as_far_as_it_can_be(
    returned: object, outcome: str, content: str, start_stack: StackFactory, serve: Serve, queue: str, thread: str
) -> None:
    """SDKs write what strict JSON has no word for, and other encodings. The tool runs once, and the thread goes on."""
    runs = 0

    async def look_up(arguments: dict[str, Any]) -> Any:
        nonlocal runs
        runs += 1
        return returned

    async with serve(look_up, queue):
        agent, _ = agent_with(queue)
        stack = await start_stack(agent)
        async with asyncio.timeout(20):
            assert await stack.client.ask(thread, "look") == "done"
    result = await result_of(stack, thread)
    assert (result.outcome, result.content) == (outcome, content)
    assert runs == 1


async def test_the_details_of_a_failure_may_be_no_json(
    start_stack: StackFactory, serve: Serve, queue: str, thread: str
) -> None:
    """Nobody here reads them; the message of the failure is told."""

    async def look_up(arguments: dict[str, Any]) -> str:
        raise ApplicationError("out of order", float("nan"), WorkflowType(name="w"))

    async with serve(look_up, queue):
        agent, _ = agent_with(queue)
        stack = await start_stack(agent)
        async with asyncio.timeout(20):
            assert await stack.client.ask(thread, "look") == "done"
    result = await result_of(stack, thread)
    assert (result.outcome, result.content) == ("error", "The tool could not be run: out of order")


async def test_an_interrupt_cancels_the_activity(
    start_stack: StackFactory, serve: Serve, queue: str, thread: str
) -> None:
    """One that beats is told to stop, and the thread does not wait until it has."""
    running, cancelled = asyncio.Event(), asyncio.Event()

    async def look_up(arguments: dict[str, Any]) -> str:
        running.set()
        try:
            while True:
                activity.heartbeat()
                await asyncio.sleep(0.05)
        except asyncio.CancelledError:
            cancelled.set()
            raise

    async with serve(look_up, queue):
        agent, _ = agent_with(queue, retry_safe=True)
        stack = await start_stack(agent)
        await stack.client.send(thread, "look")
        await asyncio.wait_for(running.wait(), 20)
        (call,) = await stack.client.open_calls(thread)
        assert (call.state, call.kind) == ("running", "activity")
        await stack.client.stop(thread)
        await asyncio.wait_for(cancelled.wait(), 20)
    assert (await result_of(stack, thread)).outcome == "interrupted"


async def test_a_call_waits_for_the_worker_of_its_queue(
    start_stack: StackFactory, serve: Serve, queue: str, thread: str
) -> None:
    """It is carried out as soon as somebody serves the queue, whatever became of our own worker meanwhile."""

    async def look_up(arguments: dict[str, Any]) -> str:
        return "found"

    agent, _ = agent_with(queue)
    stack = await start_stack(agent)
    accepted = await stack.client.send(thread, "look")

    async def is_scheduled() -> bool:
        return any(call.state == "running" for call in await stack.client.open_calls(thread))

    await eventually(is_scheduled)
    await stack.restart_worker()
    async with serve(look_up, queue):
        await stack.client.wait_settled(thread, accepted.message_id)
    assert (await result_of(stack, thread)).content == "found"


async def test_arguments_that_do_not_fit_go_nowhere(
    start_stack: StackFactory, serve: Serve, queue: str, thread: str
) -> None:
    """The schema is ours to hold them against: the model is told, and the activity never sees them."""
    seen: list[Any] = []

    async def look_up(arguments: dict[str, Any]) -> None:
        seen.append(arguments)

    async with serve(look_up, queue):
        model = ScriptedModel([Reply(Call("look_up", {"id": "seven"})), "done"])
        agent = Agent("a", model=model)
        agent.activity_tool("look_up", description="", parameters=PARAMETERS, task_queue=queue, activity="LookUp")
        stack = await start_stack(agent)
        assert await stack.client.ask(thread, "look") == "done"
    assert seen == []
    assert "integer" in model.requests[1].results[0]


async def test_the_user_s_side_answers_a_call(start_stack: StackFactory, thread: str) -> None:
    """The call waits over a restart; its first result counts, and a later one changes nothing."""
    model = ScriptedModel([Reply(Call("pick_file", {"kind": "image"})), "thanks"])
    agent = Agent("a", model=model)
    agent.client_tool("pick_file", description="Let the user pick a file.", parameters={"type": "object"})
    stack = await start_stack(agent)
    accepted = await stack.client.send(thread, "a picture")
    (call,) = await eventually(lambda: stack.client.open_calls(thread))
    assert (call.tool, call.kind, call.preview, call.state) == ("pick_file", "client", 'kind="image"', "waiting")
    await stack.restart_worker()
    for content in ("cat.png", "dog.png"):
        await stack.client.tool_result(thread, call.call_id, content)
    await stack.client.wait_settled(thread, accepted.message_id)
    assert model.requests[1].results == ("cat.png",)
    assert (await stack.client.status(thread)).open_calls == ()
