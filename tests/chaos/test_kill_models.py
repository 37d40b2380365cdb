"""kill -9 of the worker around a model call: in hooks, between what they say and the call, around a compaction."""

import asyncio

import pytest

from perdure.ports import Store
from perdure.records import ThreadRecord
from perdure.watch import answer_text
from tests.chaos.agents import runs
from tests.chaos.crashes import Crash, Crashes
from tests.chaos.doomed_worker import MODEL_POINTS, DoomedWorker
from tests.chaos.faults import faults
from tests.chaos.model_agents import FITS, LONG, REMEMBERING
from tests.eventually import eventually

pytestmark = pytest.mark.slow

POINTS = ("before end of stream", "after end of stream", "before final sync", "after final sync", *MODEL_POINTS)
ASKED_AGAIN = ("in hook before", "before context is kept")
"""Points after which nobody can know what the providers have said."""

TOLD_AGAIN = ("before hook is finished", "in hook after of second", "in hook after of first")
"""Points after which nobody can know whether a provider was told."""


class KilledTalk:
    """Three turns, the second too long for the model; the worker dies at a point, and another one goes on."""

    def __init__(self, crash: Crash, store: Store) -> None:
        self._crash = crash
        self._store = store

    async def run(self) -> None:
        """Crash, recover, and check that it left no trace."""
        await self._store.create_thread(ThreadRecord(thread_id=self._crash.thread, agent=REMEMBERING))
        async with asyncio.TaskGroup() as both:
            both.create_task(self._talk())
            async with DoomedWorker(self._crash.place, self._crash.point) as doomed:
                assert await doomed.died() == -9
            async with DoomedWorker(self._crash.place):
                await eventually(self._are_told, timeout=60)
                problems = (await self._crash.client.status(self._crash.thread)).problems
                # What comes while a sync that went through is not known to have gone through makes it another one.
                assert [problem for problem in problems if "went back to what is stored" not in problem] == []
        await self._check()

    async def _talk(self) -> None:
        """One turn after the other, whichever worker is there."""
        for number, words in enumerate(("hello", LONG, "bye"), 1):
            await self._crash.client.wait_settled(
                self._crash.thread, await self._crash.client.post(self._crash.thread, words, id=f"m{number}")
            )

    async def _are_told(self) -> bool:
        finished = [len(await self._store.finished_hooks(self._crash.thread, turn)) for turn in (1, 2, 3)]
        kept = [await self._store.get_turn_context(self._crash.thread, turn, 0) for turn in (1, 2, 3)]
        return (finished, kept) == ([2] * 3, [None] * 3)

    async def _check(self) -> None:
        messages = await self._crash.client.history(self._crash.thread, whole=True)
        assert faults(messages) == []
        answers = [answer_text(message) for message in messages if message.role == "assistant"]
        assert answers == ["you said hello", FITS, "you said bye"]
        path = await self._store.load_history_with_ancestors(self._crash.thread)
        assert path.summary is not None
        assert path.summary.previous_id is None
        states = await self._store.get_provider_states(self._crash.thread)
        assert {name: state.values for name, state in states.items()} == {
            "first": {"turns": 3},
            "second": {"turns": 3},
        }
        self._check_hooks()

    def _check_hooks(self) -> None:
        asked = [runs(self._crash.place.state_dir, f"asked-first-{turn}") for turn in (1, 2, 3)]
        told = [
            runs(self._crash.place.state_dir, f"told-{name}-{turn}-success")
            for name in ("second", "first")
            for turn in (1, 2, 3)
        ]
        assert asked == [2 if self._crash.point in ASKED_AGAIN else 1, 1, 1]
        assert sorted(told) == [1] * 5 + [2 if self._crash.point in TOLD_AGAIN else 1]


async def test_a_worker_killed_around_a_model_call_leaves_no_trace(crashes: Crashes) -> None:
    """Every turn is answered once, counted once by each provider, and the conversation is summed up once.

    A hook runs a second time only where nobody can know that it has run.
    """
    await crashes.at_each(POINTS, lambda crash: KilledTalk(crash, crashes.store).run(), at_once=16)
