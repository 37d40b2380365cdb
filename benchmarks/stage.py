"""What a benchmark runs on: PostgreSQL, Temporal and a worker, as in production, each in a process of its own.

PostgreSQL is durable (fsync on), Temporal's dev server keeps its data in a file, the worker has its default settings.
All of it is started on free ports, with data in a temporary folder, and gone at the end. The benchmark itself is the
client.
"""

import asyncio
import json
import signal
import sys
import tempfile
from collections.abc import AsyncGenerator, Awaitable, Callable, Generator, Mapping
from contextlib import AsyncExitStack, asynccontextmanager, closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn

from perdure.client import PerdureClient
from perdure.connection import connect_temporal
from perdure.dev.temporal_server import TemporalServer
from perdure.dev.worker_process import WorkerProcess
from stores.embedded import EmbeddedPostgres
from stores.migrate import migrate
from stores.postgres import PostgresStore

Figures = dict[str, Any]


@dataclass(frozen=True)
class Stage:
    """What runs, and a client for it."""

    client: PerdureClient
    worker: WorkerProcess
    server: TemporalServer
    database_url: str
    postgres_pid: int


@asynccontextmanager
async def stage(agent: str, environment: Mapping[str, str] | None = None) -> AsyncGenerator[Stage]:
    """Everything, ready to serve an agent of `benchmarks.agents`; `environment` is added to the worker's."""
    async with AsyncExitStack() as exits:
        folder = exits.enter_context(data_folder())
        postgres = await exits.enter_async_context(EmbeddedPostgres(folder / "postgres", durable=True))
        await migrate(postgres.url)
        server = await exits.enter_async_context(TemporalServer(folder / "temporal.db"))
        temporal = await connect_temporal({"target_host": server.address})
        store = await exits.enter_async_context(await PostgresStore.connect(postgres.url))
        log = exits.enter_context(closing((folder / "worker.log").open("wb")))
        worker = WorkerProcess(
            f"benchmarks.agents:{agent}",
            database_url=postgres.url,
            temporal_address=server.address,
            environment=environment,
            output=log,
        )
        try:
            await worker.start()
            exits.push_async_callback(worker.stop)
            await worker.ready(temporal)
            yield Stage(PerdureClient(temporal, store), worker, server, postgres.url, _postmaster(folder / "postgres"))
        except BaseException:  # a benchmark that is cancelled at its limit has to say what the worker was doing
            sys.stderr.write((folder / "worker.log").read_text(errors="replace")[-4000:])
            raise


@contextmanager
def data_folder() -> Generator[Path]:
    """A folder for what a server keeps, gone at the end."""
    with tempfile.TemporaryDirectory(prefix="perdure-benchmark-") as name:
        folder = Path(name)
        folder.chmod(0o755)  # if we are root, PostgreSQL runs as another user, who has to get in
        yield folder


def _postmaster(data_dir: Path) -> int:
    """The process id of the server on a data folder."""
    return int((data_dir / "data" / "postmaster.pid").read_text().partition("\n")[0])


def run(benchmark: Callable[[], Awaitable[Figures]]) -> NoReturn:
    """Run a benchmark and print its figures as one line of JSON. SIGTERM ends it in order, like Ctrl-C."""
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        figures = asyncio.run(_awaited(benchmark))
    except KeyboardInterrupt:
        sys.exit(130)
    print(json.dumps(figures), flush=True)
    sys.exit(0)


async def _awaited(benchmark: Callable[[], Awaitable[Figures]]) -> Figures:
    return await benchmark()


def quantile(values: list[float], share: float) -> float:
    """The nearest-rank quantile; ValueError for no values."""
    if not values:
        raise ValueError("no values were measured")
    ordered = sorted(values)
    return ordered[min(int(share * len(ordered)), len(ordered) - 1)]


def rounded(value: float) -> float:
    """A figure with as many digits as mean something."""
    return round(value, 1) if abs(value) >= 10 else round(value, 2)
