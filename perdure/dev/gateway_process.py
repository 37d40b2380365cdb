"""A gateway in a process of its own."""

import asyncio
from asyncio.subprocess import Process
from collections.abc import Mapping
from datetime import timedelta
from http.client import HTTPConnection, HTTPException
from typing import IO, Final
from urllib.parse import urlsplit

from temporalio.client import Client

from perdure.contract import DEFAULT_TASK_QUEUE
from perdure.dev.child import Child
from perdure.settings import gateway_address

_DRAIN: Final = timedelta(seconds=28)
"""A little longer than the gateway itself gives the requests that it has begun."""


class GatewayProcess(Child):
    """`perdure gateway` as a child, always on the same port: tool servers hold URLs of it for days.

    Attributes:
        url: where it is.
    """

    kind = "gateway"

    def __init__(
        self,
        host: str,
        port: int,
        *,
        database_url: str,
        temporal_address: str,
        task_queue: str = DEFAULT_TASK_QUEUE,
        environment: Mapping[str, str] | None = None,
        output: IO[bytes] | None = None,
    ) -> None:
        super().__init__(
            ["gateway", "--host", host, "--port", str(port)],
            _DRAIN,
            database_url=database_url,
            temporal_address=temporal_address,
            task_queue=task_queue,
            environment=environment,
            output=output,
        )
        self.url = gateway_address(host, port)

    @property
    def greeting(self) -> str:
        """See `Child`."""
        return f"The gateway serves {self.url}."

    async def _serves(self, client: Client, child: Process) -> bool:
        return await asyncio.to_thread(_is_healthy, self.url)


def _is_healthy(url: str) -> bool:
    # Not urllib, which would ask a proxy that the environment names.
    connection = HTTPConnection(urlsplit(url).netloc, timeout=5)
    try:
        connection.request("GET", "/health")
        return connection.getresponse().status == 200
    except (OSError, HTTPException):
        return False
    finally:
        connection.close()
