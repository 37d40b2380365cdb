"""Cases 60 to 72: in which order a thread is written, and what of it is durable when.

One workflow writes a thread, and the store can update what it has. So a case that is about two writers, or about an
adapter that only appends, is looked at for what it guards: the order of what is written, and that what is read again
is what was shown.
"""

import asyncio
from collections.abc import AsyncGenerator

import pytest

from perdure import ids
from perdure.batch import AnnotateMessage, AppendMessage, Decide, ImportMessages, SetStatus, StoreLateResult
from perdure.errors import UsageError
from perdure.messages import Status
from perdure.testing import Call, Reply
from perdure.watch import View
from tests.cases.conftest import Converse
from tests.cases.conversation import ASK, PAY, Conversation, call_in, results_of, text_of
from tests.cases.recorded_store import RecordedStore, having, nothing, saying
from tests.eventually import eventually

CANCELLED = Status(state="incomplete", reason="cancelled")


@pytest.fixture
async def store(database_url: str) -> AsyncGenerator[RecordedStore]:
    """A store that keeps what was written."""
    store = await RecordedStore.connect(database_url)
    yield store
    await store.close()


async def paused_again(talk: Conversation) -> tuple[str, str]:
    """A turn that waits for approval, and was loaded by another worker; with its call."""
    await talk.client.send(talk.thread, "go", id="m1")
    turn, (call_id,) = await talk.paused()
    await talk.stack.restart_worker()
    return turn, call_id


async def test_case_60_a_pause_is_an_append_and_updates(converse: Converse, store: RecordedStore) -> None:
    """One message of one id, whatever becomes of it; that it waits is durable before anybody can decide."""
    talk = await converse({"go": [PAY, "thanks"]})
    await talk.client.send(talk.thread, "go")
    turn, (call_id,) = await talk.paused()
    assert store.written(turn) == ["append running", "requires_action"]
    await talk.client.approve(talk.thread, call_id)
    await talk.until(turn, "complete")
    assert store.written(turn) == ["append running", "requires_action", "running", "complete"]
    assert store.appended() == ["user", "assistant"]


async def test_case_62_what_follows_a_pause_is_written_in_order(converse: Converse, store: RecordedStore) -> None:
    """The words, the cancelled answer, the follow-up and its reply; and what is read again is what was shown."""
    talk = await converse({"go": [PAY]})
    await talk.client.send(talk.thread, "go")
    turn, _ = await talk.paused()
    shown = View()
    events = talk.client.watch(talk.thread)
    shown.apply(await anext(events))
    before = len(store.batches)
    reply = await talk.say("never mind")
    settling = store.batches[before].operations
    kinds = [one.kind if not isinstance(one, AppendMessage) else f"{one.kind} {one.message.role}" for one in settling]
    assert kinds == ["decide", "commit_results", "set_status", "append_message user", "append_message assistant"]
    while shown.seq < (await store.get_thread(talk.thread)).seq:
        shown.apply(await anext(events))
    await events.aclose()
    await talk.stack.restart_worker()
    assert [message.status for message in shown.messages] == [Status(), CANCELLED, Status(), Status()]
    assert [(m.id, m.status, m.parts) for m in shown.messages] == [(m.id, m.status, m.parts) for m in await talk.path()]
    assert shown.messages[-1].id == reply.id
    assert shown.messages[1].id == turn


async def test_case_63_a_loaded_pause_goes_on_as_the_same_message(converse: Converse, store: RecordedStore) -> None:
    """Another worker has loaded it: it is added no second time."""
    talk = await converse({"go": [PAY, "thanks"]})
    turn, call_id = await paused_again(talk)
    await talk.client.approve(talk.thread, call_id)
    settled = await talk.until(turn, "complete")
    assert store.written(turn).count("append running") == 1
    assert results_of(settled) == [("ok", "paid 3")]
    assert [message.id for message in await talk.path()] == [ids.input_message_id(talk.thread, "m1"), turn]


async def test_case_64_words_over_a_loaded_pause_cancel_it_in_the_store(
    converse: Converse, store: RecordedStore
) -> None:
    """Nobody who reads it later has to guess that it was left: the cancelled status is written with the words."""
    talk = await converse({"go": [PAY]})
    turn, _ = await paused_again(talk)
    await talk.client.send(talk.thread, "by the way", run=False)
    (settling,) = [batch for batch in store.batches if saying("by the way")(batch)]
    assert [one.kind for one in settling.operations] == ["decide", "commit_results", "set_status", "append_message"]
    await talk.stack.restart_worker()
    assert ((await talk.status(turn)).state, (await talk.status(turn)).reason) == ("incomplete", "cancelled")
    assert store.written(turn)[-1] == "incomplete cancelled"


