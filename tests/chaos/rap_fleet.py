"""A worker and a gateway as processes of their own that can be killed and started again, and a wire that can be cut."""

import asyncio
import contextlib
import uuid
from collections.abc import Mapping
from typing import Self

from temporalio.client import Client

from perdure.client import PerdureClient
from perdure.dev.gateway_process import GatewayProcess
from perdure.dev.process import free_port
from perdure.dev.worker_process import WorkerProcess
from perdure.ports import Store
from perdure.watch import answer_text
from tests.chaos.rap_agents import EXPIRES_S, URL
from tests.eventually import eventually
from tests.fakes.rap_server import FakeRapServer


class RapFleet:
    """`perdure worker` and `perdure gateway` for the agent of `tests.chaos.rap_agents`.

    Attributes:
        client: the way to its threads.
        worker, gateway: the processes; each may be killed and started again, the gateway at the same address.
    """

    def __init__(
        self,
        temporal: Client,
        store: Store,
        server: FakeRapServer,
        *,
        temporal_address: str,
        database_url: str,
        gateway_temporal_address: str | None = None,
        expires_s: float | None = None,
    ) -> None:
        task_queue = f"rap-{uuid.uuid4()}"
        self._temporal = temporal
        self.client = PerdureClient(temporal, store, task_queue=task_queue)
        self.gateway = GatewayProcess(
            "127.0.0.1",
            free_port(),
            database_url=database_url,
            temporal_address=gateway_temporal_address or temporal_address,
            task_queue=task_queue,
        )
        environment: Mapping[str, str] = {"PERDURE_GATEWAY_URL": self.gateway.url, URL: server.url}
        self.worker = WorkerProcess(
            "tests.chaos.rap_agents:agents",
            database_url=database_url,
            temporal_address=temporal_address,
            task_queue=task_queue,
            environment=environment if expires_s is None else {**environment, EXPIRES_S: str(expires_s)},
        )

    async def __aenter__(self) -> Self:
        await self.worker.start()
        await self.gateway.start()
        await self.worker.ready(self._temporal)
        await self.gateway.ready(self._temporal)
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.worker.kill()
        await self.gateway.kill()

    async def restart_worker(self) -> None:
        """Kill -9, and another one."""
        await self.worker.kill()
        await self.worker.start()
        await self.worker.ready(self._temporal)

    async def restart_gateway(self) -> None:
        """Kill -9, and another one at the same address."""
        await self.gateway.kill()
        await self.gateway.start()
        await self.gateway.ready(self._temporal)

    async def heard(self, thread: str, text: str) -> None:
        """Wait until the last answer of the thread is complete and holds this text."""

        async def has_heard() -> bool:
            last = (await self.client.history(thread))[-1]
            return last.status.state == "complete" and text in answer_text(last)

        await eventually(has_heard, timeout=60)


class Wire:
    """A TCP connection to another address that can go silent: what is sent arrives, and no answer comes back."""

    def __init__(self, address: str) -> None:
        host, _, port = address.rpartition(":")
        self._target = host, int(port)
        self._server: asyncio.Server | None = None
        self._tasks: set[asyncio.Task[None]] = set()
        self.is_silent = False

    @property
    def address(self) -> str:
        """`host:port` of this end."""
        assert self._server is not None
        return f"127.0.0.1:{self._server.sockets[0].getsockname()[1]}"

    async def __aenter__(self) -> Self:
        self._server = await asyncio.start_server(self._connect, "127.0.0.1", 0)
        return self

    async def __aexit__(self, *_: object) -> None:
        assert self._server is not None
        self._server.close()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _connect(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        answers, target = await asyncio.open_connection(*self._target)
        for source, sink, is_back in ((reader, target, False), (answers, writer, True)):
            task = asyncio.create_task(self._copy(source, sink, is_back))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

    async def _copy(self, source: asyncio.StreamReader, sink: asyncio.StreamWriter, is_back: bool) -> None:
        with contextlib.suppress(ConnectionError), contextlib.closing(sink):
            while data := await source.read(65536):
                if not (is_back and self.is_silent):
                    sink.write(data)
                    await sink.drain()
