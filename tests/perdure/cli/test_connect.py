"""The commands' way to Temporal."""

import asyncio
import time

import pytest
from temporalio.client import Client
from temporalio.service import RPCError

from perdure.cli.threads import connect
from perdure.client import PerdureClient
from perdure.dev.temporal_server import TemporalServer
from tests.eventually import eventually

pytestmark = pytest.mark.slow  # waits until the SDK complains


class Line:
    """A connection to a server that can be cut."""

    def __init__(self, address: str) -> None:
        host, _, port = address.rpartition(":")
        self._target = host, int(port)
        self._ends: list[asyncio.StreamWriter] = []
        self._server: asyncio.Server | None = None

    async def open(self) -> str:
        """Listen; returns the address."""
        self._server = await asyncio.start_server(self._accept, "127.0.0.1", 0)
        return f"127.0.0.1:{self._server.sockets[0].getsockname()[1]}"

    def cut(self) -> None:
        """Refuse connections from now on, and drop those there are. Safe to repeat."""
        if self._server:
            self._server.close()
        for end in self._ends:
            end.close()

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        far_reader, far_writer = await asyncio.open_connection(*self._target)
        self._ends += [writer, far_writer]
        await asyncio.gather(_copy(reader, far_writer), _copy(far_reader, writer))


async def _copy(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    try:
        while data := await reader.read(65_536):
            writer.write(data)
    except ConnectionError:  # it was cut
        pass
    writer.close()


async def count(client: Client) -> None:
    """A call that the SDK makes again and again while nobody answers."""
    with pytest.raises(RPCError):
        await client.count_workflows("")


async def test_the_sdk_writes_nothing_between_our_lines(
    temporal_server: TemporalServer,
    database_url: str,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
) -> None:
    """While Temporal is away, where a client of the SDK's own making has long complained on the standard output."""
    line = Line(temporal_server.address)
    address = await line.open()
    try:
        monkeypatch.setenv("TEMPORAL_ADDRESS", address)
        monkeypatch.setenv("PERDURE_DATABASE_URL", database_url)
        async with await connect() as ours, await PerdureClient.connect() as other:
            line.cut()
            began = time.monotonic()
            complaining = asyncio.create_task(count(other.temporal))
            await eventually(lambda: "count_workflow_executions retried" in capfd.readouterr().out, timeout=20)
            took = time.monotonic() - began
            complaining.cancel()
            await asyncio.gather(complaining, return_exceptions=True)
            capfd.readouterr()
            silent = asyncio.create_task(count(ours.temporal))
            await asyncio.wait([silent], timeout=2 * took + 1)
            silent.cancel()
            await asyncio.gather(silent, return_exceptions=True)
            assert capfd.readouterr() == ("", "")
    finally:
        line.cut()
