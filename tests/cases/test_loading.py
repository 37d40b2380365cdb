"""Cases 76 to 82: words that come while a thread loads, and what becomes of turns that were under way elsewhere."""

import asyncio
from collections.abc import AsyncGenerator
from datetime import timedelta
from typing import Any

import pytest
from temporalio.client import WorkflowExecutionStatus
from typing_extensions import override

from perdure import ids
from perdure.agent import Agent
from perdure.errors import StoreUnavailable, UsageError
from perdure.limits import Limits
from perdure.messages import Status
from perdure.records import Tail
from perdure.testing import Asked, Reply, ScriptedModel
from perdure.watch import View
from tests.cases.conftest import Converse
from tests.cases.conversation import Conversation, call_in, results_of, text_of
from tests.cases.recorded_store import RecordedStore
from tests.eventually import eventually

Json = dict[str, Any]


class LoadedStore(RecordedStore):
    """A store whose threads can also fail to load."""

    loads_fail = 0

    @override
    async def load_tail(self, thread_id: str, processed: int = 200) -> Tail:
        if self.loads_fail:
            self.loads_fail -= 1
            raise StoreUnavailable("The database is away: this one is asked to be.")
        return await super().load_tail(thread_id, processed)


@pytest.fixture
async def store(database_url: str) -> AsyncGenerator[LoadedStore]:
    """A store that can hold up what is read."""
    store = await LoadedStore.connect(database_url)
    yield store
    await store.close()


def sleepy(model: ScriptedModel) -> Agent:
    """An agent whose threads soon hibernate, so that the next words load them."""
    agent = Agent("a", model=model, limits=Limits(idle=timedelta(seconds=0.2)))

    @agent.tool(approval="always")
    async def pay(amount: int = 0) -> str:
        """Pay."""
        return f"paid {amount}"

    return agent


async def asleep(converse: Converse) -> Conversation:
    """A conversation of two answers that hibernates."""
    talk = await converse(agent=sleepy)
    await talk.say("one")
    await talk.say("two")

    async def hibernates() -> bool:
        return (await talk.stack.handle(talk.thread).describe()).status is WorkflowExecutionStatus.COMPLETED

    await eventually(hibernates)
    return talk


def user(message_id: str, parent_id: str | None = None) -> Json:
    """Words in a file."""
    return {"parentId": parent_id, "message": {"id": message_id, "role": "user", "content": f"words of {message_id}"}}


def assistant(message_id: str, parent_id: str | None, status: Json, *content: Json) -> Json:
    """An answer in a file."""
    message = {"id": message_id, "role": "assistant", "status": status, "content": list(content)}
    return {"parentId": parent_id, "message": message}


def call(call_id: str, tool: str = "pay", **fields: Any) -> Json:
    """A call in a file."""
    return {"type": "tool-call", "toolCallId": call_id, "toolName": tool, "args": {}, "argsText": "{}", **fields}


def thanks(asked: Asked) -> str:
    """Answer whatever comes."""
    return "thanks"


PAUSED: Json = {"type": "requires-action", "reason": "tool-calls"}
INTERRUPTED: Json = {"type": "requires-action", "reason": "interrupt"}


async def imported(converse: Converse, *messages: Json, **options: Any) -> Conversation:
    """A new thread with these messages, the last of them shown."""
    talk = await converse(**options)
    await talk.client.start(talk.thread)
    await talk.client.import_thread(talk.thread, {"messages": list(messages)})
    return talk


async def exported(talk: Conversation) -> list[Json]:
    """The messages of the thread's file."""
    messages: list[Json] = (await talk.client.export_thread(talk.thread))["messages"]
    return messages


# -- while a thread loads ------------------------------------------------------------------------------------------


async def test_case_76_words_that_come_while_a_thread_loads_follow_what_is_loaded(
    converse: Converse, store: LoadedStore
) -> None:
    """In the order in which they came; those that name a parent are below that."""
    talk = await asleep(converse)
    loaded = await talk.ids()
    store.holds_loading = True
    first = asyncio.create_task(talk.client.send(talk.thread, "three", id="m3", run=False))
    await store.reached.wait()
    second = asyncio.create_task(talk.client.send(talk.thread, "four", id="m4", run=False))
    await eventually(lambda: _inputs(talk, "m3", "m4"))
    named = asyncio.create_task(talk.client.send(talk.thread, "below", id="m5", run=False, parent_id=loaded[1]))
    await eventually(lambda: _inputs(talk, "m5"))
    assert await talk.ids() == loaded
    store.holds_loading = False
    store.gate.set()
    for sending in (first, second, named):
        assert (await sending).disposition == "appended"
    tree = {one.message.id: one.parent_id for one in (await talk.client.tree(talk.thread)).messages}
    three, four, below = (ids.input_message_id(talk.thread, name) for name in ("m3", "m4", "m5"))
    assert (tree[three], tree[four]) == (loaded[-1], three)
    assert tree[below] == loaded[1]
    assert len(tree) == 7


