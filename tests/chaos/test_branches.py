"""kill -9 of the worker between what people ask for and what comes of it: that happens, and happens once."""

import asyncio

import pytest

from perdure.codec import dumps
from perdure.contract import TreeChanged
from perdure.errors import UsageError
from perdure.inputs import Accepted
from perdure.messages import ToolCallPart, ToolResultPart
from tests.cases.conversation import results_of
from tests.chaos.agents import ASKING, DONE, runs
from tests.chaos.crashes import Crashes
from tests.chaos.doomed_worker import DoomedWorker
from tests.chaos.faults import faults
from tests.chaos.scene import Deed, Scene
from tests.eventually import eventually

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]

UNKNOWN = "unknown"
"""What is said of a call that had begun when its worker died: it may have taken effect, and is not made again."""


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
    for request in ("d1", "d2"):
        assert (await scene.client.delete_message(scene.thread, answer, id=request)).disposition == "duplicate"
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


async def _edited(scene: Scene, _: str) -> None:
    await scene.client.wait_settled(scene.thread)
    assert await scene.texts() == ["good morning", "An answer to good morning."]
    first = (await scene.client.history(scene.thread))[0].id
    assert [branch.text for branch in await scene.client.branches(scene.thread, first)] == ["hello", "good morning"]
    assert len((await scene.client.tree(scene.thread)).messages) == 4


async def _edit(scene: Scene, _: str) -> Accepted:
    words = (await scene.client.history(scene.thread))[0].id
    return await scene.client.edit(scene.thread, words, "good morning", id="e1")


async def _said_below(scene: Scene, answer: str) -> None:
    await scene.client.wait_settled(scene.thread)
    assert await scene.texts() == ["hello", "An answer to hello.", "and below", "An answer to and below."]
    again = await scene.client.send(scene.thread, "and below", parent_id=answer, id="p1")
    assert again.disposition == "duplicate"


async def _two_answers(scene: Scene) -> str:
    answer = await scene.first_answer()
    again = (await scene.client.regenerate(scene.thread, answer, id="r1")).message_id
    assert again is not None
    await scene.client.wait_settled(scene.thread, again)
    return answer


async def _switched(scene: Scene, answer: str) -> None:
    assert (await scene.client.history(scene.thread))[-1].id == answer
    assert (await scene.client.switch_branch(scene.thread, answer, id="s1")).disposition == "duplicate"
    assert len((await scene.client.tree(scene.thread)).messages) == 3


async def _two_turns(scene: Scene) -> str:
    answer = await scene.first_answer()
    await scene.client.ask(scene.thread, "and more", id="m0")
    return answer


async def _was_reset(scene: Scene, answer: str) -> None:
    assert await scene.texts() == ["hello", "An answer to hello."]
    assert (await scene.client.reset(scene.thread, answer, id="t1")).disposition == "duplicate"
    assert len((await scene.client.tree(scene.thread)).messages) == 2


async def _exported(scene: Scene) -> str:
    answer = await scene.first_answer()
    exported = await scene.client.export_thread(scene.thread)
    await scene.client.delete_message(scene.thread, answer, id="d1")
    return dumps(exported)


async def _imported(scene: Scene, exported: str) -> None:
    assert await scene.texts() == ["hello", "An answer to hello."]
    before = await scene.client.export_thread(scene.thread)
    await scene.client.import_thread(scene.thread, exported, id="i2")
    assert await scene.client.export_thread(scene.thread) == before


async def _annotated(scene: Scene, answer: str) -> None:
    metadata = (await scene.client.history(scene.thread))[-1].metadata
    assert metadata is not None
    assert "positive" in str(metadata)
    again = await scene.client.feedback(scene.thread, answer, "positive", "short", id="f1")
    assert again.disposition == "duplicate"


async def _given(scene: Scene, call_id: str) -> None:
    assert await scene.completed(call_id) == [("ok", "blue")]
    assert (await scene.texts())[-1] == DONE


async def _half_given(scene: Scene, call_id: str) -> None:
    call = await scene.client.store.get_call(scene.thread, call_id)
    assert call.interim is not None
    assert (call.interim.content, call.result) == ("half", None)
    await scene.client.tool_result(scene.thread, call_id, "blue")
    await _given(scene, call_id)


async def _left(scene: Scene) -> str:
    call_id = await scene.wonder()
    await scene.client.ask(scene.thread, "never mind", id="m0")
    return call_id


async def _give_late(scene: Scene, call_id: str) -> TreeChanged | None:
    turn = await scene.turn_of(call_id)
    return await scene.client.tool_result(scene.thread, call_id, "blue", message_id=turn.id)


