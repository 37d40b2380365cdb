"""Bodies that come slowly, over real HTTP: they hold up nobody, and are taken where nobody waits."""

import asyncio
import json
from urllib.parse import urlsplit

import pytest
from temporalio.client import Client

from gateway import callbacks, room
from stores.memory import MemoryStore
from tests.eventually import eventually
from tests.gateway.served import Served
from tests.gateway.waiting import WaitingThread

ROOM_BYTES = 4_000


@pytest.fixture(autouse=True)
def small_room(monkeypatch: pytest.MonkeyPatch) -> None:
    """Few bytes for all bodies together."""
    monkeypatch.setattr(callbacks, "ROOM_BYTES", ROOM_BYTES)


@pytest.fixture
async def waiting(thread: str) -> WaitingThread:
    """A thread with an open call, in a store of its own."""
    return await WaitingThread.stored(MemoryStore(), thread)


def result(waiting: WaitingThread, size_bytes: int = 0) -> bytes:
    """A result that has this size as JSON, or a small one."""
    fields = {"type": "tool_result", "group_id": waiting.thread_id, "id": waiting.calls[0], "text": ""}
    fields["text"] = "x" * (size_bytes - len(json.dumps(fields)))
    return json.dumps(fields).encode()


class Upload:
    """A result that is sent over a connection of its own, as slowly as a test wants."""

    def __init__(self, content: bytes, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._content = content
        self._reader = reader
        self._writer = writer

    @classmethod
    async def begin(cls, served: Served, waiting: WaitingThread, size_bytes: int) -> "Upload":
        """Send the headers and one byte; returns when the gateway is at work on it."""
        content = result(waiting, size_bytes)
        path = urlsplit(await served.url(waiting.thread_id, waiting.calls[0])).path
        at_work = len(served.server.server_state.tasks)
        reader, writer = await served.connect()
        writer.write(f"POST {path} HTTP/1.1\r\nHost: x\r\nContent-Length: {size_bytes}\r\n\r\n".encode() + content[:1])
        await eventually(lambda: len(served.server.server_state.tasks) > at_work)
        return cls(content, reader, writer)

    async def end(self) -> int:
        """Send the rest; returns the status of the answer."""
        self._writer.write(self._content[1:])
        return await self.status()

    async def status(self) -> int:
        """The status of the answer. Ends the connection."""
        status = int((await self._reader.readline()).split()[1])
        self._writer.close()
        return status


async def post(served: Served, waiting: WaitingThread) -> int:
    """Post a small result at once; returns the status of the answer."""
    return (await served.post(waiting.thread_id, waiting.calls[0], result(waiting))).status_code


@pytest.mark.parametrize(("slow_s", "status"), [(0.2, 200), (60.0, 503)], ids=["they give way", "control"])
async def test_slow_bodies_starve_nobody(
    temporal: Client, waiting: WaitingThread, monkeypatch: pytest.MonkeyPatch, slow_s: float, status: int
) -> None:
    """Where they have all the room the oldest gets 503, and one that waits its place; the others go on undisturbed."""
    monkeypatch.setattr(callbacks, "_TURN_S", 1.0)
    monkeypatch.setattr(room, "SLOW_S", slow_s)
    async with Served(temporal, waiting.store) as served:
        uploads = [await Upload.begin(served, waiting, ROOM_BYTES // 4) for _ in range(4)]
        assert await post(served, waiting) == status
        gone = uploads[:1] if status == 200 else []
        assert [await upload.status() for upload in gone] == [503] * len(gone)
        assert [await upload.end() for upload in uploads[len(gone) :]] == [200] * (4 - len(gone))


async def test_slow_bodies_make_room_for_a_large_one(
    temporal: Client, waiting: WaitingThread, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As many of them go as it needs, and no more."""
    monkeypatch.setattr(room, "SLOW_S", 0.2)
    async with Served(temporal, waiting.store) as served:
        uploads = [await Upload.begin(served, waiting, ROOM_BYTES // 4) for _ in range(4)]
        large = await Upload.begin(served, waiting, ROOM_BYTES * 3 // 4)
        assert await large.end() == 200
        assert [await upload.status() for upload in uploads[:3]] == [503] * 3
        assert await uploads[3].end() == 200


async def test_a_slow_body_is_taken_where_nobody_waits(
    temporal: Client, waiting: WaitingThread, monkeypatch: pytest.MonkeyPatch
) -> None:
    """To be slow is no fault by itself, also of one that needs all the room there is."""
    monkeypatch.setattr(room, "SLOW_S", 0.0)  # so every body is slow that has begun
    async with Served(temporal, waiting.store) as served:
        upload = await Upload.begin(served, waiting, ROOM_BYTES)
        assert await upload.end() == 200


async def test_what_is_being_recorded_makes_room_for_nobody(
    temporal: Client, waiting: WaitingThread, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A body that has arrived may be recorded already, so it is not given up, however long that takes."""
    monkeypatch.setattr(room, "SLOW_S", 0.1)
    monkeypatch.setattr(callbacks, "_TURN_S", 0.5)
    locked = asyncio.Event()
    original = MemoryStore.get_thread

    async def get_thread(store: MemoryStore, thread_id: str) -> object:
        await locked.wait()
        return await original(store, thread_id)

    async with Served(temporal, waiting.store) as served:
        monkeypatch.setattr(MemoryStore, "get_thread", get_thread)
        first = await Upload.begin(served, waiting, ROOM_BYTES)
        answer = asyncio.create_task(first.end())
        assert await post(served, waiting) == 503
        locked.set()
        assert await answer == 200


async def test_slow_bodies_hold_no_turn(
    temporal: Client, waiting: WaitingThread, monkeypatch: pytest.MonkeyPatch
) -> None:
    """However many arrive, only what has arrived counts among those that are recorded."""
    monkeypatch.setattr(callbacks, "IN_FLIGHT", 2)
    monkeypatch.setattr(callbacks, "_TURN_S", 0.2)
    async with Served(temporal, waiting.store) as served:
        uploads = [await Upload.begin(served, waiting, 500) for _ in range(4)]
        assert await post(served, waiting) == 200
        assert [await upload.end() for upload in uploads] == [200] * 4


async def test_a_body_that_is_complete_when_it_has_to_go_goes(monkeypatch: pytest.MonkeyPatch) -> None:
    """Another one has its room by then: were both kept, there would be more than there may be."""
    monkeypatch.setattr(room, "SLOW_S", 0.0)
    shared = room.Room(10, patience_s=5)
    arriving = asyncio.Event()

    async def late() -> bytes:
        arriving.set()
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            return b"its last bytes came in this moment"
        raise AssertionError

    async def quick() -> bytes:
        return b"quick"

    async def receive_late() -> None:
        async with shared.receive(late, 10):
            raise AssertionError("it was kept")

    first = asyncio.create_task(receive_late())
    await arriving.wait()
    async with shared.receive(quick, 10) as body:
        assert body == b"quick"
    with pytest.raises(TimeoutError):
        await first
