"""Results that come through the gateway: how many a second one process takes, how soon, and whether each lands once.

Every thread waits for all calls of a step. Their results are posted as tool servers do it, each with words of its own;
some are sent a second time with other words, and a post that is answered with 5xx is sent again. Half way the worker is
killed and another one started. In the end the store must hold the first words of each call, once.
"""

import argparse
import asyncio
import random
import tempfile
from collections import Counter
from collections.abc import AsyncGenerator, Iterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Final, Self
from urllib.parse import urlsplit

from benchmarks.agents import ANSWER
from benchmarks.conversation import Conversation
from benchmarks.stage import Figures, Stage, quantile, rounded, run, stage
from perdure.codec import dumps
from perdure.dev.gateway_process import GatewayProcess
from perdure.dev.process import free_port
from perdure.messages import ToolCallPart, ToolResultPart
from perdure.rap.token import CALLBACK_KEY, callback_token, callback_url
from perdure.watch import View, answer_text, is_settled

REPEATED: Final = 0.25
"""The share of results that are sent a second time."""

RETRY_S: Final = 0.5


Stored = tuple[str, str, str]
"""A result as the conversation has it: thread, call, words."""


@dataclass(frozen=True)
class Result:
    """A result to post, and whether to post another one after it."""

    thread_id: str
    call_id: str
    is_repeated: bool

    def words(self, time: int) -> str:
        """What it says the first or the second time."""
        return f"{time} {self.call_id}"


class Connection:
    """One HTTP connection to the gateway. A client library would take more of this machine than the gateway does."""

    def __init__(self, base: str) -> None:
        place = urlsplit(base)
        self._host, self._port = place.hostname, place.port

    async def __aenter__(self) -> Self:
        self._reader, self._writer = await asyncio.open_connection(self._host, self._port)
        return self

    async def __aexit__(self, *_: object) -> None:
        self._writer.close()

    async def post(self, path: str, body: bytes) -> int:
        """Post JSON; returns the status. The gateway says how long its answers are."""
        head = f"POST {path} HTTP/1.1\r\nHost: {self._host}\r\nContent-Type: application/json\r\n"
        self._writer.write(f"{head}Content-Length: {len(body)}\r\n\r\n".encode() + body)
        status, *headers = (await self._reader.readuntil(b"\r\n\r\n")).decode().split("\r\n")
        lengths = [
            value for name, _, value in (header.partition(":") for header in headers) if name == "content-length"
        ]
        await self._reader.readexactly(int(lengths[0]))
        return int(status.split()[1])


