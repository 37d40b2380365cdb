"""How long a stop takes: from the signal until a reader of the store sees the turn settled."""

import argparse
import asyncio
import random
from collections.abc import Awaitable, Callable
from typing import Final

from temporalio.api.enums.v1 import PendingActivityState

from benchmarks.conversation import Conversation
from benchmarks.stage import Figures, Stage, quantile, rounded, run, stage
from perdure import ids

Ready = Callable[[Stage, Conversation], Awaitable[None]]

JITTER_S: Final = 0.5
"""A stop comes at any time: the pause before it spreads over the interval of the activities' heartbeats."""


async def measure(samples: int) -> Figures:
    """Stop one thread after the other in each of the three places."""
    async with stage("endless") as running:
        return {
            "samples": samples,
            "mid_token": await _stops(running, "stream", _streams, samples),
            "mid_tool": await _stops(running, "tool", _runs_tool, samples),
            "in_backoff": await _stops(running, "fail", _waits_for_retry, samples),
        }


async def _stops(running: Stage, words: str, ready: Ready, samples: int) -> Figures:
    took = [await _stop(running, f"{words}-{number}", words, ready) for number in range(samples)]
    return {
        "p50_ms": rounded(quantile(took, 0.5)),
        "p95_ms": rounded(quantile(took, 0.95)),
        "max_ms": rounded(max(took)),
    }


async def _stop(running: Stage, thread_id: str, words: str, ready: Ready) -> float:
    clock = asyncio.get_running_loop().time
    async with Conversation(running.client, thread_id) as conversation:
        message_id = await conversation.post(words)
        await ready(running, conversation)
        await asyncio.sleep(random.uniform(0, JITTER_S))
        began = clock()
        await running.client.interrupt(thread_id)
        settled = await conversation.settled(message_id)
        took_ms = (clock() - began) * 1000
        if (settled.status.state, settled.status.reason) != ("incomplete", "cancelled"):
            raise RuntimeError(f"{thread_id} was not stopped but ended as {settled.status}")
        return took_ms


async def _streams(running: Stage, conversation: Conversation) -> None:
    await conversation.until(lambda view: view.live is not None and bool(view.live.parts))


async def _runs_tool(running: Stage, conversation: Conversation) -> None:
    await conversation.until(lambda view: any(call.started for call in view.calls.values()))


async def _waits_for_retry(running: Stage, conversation: Conversation) -> None:
    handle = running.client.temporal.get_workflow_handle(ids.workflow_id(conversation.thread_id))
    while True:
        pending = (await handle.describe()).raw_description.pending_activities
        waits = PendingActivityState.PENDING_ACTIVITY_STATE_SCHEDULED
        if any(activity.attempt > 1 and activity.state == waits for activity in pending):
            return
        await asyncio.sleep(0.05)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--samples", type=int, default=15, help="stops in each of the three places")
    arguments = parser.parse_args()
    run(lambda: measure(arguments.samples))
