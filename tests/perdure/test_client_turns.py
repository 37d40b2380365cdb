"""Words to places in the tree, and turns that are waited for wherever they are; the thread is played by the test."""

import asyncio
from collections.abc import AsyncGenerator, Coroutine
from contextlib import asynccontextmanager
from typing import Any

import pytest
from pydantic import BaseModel
from temporalio.client import Client

from perdure.approval import ApprovalRequest, Decision
from perdure.attachments import Attachment
from perdure.batch import AppendMessage, CommitResults, SetStatus
from perdure.client import PerdureClient
from perdure.errors import NotTaken, OutputMissing, ThreadNotFound, TurnFailed, UsageError
from perdure.inputs import ROOT, Accepted, Disposition
from perdure.messages import Message, Status, TextPart, ToolCallPart, ToolResultPart, TurnOptions
from perdure.records import Change, Snapshot, Summary
from stores.memory import MemoryStore
from tests.eventually import eventually
from tests.perdure.recorded_calls import RecordedCalls
from tests.talk import THREAD, Talk

ASKED = ApprovalRequest(prompt="Send it?")


class NotingStore(MemoryStore):
    """Notes how far a watcher was told."""

    told = 0

    async def snapshot(self, thread_id: str) -> Snapshot:
        """Up to its number."""
        snapshot = await super().snapshot(thread_id)
        self.told = snapshot.seq
        return snapshot

    async def read_changes(self, thread_id: str, after: int, limit: int = 1000) -> tuple[Change, ...]:
        """Up to the last one."""
        changes = await super().read_changes(thread_id, after, limit)
        self.told = changes[-1].seq if changes else self.told
        return changes


class Fixture:
    """A thread, and a client whose words reach nobody."""

    def __init__(self, store: NotingStore, talk: Talk, temporal: Client) -> None:
        self.store = store
        self.talk = talk
        self.calls = RecordedCalls(answers={"send": Accepted(message_id="u1", disposition="started")})
        self.client = PerdureClient(temporal, talk.store)
        self.client._calls = self.calls

    async def complete(self, text: str = "done") -> None:
        """The turn ends."""
        await self.talk.commit((TextPart(text=text),))


@pytest.fixture
async def turns(temporal: Client) -> Fixture:
    """The thread and its client."""
    store = NotingStore()
    return Fixture(store, await Talk.begin(store), temporal)


@asynccontextmanager
async def waiting(waits: Coroutine[Any, Any, Any]) -> AsyncGenerator["asyncio.Task[Any]"]:
    """Somebody who waits."""
    task = asyncio.create_task(waits)
    try:
        yield task
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


async def still_waits(turns: Fixture, task: "asyncio.Task[Any]") -> None:
    """What has happened until now was seen, and has not ended the wait."""
    await turns.store.put_view(THREAD, "tick", str(turns.talk.version))
    newest = (await turns.store.get_thread(THREAD)).seq
    await eventually(lambda: task.done() or turns.store.told >= newest)
    assert not task.done()


@pytest.mark.parametrize(
    ("options", "sent"),
    [
        ({}, {}),
        ({"parent_id": "a1"}, {"parent_id": "a1"}),
        ({"parent_id": ROOT, "run": False}, {"parent_id": ROOT, "run": False}),
        ({"mode": "queue", "metadata": {"x": 1}}, {"mode": "queue", "metadata": {"x": 1}}),
    ],
)
async def test_words_say_where_they_belong(turns: Fixture, options: dict[str, Any], sent: dict[str, Any]) -> None:
    """Their parent and whether they are answered travel with them."""
    assert (await turns.client.send(THREAD, "hi", **options)).message_id == "u1"
    assert turns.calls.last() == ("send", {"text": "hi", **sent})