async def _given_late(scene: Scene, call_id: str) -> None:
    turn = await scene.turn_of(call_id)
    assert (turn.status.state, results_of(turn)) == ("incomplete", [("ok", "blue")])
    assert (await scene.texts())[:3] == ["wonder", "", "never mind"]
    assert len((await scene.client.tree(scene.thread)).messages) == 4


async def _hidden(scene: Scene) -> str:
    call_id = await scene.wonder()
    await scene.hide()
    return call_id


async def _given_unseen(scene: Scene, call_id: str) -> None:
    assert await scene.completed(call_id) == [("ok", "blue")]
    assert await scene.texts() == ["rather this", "An answer to rather this."]


async def _nothing(_: Scene) -> str:
    return ""


async def _expired(scene: Scene, _: str) -> None:
    turn = await scene.client.wait_settled(scene.thread)
    assert [outcome for outcome, _ in results_of(turn)] == ["expired"]
    assert (await scene.texts())[-1] == DONE
    assert runs(scene.place.state_dir, "hurry") == 0


async def _hide_question(scene: Scene, _: str) -> None:
    """Long enough for the question to be hidden in its time."""
    await scene.question("hurry 15")
    await scene.hide()


async def _expired_unseen(scene: Scene, _: str) -> None:
    (call_id,) = [
        part.call_id
        for one in (await scene.client.tree(scene.thread)).messages
        for part in one.message.parts
        if isinstance(part, ToolCallPart)
    ]
    assert [outcome for outcome, _ in await scene.completed(call_id)] == ["expired"]
    assert await scene.texts() == ["rather this", "An answer to rather this."]
    assert runs(scene.place.state_dir, "hurry") == 0


DEEDS = {
    "edit": Deed(
        Scene.first_answer,
        _edit,
        _edited,
        ("before input sync", "after input sync", "in mid stream", "before final sync", "after final sync"),
    ),
    "send below": Deed(
        Scene.first_answer,
        lambda scene, answer: scene.client.send(scene.thread, "and below", parent_id=answer, id="p1"),
        _said_below,
        ("before input sync", "after input sync"),
    ),
    "switch": Deed(
        _two_answers,
        lambda scene, answer: scene.client.switch_branch(scene.thread, answer, id="s1"),
        _switched,
        ("before switch", "after switch"),
    ),
    "reset": Deed(
        _two_turns,
        lambda scene, answer: scene.client.reset(scene.thread, answer, id="t1"),
        _was_reset,
        ("before reset", "after reset"),
    ),
    "import": Deed(
        _exported,
        lambda scene, exported: scene.client.import_thread(scene.thread, exported, id="i1"),
        _imported,
        ("before import", "after import"),
    ),
    "annotate": Deed(
        Scene.first_answer,
        lambda scene, answer: scene.client.feedback(scene.thread, answer, "positive", "short", id="f1"),
        _annotated,
        ("before annotation", "after annotation"),
    ),
    "human result": Deed(
        Scene.wonder,
        lambda scene, call_id: scene.client.tool_result(scene.thread, call_id, "blue"),
        _given,
        ("before given result", "after given result", "before final sync", "after final sync"),
    ),
    "preliminary result": Deed(
        Scene.wonder,
        lambda scene, call_id: scene.client.tool_result(scene.thread, call_id, "half", preliminary=True),
        _half_given,
        ("before preliminary result", "after preliminary result"),
    ),
    "late result": Deed(
        _left,
        _give_late,
        _given_late,
        ("before late result", "after late result"),
        frozenset({"complete", "incomplete"}),
    ),
    "result of what rests": Deed(
        _hidden,
        lambda scene, call_id: scene.client.tool_result(scene.thread, call_id, "blue"),
        _given_unseen,
        ("before late result", "after late result", "before final sync", "after final sync", "in mid stream"),
    ),
    "expiry": Deed(
        _nothing,
        lambda scene, _: scene.client.send(scene.thread, "hurry 1", id="m1"),
        _expired,
        ("before decision", "after decision"),
    ),
    "expiry of what rests": Deed(
        _nothing,
        _hide_question,
        _expired_unseen,
        ("before late result", "after late result"),
    ),
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
        # Whoever asked is answered by the next worker, if the one that died has not done so. A signal has no answer.
        if (answer := await asking) is not None:
            assert answer.disposition in ("started", "changed", "settled", "duplicate")
        await deed.check(scene, about)
        assert await scene.client.ask(scene.thread, "and now", id="m2") == "An answer to and now."

        async def rests() -> bool:
            return (await scene.client.status(scene.thread)).state == "idle"

        await eventually(rests)
    assert faults(await scene.client.history(scene.thread)) == []
    tree = await scene.client.tree(scene.thread)
    assert {one.message.status.state for one in tree.messages} == deed.ends


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
