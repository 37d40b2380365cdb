"""What a sender is told whose words a worker took in, and died before it could say so."""

import asyncio

import pytest

from tests.chaos.crashes import Crashes
from tests.chaos.doomed_worker import DoomedWorker
from tests.chaos.faults import faults
from tests.eventually import eventually

pytestmark = pytest.mark.slow


@pytest.mark.parametrize("more", [False, True], ids=["alone", "with more"])
async def test_words_whose_first_reply_was_lost(more: bool, crashes: Crashes) -> None:
    """They are stored and answered once, also if more has come. The sender is told `duplicate`.

    That is exact: the task that took them in has left nothing but the stored words, which say nothing of their sender.
    """
    crash = crashes.at("after input sync")
    client, thread = crash.client, crash.thread
    async with asyncio.TaskGroup() as senders:
        sent = senders.create_task(client.send(thread, "count", id="m1"))
        async with DoomedWorker(crash.place, crash.point) as doomed:
            assert await doomed.died() == -9
        if more:
            await client.post(thread, "count on", id="m2", mode="queue")
        async with DoomedWorker(crash.place):
            accepted = await sent
            await client.wait_settled(thread, accepted.message_id)
            expected = ["m1", "m2"] if more else ["m1"]

            async def is_over() -> bool:
                return (
                    len(await client.history(thread)) == 2 * len(expected)
                    and (await client.status(thread)).state == "idle"
                )

            await eventually(is_over, timeout=30)
    assert accepted.disposition == "duplicate"
    messages = await client.history(thread)
    assert [message.input_id for message in messages if message.role == "user"] == expected
    assert [message.status.state for message in messages if message.role == "assistant"] == ["complete"] * len(expected)
    assert faults(messages) == []
