"""The activities `spawn` and `stop_children`: what is made, what it costs, and that a repetition makes nothing more."""

import asyncio
from typing import Any, TypeVar

import pytest
from temporalio.exceptions import ApplicationError
from typing_extensions import override

from activities.catalog import ToolCatalog
from activities.spawn import SpawnActivities
from activities.thread_mail import ORIGIN, ThreadMail
from perdure import ids
from perdure.agent import Agent, Agents
from perdure.approval import ApprovalRequest, Decision
from perdure.batch import Decide, SyncBatch, SyncReport
from perdure.builtins import Threads
from perdure.codec import dumps
from perdure.contract import SpawnRequest, StopChildrenRequest
from perdure.errors import StoreUnavailable
from perdure.inputs import Event
from perdure.large_text import MISSING
from perdure.messages import EventPart, ToolCallPart, ToolResultPart
from perdure.records import Path, Subscription, ThreadRecord
from perdure.testing import ScriptedModel
from stores.memory import MemoryStore
from tests.activities.mail import FakeCalls, begin_turn

Answer = TypeVar("Answer")


class WatchedStore(MemoryStore):
    """Counts its calls, and is away at the writes that it is told."""

    def __init__(self) -> None:
        super().__init__()
        self.calls: list[str] = []
        self.away: set[str] = set()

    @override
    async def create_thread(self, thread: ThreadRecord) -> ThreadRecord:
        return await self._lost("create_thread", await super().create_thread(thread))

    @override
    async def set_metadata(self, thread_id: str, values: dict[str, Any]) -> None:
        await super().set_metadata(thread_id, values)
        await self._lost("set_metadata", None)

    @override
    async def append_messages(self, batch: SyncBatch) -> SyncReport:
        return await self._lost("append_messages", await super().append_messages(batch))

    @override
    async def load_history_with_ancestors(
        self, thread_id: str, known: str | None = None, message_id: str | None = None, *, whole: bool = False
    ) -> Path:
        self.calls.append("load_history_with_ancestors")
        return await super().load_history_with_ancestors(thread_id, known, message_id, whole=whole)

    async def _lost(self, name: str, answer: Answer) -> Answer:
        """The write is done; its reply may get lost, once."""
        self.calls.append(name)
        if name in self.away:
            self.away.remove(name)
            raise StoreUnavailable("The database is away.")
        return answer


class Nursery:
    """A root thread with an open call of `spawn_thread`, and the activities."""

    def __init__(self, **options: Any) -> None:
        self.store = WatchedStore()
        self.calls = FakeCalls()
        agents = Agents([Agent("a", model=ScriptedModel([]), toolsets=[Threads(**options)])])
        catalog = ToolCatalog(self.store, agents)
        self.activities = SpawnActivities(self.store, agents, catalog, ThreadMail(self.store, self.calls))

    async def ask(self, arguments: object, thread_id: str = "root") -> SpawnRequest:
        """The thread's model asks for a child; the request that its workflow makes of it."""
        call = ToolCallPart(call_id="call_1", tool="spawn_thread", arguments=dumps(arguments))
        await begin_turn(self.store, thread_id, call)
        return SpawnRequest(thread_id=thread_id, agent="a", call_id="call_1", message_id=f"{thread_id}-a1", parts=0)

    async def children(self, thread_id: str = "root") -> list[str]:
        """Ids of the thread's children."""
        return [child.thread_id for child in await self.store.get_children(thread_id)]


@pytest.fixture
async def nursery() -> Nursery:
    """A root thread."""
    nursery = Nursery()
    await nursery.store.create_thread(ThreadRecord(thread_id="root", agent="a", tenant="acme"))
    return nursery


CHILD = ids.child_thread_id("root", "call_1")
WORDS = "  Look\n at the   moon. "
TASK = {"instructions": WORDS, "child_of": ["root"]}


async def test_a_child_is_made_by_reference(nursery: Nursery) -> None:
    """It hangs on its parent's path where it was asked for; its one message is the call, with its own answer."""
    result = await nursery.activities.spawn(await nursery.ask(TASK))
    assert (result.thread_id, result.error) == (CHILD, None)
    assert CHILD in result.content
    child = await nursery.store.get_thread(CHILD)
    assert (child.kind, child.agent, child.tenant) == ("child", "a", "acme")
    assert (child.parent_thread_id, child.root_thread_id) == ("root", "root")
    assert (child.spawn_message_id, child.spawn_parts) == ("root-a1", 0)
    assert child.title == "Look at the moon."
    assert await nursery.store.get_metadata(CHILD) == {ORIGIN: "call_1"}
    (*_, seed) = (await nursery.store.load_history_with_ancestors(CHILD)).messages
    call, answer = seed.parts
    assert (seed.role, seed.thread_id) == ("event", CHILD)
    assert call == ToolCallPart(call_id="call_1", tool="spawn_thread", arguments=dumps(TASK))
    assert isinstance(answer, ToolResultPart)
    assert WORDS in answer.content
    assert f'["root", "{CHILD}"]' in answer.content


