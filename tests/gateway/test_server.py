"""The server under clients that mean no good, or no haste: bounded memory and connections, no secrets in logs."""

import asyncio
import logging
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import AsyncExitStack
from urllib.parse import urlsplit

import pytest
from structlog.testing import capture_logs
from temporalio.client import Client

from gateway import callbacks
from gateway.connection import BoundedConnection
from perdure.errors import StoreUnavailable
from perdure.records import Choice, ThreadRecord
from stores.memory import MemoryStore
from tests.eventually import eventually
from tests.gateway.served import LIMIT, Served
from tests.gateway.waiting import WaitingThread


class SlowStore(MemoryStore):
    """Looks threads up only when `opens` is set; it counts who waits."""

    def __init__(self) -> None:
        super().__init__()
        self.opens = asyncio.Event()
        self.opens.set()
        self.waiting = 0

    async def get_thread(self, thread_id: str) -> ThreadRecord:
        """See the class."""
        self.waiting += 1
        await self.opens.wait()
        self.waiting -= 1
        return await super().get_thread(thread_id)


@pytest.fixture
def slow() -> SlowStore:
    """A store that can be held up."""
    return SlowStore()


@pytest.fixture
async def served(temporal: Client, slow: SlowStore) -> AsyncGenerator[Served]:
    """A gateway of the test's own, over the slow store."""
    async with Served(temporal, slow) as served:
        yield served


@pytest.fixture
async def waiting(slow: SlowStore, thread: str) -> WaitingThread:
    """A stored thread with an open call."""
    return await WaitingThread.stored(slow, thread)


@pytest.fixture
def hasty(monkeypatch: pytest.MonkeyPatch) -> None:
    """Requests must arrive within a moment."""
    monkeypatch.setattr(BoundedConnection, "request_s", 0.3)


def body(waiting: WaitingThread, text: str = "sunny") -> dict[str, str]:
    """A result."""
    return {"type": "tool_result", "group_id": waiting.thread_id, "id": waiting.calls[0], "text": text}


def is_alone(served: Served) -> bool:
    """Whether the server has no connection."""
    return not served.server.server_state.connections


async def status_of(reader: asyncio.StreamReader) -> int:
    """The status of the answer that comes."""
    return int((await reader.readline()).split()[1])


# -- size ------------------------------------------------------------------------------------------------------------


async def test_a_body_up_to_the_limit_is_taken(served: Served, waiting: WaitingThread) -> None:
    """One byte above the limit is refused with a sentence that names it; the limit itself is taken."""
    frame = len(f'{{"type": "tool_result", "group_id": "{waiting.thread_id}", "id": "{waiting.calls[0]}", "text": ""}}')
    above = await served.post(waiting.thread_id, waiting.calls[0], body(waiting, "x" * (LIMIT - frame + 1)))
    assert above.status_code == 413
    assert "200,000 bytes" in above.json()["error"]
    assert await served.signals(waiting.thread_id) == []
    exact = await served.post(waiting.thread_id, waiting.calls[0], body(waiting, "x" * (LIMIT - frame)))
    assert exact.status_code == 200


async def test_a_body_that_says_it_is_too_large_is_not_read(served: Served, waiting: WaitingThread) -> None:
    """The answer comes before any of the body was sent."""
    reader, writer = await served.connect()
    path = urlsplit(await served.url(waiting.thread_id, waiting.calls[0])).path
    writer.write(f"POST {path} HTTP/1.1\r\nHost: x\r\nContent-Length: {LIMIT + 1}\r\n\r\n".encode())
    assert await status_of(reader) == 413
    writer.close()


