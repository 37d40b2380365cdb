"""What a person reads in the Temporal UI of a thread that waits: for whom, until when, and what has been paused."""

from collections.abc import AsyncGenerator
from contextlib import AsyncExitStack
from urllib.parse import quote

import pytest

from perdure import ids
from perdure.agent import Agent
from perdure.builtins import Threads, Timers
from perdure.connection import connect_temporal
from perdure.dev.temporal_server import TemporalServer
from perdure.limits import Limits
from perdure.testing import Asked, Call, Reply, ScriptedModel
from stores.memory import MemoryStore
from tests.eventually import eventually
from tests.stack import Stack
from tests.ui.chromium import Chromium

pytestmark = [pytest.mark.browser, pytest.mark.slow, pytest.mark.timeout(240)]

THREAD, NAPPER = "price-watch", "napper"
SPAWN = {"instructions": "Count the stars.", "child_of": [THREAD]}


def script(asked: Asked) -> Reply:
    """A child sleeps; the parent subscribes, spawns and asks, one thing for each message."""
    last = asked.results[-1] if asked.results else ""
    if "Your task is this alone" in last or asked.user_text == "nap":
        return Reply(Call("sleep_until", {"date": "2099-12-01", "time": "09:00"}))
    if last:
        return Reply("Good.")
    calls = {"watch": [Call("watch_prices")], "spawn": [Call("spawn_thread", SPAWN)]}
    return Reply(*calls.get(asked.user_text, [Call("sleep", {"seconds": 1e7}), Call("ask_person"), Call("elsewhere")]))


def watcher() -> Agent:
    """An agent that waits for everything that there is."""
    agent = Agent(
        "watcher",
        model=ScriptedModel(script),
        toolsets=[Threads(), Timers()],
        limits=Limits(events_per_subscription=1),
    )
    nothing = {"type": "object"}
    agent.client_tool("watch_prices", description="Watch prices.", parameters=nothing)
    agent.client_tool("ask_person", description="Ask a person.", parameters=nothing)
    agent.activity_tool("elsewhere", description="Far away.", parameters=nothing, task_queue="nobody")
    return agent


@pytest.fixture(scope="module")
async def stack(ui_server: TemporalServer) -> AsyncGenerator[Stack]:
    """A thread with a paused subscription, a dropped event and a child, in the middle of a step of three calls."""
    async with AsyncExitStack() as stacks:
        temporal = await connect_temporal({"target_host": ui_server.address})
        stack = await stacks.enter_async_context(Stack(temporal, MemoryStore(), [watcher()]))
        client = stack.client
        await client.send(THREAD, "watch")
        (call,) = await eventually(lambda: client.open_calls(THREAD))
        await client.tool_result(THREAD, call.call_id, "watching", subscription=True)
        await client.wait_settled(THREAD)
        for number in range(2):
            await client.event(THREAD, call.call_id, f"price {number}", id=f"e{number}")

        async def is_dropped() -> bool:
            return (await client.status(THREAD)).dropped == 1

        await eventually(is_dropped)
        await client.ask(THREAD, "spawn")
        await client.send(THREAD, "wait")
        await client.send(NAPPER, "nap")

        async def waits(thread_id: str, calls: int) -> bool:
            return len((await client.status(thread_id)).open_calls) == calls

        await eventually(lambda: waits(THREAD, 3))
        await eventually(lambda: waits(NAPPER, 1))
        yield stack
        await client.stop(THREAD)


async def details_of(ui_server: TemporalServer, chromium: Chromium, thread_id: str, *words: str) -> str:
    """The current details of a thread, as its page shows them, on one line."""
    workflow = quote(ids.workflow_id(thread_id), safe="")
    page = await chromium.open(f"{ui_server.ui_url}/namespaces/default/workflows/{workflow}")
    await page.wait_for(ids.workflow_id(thread_id), "Event History")
    await page.follow("/user-metadata")
    # The UI sets quotes as a printer would.
    return " ".join((await page.wait_for("Last messages", *words)).split()).replace("’", "'")


async def test_current_details_say_who_waits_for_what(
    ui_server: TemporalServer, chromium: Chromium, stack: Stack
) -> None:
    """Each open call with its kind and its end, the subscription with its pause, the children, what was dropped."""
    shown = await details_of(ui_server, chromium, THREAD, "waits for 3 tool calls")
    (known,) = (await stack.client.status(THREAD)).subscriptions
    for words in (
        "sleep(seconds=10000000.0) sleeping until 20",
        "ask_person() waiting for the user's side · call_",
        "elsewhere() running · call_",
        f"watch_prices 1 event, paused: it has sent 1 event, as many as one subscription may · {known.call_id}",
        "Events or results dropped, since nothing waited for them: 1.",
        f"It has child threads: perdure children {THREAD}.",
    ):
        assert words in shown, shown


async def test_a_thread_that_sleeps_says_until_when(
    ui_server: TemporalServer, chromium: Chromium, stack: Stack
) -> None:
    """In the headline; the same stands in the child's page."""
    assert "child" not in await details_of(
        ui_server, chromium, NAPPER, "Waiting: turn 1 sleeps until 2099-12-01 09:00 UTC"
    )
    (child,) = await stack.client.children(THREAD)
    await details_of(ui_server, chromium, child.thread_id, "Waiting: turn 1 sleeps until 2099-12-01 09:00 UTC")