async def test_a_child_costs_the_same_under_any_parent(nursery: Nursery) -> None:
    """Three writes, and the parent's conversation is not read."""
    request = await nursery.ask(TASK)
    nursery.store.calls.clear()
    await nursery.activities.spawn(request)
    assert nursery.store.calls == ["create_thread", "set_metadata", "append_messages"]


@pytest.mark.parametrize("lost", ["create_thread", "set_metadata", "append_messages"])
async def test_a_repetition_makes_no_second_child(lost: str, nursery: Nursery) -> None:
    """Whichever reply got lost: the next try finds what is there, and ends with the same."""
    request = await nursery.ask(TASK)
    nursery.store.away = {lost}
    with pytest.raises((ApplicationError, StoreUnavailable)) as failure:
        await nursery.activities.spawn(request)
    assert not getattr(failure.value, "non_retryable", False)
    result = await nursery.activities.spawn(request)
    assert await nursery.activities.spawn(request) == result
    assert await nursery.children() == [CHILD]
    path = await nursery.store.load_history_with_ancestors(CHILD)
    assert len([message for message in path.messages if message.thread_id == CHILD]) == 1


async def test_a_repetition_leaves_a_child_alone_that_runs_already(nursery: Nursery) -> None:
    """Its version has gone on: the seed is not written over what it has said."""
    request = await nursery.ask(TASK)
    result = await nursery.activities.spawn(request)
    await begin_turn(nursery.store, CHILD)
    before = await nursery.store.load_history_with_ancestors(CHILD)
    assert await nursery.activities.spawn(request) == result
    assert await nursery.store.load_history_with_ancestors(CHILD) == before


@pytest.mark.parametrize(
    ("given", "said"), [(["other"], '["other"]'), ([], "[]"), (None, "[]"), ("root", "[]"), (["root", 1], "[]")]
)
async def test_the_wrong_stack_is_told_beside_the_real_one(given: object, said: str, nursery: Nursery) -> None:
    """Nothing is made."""
    result = await nursery.activities.spawn(await nursery.ask({"instructions": "look", "child_of": given}))
    assert result.error is not None
    assert f"`child_of` was {said}" in result.error
    assert '["root"]' in result.error
    assert result.start is None
    assert await nursery.children() == []


async def test_there_are_only_so_many_levels() -> None:
    """A thread of the last level spawns none."""
    nursery = Nursery(max_depth=1)
    await nursery.store.create_thread(ThreadRecord(thread_id="root", agent="a"))
    await nursery.activities.spawn(await nursery.ask(TASK))
    request = await nursery.ask({"instructions": "deeper", "child_of": ["root", CHILD]}, CHILD)
    result = await nursery.activities.spawn(request)
    assert result.error is not None
    assert "nested only 1 deep" in result.error
    assert await nursery.children(CHILD) == []


async def test_a_call_that_was_given_up_spawns_nothing(nursery: Nursery) -> None:
    """The turn was stopped before the activity ran."""
    request = (await nursery.ask(TASK)).with_(call_id="call_2")
    result = await nursery.activities.spawn(request)
    assert result.error is not None
    assert await nursery.children() == []


async def test_a_call_that_nobody_has_approved_spawns_nothing(nursery: Nursery) -> None:
    """Whoever has it run: what is stored counts. It spawns when it is approved, which is the control."""
    call = ToolCallPart(call_id="call_1", tool="spawn_thread", arguments=dumps(TASK), approval=ApprovalRequest())
    await begin_turn(nursery.store, "root", call)
    request = SpawnRequest(thread_id="root", agent="a", call_id="call_1", message_id="root-a1", parts=0)
    with pytest.raises(ApplicationError, match="before anybody had approved it"):
        await nursery.activities.spawn(request)
    assert await nursery.children() == []
    number = (await nursery.store.get_thread("root")).version + 1
    decide = Decide(call_id="call_1", decision=Decision(approved=True))
    await nursery.store.append_messages(SyncBatch(thread_id="root", number=number, sync_id="d", operations=(decide,)))
    assert (await nursery.activities.spawn(request)).thread_id == CHILD


async def test_an_event_makes_a_child_of_its_own(nursery: Nursery) -> None:
    """It begins with a spawn call that no model made, and then the event, which names its subscription."""
    event = Event(id="e1", call_id="call_9", content="the door opened", associative=False)
    origin = Subscription(call_id="call_9", tool="watch_door", arguments='{"door": 1}')
    request = SpawnRequest(thread_id="root", agent="a", call_id="call_9", event=event, origin=origin)
    result = await nursery.activities.spawn(request)
    assert await nursery.activities.spawn(request) == result
    (child,) = await nursery.store.get_children("root")
    assert (child.kind, child.title) == ("event", "the door opened")
    (seed,) = (await nursery.store.load_history_with_ancestors(child.thread_id)).messages
    call, _, told = seed.parts
    assert isinstance(call, ToolCallPart)
    assert isinstance(told, EventPart)
    assert (told.event_id, told.content, told.origin_call_id) == ("e1", "the door opened", "call_9")
    assert (told.origin_tool, told.origin_arguments) == ("watch_door", '{"door": 1}')


