"""Cases 73 to 75, and what is left of deleted messages in the store and for readers."""

import asyncio
from collections.abc import AsyncGenerator

import pytest

from perdure import ids
from perdure.agent import Agent
from perdure.batch import AnnotateMessage, DeleteMessage
from perdure.errors import BlobNotFound, UsageError
from perdure.messages import TextPart, ToolResultPart
from perdure.records import Snapshot
from perdure.testing import Call, Reply, ScriptedModel
from perdure.watch import View
from tests.cases.conftest import Converse
from tests.cases.conversation import PAY, Conversation, Gate, agent_of, results_of, text_of
from tests.cases.recorded_store import RecordedStore, having, nothing, saying
from tests.eventually import eventually
from tests.recorded import chain
from tests.stores.postgres_eye import columns_with
from tests.stores.secret_words import SECRET, WORDS


@pytest.fixture
async def store(database_url: str) -> AsyncGenerator[RecordedStore]:
    """A store that keeps what was written."""
    store = await RecordedStore.connect(database_url)
    yield store
    await store.close()


def deletions(store: RecordedStore) -> int:
    """How many messages were deleted."""
    return sum(isinstance(operation, DeleteMessage) for operation in store.operations)


@pytest.mark.parametrize("fails", [False, True], ids=["held up", "failing"])
async def test_case_73_words_are_deleted_while_they_are_being_stored(
    fails: bool, converse: Converse, store: RecordedStore
) -> None:
    """The deletion waits for them, and they do not come back: what is stored is what is shown."""
    talk = await converse()
    await talk.say("before")
    shown = await talk.ids()
    if fails:
        store.failing = saying(WORDS)
    else:
        store.held = saying(WORDS)
    sending = asyncio.create_task(talk.client.send(talk.thread, WORDS, id="m", run=False))
    await eventually(lambda: store.failures if fails else store.reached.is_set())
    deleting = asyncio.create_task(talk.client.delete_message(talk.thread, ids.input_message_id(talk.thread, "m")))
    await eventually(lambda: updates(talk, "change_tree"))
    assert not deleting.done()
    store.failing = store.held = nothing
    store.gate.set()
    assert (await sending).disposition == "appended"
    assert (await deleting).disposition == "changed"
    assert await talk.ids() == shown
    assert [one.message.id for one in (await talk.client.tree(talk.thread)).messages] == shown


@pytest.mark.parametrize("request_id", [None, "d1"], ids=["two requests", "one request, twice"])
async def test_case_74_the_same_deletion_twice_at_once(
    request_id: str | None, converse: Converse, store: RecordedStore
) -> None:
    """The message goes once, whoever asked; and whoever asks after that is told the same."""
    talk = await converse()
    await talk.say("before")
    await talk.say(WORDS)
    words = (await talk.ids())[2]
    store.held = having(DeleteMessage)
    both = [asyncio.create_task(talk.client.delete_message(talk.thread, words, id=request_id)) for _ in range(2)]
    await store.reached.wait()
    await eventually(lambda: updates(talk, "change_tree", 2))
    store.held = nothing
    store.gate.set()
    assert sorted([(await one).disposition for one in both]) == ["changed", "duplicate"]
    again = await talk.client.delete_message(talk.thread, words)
    assert (again.disposition, again.head_id) == ("duplicate", (await talk.ids())[-1])
    with pytest.raises(UsageError, match="There is no message 'never'"):
        await talk.client.delete_message(talk.thread, "never")
    assert deletions(store) == 1
    assert words not in await talk.ids()
    assert len(await talk.path()) == 3


async def test_case_74_a_deletion_that_is_refused_changes_nothing(converse: Converse, store: RecordedStore) -> None:
    """The message stays, and what was sent meanwhile goes on below it."""
    talk = await converse()
    answer = await talk.say(WORDS)
    words = (await talk.ids())[0]
    deleting = talk.client.delete_message(talk.thread, words, replacement_id=answer.id)
    refused, reply = await asyncio.gather(deleting, talk.say("and now?"), return_exceptions=True)
    assert isinstance(refused, UsageError)
    assert not isinstance(reply, BaseException)
    assert await talk.shown() == [WORDS, f"answer 1 to {WORDS}", "and now?", "answer 1 to and now?"]
    assert deletions(store) == 0


