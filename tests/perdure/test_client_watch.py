"""Readers of a thread by the client: several at once, going on where they stopped, over a database that goes."""

import asyncio
import os
import shutil
import tempfile
from collections.abc import AsyncGenerator
from contextlib import AsyncExitStack, aclosing, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest
from temporalio.client import (
    Client,
)

from perdure.agent import Agent
from perdure.client import PerdureClient
from perdure.errors import StoreUnavailable
from perdure.messages import TextPart, ToolCallPart, ToolResultPart
from perdure.records import Change, Choice, Snapshot
from perdure.testing import Reply, ScriptedModel
from perdure.turn_buffer import Chunk
from perdure.watch import View, WatchEvent, is_settled
from stores.embedded import EmbeddedPostgres
from stores.memory import MemoryStore
from stores.migrate import migrate
from stores.postgres import PostgresStore
from tests.eventually import eventually
from tests.stack import Stack
from tests.talk import THREAD, Talk
from tests.workflows.conftest import StackFactory


async def take_until_settled(client: PerdureClient, thread_id: str, after: int | None, seen: list[WatchEvent]) -> None:
    """Watch until the thread's last turn has ended."""
    async with aclosing(client.watch(thread_id, after)) as events:
        async for event in events:
            seen.append(event)
            if isinstance(event, Change) and event.message and is_settled(event.message):
                return


@dataclass
class Reader:
    """Watches until the last turn has ended."""

    seen: list[WatchEvent]
    done: asyncio.Task[None]

    @property
    def view(self) -> View:
        """What it has seen, folded."""
        view = View()
        for event in self.seen:
            view.apply(event)
        return view


@asynccontextmanager
async def reader(client: PerdureClient, thread_id: str) -> AsyncGenerator[Reader]:
    """A reader who is there from now on."""
    seen: list[WatchEvent] = []
    done = asyncio.create_task(take_until_settled(client, thread_id, None, seen))
    try:
        await eventually(lambda: seen)
        yield Reader(seen, done)
    finally:
        done.cancel()
        await asyncio.gather(done, return_exceptions=True)


async def test_several_readers_see_the_answer_as_it_streams(start_stack: StackFactory, thread: str) -> None:
    """A snapshot first, then every change in order, for each of them."""
    reply = Reply("one two three four", chunk_chars=4, delay_s=0.06)
    stack = await start_stack(Agent("a", model=ScriptedModel([reply])))
    await stack.client.start(thread)
    async with AsyncExitStack() as reading:
        readers = [await reading.enter_async_context(reader(stack.client, thread)) for _ in range(3)]
        await stack.client.send(thread, "hi")
        await asyncio.gather(*(each.done for each in readers))
        for each in readers:
            assert isinstance(each.seen[0], Snapshot)
            assert [event.seq for event in each.seen] == sorted({event.seq for event in each.seen})
            assert sum(isinstance(event, Change) and event.chunk is not None for event in each.seen) > 1
            assert each.view.messages == list((await stack.store.snapshot(thread)).path.messages)


async def test_a_reader_goes_on_where_it_stopped(stack: Stack, thread: str) -> None:
    """With `after` there is no snapshot; committed words come as parts, and nothing comes twice."""
    await stack.client.start(thread)
    first: list[WatchEvent] = []
    async with aclosing(stack.client.watch(thread)) as events:
        first.append(await anext(events))
    accepted = await stack.client.send(thread, "hi")
    await stack.client.wait_settled(thread, accepted.message_id)
    second: list[WatchEvent] = []
    await take_until_settled(stack.client, thread, first[0].seq, second)
    assert all(isinstance(event, Change) and event.chunk is None for event in second)
    view = View()
    for event in first + second:
        view.apply(event)
    assert [message.parts for message in view.messages] == [m.parts for m in await stack.client.history(thread)]


