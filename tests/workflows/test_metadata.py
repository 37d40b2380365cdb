"""What people see of a thread in the Temporal UI beside its conversation: what each event is for, and its state."""

from collections import Counter
from functools import partial
from pathlib import Path

import pytest
from temporalio.api.enums.v1 import EventType
from temporalio.api.history.v1 import HistoryEvent

from perdure.agent import Agent
from perdure.compaction import Compaction
from perdure.testing import Asked, Call, Reply, ScriptedModel
from tests.eventually import eventually
from tests.histories.replay import FILES, load
from tests.recorded import chain
from tests.workflows.conftest import StackFactory
from tests.workflows.family import ROOT, Family, Me, child_of, closed, closing, family, spawn

COMMANDS = {
    EventType.EVENT_TYPE_ACTIVITY_TASK_SCHEDULED,
    EventType.EVENT_TYPE_TIMER_STARTED,
    EventType.EVENT_TYPE_MARKER_RECORDED,
}
CHILD = EventType.EVENT_TYPE_START_CHILD_WORKFLOW_EXECUTION_INITIATED
UPSERT = EventType.EVENT_TYPE_UPSERT_WORKFLOW_SEARCH_ATTRIBUTES


def nameless(events: list[HistoryEvent]) -> list[int]:
    """The events that do not say what they are for."""
    return [event.event_id for event in events if not event.user_metadata.summary.data]


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.stem)
def test_every_recorded_step_says_what_it_is_for(file: Path) -> None:
    """Each activity, timer and local activity of each path has a summary; each path has at least one of these."""
    events = [event for event in load(file).events if event.event_type in COMMANDS]
    assert events or file.stem.startswith("refused_start")
    assert nameless(events) == []


async def test_children_say_what_they_are_for(start_stack: StackFactory, thread: str) -> None:
    """A child thread and a compaction, where they are started; all other events beside them too."""

    def root(who: Me) -> Reply | str:
        return spawn(who, "one") if who.asked.user_text == "go" and not who.heard else "done"

    model = Family({ROOT: root, "one": [closing("over")]})
    stack = await start_stack(family(model))
    await stack.client.ask(thread, "go", id="m1")
    await closed(stack, child_of(thread))
    events = await chain(stack.temporal, thread)
    children = [event for event in events if event.event_type == CHILD]
    assert [event.user_metadata.summary.data for event in children] == [b'"child thread"']
    assert nameless([event for event in events if event.event_type in COMMANDS]) == []


async def test_a_compaction_says_what_it_is_for(start_stack: StackFactory, thread: str) -> None:
    """Where it is started."""
    agent = Agent("a", model=ScriptedModel(lambda asked: "well"), compaction=Compaction())
    stack = await start_stack(agent)
    for number in range(4):
        await stack.client.ask(thread, f"words {number}")
    await stack.client.compact(thread, wait=False)

    async def started() -> list[HistoryEvent]:
        return [event for event in await chain(stack.temporal, thread) if event.event_type == CHILD]

    children = await eventually(started)
    assert len(children) == 1
    assert nameless(children) == []


async def test_the_state_is_written_only_where_it_changes(start_stack: StackFactory, thread: str) -> None:
    """Once when the thread begins; by a turn of one model call never, by one that calls tools twice."""

    def script(asked: Asked) -> Reply | str:
        return Reply(Call("look")) if asked.user_text == "look" and not asked.results else "well"

    agent = Agent("a", model=ScriptedModel(script))

    @agent.tool
    async def look() -> str:
        """Look."""
        return "sunny"

    stack = await start_stack(agent)

    async def written() -> int:
        return Counter(event.event_type for event in await chain(stack.temporal, thread))[UPSERT]

    async def has_written(expected: int) -> bool:
        return await written() == expected

    # The turn is told to be over before what it leaves behind is shown, so each of these is waited for; that nothing
    # comes later on top, the next one sees.
    for words, expected in (("hi", 1), ("and", 1), ("so", 1), ("look", 3), ("on", 3), ("look", 5)):
        await stack.client.ask(thread, words)
        await eventually(partial(has_written, expected))
    await stack.client.ask(thread, "bye")
    assert await written() == 5
