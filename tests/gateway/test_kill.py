"""kill -9 of the gateway while tool servers post: what was answered is there, and nothing is there twice."""

import asyncio
from collections import Counter
from collections.abc import AsyncGenerator, Iterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

import httpx2
import pytest
from temporalio.client import Client

from perdure.dev.gateway_process import GatewayProcess
from perdure.dev.process import free_port
from perdure.dev.temporal_server import TemporalServer
from perdure.messages import EventPart, Message
from perdure.rap.token import CALLBACK_KEY, callback_token, callback_url
from stores.postgres import PostgresStore
from tests.eventually import eventually
from tests.gateway.asking import Asking, results

pytestmark = [pytest.mark.slow, pytest.mark.timeout(180)]

KILLS = 3
LANES = 4


@dataclass(frozen=True)
class Post:
    """A callback that a server sends until it hears 200, under one request id."""

    thread: str
    call_id: str
    body: Mapping[str, object]
    request_id: str


class Doomed:
    """A gateway that is killed and started again while servers post.

    Attributes:
        taken: posts that were answered 200.
        failed: posts that were not, and were sent again.
    """

    def __init__(self, process: GatewayProcess, key: bytes) -> None:
        self.taken = 0
        self.failed = 0
        self._process = process
        self._key = key

    async def take(self, posts: list[Post]) -> None:
        """All posts get through, from a few servers at once, while the gateway is killed again and again."""
        left = iter(posts)
        servers = [asyncio.create_task(self._serve(left)) for _ in range(LANES)]
        step = max(len(posts) // KILLS, 1)
        for enough in range(self.taken, self.taken + len(posts), step):
            await self._until_taken(enough)
            await self._process.kill()
            await self._process.start()
        await asyncio.gather(*servers)

    async def _until_taken(self, enough: int) -> None:
        await eventually(lambda: self.taken >= enough, timeout=60)

    async def _serve(self, left: Iterator[Post]) -> None:
        async with httpx2.AsyncClient(timeout=30) as http:
            for post in left:
                while not await self._is_taken(http, post):
                    self.failed += 1
                    await asyncio.sleep(0.1)  # as servers do
                self.taken += 1

    async def _is_taken(self, http: httpx2.AsyncClient, post: Post) -> bool:
        token = callback_token(self._key, post.thread, post.call_id)
        url = callback_url(self._process.url, post.thread, post.call_id, token)
        try:
            answer = await http.post(url, json=post.body, headers={"Idempotency-Key": post.request_id})
        except httpx2.TransportError:
            return False
        return answer.status_code == 200


@asynccontextmanager
async def doomed(database_url: str, temporal_address: str, asking: Asking, log: Path) -> AsyncGenerator[Doomed]:
    """A gateway process for a stack, instead of its own."""
    with log.open("wb") as output:
        process = GatewayProcess(
            "127.0.0.1",
            free_port(),
            database_url=database_url,
            temporal_address=temporal_address,
            task_queue=asking.stack.settings.task_queue,
            output=output,
        )
        await process.start()
        try:
            await process.ready(asking.stack.temporal)
            yield Doomed(process, await asking.stack.store.get_key(CALLBACK_KEY))
        finally:
            await process.stop()


def result(thread: str, call_id: str, words: str, **fields: object) -> Post:
    """A result."""
    body = {"type": "tool_result", "group_id": thread, "id": call_id, "text": words, **fields}
    return Post(thread, call_id, body, words)


def event(thread: str, call_id: str, words: str) -> Post:
    """An event that joins the conversation."""
    origin = {"group_id": thread, "tool_call_id": call_id}
    return Post(thread, call_id, {"type": "subscription_event", **origin, "text": words, "associative": True}, words)


def events(history: list[Message]) -> Counter[str]:
    """How often each event is in a conversation."""
    return Counter(part.content for message in history for part in message.parts if isinstance(part, EventPart))


async def test_results_land_once(
    database_url: str, temporal_server: TemporalServer, temporal: Client, thread: str, tmp_path: Path
) -> None:
    """Sixty results of three threads, with three kills: each is in its place, once, in the words of its own."""
    threads = [f"{thread}-{number}" for number in range(3)]
    async with await PostgresStore.connect(database_url) as store, Asking(temporal, store, calls=20) as asking:
        waiting = {name: await asking.begin(name) for name in threads}
        posts = [result(name, call_id, call_id) for name, (_, calls) in waiting.items() for call_id in calls]
        async with doomed(database_url, temporal_server.address, asking, tmp_path / "log") as gateway:
            await gateway.take(posts)
        assert gateway.failed, "the kills came while servers posted"
        for name, (message_id, calls) in waiting.items():
            assert results(await asking.stack.client.wait_settled(name, message_id)) == calls


async def test_events_with_request_ids_land_once(
    database_url: str, temporal_server: TemporalServer, temporal: Client, thread: str, tmp_path: Path
) -> None:
    """Thirty events of one subscription, with three kills: each is handled once, although some were sent twice."""
    async with await PostgresStore.connect(database_url) as store, Asking(temporal, store) as asking:
        message_id, (call_id,) = await asking.begin(thread)
        words = [f"event {number}" for number in range(30)]
        async with doomed(database_url, temporal_server.address, asking, tmp_path / "log") as gateway:
            await gateway.take([result(thread, call_id, "subscribed", subscription=True)])
            await asking.stack.client.wait_settled(thread, message_id)
            await gateway.take([event(thread, call_id, said) for said in words])
        assert gateway.failed, "the kills came while servers posted"

        async def are_all_there() -> bool:
            return len(events(await asking.stack.client.history(thread))) == len(words)

        await eventually(are_all_there, timeout=60)
        assert events(await asking.stack.client.history(thread)) == Counter(words)
