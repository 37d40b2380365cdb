"""What Temporal keeps and shows of words, those of deleted messages above all."""

import asyncio
from collections.abc import AsyncGenerator
from typing import Any

import pytest
from temporalio.api.enums.v1 import EventType

from perdure.agent import Agent
from perdure.codec import clip
from perdure.limits import Limits
from perdure.testing import Call, Reply, ScriptedModel
from tests.cases.conftest import Converse
from tests.cases.conversation import Conversation, results_of
from tests.cases.recorded_store import RecordedStore, nothing, saying
from tests.eventually import eventually
from tests.recorded import chain, chained_runs
from tests.stores.postgres_eye import columns_with
from tests.stores.secret_words import SECRET, WORDS


@pytest.fixture
async def store(database_url: str) -> AsyncGenerator[RecordedStore]:
    """A store that keeps what was written."""
    store = await RecordedStore.connect(database_url)
    yield store
    await store.close()


async def recorded(talk: Conversation, words: str = SECRET) -> list[str]:
    """The kinds of event in which words are, in order."""
    return [
        EventType.Name(event.event_type).removeprefix("EVENT_TYPE_")
        for event in await chain(talk.stack.temporal, talk.thread)
        if words.encode() in event.SerializeToString()
    ]


async def shown_in_temporal(talk: Conversation) -> str:
    """What people see of the thread in Temporal: its lines and its details."""
    handle = talk.stack.handle(talk.thread)
    lines: Any = await handle.query("transcript")
    metadata: Any = await handle.query("__temporal_workflow_metadata")
    return f"{lines}\n{metadata}"


@pytest.mark.parametrize("way", ["update", "signal"])
async def test_words_of_people_are_recorded_where_they_came_in(way: str, converse: Converse) -> None:
    """And nowhere else: that event alone keeps them, for as long as Temporal keeps the history."""
    talk = await converse({WORDS: ["I see"]})
    await talk.say("before")
    if way == "update":
        await talk.client.send(talk.thread, WORDS)
    else:
        await talk.client.post(talk.thread, WORDS)
    await eventually(lambda: answered(talk, 4))
    for message in reversed((await talk.ids())[2:]):
        await talk.client.delete_message(talk.thread, message)
    assert await recorded(talk) == [
        "WORKFLOW_EXECUTION_UPDATE_ACCEPTED" if way == "update" else "WORKFLOW_EXECUTION_SIGNALED"
    ]


async def test_of_an_answer_its_beginning_is_recorded(converse: Converse) -> None:
    """The first 80 characters of a step's text, of a call's arguments and of its result; nothing of what follows."""
    beyond = "." * 100 + SECRET
    talk = await converse({"go": [Reply("plugh", Call("look", {"what": "plugh" + beyond})), "plugh" + beyond]})
    await talk.say("before")
    turn = await talk.say("go")
    assert results_of(turn) == [("ok", f"saw plugh{beyond}")]
    await talk.client.delete_message(talk.thread, turn.id)
    assert await recorded(talk) == []
    kinds = set(await recorded(talk, "plugh"))
    assert kinds == {"ACTIVITY_TASK_SCHEDULED", "ACTIVITY_TASK_COMPLETED"}


async def test_words_that_wait_for_the_database_are_recorded_with_their_batch(
    converse: Converse, store: RecordedStore
) -> None:
    """While it is away the batch waits in Temporal, so they are in the event of that too."""
    talk = await converse({WORDS: ["I see"]})
    await talk.say("before")
    store.failing = saying(WORDS)
    saying_it = asyncio.create_task(talk.say(WORDS))
    await eventually(lambda: store.failures > 3)
    store.failing = nothing
    answer = await saying_it
    for message in (answer.id, (await talk.ids())[2]):
        await talk.client.delete_message(talk.thread, message)
    assert await recorded(talk) == ["WORKFLOW_EXECUTION_UPDATE_ACCEPTED", "ACTIVITY_TASK_SCHEDULED"]


async def test_deleted_words_are_not_shown_in_temporal(converse: Converse) -> None:
    """Neither among the last lines of the conversation nor in the details."""
    talk = await converse({WORDS: ["I see"]})
    await talk.say("before")
    await talk.say(WORDS)
    assert SECRET in await shown_in_temporal(talk), "they were shown"
    for message in reversed((await talk.ids())[2:]):
        await talk.client.delete_message(talk.thread, message)
    assert SECRET not in await shown_in_temporal(talk)


async def test_deleted_words_are_not_carried_to_a_new_run(converse: Converse) -> None:
    """Runs that begin after the deletion know nothing of them."""

    def short_runs(model: ScriptedModel) -> Agent:
        return Agent("a", model=model, limits=Limits(history_events=60))

    talk = await converse({WORDS: ["I see"]}, agent=short_runs)
    await talk.say("before")
    await talk.say(WORDS)
    for message in reversed((await talk.ids())[2:]):
        await talk.client.delete_message(talk.thread, message)
    runs = len(await chained_runs(talk.stack.temporal, talk.thread))
    while not (later := (await chained_runs(talk.stack.temporal, talk.thread))[runs:]):
        await talk.say("more")
    assert not any(SECRET.encode() in event.SerializeToString() for run in later for event in run)


@pytest.mark.parametrize("large", [False, True])
async def test_the_title_of_a_thread_is_not_made_of_deleted_words(
    large: bool, converse: Converse, database_url: str
) -> None:
    """A thread is named after its first words, unless it was given a title: the name goes with them.

    Only the first event of its first run keeps it; what later runs begin with has no such name.
    """

    def short_runs(model: ScriptedModel) -> Agent:
        return Agent("a", model=model, limits=Limits(history_events=60))

    words = WORDS + " and so on" * 4000 * large
    talk = await converse({words: ["I see"]}, agent=short_runs)
    await talk.say(words)
    await talk.say("and now?")
    assert await named(talk) == clip(words, 80)
    await talk.client.delete_message(talk.thread, (await talk.ids())[0])
    assert await columns_with(database_url, SECRET) == []
    assert SECRET not in await shown_in_temporal(talk)
    assert await named(talk) is None
    runs = len(await chained_runs(talk.stack.temporal, talk.thread))
    while not (later := (await chained_runs(talk.stack.temporal, talk.thread))[runs:]):
        await talk.say("more")
    assert not any(SECRET.encode() in event.SerializeToString() for run in later for event in run)
    assert (await talk.client.store.get_thread(talk.thread)).title is None


async def test_a_title_that_was_given_stays(converse: Converse) -> None:
    """Whatever is deleted."""
    talk = await converse({WORDS: ["I see"]})
    await talk.client.start(talk.thread, title="the xyzzy")
    await talk.say(WORDS)
    await talk.client.reset(talk.thread)
    await talk.say("and now?")
    assert await named(talk) == (await talk.client.store.get_thread(talk.thread)).title == "the xyzzy"
    assert "## the xyzzy" in await shown_in_temporal(talk)


async def named(talk: Conversation) -> object:
    """What the run is called in Temporal's list."""
    return (await (await talk.stack.handle(talk.thread).describe()).memo()).get("title")


async def answered(talk: Conversation, count: int) -> bool:
    """Whether so many messages are shown, the last a settled answer."""
    path = await talk.path()
    return len(path) == count and path[-1].status.state == "complete"