class Flaky(MemoryStore):
    """A store whose database goes away with every second read of changes and every third hint."""

    def __init__(self) -> None:
        super().__init__()
        self.reads = 0
        self.failures = 0

    async def read_changes(self, thread_id: str, after: int, limit: int = 1000) -> tuple[Change, ...]:
        """Fails every second time, and gives small pages."""
        self.reads += 1
        if self.reads % 2:
            self.failures += 1
            raise StoreUnavailable("away")
        return await super().read_changes(thread_id, after, limit)

    async def listen(self, thread_id: str) -> AsyncGenerator[None]:
        """Breaks after two hints."""
        async with aclosing(super().listen(thread_id)) as hints:
            for _ in range(2):
                await anext(hints)
                yield
        raise StoreUnavailable("away")


async def test_a_watch_survives_a_database_that_goes_away(temporal: Client) -> None:
    """However often it fails, no change is left out and none comes twice."""
    store = Flaky()
    talk = await Talk.begin(store)
    async with reader(PerdureClient(temporal, store), THREAD) as watcher:
        await talk.say("hi")
        for word in ("1 ", "2 ", "3 "):
            await talk.stream([Chunk(index=0, delta=word)])
            newest = (await store.get_thread(THREAD)).seq
            await eventually(lambda: watcher.seen[-1].seq == newest)  # noqa: B023  # awaited in the same round
        await talk.commit((TextPart(text="1 2 3"),))
        await asyncio.wait_for(watcher.done, 20)
        assert store.failures > 3
        assert [event.seq for event in watcher.seen] == list(range(watcher.seen[-1].seq + 1))


@pytest.mark.slow
async def test_a_watch_survives_a_restart_of_postgresql(temporal: Client) -> None:
    """The server stops in mid-stream and comes back: the reader goes on, without a gap and without a repeat."""
    folder = Path(tempfile.gettempdir()) / f"perdure-watch-{os.getpid()}"
    server = EmbeddedPostgres(folder)
    await server.start()
    try:
        await migrate(server.url)
        async with await PostgresStore.connect(server.url) as store:
            talk = await Talk.begin(store)
            async with reader(PerdureClient(temporal, store), THREAD) as watcher:
                await talk.say("hi")
                await talk.stream([Chunk(index=0, delta="one ")])
                await eventually(lambda: watcher.view.live)
                await server.stop()
                with pytest.raises(StoreUnavailable):
                    await store.get_thread(THREAD)
                await server.start()
                await talk.stream([Chunk(index=0, delta="two")])
                await talk.commit((TextPart(text="one two"),))
                await asyncio.wait_for(watcher.done, 30)
                assert [event.seq for event in watcher.seen] == sorted({event.seq for event in watcher.seen})
                assert watcher.view.messages == list((await store.load_history_with_ancestors(THREAD)).messages)
    finally:
        await server.stop()
        shutil.rmtree(folder)


async def test_questions_and_views_are_told_and_replayed(temporal: Client) -> None:
    """Whoever was there and whoever comes later hold the same, without the address that an answer goes to."""
    talk = await Talk.begin(MemoryStore())
    client = PerdureClient(temporal, talk.store)
    await talk.say("hi")
    await talk.commit((ToolCallPart(call_id="c1", tool="deploy"), ToolCallPart(call_id="c2", tool="deploy")))
    early = View()
    async with aclosing(client.watch(THREAD)) as events:
        early.apply(await anext(events))
        for name in ("c1", "c2"):
            asked = Choice(
                id=f"of {name}", call_id=name, prompt="Sure?", choices=("yes",), response_url="http://inside"
            )
            await talk.store.put_choice(THREAD, asked)
        await talk.store.put_view(THREAD, "diff", '{"patch": "+1"}')
        await talk.store.put_view(THREAD, "log", '"x"')
        await talk.store.put_view(THREAD, "log", "{}")
        await talk.store.stage_result(THREAD, ToolResultPart(call_id="c1", content="done"))
        last = (await talk.store.snapshot(THREAD)).seq
        while early.seq < last:
            early.apply(await anext(events))
    late = View()
    async with aclosing(client.watch(THREAD)) as events:
        late.apply(await anext(events))
    assert [(choice.id, choice.prompt, choice.response_url) for choice in early.choices.values()] == [
        ("of c2", "Sure?", None)
    ]
    assert list(early.shown) == ["diff"]
    assert (early.choices, early.shown) == (late.choices, late.shown)