async def test_a_body_without_a_length_is_read_up_to_the_limit(served: Served, waiting: WaitingThread) -> None:
    """A body in chunks that never ends is refused when it passes the limit; a short one is taken."""
    reader, writer = await served.connect()
    path = urlsplit(await served.url(waiting.thread_id, waiting.calls[0])).path
    writer.write(f"POST {path} HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n".encode())
    chunk = b"x" * 50_000
    for _ in range(LIMIT // len(chunk) + 1):
        writer.write(f"{len(chunk):x}\r\n".encode() + chunk + b"\r\n")
        await writer.drain()
    assert await status_of(reader) == 413
    writer.close()

    async def pieces() -> AsyncIterator[bytes]:
        for piece in (b'{"type":"tool_result",', f'"group_id":"{waiting.thread_id}",'.encode()):
            yield piece
        yield f'"id":"{waiting.calls[0]}","text":"x"}}'.encode()

    assert (await served.post(waiting.thread_id, waiting.calls[0], pieces())).status_code == 200


async def test_who_has_no_token_can_send_no_body(served: Served, waiting: WaitingThread) -> None:
    """The token is looked at first: the answer to a forged request comes before its body."""
    reader, writer = await served.connect()
    path = urlsplit(await served.url(waiting.thread_id, waiting.calls[0], token="forged")).path
    writer.write(f"POST {path} HTTP/1.1\r\nHost: x\r\nContent-Length: 1000\r\n\r\n".encode())
    assert await status_of(reader) == 403
    writer.close()


# -- time ------------------------------------------------------------------------------------------------------------


@pytest.mark.usefixtures("hasty")
@pytest.mark.parametrize(
    "sent",
    [
        b"",
        b"POST /callbacks/",
        b"POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 10\r\n\r\n12345",
        b"GET /health HTTP/1.1",
    ],
)
async def test_a_request_that_does_not_arrive_ends(served: Served, sent: bytes) -> None:
    """A client that says nothing, or stops in the middle of its headers or body, loses its connection."""
    reader, writer = await served.connect()
    writer.write(sent)
    await eventually(lambda: not is_alone(served))
    await eventually(lambda: is_alone(served), timeout=5)
    await reader.read()
    writer.close()


@pytest.mark.usefixtures("hasty")
async def test_a_byte_now_and_then_is_not_enough(served: Served) -> None:
    """The time is that of the whole request: single bytes, each in time, do not prolong it."""
    clock = asyncio.get_running_loop().time
    began = clock()
    _, writer = await served.connect()
    await eventually(lambda: not is_alone(served))
    while not is_alone(served):
        assert clock() - began < 5
        writer.write(b"G")
        await asyncio.sleep(0.05)
    writer.close()


@pytest.mark.usefixtures("hasty")
async def test_a_refused_body_is_not_received_for_ever(served: Served, waiting: WaitingThread) -> None:
    """Who goes on sending after 413 is cut off, so that no connection is held that way."""
    reader, writer = await served.connect()
    path = urlsplit(await served.url(waiting.thread_id, waiting.calls[0])).path
    writer.write(f"POST {path} HTTP/1.1\r\nHost: x\r\nContent-Length: 1000000000\r\n\r\n".encode())
    assert await status_of(reader) == 413
    clock = asyncio.get_running_loop().time
    began = clock()
    while not is_alone(served):
        assert clock() - began < 5
        writer.write(b"x" * 1000)
        await asyncio.sleep(0.02)
    writer.close()


async def time_to_arrive(served: Served) -> None:
    """As long as a request may take to arrive: until a client that says nothing has lost its connection."""
    reader, writer = await served.connect()
    assert await asyncio.wait_for(reader.read(), 5) == b""
    writer.close()


@pytest.mark.usefixtures("hasty")
async def test_work_and_pauses_have_no_such_limit(served: Served, slow: SlowStore, waiting: WaitingThread) -> None:
    """A request that has arrived may take longer, and so may the pause before the next one on its connection."""
    slow.opens.clear()
    first = asyncio.create_task(served.post(waiting.thread_id, waiting.calls[0], body(waiting)))
    await eventually(lambda: slow.waiting == 1)
    await time_to_arrive(served)
    slow.opens.set()
    assert (await first).status_code == 200
    (connection,) = served.server.server_state.connections
    await time_to_arrive(served)
    assert (await served.post(waiting.thread_id, waiting.calls[0], body(waiting))).status_code == 200
    assert list(served.server.server_state.connections) == [connection]


async def test_more_than_can_be_worked_on_is_sent_away(
    temporal: Client, slow: SlowStore, waiting: WaitingThread, monkeypatch: pytest.MonkeyPatch
) -> None:
    """While all places are taken a callback waits for a moment, then gets 503; a freed place is taken again."""
    monkeypatch.setattr(callbacks, "IN_FLIGHT", 2)
    monkeypatch.setattr(callbacks, "_TURN_S", 0.2)
    async with Served(temporal, slow) as served:
        slow.opens.clear()
        busy = [asyncio.create_task(served.post(waiting.thread_id, waiting.calls[0], body(waiting))) for _ in range(2)]
        await eventually(lambda: slow.waiting == 2)
        answer = await served.post(waiting.thread_id, waiting.calls[0], body(waiting))
        assert (answer.status_code, answer.headers["retry-after"]) == (503, "5")
        assert slow.waiting == 2
        slow.opens.set()
        assert {response.status_code for response in await asyncio.gather(*busy)} == {200}
        assert (await served.post(waiting.thread_id, waiting.calls[0], body(waiting))).status_code == 200


async def test_bodies_share_a_bounded_memory(
    temporal: Client, slow: SlowStore, waiting: WaitingThread, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A body that does not fit beside those worked on is 503 after a moment; a small one fits, and what ends frees."""
    monkeypatch.setattr(callbacks, "ROOM_BYTES", 3_000)
    monkeypatch.setattr(callbacks, "_TURN_S", 0.2)
    async with Served(temporal, slow) as served:
        slow.opens.clear()
        large = body(waiting, "x" * 1_800)
        busy = [asyncio.create_task(served.post(waiting.thread_id, waiting.calls[0], large))]
        await eventually(lambda: slow.waiting == 1)
        answer = await served.post(waiting.thread_id, waiting.calls[0], large)
        assert (answer.status_code, answer.headers["retry-after"]) == (503, "5")
        assert slow.waiting == 1
        busy.append(asyncio.create_task(served.post(waiting.thread_id, waiting.calls[0], body(waiting))))
        await eventually(lambda: slow.waiting == 2)
        slow.opens.set()
        assert {response.status_code for response in await asyncio.gather(*busy)} == {200}
        assert (await served.post(waiting.thread_id, waiting.calls[0], large)).status_code == 200


async def test_a_body_waits_for_room(
    temporal: Client, slow: SlowStore, waiting: WaitingThread, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Bodies above all the room there is are taken one at a time: none is refused, and never two are worked on."""
    monkeypatch.setattr(callbacks, "ROOM_BYTES", 500)
    async with Served(temporal, slow) as served:
        slow.opens.clear()
        large = body(waiting, "x" * 1_000)
        both = [asyncio.create_task(served.post(waiting.thread_id, waiting.calls[0], large)) for _ in range(2)]
        await eventually(lambda: slow.waiting == 1 and len(served.server.server_state.tasks) == 2)
        # Answered by the same loop, after the second body has come as far as it may.
        assert (
            await served.post(waiting.thread_id, waiting.calls[0], body(waiting), token="forged")
        ).status_code == 403
        assert slow.waiting == 1
        slow.opens.set()
        assert {response.status_code for response in await asyncio.gather(*both)} == {200}


@pytest.mark.parametrize("length", ["", "Content-Length: 0\r\n"])
async def test_a_body_without_a_length_needs_room_for_the_largest(
    temporal: Client, slow: SlowStore, waiting: WaitingThread, monkeypatch: pytest.MonkeyPatch, length: str
) -> None:
    """What comes in chunks may grow to the limit, whatever it claims; when its client is gone the room is free."""
    monkeypatch.setattr(callbacks, "ROOM_BYTES", LIMIT)
    monkeypatch.setattr(callbacks, "_TURN_S", 0.2)
    async with Served(temporal, slow) as served:
        path = urlsplit(await served.url(waiting.thread_id, waiting.calls[0])).path
        _, writer = await served.connect()
        writer.write(f"POST {path} HTTP/1.1\r\nHost: x\r\n{length}Transfer-Encoding: chunked\r\n\r\n".encode())
        await eventually(lambda: served.server.server_state.tasks)
        assert (await served.post(waiting.thread_id, waiting.calls[0], body(waiting))).status_code == 503
        writer.close()
        await eventually(lambda: not served.server.server_state.tasks)
        assert (await served.post(waiting.thread_id, waiting.calls[0], body(waiting))).status_code == 200


async def test_a_store_that_hangs_is_given_up(
    served: Served, slow: SlowStore, waiting: WaitingThread, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Recording that takes too long is 503: the server may send again, and nobody waits without end."""
    monkeypatch.setattr(callbacks, "_WORK_S", 0.2)
    slow.opens.clear()
    answer = await served.post(waiting.thread_id, waiting.calls[0], body(waiting))
    assert (answer.status_code, answer.headers["retry-after"]) == (503, "5")
    assert await served.signals(waiting.thread_id) == []


async def test_a_client_that_goes_away_costs_nothing(served: Served, waiting: WaitingThread) -> None:
    """A connection that ends in the middle of a body records nothing and frees its place."""
    path = urlsplit(await served.url(waiting.thread_id, waiting.calls[0])).path
    _, writer = await served.connect()
    writer.write(f"POST {path} HTTP/1.1\r\nHost: x\r\nContent-Length: 500\r\n\r\n{{".encode())
    await eventually(lambda: served.server.server_state.tasks)
    writer.close()
    await eventually(lambda: is_alone(served) and not served.server.server_state.tasks)
    assert await served.signals(waiting.thread_id) == []


async def test_a_question_that_comes_too_late_by_a_moment_is_refused(
    served: Served, waiting: WaitingThread, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A call that is settled between the look at it and the recording gets 410, not a 503 that would be sent again."""
    original = MemoryStore.put_choice

    async def settled_meanwhile(store: MemoryStore, thread_id: str, choice: Choice) -> None:
        await waiting.settle()
        await original(store, thread_id, choice)

    monkeypatch.setattr(MemoryStore, "put_choice", settled_meanwhile)
    link = body(waiting) | {"type": "oauth", "auth_url": "https://id.example/"}
    assert (await served.post(waiting.thread_id, waiting.calls[0], link)).status_code == 410
    assert await served.store.get_choices(waiting.thread_id) == ()


# -- the end ---------------------------------------------------------------------------------------------------------


async def test_a_shutdown_answers_what_has_begun(served: Served, slow: SlowStore, waiting: WaitingThread) -> None:
    """A callback that is being worked on gets its 200; new connections are refused, idle ones closed."""
    slow.opens.clear()
    async with AsyncExitStack() as exits:
        running = asyncio.create_task(served.post(waiting.thread_id, waiting.calls[0], body(waiting)))
        await eventually(lambda: slow.waiting == 1)
        idle_reader, idle_writer = await served.connect()
        exits.callback(idle_writer.close)
        stopping = asyncio.create_task(served.stop())
        assert await idle_reader.read() == b""
        with pytest.raises(OSError, match=r"refused|Connect"):
            await served.connect()
        assert not running.done()
        slow.opens.set()
        assert (await running).status_code == 200
        await stopping
    assert len(await served.signals(waiting.thread_id)) == 1


# -- what is told ----------------------------------------------------------------------------------------------------


async def test_health_tells_what_is_away(
    served: Served, waiting: WaitingThread, monkeypatch: pytest.MonkeyPatch
) -> None:
    """200 while both answer; 503 that names the database while that is away. Callbacks are counted by status."""
    await served.post(waiting.thread_id, waiting.calls[0], body(waiting))
    await served.post(waiting.thread_id, waiting.calls[0], body(waiting), token="forged")
    healthy = await served.http.get(f"{served.base}/health")
    counts = {"200": 1, "403": 1}
    assert (healthy.status_code, healthy.json()) == (
        200,
        {"ok": True, "database": True, "temporal": True, "callbacks": counts},
    )

    async def away(_: MemoryStore, name: str) -> bytes:
        raise StoreUnavailable(f"no {name}")

    monkeypatch.setattr(MemoryStore, "get_key", away)
    ill = await served.http.get(f"{served.base}/health")
    assert (ill.status_code, ill.json()) == (
        503,
        {"ok": False, "database": False, "temporal": True, "callbacks": counts},
    )


async def test_no_log_holds_a_token_or_words(
    served: Served, slow: SlowStore, waiting: WaitingThread, caplog: pytest.LogCaptureFixture
) -> None:
    """Whatever happens to callbacks, what is logged has neither their token nor their content."""
    caplog.set_level(logging.DEBUG)
    right = await served.url(waiting.thread_id, waiting.calls[0])
    token = right.rsplit("/", 1)[1]
    secret = "the-words"
    with capture_logs() as events:
        posts = [
            await served.post(waiting.thread_id, waiting.calls[0], body(waiting, secret)),
            await served.post(waiting.thread_id, waiting.calls[0], {**body(waiting, secret), "id": "call_x"}),
            await served.post(
                waiting.thread_id, waiting.calls[0], {**body(waiting), "type": "oauth", "auth_url": secret}
            ),
            await served.post(waiting.thread_id, waiting.calls[0], b"{" + secret.encode()),
            await served.http.post(right + "/more", content=b"{}"),
            await served.http.get(right),
        ]
        slow.opens = None  # type: ignore[assignment]  # a bug in the middle of the work
        posts.append(await served.post(waiting.thread_id, waiting.calls[0], body(waiting, secret)))
    assert [answer.status_code for answer in posts] == [200, 403, 400, 400, 403, 405, 500]
    ours = [record for record in caplog.records if not record.name.startswith(("httpx", "httpcore"))]
    said = "\n".join([*map(str, events), *(logging.Formatter().format(record) for record in ours)])
    assert {event["event"] for event in events} == {"callback refused"}
    assert "NoneType" in said, "the bug itself is told"
    assert token not in said
    assert secret not in said