async def test_case_76_words_outlive_a_load_that_fails(converse: Converse, store: LoadedStore) -> None:
    """Again and again: they are answered below what is loaded in the end, once."""
    talk = await asleep(converse)
    loaded, asked = await talk.ids(), len(talk.model.requests)
    store.loads_fail = 5
    answer = await talk.say("three")
    assert store.loads_fail == 0
    assert text_of(answer) == "answer 1 to three"
    assert (await talk.ids())[:4] == loaded
    assert len(talk.model.requests) == asked + 1


async def test_case_76_words_after_an_import_follow_what_it_brings(converse: Converse, store: LoadedStore) -> None:
    """Both came while the thread was loading, the import first."""
    talk = await asleep(converse)
    store.holds_loading = True
    file = {"messages": [user("u1"), assistant("a1", "u1", {"type": "complete", "reason": "stop"})]}
    importing = asyncio.create_task(talk.client.import_thread(talk.thread, file))
    await store.reached.wait()
    sending = asyncio.create_task(talk.client.send(talk.thread, "three", id="m3", run=False))
    await eventually(lambda: _inputs(talk, "m3"))
    store.holds_loading = False
    store.gate.set()
    head = (await importing).head_id
    await sending
    assert (await talk.path())[-1].parent_id == head
    assert await talk.shown() == ["words of u1", "", "three"]


# -- what was under way --------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("approval", "decided"),
    [({"id": "q"}, ("cancelled", None)), ({"id": "q", "approved": True}, (None, True))],
    ids=["pending", "approved"],
)
async def test_case_77_a_pause_that_was_followed_is_over(
    approval: Json, decided: tuple[str | None, bool | None], converse: Converse
) -> None:
    """A question that nobody has answered is cancelled, an answer stays; nothing runs."""
    talk = await imported(
        converse,
        user("u1"),
        assistant("a1", "u1", PAUSED, call("c1", approval=approval)),
        user("u2", "a1"),
    )
    paused = (await talk.path())[1]
    assert (paused.status.state, paused.status.reason) == ("incomplete", "cancelled")
    decision = call_in(paused).decision
    assert decision is not None
    assert (decision.resolution, decision.approved) == decided
    assert [outcome for outcome, _ in results_of(paused)] == ["cancelled"]
    assert await talk.client.approvals(talk.thread) == ()
    assert await talk.client.open_calls(talk.thread) == ()
    assert text_of(await talk.say("go on")) == "answer 1 to go on"
    assert len(talk.model.requests) == 1


async def test_case_78_a_pause_at_the_end_can_be_decided_about(converse: Converse, store: LoadedStore) -> None:
    """One model call, and the message is the one that was loaded."""
    talk = await imported(
        converse,
        user("u1"),
        assistant("a1", "u1", PAUSED, call("c1", args={"amount": 3}, argsText='{"amount": 3}', approval={"id": "q"})),
        script=thanks,
    )
    turn, (call_id,) = await talk.paused()
    await talk.client.approve(talk.thread, call_id)
    settled = await talk.until(turn, "complete")
    assert results_of(settled) == [("ok", "paid 3")]
    assert text_of(settled) == "thanks"
    assert len(talk.model.requests) == 1
    assert store.appended() == []
    assert len(await talk.path()) == 2


async def test_case_78_an_approval_that_was_given_runs_its_call(converse: Converse) -> None:
    """As it would have where the file was written: once."""
    approved = call("c1", args={"amount": 3}, argsText='{"amount": 3}', approval={"id": "q", "approved": True})
    talk = await imported(converse, user("u1"), assistant("a1", "u1", PAUSED, approved), script=thanks)
    settled = await talk.until((await talk.ids())[-1], "complete")
    assert results_of(settled) == [("ok", "paid 3")]
    assert len(talk.model.requests) == 1


async def test_case_79_an_interrupt_without_anything_to_act_on_is_complete(converse: Converse) -> None:
    """Nobody could ever answer it; and so it is exported again."""
    done = assistant("a1", "u1", INTERRUPTED, {"type": "text", "text": "hello"})
    talk = await imported(converse, user("u1"), done)
    assert (await talk.path())[-1].status == Status(reason="unknown")
    again = await exported(talk)
    assert again[-1]["message"]["status"] == {"type": "complete", "reason": "unknown"}


