"""Results that come over HTTP for calls on a branch that is not shown."""

import pytest
from temporalio.client import Client

from perdure.inputs import ROOT
from stores.postgres import PostgresStore
from tests.gateway.asking import Asking, results
from tests.workflows.conftest import store, thread

__all__ = ["store", "thread"]


@pytest.mark.parametrize("text", ["blue", "blue" * 20_000])
async def test_a_result_counts_wherever_its_call_is(
    temporal: Client, store: PostgresStore, thread: str, text: str
) -> None:
    """It is answered 200 and is the call's, large ones too; the turn goes on, and a second one is answered alike."""
    async with Asking(temporal, store) as asking:
        client = asking.stack.client
        _, (call_id,) = await asking.begin(thread)
        turn = (await client.history(thread))[-1].id
        await client.send(thread, "by the way", parent_id=ROOT, run=False)
        assert turn not in [message.id for message in await client.history(thread)]
        assert await asking.answer(thread, call_id, text) == 200
        settled = await client.wait_settled(thread, turn)
        assert await asking.answer(thread, call_id, "red") == 200
        assert [part.startswith("blue") for part in results(settled)] == [True]
        assert settled.status.state == "complete"
        assert (await client.status(thread)).dropped == 0