async def test_an_edit_names_what_it_takes_the_place_of(turns: Fixture) -> None:
    """It is sent as words are; a thread that never was is not started for it."""
    await turns.client.edit(THREAD, "u1", "other words", mode="queue", run=False)
    assert turns.calls.last() == (
        "send",
        {"text": "other words", "source_id": "u1", "mode": "queue", "run": False},
    )
    for _ in range(2):
        await turns.client.edit(THREAD, "u1", "x", id="e1")
    assert turns.calls.sent[-1] == turns.calls.sent[-2]
    with pytest.raises(ThreadNotFound):
        await turns.client.edit("nope", "u1", "x")
    with pytest.raises(UsageError, match="source_id"):
        await turns.client.edit(THREAD, "a\nb", "x")
    with pytest.raises(UsageError, match="empty"):
        await turns.client.edit(THREAD, "u1", " ")


async def test_words_that_the_tree_does_not_allow_are_refused(turns: Fixture) -> None:
    """Whether the thread answers with an error or with what became of them, its sentence is told."""
    turns.calls.answers["send"] = Accepted(message_id="m", disposition="refused", detail="There is no message 'x'.")
    with pytest.raises(UsageError, match="There is no message 'x'"):
        await turns.client.send(THREAD, "hi", parent_id="x")
    turns.calls.answers["send"] = UsageError("There is no message 'y'.")
    with pytest.raises(UsageError, match="There is no message 'y'"):
        await turns.client.edit(THREAD, "y", "hi")


@pytest.mark.parametrize("disposition", ["rejected", "conflict", "dropped"])
async def test_nobody_waits_for_words_that_were_not_taken(turns: Fixture, disposition: Disposition) -> None:
    """The reason is told at once."""
    turns.calls.answers["send"] = Accepted(message_id="m", disposition=disposition)
    with pytest.raises(NotTaken, match=disposition):
        await asyncio.wait_for(turns.client.ask(THREAD, "hi", mode="reject"), 5)


async def test_who_asks_is_told_that_the_turn_waits_for_approval(turns: Fixture) -> None:
    """Nobody might ever give it; the turn stays open, and its answer can be waited for after a decision."""
    await turns.talk.say("hi")
    await turns.talk.commit(
        (ToolCallPart(call_id="c1", tool="send", approval=ASKED), ToolCallPart(call_id="c2", tool="x"))
    )
    async with waiting(turns.client.ask(THREAD, "hi")) as asking:
        await still_waits(turns, asking)
        await turns.talk.pause()
        with pytest.raises(TurnFailed, match=r"waits for somebody to approve calls: send \(c1\)\.") as raised:
            await asyncio.wait_for(asking, 10)
    assert raised.value.status.state == "requires_action"
    async with waiting(turns.client.wait_settled(THREAD, "u1")) as settled:
        await still_waits(turns, settled)
        await turns.talk.decide("c1", Decision(approved=True))
        await turns.talk.pause(False)
        await turns.talk.settle_calls()
        await turns.complete()
        assert (await asyncio.wait_for(settled, 10)).id == "a1"


async def test_a_result_of_the_users_side_is_waited_for(turns: Fixture) -> None:
    """It comes from another program, as a worker's would."""
    await turns.talk.say("hi")
    await turns.talk.commit((ToolCallPart(call_id="c1", tool="pick"),))
    await turns.talk.pause()
    async with waiting(turns.client.ask(THREAD, "hi")) as asking:
        await still_waits(turns, asking)
        await turns.talk.pause(False)
        await turns.talk.settle_calls()
        await turns.complete("blue")
        assert await asyncio.wait_for(asking, 10) == "blue"


async def test_an_answer_that_makes_room_goes_on_in_the_next_one(turns: Fixture) -> None:
    """Whoever asked gets the last of them."""
    talk = turns.talk
    await talk.say("hi")
    async with waiting(turns.client.ask(THREAD, "hi")) as asking:
        await talk.sync(SetStatus(message_id="a1", status=Status(state="incomplete", reason="steered")))
        await still_waits(turns, asking)
        await talk.say("and more")
        await turns.complete("both")
        assert await asyncio.wait_for(asking, 10) == "both"