async def test_case_75_feedback_during_a_deletion(converse: Converse, store: RecordedStore) -> None:
    """It comes too late and is refused; what an import brings back can be given it."""
    talk = await converse()
    await talk.say("before")
    answer = await talk.say(WORDS)
    file = await talk.client.export_thread(talk.thread)
    store.held = having(DeleteMessage)
    deleting = asyncio.create_task(talk.client.delete_message(talk.thread, answer.id))
    await store.reached.wait()
    thinking = asyncio.create_task(talk.client.feedback(talk.thread, answer.id, "positive"))
    await eventually(lambda: updates(talk, "change_tree", 2))
    store.held = nothing
    store.gate.set()
    await deleting
    with pytest.raises(UsageError):
        await thinking
    assert not any(isinstance(operation, AnnotateMessage) for operation in store.operations)
    await talk.client.import_thread(talk.thread, file)
    again = (await talk.path())[-1]
    assert text_of(again) == text_of(answer)
    await talk.client.feedback(talk.thread, again.id, "positive")
    assert (await talk.message(again.id)).metadata == {"feedback": {"value": "positive"}}


async def test_nothing_of_a_deleted_turn_is_stored(converse: Converse, database_url: str) -> None:
    """Neither its words nor those of its calls and results, large ones in blobs included, in any table."""
    large = f"{SECRET} " * 20_000
    look = Reply(Call("look", {"what": large}))
    talk = await converse({large: [look, f"I saw {large}"]})
    await talk.say("before")
    answer = await talk.say(large)
    stored = await talk.client.store.load_history_with_ancestors(talk.thread)
    parts = [part for message in stored.messages for part in message.parts]
    blobs = {part.blob for part in parts if isinstance(part, TextPart | ToolResultPart) and part.blob}
    assert len(blobs) >= 2
    assert len(await columns_with(database_url, SECRET)) >= 2, "there is something to delete"
    await talk.client.delete_message(talk.thread, answer.id)
    await talk.client.delete_message(talk.thread, (await talk.ids())[-1])
    assert await columns_with(database_url, SECRET) == []
    for blob in blobs:
        with pytest.raises(BlobNotFound):
            await talk.client.store.get_blob(talk.thread, blob)
    assert await talk.shown() == ["before", "answer 1 to before"]
    assert text_of(await talk.say("and now?")) == "answer 1 to and now?"
    assert SECRET not in str(talk.model.requests[-1].messages)


async def test_nobody_is_told_deleted_words_any_more(converse: Converse) -> None:
    """Who watches gets a snapshot without them; whoever begins to watch, or comes back, is told nothing of them."""
    talk = await converse()
    await talk.say("before")
    events = talk.client.watch(talk.thread)
    view = View()
    view.apply(await anext(events))
    back = view.seq
    answer = await talk.say(WORDS)
    for message in (answer.id, (await talk.ids())[2]):
        await talk.client.delete_message(talk.thread, message)
    last = (await talk.client.store.get_thread(talk.thread)).seq
    while view.seq < last:
        event = await anext(events)
        if isinstance(event, Snapshot):
            view = View()
        view.apply(event)
    await events.aclose()
    assert SECRET not in repr(view.messages)
    assert len(view.messages) == 2
    assert SECRET not in repr(await talk.client.store.read_changes(talk.thread, back))
    assert SECRET not in repr(await talk.client.store.snapshot(talk.thread))


async def test_a_turn_is_stopped_before_it_is_deleted(converse: Converse, database_url: str) -> None:
    """While it streams: nothing comes of it any more, nothing of what had streamed is left, and the thread goes on."""
    talk = await converse({"go": [Reply(f"{WORDS} and more", chunk_chars=6, delay_s=0.05, hang=True)]})
    await talk.say("before")
    await talk.client.send(talk.thread, "go")
    await talk.until_streams(SECRET)
    turn = (await talk.ids())[-1]
    await talk.client.delete_message(talk.thread, turn)
    assert turn not in [one.message.id for one in (await talk.client.tree(talk.thread)).messages]
    assert (await talk.client.status(talk.thread)).state == "idle"
    assert (await talk.client.store.snapshot(talk.thread)).live is None
    assert text_of(await talk.say("and now?")) == "answer 1 to and now?"
    assert await columns_with(database_url, SECRET) == []