async def test_an_event_whose_words_are_not_stored_is_told_all_the_same(nursery: Nursery) -> None:
    """Its child is made and told that they are missing: an event that is taken in is never lost without a word."""
    event = Event(id="e1", call_id="s1", content="the beginning", blob="00" * 32, associative=False)
    origin = Subscription(call_id="s1", tool="watch")
    await nursery.activities.spawn(SpawnRequest(thread_id="root", agent="a", call_id="s1", event=event, origin=origin))
    (child,) = await nursery.store.get_children("root")
    (seed,) = (await nursery.store.load_history_with_ancestors(child.thread_id)).messages
    told = seed.parts[-1]
    assert isinstance(told, EventPart)
    assert (told.content, told.blob) == (MISSING, None)


async def test_a_child_of_an_agent_without_threads_is_not_told_to_close(nursery: Nursery) -> None:
    """Not every agent that subscribes may spawn. The control is one that may."""
    event = Event(id="e1", call_id="call_9", content="the door opened", associative=False)
    plain = Agents([Agent("a", model=ScriptedModel([]))])
    catalog = ToolCatalog(nursery.store, plain)
    without = SpawnActivities(nursery.store, plain, catalog, ThreadMail(nursery.store, nursery.calls))
    told: list[str] = []
    for name, activities in (("e1", nursery.activities), ("e2", without)):
        request = SpawnRequest(thread_id="root", agent="a", call_id="call_9", event=event.with_(id=name))
        child = (await activities.spawn(request)).thread_id
        (seed,) = (await nursery.store.load_history_with_ancestors(child)).messages
        told += [part.content for part in seed.parts if isinstance(part, ToolResultPart)]
    assert ["close_thread" in text for text in told] == [True, False]


async def test_two_events_make_two_children(nursery: Nursery) -> None:
    """They are handled side by side."""
    for number in range(2):
        event = Event(id=f"e{number}", call_id="call_9", content="again", associative=False)
        await nursery.activities.spawn(SpawnRequest(thread_id="root", agent="a", call_id="call_9", event=event))
    assert len(await nursery.children()) == 2


# -- stop ------------------------------------------------------------------------------------------------------


async def grown(nursery: Nursery, count: int) -> list[str]:
    """So many children that run."""
    names = [f"child {number}" for number in range(count)]
    for name in names:
        record = ThreadRecord(thread_id=name, agent="a", kind="child", parent_thread_id="root")
        await nursery.store.create_thread(record)
    return names


async def test_b11_every_child_that_is_open_is_stopped(nursery: Nursery) -> None:
    """B11: closed ones are left alone, and grandchildren are their parents' to stop."""
    names = await grown(nursery, 3)
    await nursery.store.close_thread(names[0])
    record = ThreadRecord(thread_id="grandchild", agent="a", kind="child", parent_thread_id=names[1])
    await nursery.store.create_thread(record)
    await nursery.activities.stop_children(StopChildrenRequest(thread_id="root", reason="enough"))
    assert sorted(thread for thread, _, _ in nursery.calls.sent) == names[1:]
    assert {signal for _, signal, _ in nursery.calls.sent} == {"interrupt"}


async def test_b11_one_child_is_stopped_by_name(nursery: Nursery) -> None:
    """B11: the one that was made while the others were stopped."""
    names = await grown(nursery, 3)
    await nursery.activities.stop_children(StopChildrenRequest(thread_id="root", child=names[1]))
    assert [thread for thread, _, _ in nursery.calls.sent] == [names[1]]


async def test_b11_hundreds_of_children_are_stopped_a_few_at_a_time(nursery: Nursery) -> None:
    """B11: side by side, so that it is soon over, but not as many at once as there are."""
    names = await grown(nursery, 300)
    at_once, most = 0, 0

    async def note(thread_id: str, signal: str) -> None:
        nonlocal at_once, most
        at_once += 1
        most = max(most, at_once)
        await asyncio.sleep(0)
        at_once -= 1

    nursery.calls.before = note
    await nursery.activities.stop_children(StopChildrenRequest(thread_id="root"))
    assert sorted(thread for thread, _, _ in nursery.calls.sent) == sorted(names)
    assert 1 < most <= 20


async def test_b11_a_child_that_cannot_be_reached_is_tried_again(nursery: Nursery) -> None:
    """B11: the activity fails so that Temporal repeats it, and the repetition reaches everybody."""
    names = await grown(nursery, 3)
    nursery.calls.away = 1
    with pytest.raises(ApplicationError) as failure:
        await nursery.activities.stop_children(StopChildrenRequest(thread_id="root"))
    assert not failure.value.non_retryable
    nursery.calls.sent.clear()
    await nursery.activities.stop_children(StopChildrenRequest(thread_id="root"))
    assert sorted(thread for thread, _, _ in nursery.calls.sent) == names