@pytest.mark.parametrize("of", ["u2", "a2"])
async def test_a_turn_is_waited_for_on_a_hidden_branch(turns: Fixture, of: str) -> None:
    """By the words that it answers or by its own message; with all of its parts."""
    talk = turns.talk
    await talk.say("one")
    await turns.complete()
    await talk.say("two", beside="u1")
    async with waiting(turns.client.wait_settled(THREAD, of)) as settled:
        await still_waits(turns, settled)
        await talk.switch("u1")
        await still_waits(turns, settled)
        await turns.complete("hidden words")
        answer = await asyncio.wait_for(settled, 10)
    assert (answer.id, answer.parts) == ("a2", (TextPart(text="hidden words"),))
    assert [message.id for message in await turns.client.history(THREAD)] == ["u1", "a1"]
    assert await asyncio.wait_for(turns.client.wait_settled(THREAD, of), 10) == answer, "it has ended already"


async def test_words_that_have_not_come_yet_are_waited_for(turns: Fixture) -> None:
    """They may wait in the thread for the end of a turn, and are no message before that."""
    await turns.talk.say("one")
    async with waiting(turns.client.wait_settled(THREAD, "u2")) as settled:
        await turns.complete()
        await still_waits(turns, settled)
        await turns.talk.say("two")
        await turns.complete()
        assert (await asyncio.wait_for(settled, 10)).id == "a2"


async def test_words_that_are_taken_with_others_are_waited_for(turns: Fixture) -> None:
    """What is told of the shown branch comes one by one, and the store may be ahead of it: nothing is deleted then."""
    await turns.talk.say("one")
    async with waiting(turns.client.wait_settled(THREAD, "w2")) as settled:
        await still_waits(turns, settled)
        await turns.complete()
        words = [Message(id=name, thread_id=THREAD, role="user") for name in ("w1", "w2")]
        turn = Message(id="a2", thread_id=THREAD, role="assistant", turn=2, status=Status(state="running"))
        await turns.talk.sync(*(AppendMessage(message=message) for message in (*words, turn)))
        await still_waits(turns, settled)
        await turns.talk.sync(SetStatus(message_id="a2", status=Status()))
        assert (await asyncio.wait_for(settled, 10)).id == "a2"


@pytest.mark.parametrize("gone", ["u1", "a1"])
@pytest.mark.parametrize("hidden", [False, True])
async def test_a_turn_that_is_deleted_is_not_waited_for(turns: Fixture, gone: str, hidden: bool) -> None:
    """Whoever waits is told, whether the words go or the answer, and on whatever branch."""
    await turns.talk.say("one")
    async with waiting(turns.client.wait_settled(THREAD, "u1")) as settled:
        await still_waits(turns, settled)
        if hidden:
            words = Message(id="x", thread_id=THREAD, role="user")
            await turns.talk.sync(AppendMessage(message=words, at_root=True))
            await still_waits(turns, settled)
        await turns.talk.delete(gone)
        with pytest.raises(UsageError, match="'u1' or its answer was deleted"):
            await asyncio.wait_for(settled, 10)


async def test_the_last_turn_is_that_before_words_that_nobody_answers(turns: Fixture) -> None:
    """And without any turn the first one is waited for."""
    await turns.talk.note("a note")
    async with waiting(turns.client.wait_settled(THREAD)) as settled:
        await still_waits(turns, settled)
        await turns.talk.say("hi")
        await turns.complete()
        assert (await asyncio.wait_for(settled, 10)).id == "a1"
    await turns.talk.note("thanks")
    assert (await asyncio.wait_for(turns.client.wait_settled(THREAD), 10)).id == "a1"


async def test_words_that_nobody_answers_may_be_answered_later(turns: Fixture) -> None:
    """Somebody asks for it, and whoever waits has the answer."""
    await turns.talk.note("a note")
    name = (await turns.client.history(THREAD))[-1].id
    async with waiting(turns.client.wait_settled(THREAD, name)) as settled:
        await still_waits(turns, settled)
        await turns.talk.sync(
            AppendMessage(
                message=Message(id="a9", thread_id=THREAD, role="assistant", turn=9), answering=name, input_id="r1"
            )
        )
        assert (await asyncio.wait_for(settled, 10)).id == "a9"