class ToolServers:
    """Tool servers, each with a connection of its own, that post results one after the other.

    Attributes:
        latencies: seconds from a post to its 200.
        retried: posts that had to be sent again.
        half_way: set when half of the results were taken.
    """

    def __init__(self, base: str, key: bytes) -> None:
        self.latencies: list[float] = []
        self.retried = 0
        self.half_way = asyncio.Event()
        self._base = base
        self._key = key

    async def post(self, results: Sequence[Result], servers: int) -> None:
        """Post all of them, as fast as so many servers at once can."""
        left = enumerate(results)
        await asyncio.gather(*(self._serve(left, len(results) // 2) for _ in range(servers)))

    async def _serve(self, left: Iterator[tuple[int, Result]], half: int) -> None:
        async with Connection(self._base) as connection:
            for number, result in left:
                await self._post(connection, result, result.words(1))
                if result.is_repeated:
                    await self._post(connection, result, result.words(2))
                if number >= half:
                    self.half_way.set()

    async def _post(self, connection: Connection, result: Result, words: str) -> None:
        token = callback_token(self._key, result.thread_id, result.call_id)
        path = callback_url("", result.thread_id, result.call_id, token)
        body = {"type": "tool_result", "group_id": result.thread_id, "id": result.call_id, "text": words}
        clock = asyncio.get_running_loop().time
        began = clock()
        while (status := await connection.post(path, dumps(body).encode())) != 200:
            if status < 500:
                raise RuntimeError(f"a callback was refused with {status}")
            self.retried += 1
            await asyncio.sleep(RETRY_S)
        self.latencies.append(clock() - began)


async def measure(arguments: argparse.Namespace) -> Figures:
    """Let threads wait, answer their calls through the gateway, and look at what is stored."""
    async with stage("callbacks") as running, _gateway(running) as gateway:
        thread_ids = [f"t{number}" for number in range(arguments.threads)]
        calls = await asyncio.gather(*(_ask(running, thread_id, arguments.calls) for thread_id in thread_ids))
        results = [
            Result(thread_id, call_id, random.random() < REPEATED)
            for thread_id, call_ids in zip(thread_ids, calls, strict=True)
            for call_id in call_ids
        ]
        random.shuffle(results)
        servers = ToolServers(gateway.url, await running.client.store.get_key(CALLBACK_KEY))
        took_s = await _post(running, servers, results, arguments.servers)
        stored = Counter[Stored]()
        for found in await asyncio.gather(*(_answered(running, thread_id) for thread_id in thread_ids)):
            stored.update(found)
    expected = Counter((result.thread_id, result.call_id, result.words(1)) for result in results)
    return {
        "threads": arguments.threads,
        "callbacks": len(servers.latencies),
        "callbacks_per_s": rounded(len(servers.latencies) / took_s),
        "p50_ms": rounded(quantile(servers.latencies, 0.5) * 1000),
        "p95_ms": rounded(quantile(servers.latencies, 0.95) * 1000),
        "retried": servers.retried,
        "lost": (expected - stored).total(),
        "doubled": (stored - expected).total(),
    }


@asynccontextmanager
async def _gateway(running: Stage) -> AsyncGenerator[GatewayProcess]:
    """One gateway process, ready."""
    with tempfile.TemporaryFile() as log:
        gateway = GatewayProcess(
            "127.0.0.1",
            free_port(),
            database_url=running.database_url,
            temporal_address=running.server.address,
            output=log,
        )
        await gateway.start()
        try:
            await gateway.ready(running.client.temporal)
            yield gateway
        finally:
            await gateway.stop()


async def _ask(running: Stage, thread_id: str, calls: int) -> list[str]:
    """Let a thread make its calls; returns their ids when all of them are durable. Nobody watches it after that."""
    async with Conversation(running.client, thread_id) as thread:
        await thread.post(str(calls))
        await thread.until(lambda view: len(_calls(view)) == calls)
        return _calls(thread.view)


def _calls(view: View) -> list[str]:
    """The durable calls of the turn. Clients hear of calls as parts; nothing starts those that wait for them."""
    parts = view.head.parts if view.head else ()
    return [part.call_id for part in parts if isinstance(part, ToolCallPart)]


async def _post(running: Stage, servers: ToolServers, results: Sequence[Result], count: int) -> float:
    """Post the results, with a kill of the worker in the middle; returns how long it took."""
    clock = asyncio.get_running_loop().time
    began = clock()
    posting = asyncio.create_task(servers.post(results, count))
    half_way = asyncio.create_task(servers.half_way.wait())
    await asyncio.wait({posting, half_way}, return_when=asyncio.FIRST_COMPLETED)
    half_way.cancel()
    await running.worker.kill()
    await running.worker.start()
    await posting
    return clock() - began


async def _answered(running: Stage, thread_id: str) -> list[Stored]:
    """Wait for the answer; returns the results that the thread holds."""
    async with Conversation(running.client, thread_id) as thread:
        await thread.until(
            lambda view: view.head is not None and is_settled(view.head) and answer_text(view.head) == ANSWER
        )
    parts = (part for message in await running.client.history(thread_id) for part in message.parts)
    return [(thread_id, part.call_id, part.content) for part in parts if isinstance(part, ToolResultPart)]


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--threads", type=int, default=100)
    parser.add_argument("--calls", type=int, default=10, help="of each thread")
    parser.add_argument("--servers", type=int, default=32, help="tool servers that post at once")
    arguments = parser.parse_args()
    run(lambda: measure(arguments))
