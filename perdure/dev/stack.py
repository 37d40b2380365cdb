"""Everything that a worker needs, brought up and taken down as one: PostgreSQL, Temporal, their schemas.

What the environment names is used as it is; what it does not name is started here, with its data in one folder.
"""

import fcntl
import os
from collections.abc import AsyncGenerator, Generator
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from temporalio.client import Client

from perdure.connection import connect_temporal, register_search_attributes
from perdure.dev import process
from perdure.dev.temporal_server import TemporalServer
from perdure.errors import ConfigurationError
from perdure.settings import RunningStack, Settings, load_temporal_environment

DEFAULT_PORT: Final = 7233
DEFAULT_UI_PORT: Final = 8233


@dataclass(frozen=True)
class Stack:
    """What runs. `temporal_server` is None if Temporal is not ours."""

    database_url: str
    temporal_address: str
    client: Client
    temporal_server: TemporalServer | None

    @property
    def ui_url(self) -> str | None:
        """Where the Temporal UI is, if it is ours."""
        return self.temporal_server.ui_url if self.temporal_server else None


@asynccontextmanager
async def dev_stack(
    settings: Settings,
    data_dir: Path,
    *,
    port: int | None = None,
    ui_port: int | None = None,
    gateway_url: str | None = None,
) -> AsyncGenerator[Stack]:
    """The servers, ready for a worker and known to other commands in this folder, until the context ends.

    `settings` are those of the environment alone. A port of None is the usual one, or a free one if that is taken.
    `gateway_url` is where tool servers will reach the gateway, if there is to be one.

    Raises:
        ConfigurationError: if a server cannot be started or reached, a given port is taken, or a stack runs here
            already.
    """
    async with AsyncExitStack() as stack:
        stack.enter_context(_only_one(data_dir))
        database_url = settings.database_url or await _start_postgres(stack, data_dir)
        config = load_temporal_environment()
        server = None
        if "target_host" not in config:
            server = await _start_temporal(stack, data_dir, config.get("namespace"), port, ui_port)
            config["target_host"] = server.address
        client = await connect_temporal(config)
        await _prepare(database_url, client)
        running = Stack(database_url, config["target_host"], client, server)
        stack.enter_context(_announced(running, gateway_url, data_dir))
        yield running


async def _start_postgres(stack: AsyncExitStack, data_dir: Path) -> str:
    from stores.embedded import EmbeddedPostgres

    server = await stack.enter_async_context(EmbeddedPostgres(data_dir / "postgres", durable=True))
    return server.url


async def _start_temporal(
    stack: AsyncExitStack, data_dir: Path, namespace: str | None, port: int | None, ui_port: int | None
) -> TemporalServer:
    server = TemporalServer(
        data_dir / "temporal.db",
        ui=True,
        port=port or usual_port(DEFAULT_PORT),
        ui_port=ui_port or usual_port(DEFAULT_UI_PORT),
        namespace=namespace,
        log_file=data_dir / "temporal.log",
    )
    return await stack.enter_async_context(server)


def usual_port(port: int) -> int | None:
    """The port if nothing listens on it."""
    return port if process.port_is_free(port) else None


async def _prepare(database_url: str, client: Client) -> None:
    from stores.migrate import migrate

    await migrate(database_url)
    await register_search_attributes(client)


@contextmanager
def _only_one(data_dir: Path) -> Generator[None]:
    try:
        data_dir.mkdir(parents=True, exist_ok=True)
        # The kernel drops the lock with the process, however it ends.
        descriptor = os.open(data_dir / "lock", os.O_RDWR | os.O_CREAT, 0o600)
    except OSError as error:
        raise ConfigurationError(
            f"The data cannot be kept in {data_dir} ({error.strerror}): choose another --data-dir."
        ) from error
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError as error:
        raise ConfigurationError(
            f"`perdure dev` runs here already (its data is in {data_dir.resolve()}); stop it first."
        ) from error
    else:
        (data_dir / ".gitignore").write_text("*\n")
        yield
    finally:
        os.close(descriptor)


@contextmanager
def _announced(stack: Stack, gateway_url: str | None, data_dir: Path) -> Generator[None]:
    RunningStack(
        pid=os.getpid(),
        temporal_address=stack.temporal_address,
        ui_url=stack.ui_url,
        database_url=stack.database_url,
        gateway_url=gateway_url,
    ).write(data_dir)
    try:
        yield
    finally:
        RunningStack.path(data_dir).unlink(missing_ok=True)