async def test_case_79_an_interrupt_with_a_payload_is_kept(converse: Converse) -> None:
    """Over export and import too; its result answers it, and the turn goes on."""
    payload = {"type": "human", "payload": {"question": "which?"}}
    stopped = assistant("a1", "u1", INTERRUPTED, call("c1", "ask", interrupt=payload))
    talk = await imported(converse, user("u1"), stopped, script=thanks)
    first = await exported(talk)
    assert first[-1]["message"]["status"] == INTERRUPTED
    assert first[-1]["message"]["content"][0]["interrupt"] == payload
    await talk.client.import_thread(talk.thread, await talk.client.export_thread(talk.thread))
    assert await exported(talk) == first
    shown = (await talk.path())[-1]
    await talk.client.tool_result(talk.thread, call_in(shown).call_id, "that one")
    settled = await talk.until(shown.id, "complete")
    assert results_of(settled) == [("ok", "that one")]
    assert text_of(settled) == "thanks"


async def test_case_80_orphans_and_a_missing_head(converse: Converse) -> None:
    """The rest is kept, the last leaf is shown, and whoever imports is told what was left out."""
    talk = await converse()
    await talk.client.start(talk.thread)
    file = {
        "headId": "gone",
        "messages": [user("u1"), user("u2", "u1"), user("u3", "u1"), user("o1", "nowhere"), user("o2", "o1")],
    }
    result = await talk.client.import_thread(talk.thread, file)
    assert await talk.shown() == ["words of u1", "words of u3"]
    assert len((await talk.client.tree(talk.thread)).messages) == 3
    warned = " ".join(result.warnings)
    assert "o1" in warned
    assert "o2" in warned
    assert text_of(await talk.say("go on")) == "answer 1 to go on"
    empty = {"messages": [user("o1", "nowhere")]}
    with pytest.raises(UsageError):
        await talk.client.import_thread(talk.thread, empty)


async def test_case_81_a_page_that_is_loaded_again_goes_on_with_the_run(converse: Converse) -> None:
    """The answer streams under the stored head whoever watches; who comes back gets the rest, and nothing twice."""
    talk = await converse({"go": [Reply("one two three four five", chunk_chars=4, delay_s=0.15)]})
    await talk.client.send(talk.thread, "go")
    await talk.until_streams("one")
    page = View()
    watching = talk.client.watch(talk.thread)
    page.apply(await anext(watching))
    await watching.aclose()
    assert page.running
    before = page.messages[-1].id
    async for event in talk.client.watch(talk.thread, after=page.seq):
        page.apply(event)
        if not page.running:
            break
    assert page.messages[-1].id == before
    assert text_of(page.messages[-1]) == "one two three four five"
    assert [(m.id, m.parts, m.status) for m in page.messages] == [(m.id, m.parts, m.status) for m in await talk.path()]
    assert len(talk.model.requests) == 1


@pytest.mark.parametrize("moment", ["load", "run", "delete"])
async def test_case_82_threads_do_not_meet(moment: str, converse: Converse, store: LoadedStore) -> None:
    """A page that leaves one thread for another in the middle of something: each has what is its own, and goes on."""
    if moment == "load":
        talk = await asleep(converse)
        store.holds_loading = True
    else:
        talk = await converse({"mine": [Reply("x" * 40, chunk_chars=4, delay_s=0.1)]})
        await talk.client.start(talk.thread)
    if moment == "delete":
        await talk.say("mine")
        doing = asyncio.create_task(_delete(talk, (await talk.ids())[0]))
    else:
        doing = asyncio.create_task(_send(talk, "mine"))
    if moment == "load":
        await store.reached.wait()
    other = f"{talk.thread}-other"
    elsewhere = asyncio.create_task(talk.client.ask(other, "theirs"))
    store.holds_loading = False
    store.gate.set()
    await doing
    assert await elsewhere == "answer 1 to theirs"
    await talk.client.wait_settled(talk.thread)
    assert [text_of(message) for message in await talk.client.history(other)] == ["theirs", "answer 1 to theirs"]
    assert "theirs" not in " ".join(await talk.shown())


async def _send(talk: Conversation, text: str) -> None:
    await talk.client.send(talk.thread, text)


async def _delete(talk: Conversation, message_id: str) -> None:
    await talk.client.delete_message(talk.thread, message_id)


async def _inputs(talk: Conversation, *input_ids: str) -> bool:
    """Whether the thread's workflow has been given these inputs."""
    history = await talk.stack.handle(talk.thread).fetch_history()
    events = b"".join(event.SerializeToString() for event in history.events)
    return all(f'"{input_id}"'.encode() in events for input_id in input_ids)