async def test_a_denied_call_ends_no_wait(turns: Fixture) -> None:
    """The turn goes on with the refusal, and its answer is the one that counts."""
    await turns.talk.say("hi")
    await turns.talk.commit((ToolCallPart(call_id="c1", tool="send", approval=ASKED),))
    await turns.talk.decide("c1", Decision(approved=False, reason="no"))
    denied = ToolResultPart(call_id="c1", outcome="denied", content='{"error": "no"}')
    await turns.talk.sync(CommitResults(message_id="a1", start=1, call_ids=("c1",), results=(denied,)))
    turns.talk.parts, turns.talk.calls = 2, []
    async with waiting(turns.client.ask(THREAD, "hi")) as asking:
        await still_waits(turns, asking)
        await turns.complete("not sent")
        assert await asyncio.wait_for(asking, 10) == "not sent"
    assert "denied: no" in await turns.client.transcript(THREAD)


class Weather(BaseModel):
    """What a turn may end with."""

    city: str
    celsius: int


async def test_an_answer_is_read_as_what_it_holds(turns: Fixture) -> None:
    """What led to it is left out; the object is checked."""
    async with waiting(turns.client.ask(THREAD, "hi", output=Weather)) as task:
        await turns.talk.say("hi")
        await turns.talk.commit((TextPart(text="let me look"), ToolCallPart(call_id="c", tool="look")))
        await turns.talk.settle_calls()
        await turns.complete('{"city": "Paris", "celsius": 21}')
        assert await asyncio.wait_for(task, 5) == Weather(city="Paris", celsius=21)


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("It is warm.", r"did not end with Weather \(Invalid JSON.*it ended with: It is warm\."),
        ('{"city": "Paris", "celsius": "warm"}', r"\(celsius: Input should be a valid integer"),
        ('{"city": "Paris"}', r"\(celsius: Field required\)"),
    ],
)
async def test_an_answer_that_holds_something_else_is_an_error(turns: Fixture, text: str, reason: str) -> None:
    """It says what was missed, what there was, and what to look at; the turn itself went well."""
    async with waiting(turns.client.ask(THREAD, "hi", output=Weather)) as task:
        await turns.talk.say("hi")
        await turns.complete(text)
        with pytest.raises(OutputMissing, match=reason) as raised:
            await asyncio.wait_for(task, 5)
    assert raised.value.status.state == "complete"
    assert "Does the agent have that output?" in str(raised.value)


async def test_what_goes_along_with_a_question_is_sent(turns: Fixture) -> None:
    """As with any other words."""
    files = [Attachment(b"x", "image/png")]
    async with waiting(turns.client.ask(THREAD, "hi", files=files, model="m", settings={"temperature": 0})) as task:
        await turns.talk.say("hi")
        await turns.complete()
        assert await asyncio.wait_for(task, 5) == "done"
    _, sent = turns.calls.last()
    assert sent["options"] == TurnOptions(model="m", settings={"temperature": 0})
    assert [file.media_type for file in sent["files"]] == ["image/png"]


async def test_a_turn_that_is_summed_up_is_waited_for(turns: Fixture) -> None:
    """A compaction in its middle leaves nothing of it for the model, and hides it from nobody else."""
    await turns.talk.say("hi")
    await turns.talk.commit((ToolCallPart(call_id="c", tool="look"),))
    await turns.talk.settle_calls()
    summary = Summary(id="s", thread_id=THREAD, message_id="a1", parts=2, text="So far.")
    assert await turns.store.add_summary(summary)
    for of in ("u1", "a1", None):
        async with waiting(turns.client.wait_settled(THREAD, of)) as task:
            await still_waits(turns, task)
    async with waiting(turns.client.wait_settled(THREAD, "u1")) as task:
        await still_waits(turns, task)
        await turns.complete()
        assert [part.kind for part in (await asyncio.wait_for(task, 5)).parts] == ["tool_call", "tool_result", "text"]
    await turns.talk.say("elsewhere", beside="u1")
    assert (await asyncio.wait_for(turns.client.wait_settled(THREAD, "u1"), 5)).id == "a1", "also where it is hidden"
