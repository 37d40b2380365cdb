"""The app on a real socket, over a real Temporal server; no worker takes what it sends, so it can be looked at."""

import asyncio
import json
import uuid
from collections.abc import AsyncIterator, Mapping
from datetime import timedelta
from typing import Any, Self
from urllib.parse import urlsplit

import httpx2
from temporalio.api.enums.v1 import EventType
from temporalio.client import Client
from temporalio.service import RPCError, RPCStatusCode

from gateway.app import create_app
from gateway.server import create_server, listen
from perdure import ids
from perdure.client import PerdureClient
from perdure.ports import Store
from perdure.rap.token import CALLBACK_KEY, callback_token, callback_url
from perdure.settings import Settings
from tests.eventually import eventually

LIMIT = 200_000

Signal = tuple[str, dict[str, Any]]


class Served:
    """The gateway, and an HTTP client for it.

    Attributes:
        server: uvicorn's server.
        http: a client.
        base: where the gateway is.
    """

    def __init__(
        self,
        temporal: Client,
        store: Store,
        *,
        task_queue: str | None = None,
        patience: timedelta = timedelta(seconds=5),
        callback_bytes: int = LIMIT,
    ) -> None:
        settings = Settings(
            database_url=None, task_queue=task_queue or f"none-{uuid.uuid4()}", callback_bytes=callback_bytes
        )
        self.store = store
        self.temporal = temporal
        client = PerdureClient(temporal, store, task_queue=settings.task_queue)
        self.server = create_server(create_app(client, settings, patience=patience))
        self.http = httpx2.AsyncClient(timeout=30)
        self.base = ""
        self._serving: asyncio.Task[None] | None = None

    async def __aenter__(self) -> Self:
        listening = listen("127.0.0.1", 0)
        self.base = f"http://127.0.0.1:{listening.getsockname()[1]}"
        self._serving = asyncio.create_task(self.server.serve(sockets=[listening]))
        await eventually(lambda: self.server.started)
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.http.aclose()
        await self.stop()

    async def stop(self) -> None:
        """Shut down as after a SIGTERM. Safe to repeat."""
        self.server.should_exit = True
        if self._serving is not None:
            await self._serving

    async def url(self, thread_id: str, call_id: str, *, token: str | None = None) -> str:
        """The callback URL of a call, as a tool server gets it, or one with another token."""
        if token is None:
            token = callback_token(await self.store.get_key(CALLBACK_KEY), thread_id, call_id)
        return callback_url(self.base, thread_id, call_id, token)

    async def post(
        self,
        thread_id: str,
        call_id: str,
        body: Mapping[str, Any] | bytes | AsyncIterator[bytes],
        *,
        token: str | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> httpx2.Response:
        """Post a body, as JSON unless it is bytes or comes in pieces, to the URL of a call."""
        url = await self.url(thread_id, call_id, token=token)
        content = json.dumps(body).encode() if isinstance(body, Mapping) else body
        return await self.http.post(url, content=content, headers=headers)

    async def connect(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        """A bare connection, for clients that do not keep to the rules."""
        return await asyncio.open_connection("127.0.0.1", urlsplit(self.base).port)

    async def signals(self, thread_id: str) -> list[Signal]:
        """What Temporal holds for the thread, in order: names and payloads."""
        handle = self.temporal.get_workflow_handle(ids.workflow_id(thread_id))
        try:
            return [
                (
                    event.workflow_execution_signaled_event_attributes.signal_name,
                    json.loads(event.workflow_execution_signaled_event_attributes.input.payloads[0].data),
                )
                async for event in handle.fetch_history_events()
                if event.event_type == EventType.EVENT_TYPE_WORKFLOW_EXECUTION_SIGNALED
            ]
        except RPCError as error:
            if error.status is RPCStatusCode.NOT_FOUND:
                return []
            raise