async def test_a_call_that_runs_is_given_up_when_its_turn_is_deleted(converse: Converse, database_url: str) -> None:
    """What the tool returns later belongs to nothing, and harms nothing."""
    gate = Gate()

    def declare(model: ScriptedModel) -> Agent:
        agent = agent_of(model)

        @agent.tool
        async def hold(word: str) -> str:
            """Hold on, whatever happens."""
            try:
                await gate.passed()
            except asyncio.CancelledError:
                await gate.open.wait()
            return f"held {word}"

        return agent

    talk = await converse({"go": [Reply(Call("hold", {"word": SECRET}))]}, agent=declare)
    await talk.say("before")
    await talk.client.send(talk.thread, "go")
    await gate.begun.wait()
    turn = (await talk.ids())[-1]
    await talk.client.delete_message(talk.thread, turn)
    assert await talk.client.open_calls(talk.thread) == ()
    gate.open.set()
    assert text_of(await talk.say("and now?")) == "answer 1 to and now?"
    assert (await talk.client.status(talk.thread)).problems == ()
    assert await columns_with(database_url, SECRET) == []


async def test_a_question_goes_with_its_turn(converse: Converse) -> None:
    """A pause that is deleted, shown or at rest on another branch, can be decided about by nobody."""
    talk = await converse({"go": [PAY], "rather this": [PAY]})
    await talk.client.send(talk.thread, "go")
    resting, (first,) = await talk.paused()
    await talk.client.edit(talk.thread, (await talk.ids())[0], "rather this")
    shown, (second,) = await talk.paused()
    for turn in (resting, shown):
        await talk.client.delete_message(talk.thread, turn)
    for call_id in (first, second):
        with pytest.raises(UsageError):
            await talk.client.approve(talk.thread, call_id)
    assert await talk.client.open_calls(talk.thread) == ()
    assert all(not results_of(message) for message in await talk.path())
    assert text_of(await talk.say("and now?")) == "answer 1 to and now?"


async def test_a_question_is_answered_although_its_words_are_deleted_meanwhile(converse: Converse) -> None:
    """The words go, their answer moves up and ends as it would have."""
    talk = await converse({WORDS: [Reply("one two three four", chunk_chars=4, delay_s=0.1)]})
    await talk.say("before")
    await talk.client.send(talk.thread, WORDS)
    await talk.until_streams("one")
    _, above, words, turn = await talk.ids()
    await talk.client.delete_message(talk.thread, words)
    settled = await talk.until(turn, "complete")
    assert text_of(settled) == "one two three four"
    assert settled.parent_id == above
    assert await talk.shown() == ["before", "answer 1 to before", "one two three four"]


async def test_a_deleted_input_stays_deleted(converse: Converse, database_url: str) -> None:
    """Sent again under its id it is a duplicate, also to another worker; other words under that id do not come in."""
    talk = await converse()
    await talk.say("before")
    answer = await talk.say(WORDS, id="m")
    for message in (answer.id, ids.input_message_id(talk.thread, "m")):
        await talk.client.delete_message(talk.thread, message)
    await talk.stack.restart_worker()
    shown = await talk.ids()
    assert (await talk.client.send(talk.thread, WORDS, id="m")).disposition == "duplicate"
    # The store keeps no digest of deleted words; the run that took them, which another worker replays, remembers it.
    assert (await talk.client.send(talk.thread, "others", id="m")).disposition == "conflict"
    assert await talk.ids() == shown
    assert len(talk.model.requests) == 2
    assert await columns_with(database_url, SECRET) == []


async def test_a_reset_is_a_deletion(converse: Converse, database_url: str) -> None:
    """Of all there is, on all branches."""
    talk = await converse()
    await talk.say("before")
    await talk.say(WORDS)
    await talk.client.edit(talk.thread, (await talk.ids())[2], f"{WORDS} again")
    await talk.client.wait_settled(talk.thread)
    await talk.client.reset(talk.thread)
    assert await talk.path() == []
    assert await columns_with(database_url, SECRET) == []
    assert text_of(await talk.say("and now?")) == "answer 1 to and now?"


async def updates(talk: Conversation, name: str, count: int = 1) -> bool:
    """Whether the thread's workflow has taken so many updates of a name."""
    taken = [
        event
        for event in await chain(talk.stack.temporal, talk.thread)
        if event.workflow_execution_update_accepted_event_attributes.accepted_request.input.name == name
    ]
    return len(taken) >= count
