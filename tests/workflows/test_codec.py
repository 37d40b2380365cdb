"""A codec keeps the words of a conversation out of what Temporal stores."""

import pytest
from temporalio.client import Client

from perdure.agent import Agent
from perdure.builtins import Threads
from perdure.client import PerdureClient
from perdure.compaction import Compaction
from perdure.connection import connect_temporal
from perdure.dev.temporal_server import TemporalServer
from perdure.errors import ConfigurationError
from perdure.limits import Limits
from perdure.testing import Call, Reply
from stores.postgres import PostgresStore
from tests.eventually import eventually
from tests.stack import Stack
from tests.workflows.family import ROOT, Family, Me, closing, reported, spawn

SECRET = "xylophone"
"""A word that stands in everything that is said here, and in nothing else."""


async def recorded(temporal: Client, task_queue: str) -> bytes:
    """All that Temporal has stored of the workflows of a task queue, as it stores it."""
    found: list[bytes] = []
    async for run in temporal.list_workflows(f"TaskQueue = '{task_queue}'"):
        handle = temporal.get_workflow_handle(run.id, run_id=run.run_id)
        found.append((await handle.describe()).raw_description.SerializeToString())
        found += [event.SerializeToString() async for event in handle.fetch_history_events()]
    return b"".join(found)


def root(who: Me) -> Reply | str:
    """Calls a tool that works and one that fails, spawns a child, and answers."""
    match who.asked.user_text.split()[0], who.heard:
        case "calls", "":
            return Reply(Call("look", {"what": SECRET}), Call("fail", {"what": SECRET}))
        case "approval", "":
            return Reply(Call("buy", {"what": SECRET}))
        case "child", heard if "reports" not in heard and "closed" not in heard and "started" not in heard:
            return spawn(who, f"find the {SECRET}")
        case _:
            return f"the {SECRET} is there"


@pytest.mark.parametrize("codec", ["tests.fakes.payload_codec:codec", "tests.fakes.payload_codec:Hiding", None])
async def test_a_codec_hides_all_words_from_temporal(
    codec: str | None,
    temporal: Client,
    temporal_server: TemporalServer,
    store: PostgresStore,
    thread: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Messages, answers, arguments, results, failures, approvals, titles, stops and reports, over new runs too.

    Without the codec, the control, they are there to read.
    """
    if codec:
        monkeypatch.setenv("PERDURE_PAYLOAD_CODEC", codec)
    temporal, plain = await connect_temporal({"target_host": temporal_server.address}), temporal
    model = Family({ROOT: root, f"find the {SECRET}": [closing(f"found the {SECRET}")]})
    agent = Agent(
        "a",
        model=model,
        toolsets=[Threads()],
        limits=Limits(history_events=40),
        compaction=Compaction(strategy="window", keep=0.0),
    )

    @agent.tool
    async def look(what: str) -> str:
        return f"the {what} stands there"

    @agent.tool
    async def fail(what: str) -> str:
        raise ValueError(f"no {what}")

    @agent.tool(approval="always")
    async def buy(what: str) -> str:
        return f"bought {what}"

    async with Stack(temporal, store, [agent]) as stack:
        await stack.client.start(thread, title=f"The {SECRET}")
        for number in range(4):
            assert SECRET in await stack.client.ask(thread, f"calls {SECRET} {number}")
        await stack.client.ask(thread, f"child {SECRET}")
        await reported(stack, thread, f"found the {SECRET}")
        await stack.client.send(thread, f"approval {SECRET}")

        async def asked() -> str:
            return next((one.call_id for one in await stack.client.approvals(thread)), "")

        await stack.client.deny(thread, await eventually(asked), f"no {SECRET} for us", by=SECRET)
        await stack.client.interrupt(thread, reason=f"enough {SECRET}")
        await stack.client.compact(thread)
        assert SECRET in await stack.client.ask(thread, f"words {SECRET}")
        if codec:
            stranger = PerdureClient(plain, store, task_queue=stack.settings.task_queue)
            with pytest.raises(ConfigurationError, match="set PERDURE_PAYLOAD_CODEC"):
                await stranger.status(thread)
        words = await recorded(stack.temporal, stack.settings.task_queue)
        assert thread.encode() in words
        assert (SECRET.encode() in words) is (codec is None)
