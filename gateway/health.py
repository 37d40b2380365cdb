"""GET /health: whether the gateway can do its work, for load balancers and people."""

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from typing import Final

from fastapi import APIRouter
from fastapi.responses import JSONResponse
from temporalio.service import RPCError

from perdure.client import PerdureClient
from perdure.errors import PerdureError
from perdure.rap.token import CALLBACK_KEY

_PATIENCE_S: Final = 3.0


def health_routes(client: PerdureClient, callbacks: Mapping[int, int]) -> APIRouter:
    """The route; `callbacks` counts the answers to callbacks by their status."""
    router = APIRouter()

    @router.get("/health")
    async def health() -> JSONResponse:
        """200 if the database and Temporal answer, else 503; the body says which does not."""
        database, temporal = await asyncio.gather(
            _answers(lambda: client.store.get_key(CALLBACK_KEY)), _answers(client.temporal.service_client.check_health)
        )
        ok = database and temporal
        body = {"ok": ok, "database": database, "temporal": temporal, "callbacks": dict(sorted(callbacks.items()))}
        return JSONResponse(body, 200 if ok else 503)

    return router


async def _answers(ask: Callable[[], Awaitable[object]]) -> bool:
    try:
        async with asyncio.timeout(_PATIENCE_S):
            await ask()
    except (PerdureError, RPCError, TimeoutError):
        return False
    return True