async def test_case_65_words_over_a_loaded_pause_that_goes_on(converse: Converse, store: RecordedStore) -> None:
    """The resumed model call is under way: the turn is cancelled before the words are there, and once."""
    talk = await converse({"go": [PAY, Reply("one two three", chunk_chars=4, hang=True)]})
    turn, call_id = await paused_again(talk)
    await talk.client.approve(talk.thread, call_id)
    await talk.until_streams("one")
    await talk.say("rather not", id="m2")
    assert store.written(turn) == ["append running", "requires_action", "running", "incomplete cancelled"]
    follow_up = ids.input_message_id(talk.thread, "m2")
    order = [
        "settled" if isinstance(one, SetStatus) else "words"
        for one in store.operations
        if (isinstance(one, SetStatus) and (one.message_id, one.status.state) == (turn, "incomplete"))
        or (isinstance(one, AppendMessage) and one.message.id == follow_up)
    ]
    assert order == ["settled", "words"]
    assert text_of(await talk.message(turn)) == "one two three"


async def test_case_66_a_slow_decision_is_written_before_what_follows_from_it(
    converse: Converse, store: RecordedStore
) -> None:
    """The first decision is held up on its way; the second one, with which the turn goes on, does not overtake it."""
    talk = await converse({"go": [Reply(Call("pay", '{"amount": 1}'), Call("pay", '{"amount": 2}')), "thanks"]})
    await talk.client.send(talk.thread, "go")
    turn, (first, second) = await talk.paused(2)
    store.held = having(Decide)
    deciding = asyncio.create_task(talk.client.approve(talk.thread, first))
    await store.reached.wait()
    going_on = asyncio.create_task(talk.client.approve(talk.thread, second))
    assert not deciding.done()
    store.held = nothing
    store.gate.set()
    await asyncio.gather(deciding, going_on)
    await talk.until(turn, "complete")
    decided = [one.call_id for one in store.operations if isinstance(one, Decide)]
    assert decided == [first, second]
    last_decision = max(at for at, one in enumerate(store.operations) if isinstance(one, Decide))
    resumed = [at for at, one in enumerate(store.operations) if isinstance(one, SetStatus)][-1]
    assert last_decision < resumed


async def test_case_67_words_wait_for_those_before_them(converse: Converse, store: RecordedStore) -> None:
    """While the write of the first words is held up nothing of the second is written; then both are, parent first."""
    talk = await converse()
    store.held = saying("one")
    first = asyncio.create_task(talk.client.send(talk.thread, "one", id="m1", run=False))
    await store.reached.wait()
    second = asyncio.create_task(talk.client.send(talk.thread, "two", id="m2", run=False))
    await eventually(lambda: _has_come(talk, "m2"))
    assert store.appended() == []
    store.held = nothing
    store.gate.set()
    await asyncio.gather(first, second)
    one, two = await talk.path()
    assert (text_of(one), text_of(two), two.parent_id) == ("one", "two", one.id)


async def test_case_67_a_write_whose_reply_is_lost_is_written_once(converse: Converse, store: RecordedStore) -> None:
    """Nobody knows whether the first words are stored; they are sent again, and the second come after them."""
    talk = await converse()
    store.losing = saying("one")
    first, second = await asyncio.gather(
        talk.client.send(talk.thread, "one", run=False), talk.client.send(talk.thread, "two", run=False)
    )
    assert {first.disposition, second.disposition} == {"appended"}
    assert await talk.shown() in (["one", "two"], ["two", "one"])
    assert store.appended() == ["user", "user"]


async def test_case_68_words_that_are_not_stored_start_nothing(converse: Converse, store: RecordedStore) -> None:
    """Better than a run whose question is lost: the model is asked when the words are durable, and once."""
    talk = await converse()
    store.failing = saying("go")
    asking = asyncio.create_task(talk.say("go"))
    await eventually(lambda: store.failures >= 4)
    assert talk.model.requests == []
    assert not asking.done()
    store.failing = nothing
    assert text_of(await asking) == "answer 1 to go"
    assert len(talk.model.requests) == 1
    assert store.appended() == ["user", "assistant"]


async def test_case_69_a_follow_up_and_the_end_of_its_pause_are_one(converse: Converse, store: RecordedStore) -> None:
    """As long as the one cannot be written neither is there; a follow-up that is refused leaves the pause alone."""
    talk = await converse({"go": [PAY]})
    await talk.client.send(talk.thread, "go")
    turn, _ = await talk.paused()
    with pytest.raises(UsageError):
        await talk.client.send(talk.thread, "below nothing", parent_id="nowhere")
    assert (await talk.status(turn)).state == "requires_action"
    store.failing = saying("never mind")
    following = asyncio.create_task(talk.say("never mind"))
    await eventually(lambda: store.failures >= 1)
    assert (await talk.status(turn)).state == "requires_action"
    assert call_in(await talk.message(turn)).decision is None
    assert len(await talk.path()) == 2
    store.failing = nothing
    await following
    assert (await talk.status(turn)).reason == "cancelled"
    decision = call_in(await talk.message(turn)).decision
    assert (decision.resolution if decision else None, len(await talk.path())) == ("cancelled", 4)


