"""The connection on which a store listens."""

import asyncio
from contextlib import aclosing

import pytest

from perdure.errors import StoreUnavailable
from stores.address import Address
from stores.listener import Listener


async def test_a_cancellation_that_the_driver_takes_for_a_failure_does_not_keep_the_store_open(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A process that is to end would hang: the connection would be made again, and nobody would end that."""
    tries: list[str] = []

    async def listen_once(_: Listener) -> None:
        tries.append("connecting")
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError as error:
            if len(tries) == 1:
                raise StoreUnavailable("The connection failed.") from error
            raise

    monkeypatch.setattr(Listener, "_listen_once", listen_once)
    listener = Listener(Address("postgresql://nobody@localhost/none"))
    async with aclosing(listener.listen("t")) as hints:
        await anext(hints)
        await asyncio.sleep(0)
    assert tries == ["connecting"]
    await asyncio.wait_for(listener.close(), 10)
