"""The gateway: the HTTP side of threads. An ASGI app over a client; it holds nothing that a restart would lose."""

from datetime import timedelta

from fastapi import FastAPI
from starlette.exceptions import HTTPException

from gateway.callbacks import Callbacks, callback_routes
from gateway.health import health_routes
from gateway.refusal import Refusal, http_error, refused
from perdure.client import PerdureClient
from perdure.settings import Settings
from perdure.thread_calls import ThreadCalls


def create_app(client: PerdureClient, settings: Settings, *, patience: timedelta) -> FastAPI:
    """The app, for one event loop.

    Args:
        client: the way to the store and to Temporal; it stays open as long as the app serves.
        settings: `task_queue` and `callback_bytes` count.
        patience: how long a callback waits for a Temporal that is away.
    """
    callbacks = Callbacks(
        client.store, ThreadCalls(client.temporal, settings.task_queue, patience), settings.callback_bytes
    )
    # Nothing is redirected: whoever posts takes that for a refusal.
    app = FastAPI(title="Perdure", docs_url=None, redoc_url=None, openapi_url=None, redirect_slashes=False)
    app.add_exception_handler(Refusal, refused)
    app.add_exception_handler(HTTPException, http_error)
    app.include_router(callback_routes(callbacks))
    app.include_router(health_routes(client, callbacks.answers))
    return app