async def test_case_70_a_late_result_is_one_update_in_place(converse: Converse, store: RecordedStore) -> None:
    """Of a turn that was left, with later turns below it: the message keeps its place, and the rest is as it was."""
    talk = await converse({"go": [ASK]})
    await talk.client.send(talk.thread, "go", id="m1")
    turn, (call_id,) = await talk.paused()
    await talk.say("never mind")
    await talk.say("another thing")
    before, written = await talk.path(), len(store.operations)
    await talk.client.tool_result(talk.thread, call_id, "42", message_id=turn)
    after = await talk.path()
    assert [one.kind for one in store.operations[written:]] == ["store_late_result"]
    assert results_of(after[1]) == [("ok", "42")]
    assert after[1].parent_id == ids.input_message_id(talk.thread, "m1")
    assert [m.with_(seq=0) for m in (*after[:1], *after[2:])] == [m.with_(seq=0) for m in (*before[:1], *before[2:])]
    assert after[1].status == before[1].status


async def test_case_70_what_a_tool_has_returned_is_never_replaced(converse: Converse, store: RecordedStore) -> None:
    """A result for a call of a complete turn comes too late for good."""
    talk = await converse({"go": [ASK, "thanks"]})
    await talk.client.send(talk.thread, "go")
    turn, (call_id,) = await talk.paused()
    await talk.client.tool_result(talk.thread, call_id, "first")
    await talk.until(turn, "complete")
    with pytest.raises(UsageError, match="did not count"):
        await talk.client.tool_result(talk.thread, call_id, "second", message_id=turn)
    assert results_of(await talk.message(turn)) == [("ok", "first")]
    # The store is asked, which alone knows the result that is there; it leaves that, as the turn above shows.
    assert len([one for one in store.operations if isinstance(one, StoreLateResult)]) == 1
    assert len(talk.model.requests) == 2


async def test_case_71_feedback_that_cannot_be_stored_waits(converse: Converse, store: RecordedStore) -> None:
    """Whoever gave it is told once it is stored, or that it cannot be; the conversation goes on meanwhile as before."""
    talk = await converse()
    answer = await talk.say("go")
    with pytest.raises(UsageError):
        await talk.client.feedback(talk.thread, "nowhere", "positive")
    store.failing = having(AnnotateMessage)
    thinking = asyncio.create_task(talk.client.feedback(talk.thread, answer.id, "positive"))
    await eventually(lambda: store.failures >= 1)
    assert (await talk.message(answer.id)).metadata is None
    assert not thinking.done()
    store.failing = nothing
    await thinking
    assert (await talk.message(answer.id)).metadata == {"feedback": {"value": "positive"}}
    assert text_of(await talk.say("and now?")) == "answer 1 to and now?"


async def test_case_72_a_seed_is_written_before_the_first_words(converse: Converse, store: RecordedStore) -> None:
    """A thread that is only begun writes nothing; the words after an import follow its last message, and it is once."""
    talk = await converse()
    await talk.client.start(talk.thread)
    assert await talk.path() == []
    assert store.batches == []
    seed = {
        "headId": "s2",
        "messages": [
            {"parentId": None, "message": {"id": "s1", "role": "user", "content": [{"type": "text", "text": "hello"}]}},
            {
                "parentId": "s1",
                "message": {
                    "id": "s2",
                    "role": "assistant",
                    "content": [{"type": "text", "text": "How can I help?"}],
                    "status": {"type": "complete", "reason": "stop"},
                },
            },
        ],
    }
    await talk.client.import_thread(talk.thread, seed)
    await talk.say("go")
    await talk.client.import_thread(talk.thread, seed)
    order = [type(one) for one in store.operations if isinstance(one, ImportMessages | AppendMessage)]
    assert order[:3] == [ImportMessages, AppendMessage, AppendMessage]
    tree = await talk.client.tree(talk.thread)
    assert len(tree.messages) == 4
    words = next(one for one in tree.messages if text_of(one.message) == "go")
    parent = next(one for one in tree.messages if one.message.id == words.parent_id)
    assert text_of(parent.message) == "How can I help?"


async def _has_come(talk: Conversation, input_id: str) -> bool:
    """Whether the thread's workflow has been given an input."""
    history = await talk.stack.handle(talk.thread).fetch_history()
    return any(f'"{input_id}"'.encode() in event.SerializeToString() for event in history.events)
