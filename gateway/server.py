"""The gateway as a process: it listens, serves until it is told to stop, and answers what it has begun."""

import asyncio
import socket
from collections.abc import Generator
from contextlib import closing, contextmanager
from datetime import timedelta
from typing import TYPE_CHECKING, Final, NoReturn

import structlog
import uvicorn
from fastapi import FastAPI

from gateway.app import create_app
from gateway.connection import BoundedConnection
from perdure.cli.ending import leave
from perdure.client import PerdureClient
from perdure.errors import ConfigurationError
from perdure.logs import temporal_runtime
from perdure.settings import Settings, gateway_address
from perdure.stop_signals import on_stop_signal

if TYPE_CHECKING:
    from structlog.stdlib import BoundLogger

log: "BoundLogger" = structlog.get_logger("perdure.gateway")

PATIENCE: Final = timedelta(seconds=10)
"""How long a callback waits for a Temporal that is away. The tool server waits as long for its answer."""

_CONNECTIONS: Final = 800
"""More get 503. Below the 1,024 open files that a process may have where nobody has changed that."""

_KEEP_ALIVE_S: Final = 95
"""Longer than clients keep idle connections (Rust's reqwest 90 s, aiohttp 15 s, Node 4 s), so that they close first: a
callback sent into a connection that is being closed here would be lost with a server that does not send it again."""

_DRAIN_S: Final = 25
"""How long requests that have begun may take to end after a SIGTERM; none takes longer."""


class Server(uvicorn.Server):
    """uvicorn's server, whose process handles signals itself: uvicorn would end it by the signal it got, not with 0."""

    @contextmanager
    def capture_signals(self) -> Generator[None]:
        """Leave signals alone."""
        yield


def create_server(app: FastAPI) -> Server:
    """A server for the app; `serve` it on sockets. It writes no access log, since paths hold tokens."""
    config = uvicorn.Config(
        app,
        http=BoundedConnection,
        ws="none",
        lifespan="off",
        log_config=None,
        log_level="warning",
        access_log=False,
        server_header=False,
        proxy_headers=False,
        limit_concurrency=_CONNECTIONS,
        timeout_keep_alive=_KEEP_ALIVE_S,
        timeout_graceful_shutdown=_DRAIN_S,
    )
    return Server(config)


def run(settings: Settings) -> NoReturn:
    """Serve until SIGTERM or SIGINT, then end the process; a second signal ends it at once.

    Raises:
        ConfigurationError: if a setting is missing, the port is taken, or Temporal or the database cannot be used.
    """
    with asyncio.Runner() as runner:
        runner.run(_serve(settings))
        leave()


def listen(host: str, port: int) -> socket.socket:
    """A socket that listens; connections wait in its queue until they are served.

    Raises:
        ConfigurationError: if the port is taken, or the host is not one of this machine.
    """
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        return socket.create_server((host, port), family=family, backlog=_CONNECTIONS)
    except OSError as error:
        reason = (error.strerror or str(error)).partition(" (")[0]  # what follows repeats the address
        raise ConfigurationError(
            f"The gateway cannot listen on port {port} of {host} ({reason}): free it, or choose others with "
            "--port and --host."
        ) from error


async def _serve(settings: Settings) -> None:
    settings.required_database_url()
    with closing(listen(settings.gateway_host, settings.gateway_port)) as listening:
        async with await PerdureClient.connect(patience=PATIENCE, runtime=temporal_runtime()) as client:
            server = create_server(create_app(client, settings, patience=PATIENCE))

            def stop() -> None:
                server.should_exit = True

            on_stop_signal(stop)
            log.info("gateway started", address=gateway_address(*listening.getsockname()[:2]))
            await server.serve(sockets=[listening])
            log.info("gateway stopped")
