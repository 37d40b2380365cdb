"""Heartbeats of a running activity, whatever it waits for."""

import asyncio
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager, suppress

from temporalio import activity

from perdure.policy import HEARTBEAT_INTERVAL


@asynccontextmanager
async def heartbeating() -> AsyncGenerator[None]:
    """Beat in the background for as long as the block runs.

    Beats say that the process lives, not that tokens flow: a model may think for minutes without a word. The answer to
    a beat is also how a cancellation gets here, so beating goes on while nothing else happens.
    """
    beats = asyncio.create_task(_beat())
    try:
        yield
    finally:
        beats.cancel()
        with suppress(asyncio.CancelledError):
            await beats


async def _beat() -> None:
    while True:
        activity.heartbeat()
        await asyncio.sleep(HEARTBEAT_INTERVAL.total_seconds())
