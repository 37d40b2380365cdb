"""kill -9 of the worker at every boundary of a turn: a second worker ends it, and nobody can tell from the outcome."""

import pytest
from temporalio.client import Client

from perdure.messages import Message, TextPart, ToolResultPart
from perdure.ordering import dispatched_calls, early_dispatches
from tests.chaos.agents import COUNTED, DONE, STREAMED, runs
from tests.chaos.crashes import Crash, Crashes
from tests.chaos.doomed_worker import POINTS, DoomedWorker
from tests.chaos.faults import faults
from tests.recorded import chain

pytestmark = pytest.mark.slow

TOOL_MAY_HAVE_RUN = ("after call has started", "before result is staged")
"""Points after which nobody can know whether the tool took effect, so it must not run a second time."""


class KilledTurn:
    """A turn with two tools whose worker dies."""

    def __init__(self, crash: Crash, temporal: Client) -> None:
        self._crash = crash
        self._temporal = temporal

    async def run(self) -> None:
        """Crash, recover, and check that it left no trace."""
        answer = await self._crash_and_recover()
        await self._check(answer)
        self._check_tools(answer)

    async def _crash_and_recover(self) -> Message:
        message_id = await self._crash.client.post(self._crash.thread, "go", id="m1")
        async with DoomedWorker(self._crash.place, self._crash.point) as doomed:
            assert await doomed.died() == -9
        async with DoomedWorker(self._crash.place):
            # Whoever is not sure that a message arrived sends it again.
            assert await self._crash.client.post(self._crash.thread, "go", id="m1") == message_id
            answer = await self._crash.client.wait_settled(self._crash.thread, message_id)
            assert await self._crash.client.ask(self._crash.thread, "count", id="m2") == COUNTED
        return answer

    async def _check(self, answer: Message) -> None:
        messages = await self._crash.client.history(self._crash.thread)
        assert faults(messages) == []
        assert [message.role for message in messages] == ["user", "assistant"] * 2
        assert [part.text for part in answer.parts if isinstance(part, TextPart)] == [STREAMED, DONE]
        assert answer.status.state == "complete"
        events = await chain(self._temporal, self._crash.thread)
        assert len(dispatched_calls(events)) == 2
        assert early_dispatches(events, self._crash.thread) == []

    def _check_tools(self, answer: Message) -> None:
        booked, looked = (part for part in answer.parts if isinstance(part, ToolResultPart))
        booked_times = runs(self._crash.place.state_dir, "book")
        assert looked.content == "Paris is sunny"
        if self._crash.point in TOOL_MAY_HAVE_RUN:
            assert "outcome is unknown" in booked.content
            assert booked_times <= 1
        else:
            assert (booked.content, booked_times) == ("booked table 7", 1)


async def test_a_worker_killed_at_any_boundary_leaves_no_trace(crashes: Crashes) -> None:
    """Nothing is lost, nothing is stored twice, every call has one result, and no tool runs a second time."""
    await crashes.at_each(POINTS, lambda crash: KilledTurn(crash, crashes.temporal).run())


@pytest.mark.parametrize("point", ["before input sync", "after input sync"])
async def test_words_that_come_while_no_worker_lives_are_not_lost(point: str, crashes: Crashes) -> None:
    """The next worker finds more inputs than the one that died: the sync that may have been applied is another one."""
    crash = crashes.at(point)
    client, thread = crash.client, crash.thread
    await client.post(thread, "count to forty", id="m1")
    async with DoomedWorker(crash.place, point) as doomed:
        assert await doomed.died() == -9
    second = await client.post(thread, "count again", id="m2")
    async with DoomedWorker(crash.place):
        await client.wait_settled(thread, second)
    messages = await client.history(thread)
    assert [message.input_id for message in messages if message.role == "user"] == ["m1", "m2"]
    assert faults(messages) == []
