"""kill -9 of the worker between what people ask for and what comes of it: that happens, and happens once."""

import asyncio
from collections.abc import Awaitable, Callable, Coroutine
from dataclasses import dataclass
from typing import Any

import pytest

from perdure.contract import Approved, TreeChanged
from perdure.errors import UsageError
from perdure.messages import TextPart, ToolResultPart
from tests.chaos.agents import ASKING, DONE, runs
from tests.chaos.crashes import Crash, Crashes
from tests.chaos.doomed_worker import DoomedWorker
from tests.chaos.faults import faults
from tests.eventually import eventually

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]

UNKNOWN = "unknown"
"""What is said of a call that had begun when its worker died: it may have taken effect, and is not made again."""


class Scene:
    """A thread in which somebody asks for something while its worker is about to die."""

    def __init__(self, crash: Crash) -> None:
        self.thread = crash.thread
        self.client = crash.client
        self.place = crash.place

    async def texts(self) -> list[str]:
        """What is shown."""
        return [
            "".join(part.text for part in message.parts if isinstance(part, TextPart))
            for message in await self.client.history(self.thread)
        ]

    async def first_answer(self) -> str:
        """A question and its answer; the id of that."""
        accepted = await self.client.send(self.thread, "hello", id="m1")
        return (await self.client.wait_settled(self.thread, accepted.message_id)).id

    async def question(self) -> str:
        """A turn that waits for approval; its call."""
        await self.client.send(self.thread, "book it", id="m1")

        async def waits() -> str | None:
            # By the workflow's word: the store knows of it a moment earlier.
            asked = [call for call in await self.client.open_calls(self.thread) if call.state == "approval"]
            return asked[0].call_id if asked else None

        call_id = await eventually(waits, timeout=60)
        assert call_id is not None
        return call_id


@dataclass(frozen=True)
class Deed:
    """What somebody asks for, about what `prepare` has made; and what there is to see of it afterwards."""

    prepare: Callable[[Scene], Awaitable[str]]
    ask: Callable[[Scene, str], Coroutine[Any, Any, TreeChanged | Approved]]
    check: Callable[[Scene, str], Awaitable[None]]
    points: tuple[str, ...]


async def _regenerated(scene: Scene, answer: str) -> None:
    await scene.client.wait_settled(scene.thread)
    branches = await scene.client.branches(scene.thread, answer)
    assert [(branch.text, branch.selected) for branch in branches] == [
        ("An answer to hello.", False),
        ("An answer to hello.", True),
    ]
    assert all(branch.status.state == "complete" for branch in branches)
    assert (await scene.client.regenerate(scene.thread, answer, id="r1")).disposition == "duplicate"
    assert len((await scene.client.tree(scene.thread)).messages) == 3


async def _deleted(scene: Scene, answer: str) -> None:
    assert await scene.texts() == ["hello"]
    assert (await scene.client.delete_message(scene.thread, answer, id="d1")).disposition == "duplicate"
    with pytest.raises(UsageError):
        await scene.client.delete_message(scene.thread, answer, id="d2")
    assert await scene.texts() == ["hello"]


async def _approved(scene: Scene, call_id: str) -> None:
    turn = await scene.client.wait_settled(scene.thread)
    assert turn.status.state == "complete"
    assert (await scene.texts())[-1] == DONE
    (result,) = [part for part in turn.parts if isinstance(part, ToolResultPart)]
    ran = runs(scene.place.state_dir, "book")
    if UNKNOWN in result.content:
        # Whether it had begun at all nobody knows; that it does not begin again is what counts.
        assert ran <= 1
    else:
        assert (result.outcome, result.content, ran) == ("ok", "booked table 7", 1)
    with pytest.raises(UsageError):
        await scene.client.deny(scene.thread, call_id)


async def _denied(scene: Scene, call_id: str) -> None:
    turn = await scene.client.wait_settled(scene.thread)
    assert turn.status.state == "complete"
    (result,) = [part for part in turn.parts if isinstance(part, ToolResultPart)]
    assert (result.outcome, runs(scene.place.state_dir, "book")) == ("denied", 0)
    with pytest.raises(UsageError):
        await scene.client.approve(scene.thread, call_id)


DEEDS = {
    "regenerate": Deed(
        Scene.first_answer,
        lambda scene, answer: scene.client.regenerate(scene.thread, answer, id="r1"),
        _regenerated,
        ("before regeneration", "after regeneration", "in mid stream", "before final sync", "after final sync"),
    ),
    "delete": Deed(
        Scene.first_answer,
        lambda scene, answer: scene.client.delete_message(scene.thread, answer, id="d1"),
        _deleted,
        ("before deletion", "after deletion"),
    ),
    "approve": Deed(
        Scene.question,
        lambda scene, call_id: scene.client.approve(scene.thread, call_id, by="ann"),
        _approved,
        (
            "before decision",
            "after decision",
            "before call starts",
            "after call has started",
            "before result is staged",
            "after result is staged",
            "before results sync",
            "after results sync",
        ),
    ),
    "deny": Deed(
        Scene.question,
        lambda scene, call_id: scene.client.deny(scene.thread, call_id, by="ann"),
        _denied,
        ("before decision", "after decision"),
    ),
}


@pytest.mark.parametrize("deed", DEEDS)
async def test_what_people_ask_for_outlives_the_worker(deed: str, crashes: Crashes) -> None:
    """It takes effect once, whoever asked is answered, no tool runs twice, and nothing is at work for ever."""
    await crashes.at_each(DEEDS[deed].points, lambda crash: _killed(Scene(crash), DEEDS[deed], crash.point))


async def _killed(scene: Scene, deed: Deed, point: str) -> None:
    async with DoomedWorker(scene.place):
        await scene.client.start(scene.thread, agent=ASKING)
        about = await deed.prepare(scene)
    async with DoomedWorker(scene.place, point) as doomed:
        asking = asyncio.create_task(deed.ask(scene, about))
        assert await doomed.died() == -9
    async with DoomedWorker(scene.place):
        # Whoever asked is answered by the next worker, if the one that died has not done so.
        assert (await asking).disposition in ("started", "changed", "settled", "duplicate")
        await deed.check(scene, about)
        assert await scene.client.ask(scene.thread, "and now", id="m2") == "An answer to and now."

        async def rests() -> bool:
            return (await scene.client.status(scene.thread)).state == "idle"

        await eventually(rests)
    assert faults(await scene.client.history(scene.thread)) == []
    tree = await scene.client.tree(scene.thread)
    assert {one.message.status.state for one in tree.messages} == {"complete"}


async def test_a_decision_that_comes_while_no_worker_lives(crashes: Crashes) -> None:
    """People are shown what waits once it is durable, also if the worker that made it so has told nobody else."""
    crash = crashes.at("after final sync")
    client, thread = crash.client, crash.thread
    async with DoomedWorker(crash.place):
        await client.start(thread, agent=ASKING)
    words = await client.post(thread, "book it", id="m1")
    async with DoomedWorker(crash.place, crash.point) as doomed:
        assert await doomed.died() == -9
    (pending,) = await client.approvals(thread)
    asking = asyncio.create_task(client.approve(thread, pending.call_id, by="ann"))
    async with DoomedWorker(crash.place):
        assert (await asking).disposition in ("settled", "duplicate")
        turn = await client.wait_settled(thread, words)
    assert [part.content for part in turn.parts if isinstance(part, ToolResultPart)] == ["booked table 7"]
    assert runs(crash.place.state_dir, "book") == 1
